"""Gates on units of many fragments: stored episodes, cut by the package, all of a unit's rows.

`TrajectorySystem` puts every other gate on that path. What is here belongs to it alone.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder, FragmentLayout
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.shards import ShardRef, shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.privorl.binning import row_bins
from distributed_privrl.methods.privorl.fragment_network import FragmentSynthesizer
from distributed_privrl.methods.privorl.model_config import (
    TokenModelConfig,
    TransformerConfig,
    UNetConfig,
)
from distributed_privrl.methods.privorl.token_model import TokenSynthesizer
from distributed_privrl.methods.privorl.trajectories import step_bins
from distributed_privrl.methods.privorl.update import DiffusionUpdate
from distributed_privrl.rounds.worker import LocalUpdateWorker, ShardSource, StoredFragments
from tests.gates.norms import CLIPPED, NULL, PATHS, TOLERANCE, assert_within, clipped_sum
from tests.gates.system import (
    CLIP_NORM,
    FitLoss,
    GateRun,
    GateUpdate,
    System,
    coordinate_update,
)

HORIZON = 2
FRAGMENTS = (10, 1, 3)
"""Fragments of the units of a table: those of row 0, 1, 2, 0, 1 and so on."""
SCALE = 1024.0  # a power of two; standardised values above 1000 are improper
UNIT = "person"
ACTIONS = Box(-1.0, 1.0, (1,), np.float32)


@dataclass(frozen=True, kw_only=True)
class ShownFragments(StoredFragments):
    """A shard of fragments whose first step's first ``columns`` are what a table's row would be."""

    columns: int


@dataclass(frozen=True)
class OfFirstStep:
    """A table's loss, on what the first steps of fragments show, in raw units."""

    loss: Any
    encoder: str
    columns: int

    @property
    def draw_count(self) -> int:
        return int(self.loss.draw_count)

    @cached_property
    def _read(self) -> tuple[FragmentLayout, Tensor]:
        encoder = FragmentEncoder.from_json(self.encoder)
        return encoder.layout, torch.from_numpy(encoder.transitions.scaling.scale[: self.columns])

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        layout, scale = self._read
        shown = layout.split(rows)[1][:, 0, : self.columns] * scale.to(rows)
        result: Tensor = self.loss(module, shown, draws)
        return result


def episodes_of(rows: Sequence[NDArray[np.float32]]) -> Trajectories:
    """Return an episode for each table ``(F, D)``: its rows, each for a whole fragment."""
    lengths = np.array([HORIZON * len(table) for table in rows])
    steps = int(lengths.sum())
    seen = [np.repeat(table, HORIZON, axis=0) for table in rows]
    ends = np.zeros(steps, dtype=bool)
    ends[np.cumsum(lengths) - 1] = True
    return Trajectories(
        observations=np.concatenate([np.concatenate([one, one[-1:]]) for one in seen]),
        actions=np.zeros((steps, 1)),
        rewards=np.zeros(steps),
        terminated=np.zeros(steps, dtype=bool),
        truncated=ends,
        offsets=offsets_of(lengths),
        unit_ids=np.arange(len(rows), dtype=np.uint64),
    )


def encoder_of(width: int, scale: float) -> TransitionEncoder:
    """Return an encoder of ``width`` unbounded numbers that divides everything by ``scale``."""
    columns = 2 * width + 3
    scaling = Scaling(offset=np.zeros(columns), scale=np.full(columns, scale))
    return TransitionEncoder(Box(-np.inf, np.inf, (width,), np.float32), ACTIONS, scaling)


@dataclass(frozen=True)
class TrajectorySystem(System):
    """The system of PrivORL-j: a unit is an episode of ten, one or three equal fragments."""

    canaries: int = 2_000

    def run(self, **settings: Any) -> GateRun:
        """Return a new run over episodes; by default over sixty of them."""
        if settings.get("sources") is None:
            table = np.random.default_rng(7).normal(size=(60, 5))
            settings["sources"] = self.units(table, settings.get("workers", 1))
        shown = settings["sources"][0]
        if isinstance(shown, ShownFragments):
            update = settings.get("update", GateUpdate())
            loss = OfFirstStep(update.loss, shown.encoder, shown.columns)
            settings["update"] = replace(update, loss=loss)
        return super().run(all_rows=True, **settings)

    def units(
        self, rows: NDArray[Any], count: int, valid: NDArray[np.bool_] | None = None
    ) -> tuple[ShardSource, ...]:
        """Return shards of episodes whose fragments' first steps show the rows of a table."""
        table = np.array(rows, np.float32)
        table[~(np.ones(len(table), bool) if valid is None else valid)] = np.nan
        fragments = [
            np.repeat(row[None], FRAGMENTS[i % len(FRAGMENTS)], axis=0)
            for i, row in enumerate(table)
        ]
        return self.episodes(episodes_of(fragments), count)

    def episodes(
        self,
        episodes: Trajectories,
        count: int,
        *,
        scale: float = SCALE,
        layout: Any = "packed",
        time_limit: int | None = None,
    ) -> tuple[ShownFragments, ...]:
        """Return shards of ``episodes``, whose unit ids are those of a column."""
        parts = (episodes.observations, episodes.offsets, episodes.unit_ids)
        name = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]
        store, dataset = DatasetStore(self.folder / "datasets"), f"gate/{name}-{layout}-v0"
        encoder = encoder_of(episodes.observations.shape[1], scale)
        if dataset not in store.ids():
            store.write_trajectories(
                dataset,
                episodes,
                observation_space=encoder.observation_space,
                action_space=encoder.action_space,
                layout=layout,
                unit_column=UNIT,
            )
        (ref,) = shard_refs(store, dataset, count=1, unit=UNIT)
        width = encoder.observation_space.shape[0]
        return (self._shown(ref, encoder, width, time_limit),) * count

    def stored(self, ref: ShardRef, encoder: TransitionEncoder) -> ShardSource:
        """Return the fragments of a stored dataset's shard; their first transitions are shown."""
        return self._shown(ref, encoder, encoder.width)

    def _shown(
        self,
        ref: ShardRef,
        encoder: TransitionEncoder,
        columns: int,
        time_limit: int | None = None,
    ) -> ShownFragments:
        return ShownFragments(
            ref=ref,
            encoder=FragmentEncoder(encoder, HORIZON, time_limit=time_limit).to_json(),
            max_fragments_per_unit=100,
            columns=columns,
        )


