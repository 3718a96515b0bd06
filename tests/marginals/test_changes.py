"""Where a number lies in its bin after a step: as far from where it lay as changes were counted."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from scipy.special import ndtr

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.marginals.belief import Belief, TableFacts
from distributed_privrl.marginals.changes import After, Before, PartsOfSteps, parts_of_steps
from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.coupling import couplings
from distributed_privrl.marginals.shapes import ColumnShape, drawn_numbers
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT

DAYS, WIDE, ROWS = 400, 40, 60_000
STEP = {"whole days": 1.0, "any time": 0.0}


def table(step: float, *, rising: bool) -> TableColumns:
    """Return the columns of a number from 0 to 400, a decision and what it brings."""
    bounds = Bounds(
        low=np.zeros(2),
        high=np.array([DAYS, 1.0]),
        step=np.array([step, 1.0]),
        columns=("observation_0", "reward"),
    )
    return step_columns(
        Box(0, DAYS, (1,)),
        Discrete(2),
        bounds,
        next_observation="counted",
        rising=(0,) if rising else (),
    )


def visits(step: float, *, rising: bool, stays: float = 0.1) -> tuple[NDArray, NDArray]:
    """Return days of visits and of the next ones: some on the same day, most soon, few late."""
    source = np.random.default_rng(0)
    before = source.uniform(0, DAYS - 100, ROWS)
    gap = source.exponential(20, ROWS)
    if not rising:
        gap *= source.choice([-1, 1], ROWS)
    gap[source.random(ROWS) < stays] = 0.0
    if step:
        before, gap = np.floor(before), np.ceil(np.abs(gap)) * np.sign(gap)
    return before, np.clip(before + gap, 0, DAYS)


def shape_of(column: Column, numbers: NDArray, deviation: float, *, wide: bool) -> ColumnShape:
    """Return what counts of a column say: in bins of 40 if they are wide, else in cells."""
    assert column.cells is not None
    counts = np.bincount(column.cells.cells_of(numbers), minlength=column.size).astype(float)
    bins = np.arange(column.size)
    if wide:
        _, bins = np.unique(np.floor(column.cells.edges[0] / WIDE), return_inverse=True)
    return ColumnShape(counts, bins, counts, deviation, np.empty(0))


def found(
    step: float, *, rising: bool, deviation: float = 1.0
) -> tuple[PartsOfSteps, ColumnShape, Column, NDArray, NDArray]:
    """Return the parts of steps, the number's shape and column, and its bins before and after."""
    columns = table(step, rising=rising)
    (own,), ((_, changing),) = columns.of("observation"), columns.codings
    before, after = visits(step, rising=rising)
    shape = shape_of(columns[own], np.concatenate([before, after]), 1.0, wide=True)
    changes = shape_of(columns[changing], after - before, deviation, wide=False)
    cells = columns[own].cells
    assert cells is not None
    bins = [shape.bins[cells.cells_of(one)] for one in (before, after)]
    together = np.zeros((shape.size, shape.size))
    np.add.at(together, tuple(bins), 1.0)
    parts = parts_of_steps(shape, columns[own], changes, columns[changing], together)
    return parts, shape, columns[own], *bins


def drawn(
    parts: PartsOfSteps, shape: ColumnShape, column: Column, here: NDArray, there: NDArray
) -> tuple[NDArray, NDArray]:
    """Return numbers before and after a step that lie in bins."""
    source = np.random.default_rng(1)
    noise = source.standard_normal((2, len(here)))
    before = Before(parts).scores(here, there, source.random(len(here)), noise[0])
    after = After(parts).scores(there, here, ndtr(before), noise[1])
    return (
        drawn_numbers(column, shape, here, ndtr(before)),
        drawn_numbers(column, shape, there, ndtr(after)),
    )


def by_itself(shape: ColumnShape, column: Column, here: NDArray, there: NDArray) -> NDArray:
    """Return changes where nothing tells where a number lies in its bin."""
    source = np.random.default_rng(2)
    before, after = (
        drawn_numbers(column, shape, bins, source.random(len(bins))) for bins in (here, there)
    )
    return after - before


@pytest.mark.parametrize("step", STEP.values(), ids=STEP)
@pytest.mark.parametrize("rising", [True, False])
def test_numbers_move_as_far_as_they_were_counted_to_move(step: float, rising: bool) -> None:
    parts, shape, column, here, there = found(step, rising=rising)
    before, after = visits(step, rising=rising)
    own, next_own = drawn(parts, shape, column, here, there)
    real, got, loose = after - before, next_own - own, by_itself(shape, column, here, there)
    assert (np.abs(got) < 1e-6).mean() == pytest.approx((real == 0).mean(), abs=0.02)
    if rising:
        assert got.min() >= -1e-6
    marks = [0.2, 0.3, 0.5, 0.7, 0.9]
    np.testing.assert_allclose(
        np.quantile(np.abs(got), marks), np.quantile(np.abs(real), marks), atol=1.5
    )
    assert np.median(np.abs(loose)) > np.median(np.abs(real)) + 3
    for numbers in (own, next_own):  # and lie in each bin as the column has them
        places = numbers % WIDE
        assert places.mean() == pytest.approx(WIDE / 2, abs=1.5)


