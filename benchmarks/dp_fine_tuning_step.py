"""A private step of `dp_fine_tuning` on a small GPT-2, by each way to its units' gradients.

A step is that of a round: clipped sum, noise, division by the public denominator, fused Adam. All
weights are trained: embeddings, norms, Conv1D, and the head that is the input embedding. Steps of a
size take turns, so that ratios hold where times move.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import SEED, Alternative, Result, Timing
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.dprft.tokens import NetworkOf, NextTokenLoss, NextTokens
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.rounds.optimiser import ServerOptimiser, as_gradient
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.stages.round_plan import RoundsConfig
from distributed_privrl.text.language import SmallModelConfig, small_language, trained_tokenizer
from distributed_privrl.text.public_text import excerpts, installed_documents
from distributed_privrl.updates.gradient import GradientUpdate, PerUnitGradients
from distributed_privrl.updates.local_update import UnitBatch

MECHANISM = PrivateRound(
    clip_norm=0.1, noise_multiplier=0.8, sampling_probability=1e-3, sum_slack=0.0
)
OPTIMISER = OptimiserConfig()
OPACUS_ROWS = 8  # at once: it holds each weight's gradient for each row, the tied one's twice

NON_PRIVATE = "non-private, fused Adam"
FORMED = "private, book-keeping"
SINGLE = "private, one after the other"
OPACUS = "private, Opacus"
PATHS: dict[str, tuple[PerUnitGradients, int]] = {
    FORMED: ("formed", RoundsConfig.ROWS_AT_ONCE),
    SINGLE: ("single", RoundsConfig.ROWS_AT_ONCE),
    OPACUS: ("opacus", OPACUS_ROWS),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        model: its sizes.
        tokens: of each document.
    """

    model: SmallModelConfig
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured.

    Args:
        package: whose prose gives the tokenizer.
        sizes: of models and documents.
        documents: of a step.
        turns: of each alternative.
    """

    package: str
    sizes: tuple[Size, ...]
    documents: int
    turns: int


FULL = Scale(
    package="scipy",
    sizes=(
        Size(model=SmallModelConfig(vocabulary=512, width=64, layers=2), tokens=80),
        Size(model=SmallModelConfig(vocabulary=512, width=128, layers=3), tokens=96),
        Size(model=SmallModelConfig(), tokens=96),
    ),
    documents=32,
    turns=9,
)
QUICK = Scale(
    package="gymnasium",
    sizes=(
        Size(
            model=SmallModelConfig(vocabulary=384, context=24, width=16, layers=1, heads=2),
            tokens=16,
        ),
    ),
    documents=4,
    turns=2,
)


def documents_of(size: Size, count: int, vocabulary: int) -> UnitBatch:
    """Return units of one document each; which tokens they have does not matter to the time."""
    rows = np.random.default_rng(SEED).integers(1, vocabulary + 1, (count, 1, size.tokens))
    return UnitBatch(
        rows=rows.astype(np.float32),
        valid=np.ones((count, 1), bool),
        draws=np.zeros((count, 1, 0)),
    )


class PrivateStep:
    """A round's work on one worker and the server, without the messages between them."""

    def __init__(
        self,
        build: NetworkOf,
        start: Tensor,
        batch: UnitBatch,
        per_unit_gradients: PerUnitGradients,
        rows_at_once: int,
    ) -> None:
        self._batch, self._source = batch, SecureNoise()
        self._update = GradientUpdate(
            build=lambda: build().train(),  # Opacus records nothing else; no dropout is drawn
            row_loss=NextTokenLoss(),
            clip_norm=MECHANISM.clip_norm,
            micro_batch_rows=rows_at_once,
            per_unit_gradients=per_unit_gradients,
        )()
        self._optimiser = ServerOptimiser(start.clone(), OPTIMISER, total_steps=1)
        self._total = np.empty(start.numel())
        self._gradient = torch.empty_like(start)

    def clipped_sum(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the step's sum without noise, ``(P,)``."""
        return self._update.clipped_sum(self._optimiser.vector.numpy(), self._batch)

    def __call__(self) -> None:
        """Take a step."""
        total = MECHANISM.add_noise(
            self.clipped_sum(), self._source, round_index=0, out=self._total
        )
        self._optimiser.step(as_gradient(total, len(self._batch), out=self._gradient))


class NonPrivateStep:
    """Forward, backward, fused Adam, over the whole batch."""

    def __init__(self, build: NetworkOf, start: Tensor, batch: UnitBatch) -> None:
        self._network = build()
        torch.nn.utils.vector_to_parameters(start, self._network.parameters())
        self._rows = torch.from_numpy(batch.rows[:, 0])
        self._adam = torch.optim.Adam(
            self._network.parameters(), lr=OPTIMISER.learning_rate, fused=True
        )

    def __call__(self) -> None:
        """Take a step."""
        self._adam.zero_grad(set_to_none=True)
        losses = NextTokenLoss()(self._network, self._rows, torch.empty(len(self._rows), 0))
        torch.autograd.backward(losses.mean())
        self._adam.step()


def steps_of(
    size: Size, package: str, documents: int
) -> tuple[NonPrivateStep, dict[str, PrivateStep], int]:
    """Return a size's steps, those with privacy by name, and how many weights the model has."""
    texts = [one.text for one in excerpts(installed_documents([package]), words=60)]
    language = small_language(
        trained_tokenizer(texts, config=size.model), config=size.model, streams=Streams(SEED)
    )
    build = NetworkOf.of(language, "cpu")
    weights = NextTokens(language.model).parameters()
    start = torch.cat([one.detach().reshape(-1) for one in weights])
    batch = documents_of(size, documents, len(language.tokenizer))
    private = {
        name: PrivateStep(build, start, batch, path, rows) for name, (path, rows) in PATHS.items()
    }
    return NonPrivateStep(build, start, batch), private, start.numel()


def run(quick: bool) -> Result:
    """Measure a step of each size."""
    scale = QUICK if quick else FULL
    cells: list[dict[str, Any]] = []
    ratios: dict[str, float | None] = {}
    for size in scale.sizes:
        bound, private, weights = steps_of(size, scale.package, scale.documents)
        steps: dict[str, Callable[[], object]] = {NON_PRIVATE: bound, **private}
        timings = harness.interleave(
            {name: Alternative(run=step) for name, step in steps.items()}, turns=scale.turns
        )
        name = f"{size.model.layers}x{size.model.width}"
        cells += _cells(size, weights, scale.documents, timings)
        ratios |= {
            f"vs_single_{name}": _faster(timings, SINGLE),
            f"vs_opacus_{name}": _faster(timings, OPACUS),
            f"vs_non_private_{name}": _faster(timings, NON_PRIVATE),
        }
    return Result(
        cells=cells,
        ratios=ratios,
        notes=(
            f"{scale.documents} documents a step, untrained GPT-2s, all weights trained; Opacus has"
            f" {OPACUS_ROWS} documents at once, the non-private step all of them.",
            "Ratios are the CPU time of the other by that of book-keeping: above 1 it is faster.",
        ),
    )


def _faster(timings: dict[str, Timing], than: str) -> float:
    return timings[than].cpu_median / timings[FORMED].cpu_median


def _cells(
    size: Size, weights: int, documents: int, timings: dict[str, Timing]
) -> list[dict[str, Any]]:
    model = size.model
    return [
        {
            "model": f"{model.layers} layers of {model.width}",
            "words": model.vocabulary,
            "weights": weights,
            "tokens": size.tokens,
            "step": name,
            "CPU ms a document": 1e3 * timing.cpu_median / documents,
            "wall ms a document": 1e3 * timing.wall_median / documents,
        }
        for name, timing in timings.items()
    ]


if __name__ == "__main__":
    harness.main("dp_fine_tuning_step", run)
