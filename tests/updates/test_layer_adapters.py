"""Layers of a language model in book-keeping: each unit's gradient is that of plain autograd."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.noise import lattice_granularity
from distributed_privrl.updates import book_keeping, layer_adapters, layer_calls
from distributed_privrl.updates.book_keeping import BookKeeping
from distributed_privrl.updates.gradient import GradientLocalUpdate, SingleGradients
from distributed_privrl.updates.layer_adapters import (
    Conv1DAdapter,
    EmbeddingAdapter,
    LayerNormAdapter,
)
from distributed_privrl.updates.local_update import UnitBatch
from tests.updates.tokens import clipped

WORDS, LENGTH = 64, 12
Plant = Callable[[pytest.MonkeyPatch], None]


class Tied(nn.Module):
    """Embeddings, norms and linear layers of pure torch; the head is the first embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8, padding_idx=3)
        self.places = nn.Embedding(LENGTH + 4, 8)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        self.last = nn.LayerNorm(8, bias=False)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).expand(tokens.shape)
        hidden = self.words(tokens) + self.places(places)
        hidden = hidden + torch.tanh(self.mix(self.norm(hidden))).cumsum(dim=1)
        return self.head(self.last(hidden))


class NextTokenLoss:
    """Of rows of tokens, from 1; zeros are padding and count for nothing."""

    draw_count = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        tokens, counted = (rows.long() - 1).clamp(min=0), rows[:, 1:] > 0
        logits = module(tokens)[:, :-1].transpose(1, 2)
        losses = nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none")
        return (losses * counted).sum(dim=1)


def gpt2() -> nn.Module:
    """Return a GPT-2 of two layers, 32 wide, of 64 words."""
    transformers = pytest.importorskip("transformers", reason="extra text is not installed")
    from distributed_privrl.methods.dprft.tokens import NextTokens

    sizes = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH + 4, n_embd=32, n_layer=2, n_head=2
    )
    return NextTokens(transformers.GPT2LMHeadModel(sizes))


def network_of(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return a network whose weights, norms' and biases' included, are drawn."""
    generator = torch.Generator().manual_seed(0)
    network = build()
    for parameter in network.parameters():
        with torch.no_grad():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network.to(dtype)


def texts(copies: int, units: int = 5) -> UnitBatch:
    """Return units of 1 to ``copies`` rows: tokens that repeat, and padding behind them."""
    generator = np.random.default_rng(1)
    rows = generator.integers(1, WORDS + 1, size=(units, copies, LENGTH))
    rows[:, :, 1::3] = rows[:, :, :1]  # one token again and again
    rows[:, :, 2] = 4  # the one that the embedding pads with
    for row in rows.reshape(-1, LENGTH):
        row[generator.integers(4, LENGTH + 1) :] = 0
    return UnitBatch(
        rows=rows.astype(np.float32),
        valid=np.ones((units, copies), bool),
        draws=np.zeros((units, copies, 0)),
        counts=generator.integers(1, copies + 1, size=units),
    )


def parameters_of(network: nn.Module) -> NDArray[np.floating[Any]]:
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy().copy()


def unit_vectors(network: nn.Module, batch: UnitBatch) -> NDArray[np.float64]:
    """Return each unit's mean gradient ``(U, P)``, row after row by plain autograd."""
    found = []
    for unit, count in enumerate(batch.row_counts):
        rows = [torch.from_numpy(batch.rows[unit, k : k + 1]).double() for k in range(count)]
        losses = [NextTokenLoss()(network, row, torch.empty(1, 0)).sum() for row in rows]
        gradients = torch.autograd.grad(sum(losses), list(network.parameters()))
        found.append(torch.cat([g.reshape(-1) for g in gradients]).numpy() / count)
    return np.array(found)


def summed(network: nn.Module, batch: UnitBatch, **settings: Any) -> NDArray[np.float64]:
    parameters = parameters_of(network)
    update = GradientLocalUpdate(module=network, row_loss=NextTokenLoss(), **settings)
    assert isinstance(update._gradients, BookKeeping)
    total = update.clipped_sum(parameters, batch).copy()
    update.close()
    return total


def check(build: Callable[[], nn.Module], copies: int, clipping: float | None) -> None:
    """Fail where a unit's gradient or the clipped sum is not that of the reference.

    Args:
        build: makes the network.
        copies: most rows of a unit.
        clipping: clip norm in medians of the units' norms; None: they are not clipped.
    """
    batch = texts(copies)
    vectors = unit_vectors(network_of(build), batch)
    norms = np.linalg.norm(vectors, axis=1)
    expected = vectors.sum(axis=0)
    clip_norm = None if clipping is None else clipping * float(np.median(norms))
    if clip_norm is not None:
        expected = clipped(vectors, clip_norm)
    steps = 0.0 if clip_norm is None else lattice_granularity(clip_norm, vectors.shape[1])
    close = {"rtol": 1e-9, "atol": 1e-9 + len(batch) * steps}
    for path in ("auto", "formed"):
        for rows in (copies, 3 * copies, 1024):
            total = summed(
                network_of(build),
                batch,
                clip_norm=clip_norm,
                per_unit_gradients=path,
                micro_batch_rows=rows,
            )
            np.testing.assert_allclose(total, expected, **close)
    for unit, vector in enumerate(vectors):
        own = batch.part(unit, unit + 1)
        found = summed(network_of(build), own, clip_norm=clip_norm)
        expected = vector if clip_norm is None else clipped(vector[None], clip_norm)
        np.testing.assert_allclose(found, expected, **close)


@pytest.mark.parametrize("build", [Tied, gpt2])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("clipping", [None, 0.2, 1.0])
def test_units_gradients_are_those_of_autograd(
    build: Callable[[], nn.Module], copies: int, clipping: float | None
) -> None:
    check(build, copies, clipping)


def test_the_norm_of_a_tied_weight_is_that_of_the_sum_of_its_uses() -> None:
    batch = texts(1, units=1)
    (vector,) = unit_vectors(network_of(Tied), batch)
    apart = network_of(Tied)
    apart.head.weight = nn.Parameter(apart.words.weight.detach().clone())
    (separate,) = unit_vectors(apart, batch)
    true, wrong = np.linalg.norm(vector), np.linalg.norm(separate)
    assert abs(true - wrong) > 1e-3 * true, "the cross term counts"
    for clip_norm, bound in ((1.001 * true, true), (0.5 * true, 0.5 * true)):
        total = summed(network_of(Tied), batch, clip_norm=clip_norm)
        assert np.linalg.norm(total) == pytest.approx(bound, rel=1e-5)


def _repeats_lost(patch: pytest.MonkeyPatch) -> None:
    def form(self: Any, gradients: Tensor, inputs: Tensor, out: Tensor, *, begin: bool) -> None:
        if begin:
            out.zero_()
        out[torch.arange(len(inputs))[:, None], inputs] += gradients

    patch.setattr(EmbeddingAdapter, "form", form)


def _one_use_of_two(patch: pytest.MonkeyPatch) -> None:
    right = layer_calls.FormedVectors._own
    patch.setattr(layer_calls.FormedVectors, "_own", lambda *a: (right(*a)[0], True))


def _inputs_not_normalised(patch: pytest.MonkeyPatch) -> None:
    def form(self: Any, gradients: Tensor, inputs: Tensor, out: Tensor, *, begin: bool) -> None:
        torch.sum(gradients * inputs, dim=1, out=out)

    patch.setattr(LayerNormAdapter, "form", form)


def _first_row_alone(patch: pytest.MonkeyPatch) -> None:
    right = Conv1DAdapter.form

    def form(self: Any, gradients: Tensor, inputs: Tensor, out: Tensor, *, begin: bool) -> None:
        right(self, gradients[:, :LENGTH], inputs[:, :LENGTH], out, begin=begin)

    patch.setattr(Conv1DAdapter, "form", form)


@pytest.mark.parametrize(
    "plant",
    [_repeats_lost, _one_use_of_two, _inputs_not_normalised, _first_row_alone],
)
def test_a_wrong_adapter_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="Not equal"):
        check(gpt2, 3, 0.5)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_unit_that_is_not_finite_is_null(poison: float) -> None:
    class Poisoned(NextTokenLoss):
        def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
            return super().__call__(module, rows.nan_to_num().clamp(0, WORDS), draws) * rows[:, -1]

    batch = texts(1)
    rows = batch.rows.copy()
    rows[:, :, -1] = 1
    settings = {"row_loss": Poisoned(), "clip_norm": 0.5, "per_unit_gradients": "formed"}
    update = GradientLocalUpdate(module=network_of(Tied), **settings)
    parameters = parameters_of(network_of(Tied))
    whole = replace(batch, rows=rows)
    others = update.clipped_sum(parameters, whole.part(1, 5)).copy()
    rows[0, :, -1] = poison
    assert np.allclose(update.clipped_sum(parameters, whole), others, atol=1e-6)
    assert np.linalg.norm(others) > 0.1


