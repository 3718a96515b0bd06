"""Lengths of trajectories say at which times they end: nobody pays for that joint count."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.marginals.belief import Belief, TableFacts
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.steps import (
    length_starts,
    steps_and_last_ones,
    time_groups,
    time_starts,
)
from distributed_privrl.marginals.workload import workload
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.marginals.test_rollout import columns_of

NOISE = 2.0 * UNIT_WEIGHT
PEOPLE = 2000
LONGEST = 12


def places(columns: TableColumns) -> tuple[int, int]:
    return columns.of("end")[0], columns.of("time")[0]


def believed(lengths: NDArray[np.int64], columns: TableColumns, *, rows_per_unit: int) -> Belief:
    """Return what is believed of people with one trajectory each, after columns alone."""
    time = np.concatenate([np.arange(one) for one in lengths])
    weights = np.repeat(1 / np.maximum(lengths, rows_per_unit), lengths) * UNIT_WEIGHT
    ends = np.concatenate([np.arange(one) == one - 1 for one in lengths]).astype(np.int64)
    groups = np.searchsorted(time_starts(time_groups(LONGEST)), time, side="right") - 1
    source = np.random.default_rng(3)
    counts = []
    for column in columns.columns:
        if not column.counted:
            continue
        cells = source.integers(0, column.size, len(time))
        cells = ends if column.part == "end" else groups if column.part == "time" else cells
        own = np.bincount(cells, weights, column.size)
        counts.append(np.concatenate([own, np.zeros(column.counted - column.size)]))
    starts = length_starts(columns.longest)
    found = np.searchsorted(starts, lengths, side="right") - 1
    counts.append(np.bincount(found, minlength=columns.lengths) * float(UNIT_WEIGHT))
    exact = np.concatenate(counts)
    noisy = np.rint(exact + NOISE * source.standard_normal(len(exact))).astype(np.int64)
    belief = Belief(
        TableFacts(columns=columns, seed=4, rows=40_000), joint_deviation=NOISE, planned=1
    )
    belief.shape(noisy, NOISE)
    belief.estimate()
    return belief


@pytest.mark.parametrize(
    ("lengths", "rows_per_unit"),
    [
        (np.full(PEOPLE, 3), 3),
        (1 + np.arange(PEOPLE) % LONGEST, LONGEST),
        (1 + np.arange(PEOPLE) % LONGEST, 1),
        (np.where(np.arange(PEOPLE) % 4, 2, LONGEST), 4),
    ],
)
def test_times_at_which_trajectories_end_are_known_before_any_joint_count(
    lengths: NDArray[np.int64], rows_per_unit: int
) -> None:
    """Rows of long trajectories weigh less."""
    columns = replace(columns_of(longest=LONGEST), alike=float(rows_per_unit))
    belief = believed(lengths, columns, rows_per_unit=rows_per_unit)
    end, time = places(columns)
    expected = belief.expected((end, time)) / belief.bins.total
    last, all_steps = np.zeros(columns[time].size), np.zeros(columns[time].size)
    groups = np.searchsorted(time_starts(len(last)), np.arange(LONGEST), side="right") - 1
    for length in lengths:
        weight = 1 / max(int(length), rows_per_unit)
        np.add.at(all_steps, groups[:length], weight)
        last[groups[length - 1]] += weight
    bins = belief.bins.shapes[time].bins
    wanted = np.bincount(bins, last / all_steps.sum(), expected.shape[1])
    np.testing.assert_allclose(expected[1:].sum(axis=0), wanted, atol=0.02)
    # Without them ends would be as frequent at all times.
    independent = expected[1:].sum() * expected.sum(axis=0)
    assert np.abs(independent - wanted).sum() > 4 * np.abs(expected[1:].sum(axis=0) - wanted).sum()


def test_ends_and_times_are_no_candidate_where_lengths_are_counted() -> None:
    columns = columns_of(longest=LONGEST)
    pair = tuple(sorted(places(columns)))
    assert pair not in workload(columns)
    without = columns_of(longest=0)
    assert tuple(sorted(places(without))) in workload(without)


def test_trajectories_end_as_lengths_say() -> None:
    lengths = np.where(np.arange(PEOPLE) % 4, 2, LONGEST)
    belief = believed(lengths, columns_of(longest=LONGEST), rows_per_unit=4)
    drawn = Rollout(belief.model(), LONGEST).draw(4000, np.random.default_rng(1))
    assert np.mean(drawn.lengths == 2) == pytest.approx(0.75, abs=0.04)
    assert np.mean(drawn.lengths == LONGEST) == pytest.approx(0.25, abs=0.04)


def test_steps_and_last_ones_by_hand() -> None:
    steps, last = steps_and_last_ones(np.array([0.0, 2.0, 0.0, 1.0]), longest=4, groups=4)
    assert steps.tolist() == [3.0, 3.0, 1.0, 1.0]
    assert last.tolist() == [0.0, 2.0, 0.0, 1.0]
    lengths = np.zeros(len(length_starts(40)))
    lengths[-2] = 6.0  # 37, 38 or 39
    steps, last = steps_and_last_ones(lengths, longest=40, groups=time_groups(40))
    assert steps[0] == last.sum() == 6.0
    assert steps.sum() == pytest.approx(6.0 * 38)
