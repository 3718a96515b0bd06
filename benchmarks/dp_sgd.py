"""A private step of PrivORL-n's denoiser against the same step without privacy.

The private step is the one of a round: clipped sum, noise, division by the public denominator,
fused Adam, moving average. The other sides keep the same moving average. Micro-batches, optimiser
and noise are the defaults of a run.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn

from benchmarks import harness
from benchmarks.harness import SEED, Alternative, Result, Timing
from distributed_privrl.methods.privorl.model_config import DenoiserConfig
from distributed_privrl.methods.privorl.row_model import RowSynthesizer
from distributed_privrl.methods.privorl.update import (
    DiffusionRowLoss,
    DiffusionUpdate,
    build_denoiser,
)
from distributed_privrl.privacy.calibration import SUM_SLACK, PrivateRound
from distributed_privrl.privacy.noise import SecureNoise, lattice_granularity
from distributed_privrl.rounds.optimiser import ServerOptimiser, as_gradient
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.stages.round_plan import RoundsConfig
from distributed_privrl.updates import exact_sums
from distributed_privrl.updates.exact_sums import float32_slack, most_units
from distributed_privrl.updates.local_update import UnitBatch

ROW_WIDTH = 11
PAPER_MODEL = DenoiserConfig(width=1024, depth=6, normalise=False, activation="relu")
QUICK_MODEL = DenoiserConfig(width=64, depth=2, normalise=False, activation="relu")
BATCHES = (128, 1024)
SUMMED_TOGETHER = (16, 32, 64, 128, most_units(1, 1.0))
MECHANISM = PrivateRound(clip_norm=1.0, noise_multiplier=0.8, sampling_probability=1e-3)
OPTIMISER = OptimiserConfig()

NON_PRIVATE = "non-private, fused Adam"
WITHOUT_NOISE = "clipped, without noise"
PRIVATE = "private"
IN_BLOCKS = "private, in 4 blocks"
DRAWN_AHEAD = "private, noise drawn ahead"
GHOST = "Opacus ghost clipping, same noise"
BOUND = "bound: its matrix products alone"


def batch_of(rows: int) -> UnitBatch:
    """Return units of one row each; values do not matter to the time."""
    generator = np.random.default_rng(SEED)
    return UnitBatch(
        rows=generator.normal(size=(rows, 1, ROW_WIDTH)).astype(np.float32),
        valid=np.ones((rows, 1), bool),
        draws=generator.normal(size=(rows, 1, ROW_WIDTH + 1)),
    )


class PrivateStep:
    """A round's work on one worker and the server, without the messages between them."""

    def __init__(
        self,
        model: DenoiserConfig,
        batch: UnitBatch,
        source: SecureNoise | None,
        *,
        blocks: int = 1,
        micro_batch_rows: int = RoundsConfig.ROWS_AT_ONCE,
    ) -> None:
        sizes = tuple(len(batch) // blocks for _ in range(blocks))
        self._batch, self._source = replace(batch, blocks=sizes), source
        self._update = DiffusionUpdate(
            synthesizer=RowSynthesizer(model=model, row_width=ROW_WIDTH),
            seed=SEED,
            clip_norm=MECHANISM.clip_norm,
            micro_batch_rows=micro_batch_rows,
        )()
        self.network = build_denoiser(model, row_width=ROW_WIDTH, seed=SEED)
        vector = torch.cat([p.detach().reshape(-1) for p in self.network.parameters()])
        self._optimiser = ServerOptimiser(vector, OPTIMISER, total_steps=1)
        self._total = np.empty(vector.numel())
        self._gradient = torch.empty_like(vector)

    def __call__(self) -> None:
        """Take a step."""
        total = self._update.clipped_sum(self._optimiser.vector.numpy(), self._batch)
        if self._source is not None:
            total = MECHANISM.add_noise(total, self._source, round_index=0, out=self._total)
        self._optimiser.step(as_gradient(total, len(self._batch), out=self._gradient))


class MovingAverage:
    """The moving average that the private side keeps, for modules."""

    def __init__(self, network: nn.Module) -> None:
        self._parameters = list(network.parameters())
        self._averages = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the parameters."""
        for average, parameter in zip(self._averages, self._parameters, strict=True):
            average.lerp_(parameter, 1 - OPTIMISER.ema_decay)


class NonPrivateStep:
    """Forward, backward, fused Adam, over the whole batch."""

    def __init__(self, model: DenoiserConfig, batch: UnitBatch) -> None:
        self._network = build_denoiser(model, row_width=ROW_WIDTH, seed=SEED)
        self._loss = DiffusionRowLoss(model.diffusion(), ROW_WIDTH)
        self._rows, self._draws = _tensors(batch)
        self._adam = torch.optim.Adam(
            self._network.parameters(), lr=OPTIMISER.learning_rate, fused=True
        )
        self._average = MovingAverage(self._network)

    def __call__(self) -> None:
        """Take a step."""
        self._adam.zero_grad(set_to_none=True)
        torch.autograd.backward(self._loss(self._network, self._rows, self._draws).mean())
        self._adam.step()
        self._average.update()


class LatticeNoiseOptimiser(DPOptimizerFastGradientClipping):  # type: ignore[misc]
    """Opacus' optimiser with the certified noise in place of its own."""

    def use(self, source: SecureNoise) -> None:
        """Draw from ``source``."""
        self._source = source
        self._dimension = sum(parameter.numel() for parameter in self.params)
        self._noisy = [np.empty(parameter.numel()) for parameter in self.params]

    def add_noise(self) -> None:
        """Write the noisy sum to each parameter's gradient."""
        for parameter, noisy in zip(self.params, self._noisy, strict=True):
            self._source.add_gaussian(
                parameter.summed_grad.numpy().reshape(-1),
                standard_deviation=MECHANISM.standard_deviation(self._dimension),
                granularity=lattice_granularity(MECHANISM.clip_norm, self._dimension),
                out=noisy,
            )
            gradient = torch.empty_like(parameter)
            np.copyto(gradient.numpy().reshape(-1), noisy, casting="same_kind")
            parameter.grad = gradient


class RowLosses:
    """Opacus' criterion: the losses of the rows are computed before it."""

    reduction = "mean"

    def __call__(self, losses: Tensor) -> Tensor:
        """Return the losses as they are."""
        return losses


class GhostStep:
    """Opacus ghost clipping: two backward passes over the whole batch, fused Adam."""

    def __init__(self, model: DenoiserConfig, batch: UnitBatch, source: SecureNoise) -> None:
        network = build_denoiser(model, row_width=ROW_WIDTH, seed=SEED)
        self._module = GradSampleModuleFastGradientClipping(
            network, max_grad_norm=MECHANISM.clip_norm, use_ghost_clipping=True, strict=False
        )
        self._optimiser = LatticeNoiseOptimiser(
            torch.optim.Adam(network.parameters(), lr=OPTIMISER.learning_rate, fused=True),
            noise_multiplier=MECHANISM.noise_multiplier,
            max_grad_norm=MECHANISM.clip_norm,
            expected_batch_size=len(batch),
        )
        self._optimiser.use(source)
        self._criterion = DPLossFastGradientClipping(self._module, self._optimiser, RowLosses())
        self._loss = DiffusionRowLoss(model.diffusion(), ROW_WIDTH)
        self._rows, self._draws = _tensors(batch)
        self._average = MovingAverage(network)

    def __call__(self) -> None:
        """Take a step."""
        self._optimiser.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            self._criterion(self._loss(self._module, self._rows, self._draws)).backward()
        self._optimiser.step()
        self._average.update()


class MatrixProducts:
    """The products that every gradient needs: three a layer, two where rows come in."""

    def __init__(self, model: DenoiserConfig, rows: int) -> None:
        network = build_denoiser(model, row_width=ROW_WIDTH, seed=SEED)
        self._layers = []
        first = {id(network.input), id(network.time[1])}
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                outputs, inputs = layer.weight.shape
                operands = torch.ones(rows, inputs), torch.ones(rows, outputs)
                self._layers.append((layer, *operands, id(layer) not in first))

    @torch.no_grad()
    def __call__(self) -> None:
        """Multiply."""
        for layer, inputs, gradients, needs_input_gradient in self._layers:
            layer(inputs)
            if needs_input_gradient:
                torch.mm(gradients, layer.weight)
            torch.mm(gradients.t(), inputs)


def _tensors(batch: UnitBatch) -> tuple[Tensor, Tensor]:
    rows, draws = torch.from_numpy(batch.rows[:, 0]), torch.from_numpy(batch.draws[:, 0])
    return rows, draws.float()


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        model: the network.
        turns: timed turns of each alternative, for each batch.
        runs_a_turn: steps timed together, for each batch.
    """

    model: DenoiserConfig
    turns: dict[int, int]
    runs_a_turn: dict[int, int]


FULL = Size(model=PAPER_MODEL, turns={128: 31, 1024: 21}, runs_a_turn={128: 4, 1024: 1})
QUICK = Size(model=QUICK_MODEL, turns={128: 3, 1024: 3}, runs_a_turn={128: 1, 1024: 1})


def _alternatives(model: DenoiserConfig, rows: int, ahead: SecureNoise) -> dict[str, Alternative]:
    batch = batch_of(rows)
    steps: dict[str, Callable[[], None]] = {
        NON_PRIVATE: NonPrivateStep(model, batch),
        WITHOUT_NOISE: PrivateStep(model, batch, None),
        PRIVATE: PrivateStep(model, batch, SecureNoise()),
        IN_BLOCKS: PrivateStep(model, batch, SecureNoise(), blocks=4),
        DRAWN_AHEAD: PrivateStep(model, batch, ahead),
        GHOST: GhostStep(model, batch, SecureNoise()),
        BOUND: MatrixProducts(model, rows),
    }
    alternatives = {name: Alternative(run=step) for name, step in steps.items()}
    # The thread draws the next vector once a step has ended: its time must not count for others.
    alternatives[DRAWN_AHEAD] = Alternative(run=steps[DRAWN_AHEAD], settle=lambda: time.sleep(0.06))
    return alternatives


def run(quick: bool) -> Result:
    """Measure a step at both batch sizes."""
    size = QUICK if quick else FULL
    network = build_denoiser(size.model, row_width=ROW_WIDTH, seed=SEED)
    dimension = sum(parameter.numel() for parameter in network.parameters())
    cells: list[dict[str, Any]] = []
    ratios: dict[str, float | None] = {}
    for rows in BATCHES:
        ahead = SecureNoise(draw_ahead=dimension)
        timings = harness.interleave(
            _alternatives(size.model, rows, ahead),
            turns=size.turns[rows],
            runs_a_turn=size.runs_a_turn[rows],
        )
        ahead.close()
        cells += _cells(rows, timings)
        ratios |= _ratios(rows, timings)
        cells += _frontier(rows, size, timings[NON_PRIVATE])
    return Result(
        cells=cells, ratios=ratios, notes=_notes(dimension), facts={"parameters": dimension}
    )


def _frontier(rows: int, size: Size, base: Timing) -> list[dict[str, Any]]:
    """Return what float32 sums of fewer units, which need less noise, would cost."""
    step = PrivateStep(size.model, batch_of(rows), SecureNoise())

    def summed(count: int) -> Callable[[], None]:
        def run() -> None:
            with mock.patch.object(exact_sums, "most_units", return_value=count):
                step()

        return run

    counts = [count for count in SUMMED_TOGETHER if count // 2 < rows]
    names = {count: f"float32 sums of {count} units" for count in counts}
    timings = harness.interleave(
        {name: Alternative(run=summed(count)) for count, name in names.items()},
        turns=max(3, size.turns[rows] // 3),
        runs_a_turn=size.runs_a_turn[rows],
    )
    slack = {name: float32_slack(count, 1, 1.0) for count, name in names.items()}
    return [
        {**cell, "extra noise": f"{slack[cell['step']]:.3%}"}
        for cell in _cells(rows, {NON_PRIVATE: base, **timings})
        if cell["step"] in slack
    ]


def _cells(rows: int, timings: dict[str, Timing]) -> list[dict[str, Any]]:
    base = timings[NON_PRIVATE].cpu_median
    return [
        {
            "batch": rows,
            "step": name,
            "CPU ms": 1e3 * timing.cpu_median,
            "wall ms": 1e3 * timing.wall_median,
            "samples per core-second": rows / timing.cpu_median,
            "of non-private": base / timing.cpu_median,
        }
        for name, timing in timings.items()
    ]


def _ratios(rows: int, timings: dict[str, Timing]) -> dict[str, float | None]:
    def faster(name: str, than: str) -> float:
        return timings[than].cpu_median / timings[name].cpu_median

    wall_gain = timings[PRIVATE].wall_median / timings[DRAWN_AHEAD].wall_median
    return {
        f"vs_non_private_{rows}_without_noise": faster(WITHOUT_NOISE, NON_PRIVATE),
        f"vs_non_private_{rows}": faster(PRIVATE, NON_PRIVATE),
        f"vs_non_private_{rows}_in_4_blocks": faster(IN_BLOCKS, NON_PRIVATE),
        f"vs_opacus_ghost_{rows}": faster(PRIVATE, GHOST),
        f"wall_gain_drawn_ahead_{rows}": wall_gain,
    }


def _notes(dimension: int) -> tuple[str, ...]:
    return (
        f"{dimension:,} parameters; micro-batches of {RoundsConfig.ROWS_AT_ONCE} rows;"
        " all steps keep a moving average of the parameters.",
        f"Extra noise: what float32 sums of so many units need; {SUM_SLACK:.1%} is paid whatever"
        " their size. A run has 4 blocks or more unless runtime.blocks says otherwise.",
        "CPU time counts all threads; noise drawn ahead costs as much and is waited for less,"
        " where another core is idle.",
    )


if __name__ == "__main__":
    harness.main("dp_sgd", run)
