"""What is believed of small tables of people with as many rows each, from counts with noise."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.belief import Belief, TableFacts
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.steps import Steps, steps_in_time
from distributed_privrl.marginals.tables import JointCount, counts_of
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT

NOISE = 3.0 * UNIT_WEIGHT


def transitions(observations: Any, following: Any, ended: Any) -> Transitions:
    """Return rows without actions and rewards."""
    count = len(observations)
    return Transitions(
        observations=np.asarray(observations, np.float32),
        actions=np.zeros(count, np.int64),
        rewards=np.zeros(count, np.float32),
        next_observations=np.asarray(following, np.float32),
        terminated=np.asarray(ended, bool),
        truncated=np.zeros(count, bool),
        unit_ids=np.arange(count),
    )


def visits(observations: NDArray[Any], each: int) -> Transitions:
    """Return rows of people with as many each, which the next ones follow; last ones are copied."""
    ended = np.arange(len(observations)) % each == each - 1
    following = np.where(ended[:, None], observations, np.roll(observations, -1, axis=0))
    return transitions(observations, following, ended)


def steps(rows: Transitions, each: int) -> Steps:
    """Return the rows of such people as steps."""
    return steps_in_time(rows, np.arange(len(rows)) % each)


def noisy(exact: NDArray[np.float64], seed: int, noise: float) -> NDArray[np.int64]:
    """Return counts with noise."""
    source = np.random.default_rng(seed)
    return np.rint(exact + noise * source.standard_normal(exact.shape)).astype(np.int64)


def believed(
    columns: TableColumns,
    counted: Steps,
    cliques: Sequence[tuple[str, ...]],
    *,
    each: int,
    noise: float = NOISE,
    seed: int = 0,
    parts: int | Sequence[int] = 0,
) -> Belief:
    """Return what counts with noise say, of columns alone and together.

    Args:
        columns: of the table.
        counted: rows of people.
        cliques: columns by their names that are counted together.
        each: rows of a person.
        noise: deviation of a cell's noise.
        seed: of the noise.
        parts: of each number in joint counts, or in each of them.
    """
    coded = columns.coded(counted)
    weights = UNIT_WEIGHT / each * np.ones(len(coded.cells))
    followed = weights * columns.followed(coded.cells)
    exact = []
    for place, column in enumerate(columns.columns):
        own = followed if columns.only_followed([place]) else weights
        if column.counted:
            exact.append(np.bincount(coded.cells[:, place], own, column.size))
        if place in columns.valued:
            values = coded.values[:, columns.valued.index(place)]
            exact.append(np.bincount(values, own, column.counted - column.size))
    if columns.lengths:
        people = len(coded.cells) / each * UNIT_WEIGHT
        exact.append(people * (np.arange(columns.lengths) == each - 1))
    found = Belief(
        TableFacts(columns=columns, seed=seed, rows=10_000), joint_deviation=noise, planned=4
    )
    found.shape(noisy(np.concatenate(exact), seed, noise), noise)
    bins = [shape.bins[coded.cells[:, i]] for i, shape in enumerate(found.bins.shapes)]
    rows = np.stack(bins, axis=1)
    names = [column.name for column in columns.columns]
    found.estimate()
    in_parts = [parts] * len(cliques) if isinstance(parts, int) else parts
    for turn, (clique, each_part) in enumerate(zip(cliques, in_parts, strict=True), start=seed + 1):
        places = tuple(sorted(names.index(name) for name in clique))
        count = JointCount(places, each_part)
        parted = rows.copy()
        for i, one in zip(places, found.bins.maps(count), strict=True):
            parted[:, i] = one[rows[:, i]]
        shape = list(found.bins.sizes)
        for i, size in zip(places, found.bins.counted(count), strict=True):
            shape[i] = size
        own = followed if columns.only_followed(places) else weights
        found.take(count, noisy(counts_of(parted, places, shape, own), turn, noise), noise)
    return found
