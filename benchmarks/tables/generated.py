"""Generated tables, of as many people as one likes: what verdicts of plans are tried on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from benchmarks.table_methods import Sizes
from benchmarks.tables.rows import Naming
from benchmarks.tables.source import BenchmarkTable
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Trajectories

STEPS = 8
"""Steps of a person's trajectory, where people have whole ones."""
LIMIT = 4.0
"""All numbers lie between minus this and this."""
Generator = np.random.Generator
Numbers = NDArray[np.float64]
Step = tuple[NDArray[np.int64], Numbers, Numbers]


@dataclass(frozen=True, kw_only=True)
class GeneratedTable(BenchmarkTable):
    """A table that a seed makes.

    Args:
        columns: numbers of an observation.
        choices: of an action.
        start: from a number of people to their states (N, O).
        step: from states (N, O) to actions (N,), rewards (N,) and what follows (N, O).
        whole: a person's rows are a trajectory of `STEPS` steps; else each row is a person.
        people: how many.
        seed: of the rows.
    """

    columns: int
    choices: int
    start: Callable[[int, Generator], Numbers]
    step: Callable[[Numbers, Generator], Step]
    whole: bool = False
    people: int = 1000
    seed: int = 0

    @property
    def unit(self) -> str:
        """A row, or a trajectory."""
        return TRAJECTORY if self.whole else TRANSITION

    @property
    def naming(self) -> Naming:
        """Numbered columns."""
        return Naming(
            observation=tuple(f"number {i}" for i in range(self.columns)), action=("choice",)
        )

    @property
    def sizes(self) -> Sizes:
        """People, rows and trajectories; a row on its own counts as one."""
        steps = STEPS if self.whole else 1
        return Sizes(units=self.people, rows=self.people * steps, trajectories=self.people)

    def sized(self, people: int, seed: int, *, whole: bool) -> "GeneratedTable":
        """Return the table of so many people."""
        steps = STEPS if whole else 1
        return replace(
            self, people=people, seed=seed, whole=whole, unit_rows=steps, rows_per_unit=steps
        )

    def trajectories(self) -> Trajectories:
        """Return everybody's steps; a row on its own is a trajectory of one."""
        rng = np.random.default_rng([self.seed, self.people])
        count = STEPS if self.whole else 1
        states, steps = [_clipped(self.start(self.people, rng))], []
        for _ in range(count):
            actions, rewards, following = self.step(states[-1], rng)
            steps.append((actions, _clipped(rewards)))
            states.append(_clipped(following))
        last = np.zeros((self.people, count), bool)
        last[:, -1] = True
        rewards = np.stack([earned for _, earned in steps], axis=1)
        return Trajectories(
            observations=np.stack(states, axis=1).reshape(-1, self.columns),
            actions=np.stack([actions for actions, _ in steps], axis=1).reshape(-1),
            rewards=rewards.reshape(-1).astype(np.float32),
            terminated=np.zeros(last.size, bool),
            truncated=last.reshape(-1),
            offsets=np.arange(self.people + 1) * count,
            unit_ids=np.arange(self.people, dtype=np.uint64),
        )

    def import_into(self, store: DatasetStore, dataset: str, *, quick: bool = False) -> None:
        """Write the table as a new dataset; see `BenchmarkTable.import_into`."""
        table = replace(self, people=min(self.people, 100)) if quick else self
        made = table.trajectories()
        action, states = Discrete(self.choices), Box(-LIMIT, LIMIT, (self.columns,))
        if self.whole:
            store.write_trajectories(
                dataset, made, layout="packed", observation_space=states, action_space=action
            )
            return
        store.write_transitions(
            dataset,
            made.transitions(TRANSITION),
            layout="transitions",
            observation_space=states,
            action_space=action,
        )


def _clipped(values: Numbers) -> Numbers:
    return np.clip(values, -LIMIT, LIMIT)


def _chain_start(people: int, rng: Generator) -> Numbers:
    first = rng.normal(size=people)
    second = 0.9 * first + 0.45 * rng.normal(size=people)
    return np.stack([first, second, rng.normal(size=people)], axis=1)


def _chain_step(states: Numbers, rng: Generator) -> Step:
    """Return readings of one body, which follow each other."""
    actions = np.digitize(states[:, 1], [-0.5, 0.5])
    rewards = 0.7 * states[:, 0] - 0.5 * (actions - 1) + 0.3 * rng.normal(size=len(states))
    return actions, rewards, 0.95 * states + 0.3 * rng.normal(size=states.shape)


_MIDDLES = np.array([[-2.0, -1.0], [0.0, 2.0], [2.0, 0.0], [3.0, 3.0]])


def _groups_start(people: int, rng: Generator) -> Numbers:
    group = rng.choice(4, size=people, p=[0.45, 0.3, 0.2, 0.05])
    return _MIDDLES[group] + 0.3 * rng.normal(size=(people, 2))


def _groups_step(states: Numbers, rng: Generator) -> Step:
    """Return people of four groups: numbers have several heaps, an action depends on the group."""
    group = np.linalg.norm(states[:, None] - _MIDDLES, axis=2).argmin(axis=1)
    people = len(states)
    actions = np.where(rng.random(people) < 0.85, group % 2, rng.integers(0, 2, people))
    rewards = np.where(actions == 1, states[:, 1], -1.0) + 0.2 * rng.normal(size=people)
    return actions, rewards, states + 0.2 * rng.normal(size=states.shape)


_CAUSES = np.array([[1, 0.8, 0.6, 0, 0, 0.5, 0, 0], [0, 0, 0.6, 1, 0.8, 0, 0.7, 0]])


def _wide_start(people: int, rng: Generator) -> Numbers:
    states = rng.normal(size=(people, 2)) @ _CAUSES + 0.4 * rng.normal(size=(people, 8))
    states[:, 7] = rng.exponential(size=people) - 1
    return states


def _wide_step(states: Numbers, rng: Generator) -> Step:
    """Return eight numbers, long tails among them, of which two causes explain most."""
    causes = states[:, [0, 3]]
    actions = np.digitize(causes.sum(axis=1), [-1.0, 0.0, 1.0])
    rewards = 0.5 * causes.sum(axis=1) + 0.3 * rng.normal(size=len(states))
    return actions, rewards, 0.8 * states + 0.4 * rng.normal(size=states.shape)


def _generated(
    name: str,
    columns: int,
    choices: int,
    start: Callable[[int, Generator], Numbers],
    step: Callable[[Numbers, Generator], Step],
) -> GeneratedTable:
    low: Sequence[float] = [-LIMIT] * columns
    high: Sequence[float] = [LIMIT] * columns
    return GeneratedTable(
        name=name,
        columns=columns,
        choices=choices,
        start=start,
        step=step,
        bounds={"observation": {"low": low, "high": high}, "reward": [-LIMIT, LIMIT]},
        unit_rows=1,
        rows_per_unit=1,
        cells={"choice": ()},
    )


GENERATED = {
    table.name: table
    for table in (
        _generated("chain", 3, 3, _chain_start, _chain_step),
        _generated("groups", 2, 2, _groups_start, _groups_step),
        _generated("wide", 8, 4, _wide_start, _wide_step),
    )
}