def test_vectors_that_are_formed_lie_on_the_lattice_unit_by_unit() -> None:
    """So that ``sum_slack`` is 0: a sum is that of its units to the last bit."""
    batch = replace(texts(1, units=40), counts=None)
    batch = replace(batch, rows=batch.rows[:, :, :3].copy())  # few tokens: products are cheaper
    network, sums = network_of(Tied, torch.float32), []
    parameters = parameters_of(network)
    update = GradientLocalUpdate(
        module=network,
        row_loss=NextTokenLoss(),
        clip_norm=0.5,
        per_unit_gradients="formed",
        micro_batch_rows=8,
    )
    for block in (batch.part(0, 8), *(batch.part(8 * i, 8 * i + 8) for i in range(1, 5)), batch):
        assert not update._add(block.part(0, 8)), "no unit's vector is left to a product"
        sums.append(update.clipped_sum(parameters, block).copy())
    assert np.array_equal(sum(sums[:-1]), sums[-1])


@pytest.mark.parametrize(
    "layer",
    [
        nn.Embedding(5, 4, max_norm=1.0),
        nn.Embedding(5, 4, scale_grad_by_freq=True),
        nn.LayerNorm((3, 4)),
        nn.RMSNorm(4),
        nn.Conv1d(4, 4, 1),
    ],
)
def test_layers_without_an_adapter_take_another_path(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(4, 4), layer)
    assert layer_adapters.adapter_of(layer) is None
    assert not book_keeping.supports(module)
    update = GradientLocalUpdate(
        module=module, row_loss=NextTokenLoss(), clip_norm=1.0, per_unit_gradients="formed"
    )
    assert isinstance(update._gradients, SingleGradients)
    with pytest.raises(ConfigError, match="adapter for"):
        GradientLocalUpdate(
            module=module,
            row_loss=NextTokenLoss(),
            clip_norm=1.0,
            per_unit_gradients="book_keeping",
        )


def test_a_weight_that_an_unknown_layer_shares_is_left_to_another_path() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert book_keeping.supports(module)

    class Unknown(nn.Linear):
        pass

    other = Unknown(4, 4)
    other.weight = module[0].weight
    module.append(other)
    assert not book_keeping.supports(module)
