"""A round of DP-FedAvg on a dynamics ensemble against the plain loop over trajectories and members.

A round is local training on each trajectory, one clip of the whole ensemble, the sum, noise once
and the division by the public denominator. What is compared differs in the local training alone;
the plain loop is torch.optim on one small network at a time. The bound is the arithmetic of the
networks' products at the rate of a bare matrix product. ``--scaling`` runs whole rounds on Ray.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks import harness, local_update_scaling
from benchmarks.harness import SEED, Alternative, Result, Timing
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.primorl.update import DynamicsUpdate, TransitionColumns
from distributed_privrl.models.dynamics import gaussian_nll, soft_bounds
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.updates.federated import FederatedUpdate
from distributed_privrl.updates.federated_config import FederatedConfig
from distributed_privrl.updates.local_update import UnitBatch

CLIP_NORM, MATRIX = 0.3, 512
MECHANISM = PrivateRound(clip_norm=CLIP_NORM, noise_multiplier=1.0, sampling_probability=0.02)
LOOP, VMAP = "plain loop, torch.optim", "torch.func, all trajectories in lock-step"
KERNEL, PROJECTED = "compiled kernel", "compiled kernel, clipped after every batch"
BOUND = "bound: the products' arithmetic at the rate of a bare one"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """An ensemble and the trajectories of a round.

    Args:
        inputs: of a state and an action.
        targets: of the state's difference and the reward.
        hidden: widths.
        members: N.
        steps: of a trajectory.
        trajectories: of a round.
    """

    inputs: int
    targets: int
    hidden: tuple[int, ...]
    members: int
    steps: int
    trajectories: int = 30

    @property
    def update(self) -> DynamicsUpdate:
        """The local update, clipped once at the end."""
        first, last = range(self.inputs), range(self.inputs, self.inputs + self.targets)
        return DynamicsUpdate(
            columns=TransitionColumns(inputs=tuple(first), targets=tuple(last)),
            members=self.members,
            hidden=self.hidden,
            config=FederatedConfig(learning_rate=1e-2, weight_decay=1e-4, projection="end"),
            clip_norm=CLIP_NORM,
        )

    @property
    def operations(self) -> int:
        """Additions and multiplications of a trajectory's products.

        Forward, by the weights and by the inputs, of which the first layer needs none.
        """
        widths = (self.inputs, *self.hidden, 2 * self.targets)
        sizes = [i * o for i, o in itertools.pairwise(widths)]
        return 2 * self.members * self.steps * (3 * sum(sizes) - sizes[0])

    def batch(self) -> UnitBatch:
        """Return a round's trajectories."""
        generator = Streams(SEED).numpy("local_update/rows")
        shape = (self.trajectories, self.steps)
        rows = generator.normal(size=(*shape, self.inputs + self.targets)).astype(np.float32)
        return UnitBatch(rows=rows, valid=np.ones(shape, bool), draws=np.zeros((*shape, 0)))

    def parameters(self) -> NDArray[np.float32]:
        """Return the parameters that the round starts from."""
        ensemble = self.update.ensemble(torch.Generator().manual_seed(SEED))
        return nn.utils.parameters_to_vector(ensemble.parameters()).detach().numpy().copy()


FULL = {
    "pendulum": Workload(inputs=4, targets=4, hidden=(64, 64), members=3, steps=200),
    "cartpole": Workload(inputs=6, targets=6, hidden=(128, 128), members=5, steps=1000),
}
QUICK = {name: replace(load, steps=32, trajectories=2) for name, load in FULL.items()}


