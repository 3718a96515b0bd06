"""Numbers that may be missing: a gap is in a cell of the number's own, whatever else is drawn."""

import logging
import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.declared import Gaps
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Trajectories, Transitions
from distributed_privrl.marginals.belief import Belief
from distributed_privrl.marginals.cells import NumberCells
from distributed_privrl.marginals.cleaning import Released, cleaned
from distributed_privrl.marginals.column import NextObservation
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.shapes import column_shape, drawn_numbers
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import Steps, time_groups
from distributed_privrl.marginals.tables import JointCount, Margin, block_maps, counts_of
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import TRAJECTORY
from tests.marginals.beliefs import NOISE, believed, noisy, steps, transitions, visits

PEOPLE, LONGEST, VISITS = 3000, 6, 5
SPACE = TableBox(
    np.array([0, 40, 0, 0], np.float32), np.array([1, 240, 1, 1], np.float32), [(0, 1), (2, 3)]
)
"""Whether somebody is ill, a pressure, whether it is missing, and a mood."""


def table(
    next_observation: NextObservation = "absolute", *, gaps: bool = True, step: float = 1.0
) -> TableColumns:
    """Return columns of somebody who is ill or not, and whose pressure may be missing."""
    bounds = Bounds(
        low=np.array([40.0, 0.0]),
        high=np.array([240.0, 1.0]),
        step=np.array([step, 0.0]),
        columns=("observation_1", "observation_3"),
    )
    return step_columns(
        SPACE,
        Discrete(1),
        bounds,
        next_observation=next_observation,
        ends=3,
        has_reward=False,
        gaps=Gaps(observation=(1,)) if gaps else Gaps(),
    )


def panel(seed: int = 0, *, shown: float = 0.9, rare: float = 0.3) -> Transitions:
    """Return visits: the ill are measured and have a pressure of 180 about, others rarely one."""
    source = np.random.default_rng(seed)
    ill = np.repeat(source.random(PEOPLE) < 0.4, VISITS)
    level = np.repeat(source.normal(0, 12, PEOPLE), VISITS)
    pressure = np.where(ill, 180.0, 120.0) + level + source.normal(0, 5, len(ill))
    there = source.random(len(ill)) < np.where(ill, shown, rare)
    rows = np.stack([ill, np.where(there, np.round(pressure), 40.0), ~there, 0 * level], axis=1)
    rows[:, 3] = source.random(len(ill))
    return visits(rows, VISITS)


def whole(columns: TableColumns) -> TableColumns:
    found = trajectory_columns(
        columns, groups=time_groups(LONGEST), previous=False, longest=LONGEST
    )
    return replace(found, ends_unseen=True)


def share_of_gaps(rows: NDArray[Any], ill: bool) -> float:
    return float((rows[rows[:, 0] == ill][:, 2] == 1).mean())


def test_a_gap_is_a_cell_after_those_of_the_number_and_the_indicator_is_no_column() -> None:
    columns = table()
    names = [column.name for column in columns.columns]
    assert names[:3] == ["observation_0", "observation_1", "observation_3"]
    plain = table(gaps=False)
    assert len(plain) == len(columns) + 2  # the indicator, and what it becomes
    assert columns[1].size == plain[1].size + 1
    assert columns.histograms == plain.histograms - 1
    rows = transitions(
        [[0, 120, 0, 0.5], [1, 40, 1, 0.5], [1, 40, 0, 0.5]],
        [[0, 40, 1, 0.5], [1, 90, 0, 0.5], [1, 40, 1, 0.5]],
        [False] * 3,
    )
    coded = columns.coded(Steps(rows))
    gap = columns[1].size - 1
    assert coded.valid.all()
    assert (coded.cells[:, 1] == gap).tolist() == [False, True, False]
    assert (coded.cells[:, names.index("next_observation_1")] == gap).tolist() == [
        True,
        False,
        True,
    ]
    assert coded.values[:, columns.valued.index(1)].tolist() == [80, 201, 0]


