"""Lengths of trajectories say at which times they end: nobody pays for that joint count."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.marginals.belief import Belief, TableFacts
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.steps import (
    length_starts,
    steps_and_last_ones,
    time_groups,
    time_starts,
)
from distributed_privrl.marginals.tables import JointCount
from distributed_privrl.marginals.workload import workload
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.marginals.rows import columns_of

NOISE = 2.0 * UNIT_WEIGHT
PEOPLE = 2000
LONGEST = 12


def places(columns: TableColumns) -> tuple[int, int]:
    return columns.of("end")[0], columns.of("time")[0]


def believed(
    lengths: NDArray[np.int64],
    columns: TableColumns,
    *,
    rows_per_unit: int,
    noise: float = NOISE,
    seed: int = 3,
) -> Belief:
    """Return what is believed of people with one trajectory each, after columns alone."""
    time = np.concatenate([np.arange(one) for one in lengths])
    weights = np.repeat(1 / np.maximum(lengths, rows_per_unit), lengths) * UNIT_WEIGHT
    ends = np.concatenate([np.arange(one) == one - 1 for one in lengths]).astype(np.int64)
    groups = np.searchsorted(time_starts(time_groups(columns.longest)), time, side="right") - 1
    source = np.random.default_rng(seed)
    counts = []
    for column in columns.columns:
        if not column.counted:
            continue
        cells = source.integers(0, column.size, len(time))
        known = {"end": ends, "time": groups}
        if column.part == "previous":
            known["previous"] = np.where(time == 0, column.categories - 1, cells % 2)
        cells = known.get(column.part, cells)
        own = np.bincount(cells, weights, column.size)
        counts.append(np.concatenate([own, np.zeros(column.counted - column.size)]))
    starts = length_starts(columns.longest)
    found = np.searchsorted(starts, lengths, side="right") - 1
    counts.append(np.bincount(found, minlength=columns.lengths) * float(UNIT_WEIGHT))
    exact = np.concatenate(counts)
    noisy = np.rint(exact + noise * source.standard_normal(len(exact))).astype(np.int64)
    belief = Belief(
        TableFacts(columns=columns, seed=4, rows=40_000), joint_deviation=noise, planned=1
    )
    belief.shape(noisy, noise)
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


def test_what_lengths_tell_is_no_candidate_where_they_are_counted() -> None:
    for longest, is_there in ((LONGEST, False), (0, True)):
        columns = columns_of(longest=longest)
        ((end, time), (previous,)) = places(columns), columns.of("previous")
        for pair in ((end, time), (previous, time)):
            assert (tuple(sorted(pair)) in workload(columns)) == is_there


def test_nothing_was_done_before_the_first_step_alone() -> None:
    belief = believed(np.full(PEOPLE, 3), columns_of(longest=3), rows_per_unit=3)
    columns = belief.bins.columns
    pair = columns.of("previous")[0], columns.of("time")[0]
    expected = belief.expected(pair) / belief.bins.total
    assert expected[-1, 0] == pytest.approx(1 / 3, abs=0.02)
    assert expected[-1, 1:].sum() < 0.01
    assert expected[:-1, 0].sum() < 0.01


@pytest.mark.parametrize("seed", range(5))
def test_noise_hides_neither_times_nor_first_and_last_steps(seed: int) -> None:
    """A seventh of 200 people's rows does not stand out from this noise, and is there."""
    columns = columns_of(longest=7)
    belief = believed(
        np.full(200, 7), columns, rows_per_unit=7, noise=12.0 * UNIT_WEIGHT, seed=seed
    )
    (previous,), (end, time) = columns.of("previous"), places(columns)
    for place, category in ((previous, -1), *((time, one) for one in range(7))):
        masses = belief.bins.margin(place).masses
        assert masses[category] > 0.02 * masses.sum()
    masses = belief.bins.margin(end).masses
    assert 0.05 < masses[1:].sum() / masses.sum() < 0.35


def hide_second(shape: ColumnShape) -> None:
    """Change a column's weights as if noise had hidden its second category."""
    shape.masses[:] = [shape.masses.sum(), 0.0]
    vars(shape).pop("bin_masses", None)


