"""A private step of PrivORL-j's transformer, one vector a trajectory, against one without privacy.

The private step is the one of a round: clipped sum, noise, division by the public denominator,
fused Adam, moving average. What is compared with it differs in how trajectories' clipped gradients
are made, and keeps the rest.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from torch import Tensor, nn

from benchmarks import harness
from benchmarks.dp_sgd import MECHANISM, OPTIMISER, MovingAverage
from benchmarks.harness import SEED, Alternative, Result, Timing
from distributed_privrl.core.random import Streams
from distributed_privrl.data.fragments import FragmentLayout
from distributed_privrl.models.ddpm import DDPM
from distributed_privrl.models.trajectory_transformer import TrajectoryTransformer
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.rounds.optimiser import ServerOptimiser, as_gradient
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import UnitBatch
from distributed_privrl.updates.parameters import FlatParameters

OBSERVATION, ACTION, HORIZON, TRAJECTORIES = 4, 2, 32, 4  # Maze2D
LAYOUT = FragmentLayout(step_width=2 * OBSERVATION + ACTION + 3, horizon=HORIZON)
FRAGMENTS = (1, 4)

NON_PRIVATE = "non-private, fused Adam"
WITHOUT_NOISE = "clipped, without noise"
PRIVATE = "private"
LOOP = "loop over trajectories, same noise"
OPACUS = "Opacus hooks, same noise"
BOUND = "bound: its linear layers' products alone"


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Width, depth and heads of the transformer."""

    width: int
    depth: int = 6
    heads: int = 4

    def build(self) -> TrajectoryTransformer:
        """Return a fresh network; always the same."""
        return TrajectoryTransformer(
            OBSERVATION,
            ACTION,
            horizon=HORIZON,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            generator=torch.Generator().manual_seed(Streams(SEED).integer("model")),
        )


