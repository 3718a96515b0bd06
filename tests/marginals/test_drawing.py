"""Rows drawn from a table's model: numbers of counted columns go together inside their bins."""

from collections.abc import Sequence

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from scipy.stats import norm

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.coupling import Coupling, Couplings, couplings
from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.marginals.tables import counts_of

BINS, COUNT = 3, 30_000


def table() -> TableColumns:
    bounds = Bounds(
        low=np.array([0.0, 0.0, 0.0]),
        high=np.array([10.0, 10.0, 1.0]),
        step=np.array([0.0, 0.0, 1.0]),
        columns=("observation_0", "observation_1", "reward"),
    )
    return step_columns(Box(0, 10, (2,)), Discrete(2), bounds, next_observation="absolute", ends=1)


def model(correlated: bool) -> TableModel:
    """Return a model of two numbers in three wide bins each, which go together or do not."""
    columns = table()
    shapes = []
    for column in columns.columns:
        size = column.size
        wide = column.cells is not None and not column.cells.step
        bins = np.arange(size) * BINS // size if wide else np.arange(size)
        widths = column.cells.widths if wide and column.cells is not None else np.ones(size)
        shapes.append(ColumnShape(widths, bins, widths, 1.0, np.empty(0)))
    sizes = tuple(shape.size for shape in shapes)
    joint = np.full((BINS, BINS), 1.0) + (6 * np.eye(BINS) if correlated else 0)
    field = Field(sizes, {(0, 1): np.log(joint)})
    rows = np.zeros((COUNT, len(columns)), np.int32)
    Drawer(field).fill(rows, np.random.default_rng(1))
    together = couplings(columns, shapes, sizes, [(0, 1)], rows)
    return TableModel(columns, tuple(shapes), together, field, np.empty(0))


def inside(made: TableModel) -> float:
    """Return the correlation of two numbers within the middle bins of both."""
    rows = np.ones((COUNT, len(made.columns)), np.int32)
    numbers = made.numbers(rows, np.random.default_rng(2))
    return float(np.corrcoef(numbers[0], numbers[1])[0, 1])


def test_numbers_follow_each_other_inside_bins_as_bins_do() -> None:
    assert inside(model(correlated=True)) > 0.15
    assert abs(inside(model(correlated=False))) < 0.03
    assert model(correlated=False).couplings.of == {}
    ((place, coupling),) = model(correlated=True).couplings.of.items()
    assert (place, coupling.leader) == (1, 0)


def drawn_bins(made: TableModel) -> NDArray[np.int32]:
    """Return bins of rows of the model."""
    rows = np.zeros((COUNT, len(made.columns)), np.int32)
    Drawer(made.field).fill(rows, np.random.default_rng(4))
    return rows


def test_coupling_leaves_each_number_as_it_is() -> None:
    """In each bin, over all rows that have it: where the other number lies may be anywhere."""
    made = model(correlated=True)
    rows = drawn_bins(made)
    scores = np.zeros(rows.shape)
    made.numbers(rows, np.random.default_rng(3), scores=scores)
    for place in (0, 1):
        for own in range(BINS):
            found = np.quantile(scores[rows[:, place] == own, place], [0.1, 0.5, 0.9])
            np.testing.assert_allclose(found, norm.ppf([0.1, 0.5, 0.9]), atol=0.15)


def normal_pair(correlation: float, cuts: Sequence[float]) -> Couplings:
    """Return how the second of two normal numbers follows the first, by bins between cuts."""
    numbers = np.random.default_rng(6).multivariate_normal(
        [0, 0], [[1, correlation], [correlation, 1]], 400_000
    )
    bins = np.searchsorted(cuts, numbers)
    shares = counts_of(bins, (0, 1), (len(cuts) + 1,) * 2) / len(bins)
    return Couplings({1: Coupling.of_bins(0, shares, abs(correlation))})


@pytest.mark.parametrize("correlation", [0.3, -0.8, 0.95])
def test_numbers_go_together_inside_wide_bins_as_they_would_without_any(
    correlation: float,
) -> None:
    """Bins of half the rows, the upper ones of a sixth and a fortieth: their tails go together."""
    cuts, count = [0.0, 1.0, 2.0], 100_000
    made = normal_pair(correlation, cuts)
    source = np.random.default_rng(7)
    truth = source.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], count)
    bins = np.searchsorted(cuts, truth)
    scores = np.zeros(bins.shape)
    order = made.in_order([0, 1])
    assert order == [0, 1]
    for place in order:
        made.score(place, order, bins, scores, source)
    limits = norm.cdf([-np.inf, *cuts, np.inf])
    found = norm.ppf(limits[bins] + norm.cdf(scores) * np.diff(limits)[bins])
    assert np.corrcoef(found.T)[0, 1] == pytest.approx(correlation, abs=0.03)
    apart = np.random.default_rng(8).random(bins.shape)
    loose = norm.ppf(limits[bins] + apart * np.diff(limits)[bins])
    assert abs(np.corrcoef(loose.T)[0, 1]) < abs(correlation) - 0.05
    far = (bins[:, 0] == 3) & (bins[:, 1] == (3 if correlation > 0 else 0))
    if far.sum() > 300:
        own = [np.corrcoef(one[far].T)[0, 1] for one in (found, truth)]
        assert own[0] == pytest.approx(own[1], abs=0.15)
    beside = bins[:, 0] == 2
    spread = [np.std(one[beside] @ [-correlation, 1]) for one in (found, truth)]
    assert spread[0] == pytest.approx(spread[1], rel=0.15)


def test_of_what_is_drawn_later_a_number_knows_the_bin() -> None:
    """Of two numbers that decide each other, the end of a wide bin is told by the other's bin."""
    made = normal_pair(0.97, [0.0, 0.5])
    bins = np.repeat([[2, 1], [2, 2]], 5_000, axis=0)
    scores = np.zeros(bins.shape)
    made.score(0, [0, 1], bins, scores, np.random.default_rng(9))
    low, high = scores[:5_000, 0].mean(), scores[5_000:, 0].mean()
    assert low < high - 0.8
    alone = np.zeros(bins.shape)
    made.score(0, [0], bins, alone, np.random.default_rng(9))
    assert abs(alone[:5_000, 0].mean()) < 0.05


def test_columns_that_are_not_asked_for_are_empty() -> None:
    made = model(correlated=True)
    rows = np.zeros((10, len(made.columns)), np.int32)
    numbers = made.numbers(rows, np.random.default_rng(0), places=[1, 2])
    assert [len(one) for one in numbers] == [0, 10, 10, 0, 0, 0]


def test_known_places_in_bins_are_followed() -> None:
    made = model(correlated=True)
    rows = np.ones((COUNT, len(made.columns)), np.int32)
    found = []
    for known in (-2.0, 2.0):
        scores = np.zeros(rows.shape)
        scores[:, 0] = known
        numbers = made.numbers(rows, np.random.default_rng(0), places=[1], scores=scores)
        found.append(numbers[1].mean())
    assert found[1] > found[0] + 0.5


def test_transitions_are_of_the_spaces_and_the_same_for_the_same_source() -> None:
    made = model(correlated=True)
    one, other = (made.transitions(200, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(one.observations, other.observations)
    assert one.observations.dtype == np.float32
    assert one.observations.min() >= 0
    assert one.observations.max() <= 10
    assert set(one.actions.tolist()) == {0, 1}
    assert set(one.rewards.tolist()) == {0.0, 1.0}
    assert not one.terminated.any()
    assert len(np.unique(one.unit_ids)) == 200
