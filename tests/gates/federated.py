"""Gates on rounds of DP-FedAvg: what one trajectory's local training can add, and what is charged.

Those of `tests.gates.gates` that take any update run on these rounds too, over stored trajectories.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.layout import RowCoding, RowLayout
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.shards import EncodedShard, ShardRef, shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.primorl.update import DynamicsUpdate, TransitionColumns
from distributed_privrl.rounds.checkpoint import CheckpointState, save_checkpoint
from distributed_privrl.rounds.worker import ShardSource, StoredShard
from distributed_privrl.updates.federated_config import ClipStrategy, FederatedConfig
from tests.gates import gates
from tests.gates.bounds import assert_dispersion, assert_z
from tests.gates.norms import TOLERANCE, assert_within, clipped_sum, stored_units
from tests.gates.system import CLIP_NORM, GateRun, System, observe
from tests.worlds.toy_run import RUN_ID

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
CODING = RowCoding(next_observation="difference")
ACTIONS = Box(-1.0, 1.0, (1,), np.float32)
LENGTHS = (3, 1, 2)
"""Steps of the trajectories of a table's rows 0, 1, 2, 3 and so on, in turn."""


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
    """

    trajectories: list[NDArray[np.float32]] = field(repr=False)

    def __call__(self, keep: Keep | None = None) -> EncodedShard:
        ids = np.arange(len(self.trajectories), dtype=np.uint64)
        mine = ids if keep is None else ids[keep(ids)]
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
    """Makes such runs; another update than an ensemble's sees all rows of a unit, too."""

    def run(self, **settings: Any) -> GateRun:
        """Return a new run over stored trajectories; by default over sixty of them."""
        if settings.get("sources") is None:
            table = np.random.default_rng(7).normal(size=(60, 5))
            settings["sources"] = self.units(table, settings.get("workers", 1))
        folder = self.folder / f"run-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        if isinstance(settings.get("update", UPDATE), DynamicsUpdate):
            return FederatedRun(folder=folder, **settings)
        return GateRun(folder=folder, all_rows=True, **settings)

    def units(
        self, rows: NDArray[Any], count: int, valid: NDArray[np.bool_] | None = None
    ) -> tuple[ShardSource, ...]:
        """Return shards of stored trajectories whose every step is the row of a table."""
        table = np.array(rows, np.float32)
        table[~(np.ones(len(table), bool) if valid is None else valid)] = np.nan
        repeated = [
            np.repeat(row[None], LENGTHS[i % len(LENGTHS)], axis=0) for i, row in enumerate(table)
        ]
        return self.recorded(repeated, count)

    def recorded(
        self, trajectories: list[NDArray[np.float32]], count: int
    ) -> tuple[ShardSource, ...]:
        """Return ``count`` shards of stored trajectories; observations are what is given."""
        lengths = [len(steps) for steps in trajectories]
        width, total = trajectories[0].shape[1], sum(lengths)
        name = hashlib.sha256(b"".join(map(np.ndarray.tobytes, trajectories))).hexdigest()[:16]
        store, dataset = DatasetStore(self.folder / "datasets"), f"gate/{name}-{width}-v0"
        observations = Box(-np.inf, np.inf, (width,), np.float32)
        if dataset not in store.ids():
            store.write_trajectories(
                dataset,
                Trajectories(
                    observations=np.concatenate(
                        [np.concatenate([steps, steps[-1:]]) for steps in trajectories]
                    ),
                    actions=np.zeros((total, 1)),
                    rewards=np.zeros(total),
                    terminated=np.zeros(total, bool),
                    truncated=np.isin(np.arange(total) + 1, np.cumsum(lengths)),
                    offsets=offsets_of(lengths),
                    unit_ids=np.arange(len(lengths), dtype=np.uint64),
                ),
                observation_space=observations,
                action_space=ACTIONS,
            )
        columns = RowLayout(observations, ACTIONS, CODING).width
        plain = Scaling(offset=np.zeros(columns), scale=np.ones(columns))
        encoder = TransitionEncoder(observations, ACTIONS, plain, CODING)
        (ref,) = shard_refs(store, dataset, count=1, unit="trajectory")
        return (self.stored(ref, encoder),) * count

    def stored(self, ref: ShardRef, encoder: TransitionEncoder) -> ShardSource:
        """Return the source of a stored dataset's shard, coded as a dynamics model needs it."""
        return StoredShard(ref=ref, encoder=replace(encoder, coding=CODING).to_json())

    def listed(
        self, trajectories: list[NDArray[np.float32]], count: int
    ) -> tuple[ShardSource, ...]:
        """Return what ``count`` workers read, in memory, which no encoder has looked at."""
        return (ListedTrajectories(trajectories=trajectories),) * count