def test_what_bins_have_together_stays() -> None:
    parts, _, _, here, there = found(1.0, rising=True)
    together = np.zeros((len(parts.stays),) * 2)
    np.add.at(together, (here, there), 1 / len(here))
    np.testing.assert_allclose(parts.reached.sum(axis=1), together, atol=1e-6)


def test_a_part_says_to_which_bin_a_number_goes_and_all_parts_what_the_bin_says() -> None:
    parts, shape, *_ = found(1.0, rising=True)
    count = parts.stays.shape[1]
    middle = np.array([3])
    likely = np.array(
        [Before(parts).likelihoods(middle, np.array([score]))[0] for score in (-2.0, 2.0)]
    )
    assert likely[1, 4] > 2 * likely[0, 4], "from a bin's end the next bin is near"
    assert likely[1, 3] < likely[0, 3]
    own = parts.reached.sum(axis=2)
    every = Before(parts)._likelier
    usual = (every * own[:, :, None]).sum(axis=1) / np.maximum(own.sum(axis=1), 1e-12)[:, None]
    seen = parts.reached.sum(axis=1) > 1e-6
    np.testing.assert_allclose(usual[seen], 1.0, atol=1e-6)
    assert every.shape == (shape.size, count, shape.size)


def test_changes_that_noise_hides_say_nothing() -> None:
    parts, *_ = found(1.0, rising=False, deviation=1e6)
    even = parts.moves.sum(axis=(1, 3), keepdims=True) / parts.moves.shape[1] ** 2
    np.testing.assert_allclose(parts.moves, np.broadcast_to(even, parts.moves.shape), rtol=0.1)


def test_what_never_falls_stays_where_its_bin_says_that_it_falls() -> None:
    """Noise may have made the cell: then anywhere in the bin is as good."""
    parts, *_ = found(1.0, rising=True)
    scores = After(parts).scores(np.array([2]), np.array([5]), np.array([0.5]), np.array([0.3]))
    assert np.isfinite(scores).all()


def belief(columns: TableColumns, before: NDArray, after: NDArray) -> Belief:
    """Return what counts of columns alone say, without noise."""
    made = Belief(TableFacts(columns=columns, seed=0), joint_deviation=1.0, planned=1)
    parts = []
    for place, column in enumerate(columns.columns):
        if not column.counted:
            continue
        numbers = {"observation": before, "next_observation": after - before}.get(column.part)
        if numbers is None or column.cells is None:
            parts.append(np.full(column.counted, ROWS // column.counted))
            continue
        parts.append(np.bincount(column.cells.cells_of(numbers), minlength=column.size))
        if place in columns.valued:
            values = column.cells.values_of(numbers)
            parts.append(np.bincount(values, minlength=column.counted - column.size))
    made.shape(UNIT_WEIGHT * np.concatenate(parts), 0.5 * UNIT_WEIGHT)
    return made


@pytest.mark.parametrize("rising", [True, False])
def test_a_number_that_is_drawn_as_it_is_follows_itself_by_its_changes(rising: bool) -> None:
    """Though it was not counted together with what it becomes, and other numbers were."""
    columns = table(1.0, rising=rising)
    source = np.random.default_rng(3)
    before, after = source.uniform(0, DAYS, (2, ROWS)).round()
    if rising:
        before, after = np.minimum(before, after), np.maximum(before, after)
    bins = belief(columns, before, after).bins
    ((place, change),) = columns.codings
    assert change in bins.columns.unused
    rows = np.stack([source.integers(0, size, 5000) for size in bins.sizes], axis=1)
    made = couplings(bins.columns, bins.shapes, bins.sizes, [], rows)
    assert made.of[place].leader == bins.columns.of("observation")[0]
    assert isinstance(made.of[place].follower, After)
    assert change not in made.of


def test_cells_in_which_a_number_would_fall_are_ruled_out() -> None:
    columns = table(1.0, rising=True)
    before, after = visits(1.0, rising=True)
    bins = belief(columns, before, after).bins
    (own,), ((place, _),) = columns.of("observation"), columns.codings
    (end,) = columns.of("end")
    assert bins.ruled_out((own, end)) is None
    falls = bins.ruled_out((own, place))
    assert falls is not None
    labels = bins.shapes[own].bins
    cells = columns[own].cells
    assert cells is not None
    low, high = cells.edges
    for one in range(0, len(labels), 7):
        for other in range(0, len(labels), 5):
            never = high[labels == labels[other]].max() < low[labels == labels[one]].min()
            assert falls[labels[one], labels[other]] == never
    three = bins.ruled_out((own, place, end))
    assert three is not None
    np.testing.assert_array_equal(three, np.broadcast_to(falls[:, :, None], three.shape))
    level = table(1.0, rising=False)
    assert belief(level, before, after).bins.ruled_out((own, place)) is None
