"""Clipping: one vector a unit, norm <= C over all layers, whatever the unit holds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.methods.privorl.model_config import DenoiserConfig
from distributed_privrl.methods.privorl.update import DiffusionRowLoss, build_denoiser
from distributed_privrl.privacy.noise import lattice_granularity
from distributed_privrl.updates.gradient import GradientLocalUpdate, clip_rows
from distributed_privrl.updates.local_update import UnitBatch
from tests.worlds.toy import ToyLoss, ToyUpdate, batch, initial_parameters

PARAMETERS = initial_parameters()


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("clip_norm", [None, 0.3, 2.0, 1e6])
def test_book_keeping_equals_opacus(copies: int, clip_norm: float | None) -> None:
    units = batch(17, copies)
    ours = ToyUpdate(clip_norm=clip_norm, per_unit_gradients="book_keeping", micro_batch_rows=6)()
    oracle = ToyUpdate(clip_norm=clip_norm, per_unit_gradients="opacus", micro_batch_rows=6)()
    expected = oracle.clipped_sum(PARAMETERS, units)
    assert np.abs(expected).max() > 0.01
    steps = 20 * lattice_granularity(clip_norm or 1.0, len(PARAMETERS))
    np.testing.assert_allclose(ours.clipped_sum(PARAMETERS, units), expected, atol=1e-6 + steps)


@pytest.mark.parametrize("copies", [1, 2])
def test_book_keeping_equals_opacus_on_the_denoiser(copies: int) -> None:
    # Its sum of two embeddings makes autograd share one gradient between two layers.
    model = DenoiserConfig(width=16, depth=2, time_width=8)
    network = build_denoiser(model, row_width=5, seed=0)
    start = torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy().copy()
    generator = np.random.default_rng(1)
    units = UnitBatch(
        rows=generator.normal(size=(23, copies, 5)).astype(np.float32),
        valid=np.ones((23, copies), bool),
        draws=generator.normal(size=(23, copies, 6)),
    )
    sums = [
        GradientLocalUpdate(
            module=build_denoiser(model, row_width=5, seed=0),
            row_loss=DiffusionRowLoss(model.diffusion(), 5),
            clip_norm=0.1,
            per_unit_gradients=method,
        ).clipped_sum(start, units)
        for method in ("book_keeping", "opacus")
    ]
    np.testing.assert_allclose(sums[0], sums[1], atol=2e-6)


def test_without_clipping_it_is_the_plain_gradient() -> None:
    units = batch(9, 2)
    network = ToyUpdate()().module
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    rows = torch.from_numpy(units.rows.reshape(18, 5)).double()
    draws = torch.from_numpy(units.draws.reshape(18, 5))
    (ToyLoss()(network, rows, draws).sum() / 2).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in network.parameters()])
    actual = ToyUpdate(clip_norm=None)().clipped_sum(PARAMETERS, units)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("copies", [1, 4])
@settings(max_examples=25, deadline=None)
@given(exponent=st.floats(-30, 18), seed=st.integers(0, 10**6))
def test_one_unit_never_exceeds_the_clip_norm(
    exponent: float, seed: int, copies: int, dtype: torch.dtype
) -> None:
    unit = batch(1, copies, seed=seed, scale=10**exponent)
    update = ToyUpdate(clip_norm=0.7, dtype=dtype)()
    vector = update.clipped_sum(initial_parameters(dtype), unit).astype(np.float64)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) <= 0.7


@pytest.mark.parametrize("per_unit_gradients", ["book_keeping", "opacus", "single", "formed"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e38, 1e-42])
def test_a_poisoned_unit_is_null_and_leaves_the_others_alone(
    poison: float, per_unit_gradients: str
) -> None:
    update = ToyUpdate(clip_norm=0.5, per_unit_gradients=per_unit_gradients)()
    clean = batch(6, 2)
    others = update.clipped_sum(
        PARAMETERS,
        replace(clean, rows=clean.rows[1:], valid=clean.valid[1:], draws=clean.draws[1:]),
    ).copy()
    rows = clean.rows.copy()
    rows[0, 1, 2] = poison
    poisoned = update.clipped_sum(PARAMETERS, replace(clean, rows=rows))
    assert np.isfinite(poisoned).all()
    assert np.linalg.norm(poisoned - others) <= 0.5 * (1 + 1e-6)
    if not np.isfinite(poison):
        np.testing.assert_allclose(poisoned, others, atol=1e-6)


def test_invalid_rows_contribute_nothing() -> None:
    units = batch(5)
    valid = units.valid.copy()
    valid[[0, 3]] = False
    update = ToyUpdate()()
    actual = update.clipped_sum(PARAMETERS, replace(units, valid=valid)).copy()
    kept = [1, 2, 4]
    expected = update.clipped_sum(
        PARAMETERS,
        replace(units, rows=units.rows[kept], valid=units.valid[kept], draws=units.draws[kept]),
    )
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_cancelling_copies_cannot_smuggle_a_large_rounding_error() -> None:
    # Two copies with opposite gradients of 1e6: their exact sum is small, its float32 sum is not.
    class Loss:
        draw_count = 1

        def __call__(
            self, module: nn.Module, rows: torch.Tensor, draws: torch.Tensor
        ) -> torch.Tensor:
            return module(rows).sum(dim=1) * draws[:, 0]

    update = GradientLocalUpdate(module=nn.Linear(5, 5), row_loss=Loss(), clip_norm=1.0)
    unit = batch(1, 2, seed=1)
    rows = np.repeat(unit.rows[:, :1], 2, axis=1)
    draws = np.array([[[1e6], [-1e6 * (1 + 1e-7)]]])
    vector = update.clipped_sum(
        np.zeros(30, np.float32), replace(unit, rows=rows, draws=draws)
    ).astype(np.float64)
    assert np.linalg.norm(vector) <= 1.0


@pytest.mark.parametrize("micro_batch_rows", [1, 7, 1024])
def test_micro_batches_do_not_change_the_sum(micro_batch_rows: int) -> None:
    units = batch(2500)
    expected = ToyUpdate()().clipped_sum(PARAMETERS, units)
    actual = ToyUpdate(micro_batch_rows=micro_batch_rows)().clipped_sum(PARAMETERS, units)
    step = lattice_granularity(1.0, len(PARAMETERS))
    assert np.abs(actual - expected).max() <= 2500 * step  # each part is rounded by itself
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def test_an_empty_batch_gives_zero() -> None:
    update = ToyUpdate()()
    update.clipped_sum(PARAMETERS, batch(3))
    assert not update.clipped_sum(PARAMETERS, batch(0)).any()


def test_other_modules_take_the_path_of_opacus() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.Linear(4, 5))
    with pytest.raises(ConfigError, match="adapter for"):
        GradientLocalUpdate(
            module=module, row_loss=ToyLoss(), clip_norm=1.0, per_unit_gradients="book_keeping"
        )
    update = GradientLocalUpdate(module=module, row_loss=ToyLoss(), clip_norm=0.2)
    parameters = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy().copy()
    vector = update.clipped_sum(parameters, batch(1, scale=50))
    assert 0.1 < np.linalg.norm(vector) <= 0.2


def test_clip_rows_measures_what_it_wrote() -> None:
    rows = torch.randn(64, 20_000, generator=torch.Generator().manual_seed(1)) * 37
    norms = clip_rows(rows, 1.0).double().norm(dim=1)
    assert float(norms.max()) <= 1.0
    assert float(norms.min()) > 0.999


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm1d(4, affine=False),
        nn.InstanceNorm1d(4, track_running_stats=True),
    ],
)
def test_layers_that_couple_units_are_refused(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(5, 4), layer, nn.Linear(4, 5))
    with pytest.raises(UnsafeError, match="normalises over the batch"):
        GradientLocalUpdate(module=module, row_loss=ToyLoss(), clip_norm=1.0)