def gate_one_vector_a_unit(system: TrajectorySystem) -> None:
    """A unit's vector is the mean over its fragments, all in one shard, clipped once.

    Unit i moves coordinate i by the mean of what its fragments show; the last unit's by 2 C, cut to
    C. Five of the episodes are one person's, far apart in the dataset.
    """
    generator, counts = np.random.default_rng(2), (10, 1, 3, 1, 7, 2, 4, 1, 10)
    units = np.array([0, 1, 2, 1, 3, 1, 1, 1, 4], dtype=np.uint64)
    sizes = [generator.uniform(0.1, 0.3, count) for count in counts]
    sizes[-1][:] = 2 * CLIP_NORM
    names = int(units.max()) + 1
    everything = [np.concatenate([sizes[e] for e in np.flatnonzero(units == u)]) for u in range(5)]
    expected = np.minimum([own.mean() for own in everything], CLIP_NORM)

    def total(shown: list[NDArray[np.float64]], owners: NDArray[np.uint64], count: int) -> Any:
        tables = [
            np.stack([np.full(len(own), owner), own], axis=1).astype(np.float32)
            for own, owner in zip(shown, owners, strict=True)
        ]
        episodes = replace(episodes_of(tables), unit_ids=owners)
        sources = system.episodes(episodes, count, layout="episodes")
        run = system.run(workers=count, sources=sources, insecure_key=3)
        run.open()
        workers = [LocalUpdateWorker(spec) for spec in run.worker_specs()]
        held = np.concatenate([worker._shard.unit_ids for worker in workers])
        split = np.bincount(held.astype(int), minlength=names).max()
        assert split == 1, f"a unit's fragments lie in {split} shards"
        return clipped_sum(system, coordinate_update(names), sources)

    for count in (1, 2, 5):
        found = total(sizes, units, count) / expected
        for unit, share in enumerate(found.tolist()):
            what = f"the vector of a unit of {len(everything[unit])} fragments"
            assert abs(share - 1) < 1e-4, f"{what} is {share:.4f} times what it must be"
    turned = [own[::-1] for own in sizes[::-1]]
    np.testing.assert_allclose(
        total(turned, units[::-1], 2),
        expected,
        rtol=1e-4,
        err_msg="the order of a unit's fragments moves the sum",
    )


@dataclass(frozen=True)
class OverflowingLoss(FitLoss):
    """`FitLoss`, but not finite for rows that begin with 500."""

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        factors = torch.where(rows[:, 0] == 500, torch.inf, 1.0).to(rows)
        return super().__call__(module, rows, draws) * factors