class PlainLoop:
    """Local training of one member on one trajectory at a time.

    Args:
        workload: its networks and settings.
    """

    draw_count = 0

    def __init__(self, workload: Workload) -> None:
        self._update = workload.update
        ensemble = self._update.ensemble(torch.Generator())
        self._shapes = [tuple(p.shape[1:]) for p in ensemble.parameters()]
        layers = [nn.Linear(i, o) for i, o in itertools.pairwise(ensemble.widths)]
        self._network = nn.Sequential(*itertools.chain(*((m, nn.SiLU()) for m in layers)))[:-1]
        self._members = ensemble.members

    def differences(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> Iterator[NDArray[np.floating]]:
        """Yield start - end of each trajectory; see `LocalTrainer.differences`."""
        starts = self._split(torch.from_numpy(parameters))
        for rows in torch.from_numpy(batch.rows):
            ends = [self._train(start, rows) for start in starts]
            moved = [
                torch.stack([start[i] - end[i] for start, end in zip(starts, ends, strict=True)])
                for i in range(len(self._shapes))
            ]
            yield torch.cat([values.reshape(-1) for values in moved])[None].numpy()

    def _split(self, vector: torch.Tensor) -> list[list[torch.Tensor]]:
        """Return each member's tensors."""
        sizes = [self._members * int(np.prod(shape)) for shape in self._shapes]
        stacked = [
            own.view(self._members, *shape)
            for own, shape in zip(vector.split(sizes), self._shapes, strict=True)
        ]
        return [[values[member] for values in stacked] for member in range(self._members)]

    def _train(self, start: list[torch.Tensor], rows: torch.Tensor) -> list[torch.Tensor]:
        config, columns = self._update.config, self._update.columns
        network, count = self._network, len(columns.targets)
        with torch.no_grad():
            for parameter, values in zip(network.parameters(), start, strict=True):
                parameter.copy_(values.t())
        optimiser = torch.optim.SGD(
            network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        inputs, targets = rows.split([len(columns.inputs), count], dim=1)
        for own, wanted in zip(
            inputs.split(config.batch_size), targets.split(config.batch_size), strict=True
        ):
            mean, raw = network(own).chunk(2, dim=1)
            bent = soft_bounds(raw, *self._update.log_variance_range)
            optimiser.zero_grad()
            gaussian_nll(mean, bent, wanted).mean().backward()
            optimiser.step()
        return [parameter.detach().clone().t() for parameter in network.parameters()]


class Round:
    """One round, noise and all.

    Args:
        workload: what is trained on.
        update: sums the clipped vectors.
    """

    def __init__(self, workload: Workload, update: FederatedUpdate) -> None:
        self._update, self._batch = update, workload.batch()
        self._parameters, self._noise = workload.parameters(), SecureNoise()

    def total(self) -> NDArray[np.floating]:
        """Return the clipped sum."""
        return self._update.clipped_sum(self._parameters, self._batch)

    def __call__(self) -> None:
        """Run the round."""
        noisy = MECHANISM.add_noise(self.total(), self._noise, round_index=0)
        noisy /= len(self._batch)


def rounds(workload: Workload) -> dict[str, Round]:
    """Return the rounds that are compared."""
    update = workload.update
    projected = replace(update, config=replace(update.config, projection="batch"))
    loop = replace(update(), trainer=PlainLoop(workload))
    functional = replace(update, engine="functional")()
    updates = {LOOP: loop, VMAP: functional, KERNEL: update(), PROJECTED: projected()}
    return {name: Round(workload, made) for name, made in updates.items()}


def run(quick: bool) -> Result:
    """Compare the rounds of both workloads."""
    cells: list[dict[str, Any]] = []
    ratios: dict[str, float | None] = {}
    notes = []
    for name, workload in (QUICK if quick else FULL).items():
        alternatives: dict[str, Callable[[], object]] = dict(rounds(workload))
        left, right = torch.randn(2, MATRIX, MATRIX, generator=torch.Generator().manual_seed(SEED))
        out = torch.empty_like(left)
        alternatives[BOUND] = lambda a=left, b=right, c=out: torch.mm(a, b, out=c)
        timings = harness.interleave(
            {what: Alternative(run=go) for what, go in alternatives.items()},
            turns=2 if quick else 5,
        )
        rate = 2 * MATRIX**3 / timings[BOUND].cpu_median
        seconds = _per_trajectory(timings, workload, rate)
        cells += [
            {
                "workload": name,
                "local training": what,
                "trajectories a CPU second": 1 / value,
                "of the loop": seconds[LOOP] / value,
                "of the bound": seconds[BOUND] / value,
            }
            for what, value in seconds.items()
        ]
        ratios[f"{name}_vs_loop"] = seconds[LOOP] / seconds[KERNEL]
        ratios[f"{name}_projected_vs_loop"] = seconds[LOOP] / seconds[PROJECTED]
        ratios[f"{name}_of_flop_bound"] = seconds[BOUND] / seconds[KERNEL]
        notes.append(
            f"{name}: {workload.members} members {workload.update.hidden}, {workload.steps} steps,"
            f" batches of {workload.update.config.batch_size}, {workload.trajectories} trajectories"
            f" a round, {workload.operations / 1e6:.1f} MFLOP each; a product of {MATRIX} x"
            f" {MATRIX} matrices runs at {rate / 1e9:.1f} GFLOP/s."
        )
    return Result(cells=cells, ratios=ratios, notes=notes)


def _per_trajectory(
    timings: dict[str, Timing], workload: Workload, rate: float
) -> dict[str, float]:
    """Return CPU seconds a trajectory, the bound's from its arithmetic."""
    own = {
        name: timing.cpu_median / workload.trajectories
        for name, timing in timings.items()
        if name != BOUND
    }
    return {**own, BOUND: workload.operations / rate}


def main(arguments: list[str]) -> Result:
    """Run from the command line; ``--scaling`` measures workers instead."""
    if "--scaling" in arguments:
        rest = [argument for argument in arguments if argument != "--scaling"]
        return harness.main("local_update_scaling", local_update_scaling.run, rest)
    return harness.main("local_update", run, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