def test_a_category_that_a_joint_count_shows_is_there() -> None:
    """A column's own count has more noise; what stands out from neither is not there."""
    columns = columns_of(longest=7)
    (action,), (previous,) = columns.of("action"), columns.of("previous")
    belief = believed(np.full(200, 7), columns, rows_per_unit=7, noise=40.0 * UNIT_WEIGHT)
    hide_second(belief.bins.shapes[action])
    shape = belief.expected((action, previous)).shape
    for weight, is_there in ((30.0, True), (10.0, False)):
        again = Belief(belief._spec, joint_deviation=4.0 * UNIT_WEIGHT, planned=1)
        again._bins = belief.bins
        again.estimate()
        counts = np.zeros(shape)
        counts[0, 0], counts[1, 1] = 170.0, weight
        noisy = np.rint(counts * UNIT_WEIGHT).astype(np.int64)
        again.take(JointCount((action, previous)), noisy, 4.0 * UNIT_WEIGHT)
        found = again.tables[0].cleaned / again.bins.total
        assert (found[1].sum() > 0.05) == is_there
        again.estimate()
        assert (again.expected((action,))[1] > 0.05 * again.bins.total) == is_there


def test_a_category_that_a_later_count_shows_is_there_in_earlier_ones_too() -> None:
    """The earlier count saw it too thinly to show it, and said that nobody has it."""
    belief = believed(np.full(PEOPLE, 3), columns_of(longest=LONGEST), rows_per_unit=3)
    columns = belief.bins.columns
    (action, *_), (previous, *_), (end, *_) = (
        columns.of(part) for part in ("action", "previous", "end")
    )
    hide_second(belief.bins.shapes[action])
    again = Belief(belief._spec, joint_deviation=4.0 * UNIT_WEIGHT, planned=2)
    again._bins = belief.bins
    again.estimate()
    before = np.zeros(again.expected((action, previous)).shape)
    before[0, 0], before[1, 0], before[1, 1] = 160.0, 15.0, 14.0
    ends = np.zeros(again.expected((action, end)).shape)
    ends[0, 0], ends[1, 0] = 160.0, 29.0
    for other, counts in ((previous, before), (end, ends)):
        noisy = np.rint(counts * UNIT_WEIGHT).astype(np.int64)
        again.take(JointCount((action, other)), noisy, 4.0 * UNIT_WEIGHT)
    assert again.tables[0].cleaned[1].sum() == 0
    again.estimate()
    found = again.tables[0].cleaned / again.bins.total
    assert found[1].sum() > 0.1
    assert found.sum() == pytest.approx(1.0)
    kept = again.tables[0].cleaned
    again._clean_again()
    assert again.tables[0].cleaned is kept


def test_trajectories_end_as_lengths_say() -> None:
    lengths = np.where(np.arange(PEOPLE) % 4, 2, LONGEST)
    belief = believed(lengths, columns_of(longest=LONGEST), rows_per_unit=4)
    drawn = Rollout(belief.model(), LONGEST).draw(4000, np.random.default_rng(1))
    assert np.mean(drawn.lengths == 2) == pytest.approx(0.75, abs=0.04)
    assert np.mean(drawn.lengths == LONGEST) == pytest.approx(0.25, abs=0.04)


def test_lengths_that_contradict_times_break_nothing() -> None:
    """Among few people, noise may put all steps late and all lengths at one."""
    columns = columns_of(longest=LONGEST)
    counts = np.zeros(sum(columns.counted), np.int64)
    ends = np.cumsum(columns.counted)
    _, time = places(columns)
    counts[ends[time] - 1] = counts[ends[-2]] = PEOPLE * UNIT_WEIGHT
    facts = TableFacts(columns=columns, seed=4, rows=2000)
    belief = Belief(facts, joint_deviation=NOISE, planned=1)
    with np.errstate(all="raise"):
        belief.shape(counts, NOISE / 40)
        belief.estimate()
    assert np.isfinite(belief.expected(tuple(sorted(places(columns))))).all()


def test_steps_and_last_ones_by_hand() -> None:
    steps, last = steps_and_last_ones(np.array([0.0, 2.0, 0.0, 1.0]), longest=4, groups=4)
    assert steps.tolist() == [3.0, 3.0, 1.0, 1.0]
    assert last.tolist() == [0.0, 2.0, 0.0, 1.0]
    lengths = np.zeros(len(length_starts(40)))
    lengths[-2] = 6.0  # 37, 38 or 39
    steps, last = steps_and_last_ones(lengths, longest=40, groups=time_groups(40))
    assert steps[0] == last.sum() == 6.0
    assert steps.sum() == pytest.approx(6.0 * 38)


def test_ends_are_counted_with_nothing_where_all_trajectories_have_one_length() -> None:
    """Whatever changes with time would seem to tell of them."""
    for lengths, is_panel in (
        (np.full(PEOPLE, 3), True),
        (np.where(np.arange(PEOPLE) % 4, 2, 3), False),
    ):
        belief = believed(lengths, columns_of(longest=3), rows_per_unit=3)
        (end,) = belief.bins.columns.of("end")
        assert belief.bins.panel == is_panel
        assert any(end in clique for clique in belief.candidates.weights) == (not is_panel)