def gate_overflowing_fragments(system: TrajectorySystem) -> None:
    """One fragment whose gradient is not finite makes its own unit null, and no other."""
    others = list(np.random.default_rng(4).normal(size=(5, 3, 5)).astype(np.float32))
    for path in PATHS:
        update = GateUpdate(loss=OverflowingLoss(), per_unit_gradients=path, dtype=torch.float32)

        def total(tables: list[NDArray[Any]], update: GateUpdate = update) -> NDArray[np.float64]:
            return clipped_sum(system, update, system.episodes(episodes_of(tables), 2))

        for count in (1, 3, 10):  # those of three meet the others in a micro-batch
            canary = np.ones((count, 5), np.float32)
            null = total([*others, np.full_like(canary, np.nan)])
            canary[count // 2, 0] = 500
            what = f"a unit with an overflowing one of {count} fragments ({path})"
            moved = assert_within(total([*others, canary]) - null, what)
            assert moved < TOLERANCE, f"{what} is not null"


def gate_episodes_apart(system: TrajectorySystem) -> None:
    """Whatever becomes of one episode, no other unit's fragments change: the data path."""
    generator = np.random.default_rng(3)
    lengths = generator.integers(1, 9, 24)
    lengths[11] = 15  # the longest by far, in a recording of at most 40
    steps = int(lengths.sum())
    episodes = Trajectories(
        observations=generator.normal(size=(steps + len(lengths), 3)),
        actions=generator.uniform(-1, 1, (steps, 1)),
        rewards=generator.normal(size=steps),
        terminated=np.zeros(steps, dtype=bool),
        truncated=np.isin(np.arange(steps), np.cumsum(lengths) - 1),
        offsets=offsets_of(lengths),
        unit_ids=np.arange(24, dtype=np.uint64),
    )

    def fragments(held: Trajectories) -> dict[int, bytes]:
        shards = [source() for source in system.episodes(held, 2, scale=1.0, time_limit=40)]
        return {
            unit: shard.rows[slice(*shard.offsets[u : u + 2])].tobytes()
            for shard in shards
            for u, unit in enumerate(shard.unit_ids.tolist())
        }

    episodes.observations[7 + episodes.offsets[7]] *= 100
    whole = fragments(episodes)
    assert sorted(whole) == list(range(24)), "a unit has no fragments"
    for gone in (0, 7, 11, 18, 23):
        poisoned = replace(episodes, observations=episodes.observations.copy())
        start, stop = episodes.offsets[gone : gone + 2] + gone + np.array([0, 1])
        poisoned.observations[start:stop] = np.nan
        less = episodes.select([k for k in range(24) if k != gone])
        shorter = episodes.cut(np.where(np.arange(24) == gone, 1, lengths))
        for what, held in (("gone", less), ("not finite", poisoned), ("cut", shorter)):
            after = fragments(held)
            for unit, rows in whole.items():
                assert unit == gone or after.get(unit) == rows, (
                    f"unit {unit}'s fragments change when episode {gone} is {what}"
                )


def model_sum(
    system: TrajectorySystem,
    model: TransformerConfig | UNetConfig | TokenModelConfig,
    canary: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the sum of a round of the method's own network over four units and a canary.

    Args:
        system: stores them.
        model: the network.
        canary: what each of its fragments shows, ``(F, 3)``.
    """
    others = np.random.default_rng(4).normal(size=(4, 1, 3))
    with np.errstate(over="ignore"):
        tables = [*others.astype(np.float32), canary.astype(np.float32)]
    episodes = episodes_of([np.repeat(t, model.horizon // HORIZON, axis=0) for t in tables])
    encoder = FragmentEncoder(encoder_of(3, 1.0), model.horizon).to_json()
    sources = [
        StoredFragments(ref=source.ref, encoder=encoder, max_fragments_per_unit=100)
        for source in system.episodes(episodes, 2, scale=1.0)
    ]
    update: Any = DiffusionUpdate(
        synthesizer=_synthesizer(model, encoder),
        seed=0,
        clip_norm=CLIP_NORM,
        micro_batch_rows=8,
    )
    return clipped_sum(system, update, tuple(sources), copies=2, insecure_key=3)


def _synthesizer(
    model: TransformerConfig | UNetConfig | TokenModelConfig, encoder: str
) -> FragmentSynthesizer | TokenSynthesizer:
    if not isinstance(model, TokenModelConfig):
        return FragmentSynthesizer(model=model, encoder=encoder)
    transitions = FragmentEncoder.from_json(encoder).transitions
    row = row_bins(
        transitions, np.empty((0, transitions.width), np.float32), count=model.bins, declared=True
    )
    return TokenSynthesizer(model=model, encoder=encoder, bins=step_bins(row))


def gate_canaries_of_the_model(system: TrajectorySystem) -> None:
    """With the networks of fragments: a canary of one fragment or of ten moves the sum by C."""
    canaries = {
        "huge": np.full(3, 900.0),
        "mixed": np.array([900.0, -1e-6, 1e-42]),
        "denormal": np.full(3, 1e-42),
        "overflowing": np.full(3, 3e38),
        "nan": np.array([0.0, np.nan, 0.0]),
        "infinite": np.array([np.inf, 0.0, -np.inf]),
    }
    for model in (
        TransformerConfig(width=8, depth=1, heads=2, horizon=8),
        UNetConfig(width=8, depth=2, horizon=8),
        TokenModelConfig(width=8, depth=1, heads=2, horizon=8, bins=8),
    ):
        kind = type(model).__name__
        for count in (1, 10):
            null = model_sum(system, model, np.full((count, 3), np.nan))
            for name, canary in canaries.items():
                what = f"a {name} unit of {count} fragments ({kind})"
                total = model_sum(system, model, np.tile(canary, (count, 1)))
                moved = assert_within(total - null, what)
                assert name not in CLIPPED or moved > 0.999, f"{what} is clipped to {moved:.3f} C"
                assert name not in NULL or moved < TOLERANCE, f"{what} is not null"
        partly = np.tile(canaries["huge"], (10, 1))
        partly[4] = np.nan
        total = model_sum(system, model, partly)
        assert_within(total - null, f"a unit with a fragment that is not finite ({kind})")