def test_what_is_neither_a_number_nor_a_gap_weighs_nothing_and_leaves_no_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good, bad = [0, 120, 0, 0.5], [[0, np.nan, 0, 0.5], [0, np.inf, 0, 0.5], [0, 120, 0.5, 0.5]]
    bad += [[0, 120, np.nan, 0.5]]
    for coding in ("absolute", "difference", "counted"):
        columns = table(coding)
        with warnings.catch_warnings(), caplog.at_level(logging.DEBUG):
            warnings.simplefilter("error")
            for one in bad:
                rows = transitions([one, good, [0, 40, 1, 0.5]], [good, one, one], [False] * 3)
                assert not columns.coded(Steps(rows)).valid.any()
            missing = transitions([[0, np.nan, 1, 0.5]], [good], [False])  # the indicator says all
            assert columns.coded(Steps(missing)).valid.all()
    assert not caplog.records


@pytest.mark.parametrize("step", [0.0, 1.0])
@pytest.mark.parametrize("coding", ["absolute", "difference"])
def test_rows_come_back_from_their_numbers_with_their_gaps(
    coding: NextObservation, step: float
) -> None:
    columns, rows = table(coding, step=step), panel()
    numbers = [
        np.asarray(Steps(rows).column(one), np.float64) - (0 if one.cells else one.start)
        for one in columns.columns
    ]
    back = columns.transitions(numbers)
    assert np.allclose(back.observations, rows.observations, atol=1e-4)
    assert np.allclose(back.next_observations, rows.next_observations, atol=1e-4)


def test_gaps_are_drawn_as_nan_and_stand_as_the_number_nearest_to_zero() -> None:
    columns = table()
    column = columns[1]
    counts = np.zeros(column.counted)
    counts[[90, 200, column.size - 1]] = 50.0 * UNIT_WEIGHT, 20.0 * UNIT_WEIGHT, 30.0 * UNIT_WEIGHT
    shape = column_shape(column, counts, deviation=UNIT_WEIGHT, most_bins=12)
    assert shape.bins[-1] == shape.size - 1
    assert (shape.bins[:-1] < shape.size - 1).all()
    cells = column.cells
    assert cells is not None
    assert shape.atoms(cells)[-1]
    numbers = drawn_numbers(column, shape, np.array([shape.size - 1, 0]), np.full(2, 0.5))
    assert np.isnan(numbers).tolist() == [True, False]
    assert column.held(numbers)[0].tolist() == [40.0, 1.0]
    assert table()[1].filler == 40.0
    assert replace(column, cells=NumberCells(-5.0, 5.0)).filler == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_no_gap_is_invented_where_nobody_has_one(seed: int) -> None:
    """Neither by the column's own noise nor by that of a joint count."""
    rows = panel(shown=1.0, rare=1.0)
    found = believed(
        table(),
        Steps(rows),
        [("observation_0", "observation_1")],
        each=VISITS,
        noise=20.0 * UNIT_WEIGHT,
        seed=seed,
    )
    made = found.model().transitions(4000, np.random.default_rng(seed))
    assert not (made.observations[:, 2] == 1).any()


def test_gaps_that_noise_hides_in_their_column_are_there_where_a_joint_count_shows_them() -> None:
    rows, columns = panel(shown=0.9, rare=0.97), table()
    found = believed(columns, Steps(rows), [], each=VISITS, noise=NOISE)
    shape = found.bins.shapes[1]
    shape.masses[-1] = 0.0  # as if noise hid them
    found = _with_joint(found, columns, rows)
    made = found.model().transitions(6000, np.random.default_rng(0))
    assert share_of_gaps(made.observations, True) == pytest.approx(0.1, abs=0.03)


def _with_joint(found: Belief, columns: TableColumns, rows: Transitions) -> Belief:
    cells = columns.coded(Steps(rows)).cells
    bins = np.stack([one.bins[cells[:, i]] for i, one in enumerate(found.bins.shapes)], axis=1)
    exact = counts_of(bins, (0, 1), found.bins.sizes) * UNIT_WEIGHT / VISITS
    found.take(JointCount((0, 1)), noisy(exact, 9, NOISE), NOISE)
    found.estimate()
    return found


