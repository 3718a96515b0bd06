"""Gates on rounds of DP-FedAvg: what one trajectory's local training can add, and what is charged.

Those of `tests.gates.gates` that take any update run on these rounds too.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.data.shards import EncodedShard
from distributed_privrl.rounds.checkpoint import CheckpointState, save_checkpoint
from distributed_privrl.rounds.dynamics_update import DynamicsUpdate, TransitionColumns
from distributed_privrl.rounds.ensemble_clipping import ClipStrategy
from distributed_privrl.rounds.federated import FederatedConfig
from distributed_privrl.rounds.worker import ShardSource
from tests.gates.bounds import assert_dispersion, assert_z
from tests.gates.norms import TOLERANCE, assert_within, clipped_sum
from tests.gates.system import CLIP_NORM, GateRun, System, observe
from tests.rounds.harness import RUN_ID

STRATEGIES: tuple[ClipStrategy, ...] = ("concatenated", "flat", "per_layer")
UPDATE = DynamicsUpdate(
    columns=TransitionColumns(inputs=(0, 1), targets=(3, 2)),
    members=4,
    hidden=(24,),
    config=FederatedConfig(batch_size=4, epochs=2, learning_rate=0.05),
    clip_norm=CLIP_NORM,
)
CANARIES: dict[str, tuple[int, float]] = {
    "short and large": (1, 30.0),
    "long and large": (11, 30.0),
    "huge": (7, 1e6),
    "overflowing": (9, 3e38),
    "denormal": (5, 1e-42),
    "nan": (6, np.nan),
    "infinite": (6, np.inf),
}
CLIPPED = {"batch": ("short and large", "long and large"), "end": ("short and large",)}
"""Without a clip between batches the long one diverges, to what is not finite and so null."""
NULL = ("nan", "infinite")


@dataclass(frozen=True, kw_only=True)
class FederatedRun(GateRun):
    """A run whose local update trains a dynamics ensemble on all rows of a unit."""

    update: Any = UPDATE
    all_rows: bool = True

    def open(self) -> None:
        initial = self.folder / "initial.safetensors"
        if not initial.exists():
            ensemble = self.update.ensemble(torch.Generator().manual_seed(0))
            vector = torch.cat([p.detach().reshape(-1) for p in ensemble.parameters()])
            state = CheckpointState(run_id=RUN_ID, round_index=0, stage="pretraining")
            save_checkpoint(initial, {"parameters": vector}, state)
        super().open()


@dataclass(frozen=True, kw_only=True)
class ListedTrajectories:
    """Units that hold the rows of one trajectory each.

    Args:
        trajectories: of all units, each ``(K, D)``.
        index: of the shard.
        count: number of shards.
    """

    trajectories: list[NDArray[np.float32]] = field(repr=False)
    index: int = 0
    count: int = 1

    def __call__(self) -> EncodedShard:
        mine = range(self.index, len(self.trajectories), self.count)
        own = [self.trajectories[unit] for unit in mine]
        rows = np.concatenate([np.zeros((0, 5), np.float32), *own])
        return EncodedShard(
            rows=rows.astype(np.float32),
            valid=np.ones(len(rows), bool),
            unit_ids=np.array(mine, np.uint64),
            offsets=np.cumsum([0, *map(len, own)]),
        )


@dataclass(frozen=True)
class FederatedSystem(System):
    """Makes such runs."""

    def run(self, **settings: Any) -> FederatedRun:
        folder = self.folder / f"run-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        return FederatedRun(folder=folder, **settings)

    def trajectories(
        self, trajectories: list[NDArray[np.float32]], count: int
    ) -> tuple[ShardSource, ...]:
        """Return ``count`` shards of units with a trajectory each."""
        return tuple(
            ListedTrajectories(trajectories=trajectories, index=index, count=count)
            for index in range(count)
        )


def gate_trajectory_canaries(system: FederatedSystem) -> None:
    """Whatever a trajectory holds and however it is clipped, it moves the sum by C at most."""
    generator = np.random.default_rng(4)
    others = [
        (0.3 * generator.normal(size=(length, 5))).astype(np.float32)
        for length in generator.integers(1, 12, 10)
    ]
    for strategy in STRATEGIES:
        for projection in ("batch", "end"):
            config = replace(UPDATE.config, strategy=strategy, projection=projection)
            update: Any = replace(UPDATE, config=config)
            without = clipped_sum(system, update, system.trajectories(others, 2))
            for name, (length, size) in CANARIES.items():
                canary = (size * generator.uniform(0.5, 1, size=(length, 5))).astype(np.float32)
                sources = system.trajectories([*others[:5], canary, *others[5:]], 2)
                # From even to odd, later units change the worker, which changes no sum.
                total = clipped_sum(system, update, sources)
                what = f"a {name} trajectory ({strategy}, {projection})"
                moved = assert_within(total - without, what)
                assert name not in CLIPPED[projection] or moved > 0.999, (
                    f"{what} is clipped to {moved:.3f} C"
                )
                assert name not in NULL or moved < TOLERANCE, f"{what} is not null"


def gate_federated_denominator(system: FederatedSystem) -> None:
    """The sum grows with who took part, and is divided by q x declared units."""
    units, declared, q, rounds = 100, 150, 0.3, 40
    same = [np.full((3, 5), 20.0, np.float32)] * units
    run = system.run(
        workers=2,
        sources=system.trajectories(same, 2),
        declared_units=declared,
        sampling_probability=q,
        noise_multiplier=0.05,
        rounds=rounds,
        block=rounds,
    )
    seen = observe(run)
    sizes = np.linalg.norm(np.stack(seen.sums), axis=1) / CLIP_NORM
    assert_z((sizes.mean() - q * units) / np.sqrt(q * (1 - q) * units / rounds), "batch size")
    squares = float((sizes - q * units) @ (sizes - q * units)) / (q * (1 - q) * units)
    assert_dispersion(squares, rounds, "variance of the batch size in the sums")
    np.testing.assert_allclose(np.stack(seen.steps), np.stack(seen.noisy), rtol=1e-5, atol=1e-5)