class FragmentLoss:
    """The diffusion loss of fragments; its draws are the diffusion step and the noise."""

    draw_count = 1 + HORIZON * LAYOUT.step_width

    def __init__(self) -> None:
        self._ddpm = DDPM()

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the losses of rows ``(M, W)``."""
        condition, steps, mask = LAYOUT.split(rows)
        timestep = self._ddpm.training_timestep(draws[:, 0])
        noise = draws[:, 1:].reshape(steps.shape)
        return self._ddpm.loss(module, steps, mask, condition, timestep, noise)


def batch_of(fragments: int) -> UnitBatch:
    """Return full fragments of each trajectory; values do not matter to the time."""
    generator, shape = np.random.default_rng(SEED), (TRAJECTORIES, fragments)
    rows = generator.normal(size=(*shape, LAYOUT.width)).astype(np.float32)
    rows[..., -HORIZON:] = 1
    return UnitBatch(
        rows=rows,
        valid=np.ones(shape, bool),
        draws=generator.normal(size=(*shape, FragmentLoss.draw_count)),
        counts=np.full(TRAJECTORIES, fragments),
    )


def tensors(batch: UnitBatch) -> tuple[Tensor, Tensor]:
    """Return rows and draws of all trajectories."""
    size = batch.valid.size
    rows, draws = batch.rows.reshape(size, -1), batch.draws.reshape(size, -1)
    return torch.from_numpy(rows), torch.from_numpy(draws).float()


class ClippedSum(Protocol):
    """Makes the sum of trajectories' clipped gradients."""

    def clipped_sum(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> NDArray[np.floating]:
        """Return the sum ``(P,)``."""
        ...


def ours(network: nn.Module) -> ClippedSum:
    """Return the package's local update."""
    return GradientLocalUpdate(
        module=network, row_loss=FragmentLoss(), clip_norm=MECHANISM.clip_norm
    )


class TrajectoryLoop:
    """The plain way: a backward pass for each trajectory, float32 norms."""

    def __init__(self, network: nn.Module) -> None:
        self._flat, self._loss = FlatParameters(network), FragmentLoss()
        self._parameters = list(network.parameters())
        self._sum = torch.empty_like(self._flat.vector)
        parts = self._sum.split([p.numel() for p in self._parameters])
        self._sums = [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)]

    def clipped_sum(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> NDArray[np.floating]:
        """Return the sum ``(P,)``."""
        self._flat.load(parameters)
        self._sum.zero_()
        for unit in range(len(batch)):
            rows, draws = tensors(batch.part(unit, unit + 1))
            loss = self._loss(self._flat.module, rows, draws).mean()
            gradients = torch.autograd.grad(loss, self._parameters)
            norm = float(torch.stack(torch._foreach_norm(gradients)).norm())
            torch._foreach_add_(self._sums, gradients, alpha=min(1.0, MECHANISM.clip_norm / norm))
        return self._sum.numpy()


class OpacusHooks:
    """Opacus: a gradient for each fragment, formed in full; mean and norm as its optimiser does."""

    def __init__(self, network: nn.Module) -> None:
        self._flat, self._loss = FlatParameters(network), FragmentLoss()
        self._wrapped = GradSampleModule(network, batch_first=True, loss_reduction="sum")

    def clipped_sum(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> NDArray[np.floating]:
        """Return the sum ``(P,)``."""
        self._flat.load(parameters)
        self._wrapped.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            self._loss(self._wrapped, *tensors(batch)).sum().backward()
        samples: list[Tensor] = [p.grad_sample for p in self._flat.module.parameters()]
        means = [s.view(len(batch), -1, *s.shape[1:]).mean(dim=1).flatten(1) for s in samples]
        norms = torch.stack([mean.norm(dim=1) for mean in means], dim=1).norm(dim=1)
        factors = (MECHANISM.clip_norm / (norms + 1e-6)).clamp(max=1)
        return torch.cat([factors @ mean for mean in means]).numpy()


class PrivateStep:
    """A round's work on one worker and the server, without the messages between them."""

    def __init__(
        self,
        size: ModelSize,
        batch: UnitBatch,
        make: Callable[[nn.Module], ClippedSum],
        source: SecureNoise | None,
    ) -> None:
        self._batch, self._source = batch, source
        network = size.build()
        vector = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
        self._update = make(network)
        self._optimiser = ServerOptimiser(vector, OPTIMISER, total_steps=1)
        self._total = np.empty(vector.numel())
        self.gradient = torch.empty_like(vector)

    def __call__(self) -> None:
        """Take a step."""
        total = self._update.clipped_sum(self._optimiser.vector.numpy(), self._batch)
        if self._source is not None:
            total = MECHANISM.add_noise(total, self._source, round_index=0, out=self._total)
        self._optimiser.step(as_gradient(total, len(self._batch), out=self.gradient))


class NonPrivateStep:
    """Forward, backward, fused Adam, over the whole batch."""

    def __init__(self, size: ModelSize, batch: UnitBatch) -> None:
        self._network, self._loss = size.build(), FragmentLoss()
        self._rows, self._draws = tensors(batch)
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


class MatrixProducts:
    """The products of linear layers that every gradient needs; no attention."""

    def __init__(self, size: ModelSize, batch: UnitBatch) -> None:
        network = size.build()
        self._operands: list[tuple[nn.Linear, Tensor, Tensor]] = []
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(self._record)
        with torch.no_grad():
            FragmentLoss()(network, *tensors(batch))
        for layer, _, _ in self._operands:
            layer._forward_hooks.clear()

    def _record(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        flat = inputs[0].reshape(-1, layer.in_features).clone()
        self._operands.append((layer, flat, output.reshape(-1, layer.out_features).clone()))

    @torch.no_grad()
    def __call__(self) -> None:
        """Multiply."""
        for layer, inputs, gradients in self._operands:
            layer(inputs)
            torch.mm(gradients, layer.weight)
            torch.mm(gradients.t(), inputs)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        models: the networks, by what their ratios' names begin with.
        turns: timed turns of each alternative, for each network and number of fragments.
    """

    models: dict[str, ModelSize]
    turns: dict[str, dict[int, int]]


FULL = Size(
    models={"": ModelSize(width=256), "w64_": ModelSize(width=64)},
    turns={"": {1: 11, 4: 7}, "w64_": {1: 31, 4: 15}},
)
QUICK = Size(models={"": ModelSize(width=16, depth=2, heads=2)}, turns={"": {1: 2, 4: 2}})


def alternatives(size: ModelSize, fragments: int) -> dict[str, Callable[[], None]]:
    """Return the steps that are compared."""
    batch = batch_of(fragments)
    private = partial(PrivateStep, size, batch)
    return {
        NON_PRIVATE: NonPrivateStep(size, batch),
        WITHOUT_NOISE: private(ours, None),
        PRIVATE: private(ours, SecureNoise()),
        LOOP: private(TrajectoryLoop, SecureNoise()),
        OPACUS: private(OpacusHooks, SecureNoise()),
        BOUND: MatrixProducts(size, batch),
    }


def run(quick: bool) -> Result:
    """Measure a step with one and with four fragments a trajectory."""
    size = QUICK if quick else FULL
    cells: list[dict[str, Any]] = []
    ratios: dict[str, float | None] = {}
    parameters = {}
    for prefix, model in size.models.items():
        parameters[model.width] = sum(p.numel() for p in model.build().parameters())
        for fragments in FRAGMENTS:
            steps = alternatives(model, fragments)
            timings = harness.interleave(
                {name: Alternative(run=step) for name, step in steps.items()},
                turns=size.turns[prefix][fragments],
            )
            cells += _cells(model.width, fragments, timings)
            ratios |= _ratios(f"{prefix}f{fragments}", timings)
    notes = (
        f"{TRAJECTORIES} trajectories a step, fragments of {HORIZON} steps ({5 * HORIZON + 6}"
        f" tokens); parameters by width: {parameters}.",
        "All steps keep a moving average of the parameters; ours measures norms in float64.",
    )
    return Result(cells=cells, ratios=ratios, notes=notes, facts={"parameters": parameters})


def _cells(width: int, fragments: int, timings: dict[str, Timing]) -> list[dict[str, Any]]:
    base = timings[NON_PRIVATE].cpu_median
    return [
        {
            "width": width,
            "fragments": fragments,
            "step": name,
            "CPU ms": 1e3 * timing.cpu_median,
            "wall ms": 1e3 * timing.wall_median,
            "of non-private": base / timing.cpu_median,
        }
        for name, timing in timings.items()
    ]


def _ratios(suffix: str, timings: dict[str, Timing]) -> dict[str, float | None]:
    def faster(name: str, than: str) -> float:
        return timings[than].cpu_median / timings[name].cpu_median

    return {
        f"vs_non_private_{suffix}_without_noise": faster(WITHOUT_NOISE, NON_PRIVATE),
        f"vs_non_private_{suffix}": faster(PRIVATE, NON_PRIVATE),
        f"vs_loop_{suffix}": faster(PRIVATE, LOOP),
        f"vs_opacus_{suffix}": faster(PRIVATE, OPACUS),
    }


if __name__ == "__main__":
    harness.main("trajectory_dp", run)