@pytest.mark.parametrize("parts", [0, 2])
def test_no_drawn_number_contradicts_its_indicator(parts: int) -> None:
    """Nobody's pressure is 40; told in two columns, many a drawn pressure that is there was."""
    rows, lowest = panel(), {}
    for gaps in (True, False):
        columns = table(gaps=gaps)
        cliques: list[tuple[str, ...]] = [("observation_0", "observation_1")]
        cliques += [] if gaps else [("observation_0", "observation_2")]
        found = believed(columns, Steps(rows), cliques, each=VISITS, parts=parts)
        made = found.model().transitions(8000, np.random.default_rng(0)).observations
        there = made[made[:, 2] == 0]
        lowest[gaps] = float((there[:, 1] < 60).mean())
        if gaps:
            assert (made[made[:, 2] == 1][:, 1] == 40).all()
            for ill, share in ((True, 0.1), (False, 0.7)):
                assert share_of_gaps(made, ill) == pytest.approx(share, abs=0.04)
            means = [there[there[:, 0] == ill][:, 1].mean() for ill in (False, True)]
            assert means == pytest.approx([120, 180], abs=4)
    assert lowest[True] < 0.01
    assert lowest[False] > 0.05


@pytest.mark.parametrize("coding", ["difference", "counted"])
def test_trajectories_have_gaps_as_often_after_a_step_as_before(coding: NextObservation) -> None:
    columns, rows = whole(table(coding)), panel()
    cliques: list[tuple[str, ...]] = [
        ("observation_0", "observation_1"),
        ("observation_0", "next_observation_0"),
        ("observation_1", "next_observation_1"),
        ("observation_0", "next_observation_1"),
    ]
    found = believed(columns, steps(rows, VISITS), cliques, each=VISITS)
    made = Rollout(found.model(), LONGEST).draw(1500, np.random.default_rng(0))
    _check_panel(made)


def _check_panel(made: Trajectories) -> None:
    observations = made.transitions(TRAJECTORY).observations
    assert (observations[observations[:, 2] == 1][:, 1] == 40).all()
    assert (observations[observations[:, 2] == 0][:, 1] < 60).mean() < 0.01
    first = np.isin(np.arange(len(observations)), made.offsets[:-1])
    for own in (observations[first], observations[~first]):
        for ill, share in ((True, 0.1), (False, 0.7)):
            assert share_of_gaps(own, ill) == pytest.approx(share, abs=0.09)


def test_blocks_leave_gaps_apart_and_two_numbers_go_together_smoothly_beside_them() -> None:
    for one, other in pairwise(block_maps((17, 16), [True, True], [True, False])):
        assert one[0][-1] == one[0][-2] + 1
        assert other[0][-1] == other[0][-2] + 1
    bins = 12
    scores = np.linspace(-2, 2, bins)
    numbers = np.exp(-((scores[:, None] - scores[None, :]) ** 2))
    truth = np.zeros((bins + 1, bins))
    truth[:-1] = 0.6 * numbers / numbers.sum()
    truth[-1] = 0.4 * np.exp(-2 * scores) / np.exp(-2 * scores).sum()  # gaps go with the least
    truth *= 4000 * UNIT_WEIGHT
    deviation = 12.0 * UNIT_WEIGHT
    miss = []
    for gaps in (True, False):
        own = [
            Margin(truth.sum(axis=1), np.full(bins + 1, deviation), gaps=gaps),
            Margin(truth.sum(axis=0), np.full(bins, deviation)),
        ]
        each = []
        for seed in range(2):
            released = Released(
                noisy=truth + deviation * np.random.default_rng(seed).standard_normal(truth.shape),
                deviation=deviation,
                total=float(truth.sum()),
                expected=np.outer(own[0].masses, own[1].masses) / truth.sum(),
                margins=own,
                ordered=[True, True],
                maps=(np.arange(bins + 1), np.arange(bins)),
            )
            found = cleaned(released, np.random.default_rng(0))
            each.append(float(np.abs(found - truth).sum() / truth.sum()))
        miss.append(float(np.mean(each)))
    assert miss[0] < 0.8 * miss[1]