class ListedSystem(FederatedSystem):
    """The same without storage: no encoder has looked at the units of a table."""

    def units(
        self, rows: NDArray[Any], count: int, valid: NDArray[np.bool_] | None = None
    ) -> tuple[ShardSource, ...]:
        return System.units(self, rows, count, valid)


def gate_listed_bad_units(system: FederatedSystem) -> None:
    """What is not finite changes nothing that can be seen, also where no encoder left it out."""
    gates.gate_bad_units(ListedSystem(system.folder))


def gate_trajectory_canaries(system: FederatedSystem) -> None:
    """Whatever a trajectory holds and however it is clipped, it moves the sum by C at most.

    As it is stored, and as the local training would meet it if nothing had been left out before.
    """
    _canaries(system, system.listed, "")
    _canaries(system, system.recorded, "stored ")


def _canaries(
    system: FederatedSystem, shards: Callable[..., tuple[ShardSource, ...]], where: str
) -> None:
    generator = np.random.default_rng(4)
    others = [
        (0.3 * generator.normal(size=(length, 5))).astype(np.float32)
        for length in generator.integers(1, 12, 10)
    ]
    for strategy in STRATEGIES:
        for projection in ("batch", "end"):
            config = replace(UPDATE.config, strategy=strategy, projection=projection)
            update: Any = replace(UPDATE, config=config)
            without = clipped_sum(system, update, shards(others, 2))
            for name, (length, size) in CANARIES.items():
                shape = np.random.default_rng(length).uniform(0.5, 1, size=(length, 5))
                canary = (size * shape).astype(np.float32)
                # Later units may change the worker, which changes no sum.
                sources = shards([*others[:5], canary, *others[5:]], 2)
                total = clipped_sum(system, update, sources)
                what = f"a {name} {where}trajectory ({strategy}, {projection})"
                moved = assert_within(total - without, what)
                assert name not in CLIPPED[projection] or moved > 0.999, (
                    f"{what} is clipped to {moved:.3f} C"
                )
                assert name not in NULL or moved < TOLERANCE, f"{what} is not null"


def gate_split_trajectories(system: FederatedSystem) -> None:
    """A unit spread over many trajectories moves the sum by C at most, however it is clipped."""
    observations = Box(-np.inf, np.inf, (2,), np.float32)
    columns = TransitionColumns.of(RowLayout(observations, ACTIONS, CODING))
    null, present = (
        stored_units(system, f"gate/{name}-v0", value)
        for name, value in (("null", np.nan), ("split", 3.0))
    )
    for strategy in STRATEGIES:
        for projection in ("batch", "end"):
            config = replace(UPDATE.config, strategy=strategy, projection=projection)
            update: Any = replace(UPDATE, columns=columns, config=config)
            without, total = (clipped_sum(system, update, units) for units in (null, present))
            what = f"a unit of 4 trajectories ({strategy}, {projection})"
            moved = assert_within(total - without, what)
            assert moved > 0.95, f"{what} is clipped to {moved:.3f} C"


def gate_federated_denominator(system: FederatedSystem) -> None:
    """The sum grows with who took part, and is divided by q x declared units."""
    units, declared, q, rounds = 100, 150, 0.3, 40
    same = [np.full((3, 5), 20.0, np.float32)] * units
    run = system.run(
        workers=2,
        sources=system.recorded(same, 2),
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
