"""Private quantiles: right answers, sensitivity by unit, and an event that follows from the scale.

The odds themselves are enumerated in `tests/gates/quantiles.py`.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.choosing import SecureChooser, SeededChooser
from distributed_privrl.privacy.events import PureDpEvent
from distributed_privrl.privacy.quantiles import (
    UNIT_WEIGHT,
    CellWeights,
    ColumnGrid,
    QuantileRelease,
    bounds_between,
    rank_sensitivity,
    row_weights,
)
from distributed_privrl.privacy.units import Relation
from tests.gates.quantiles import noisy_bounds

NULL, ADD, REPLACE = Relation.REPLACE_WITH_NULL, Relation.ADD_OR_REMOVE, Relation.REPLACE_ONE
GRID = ColumnGrid(lower=np.zeros(1), upper=np.ones(1), cells=4)


def release(quantiles=(0.05, 0.95), *, epsilon=0.5, columns=1, relation=NULL):
    return QuantileRelease(epsilon=epsilon, quantiles=quantiles, columns=columns, relation=relation)


class Nearest:
    """Takes the first of the nearest cells, and remembers what it was given."""

    def __init__(self):
        self.asked = []

    def choose(self, distances, *, scale, tag=0):
        self.asked.append((distances, scale))
        return distances.index(min(distances))


def bounds(values, units=None, *, grid=GRID, chooser=None, **settings):
    units = np.arange(len(values), dtype=np.uint64) if units is None else np.array(units)
    asked = release(columns=np.shape(values)[1], **settings)
    return noisy_bounds(
        np.array(values, np.float32), units, grid=grid, release=asked, chooser=chooser or Nearest()
    )


def test_distances_are_the_ranks_that_are_missing():
    weights = np.array([3, 0, 5, 2])
    assert release().distances(weights, 0.5) == [20_000, 20_000, 0, 30_000]
    assert release().distances(weights, 0.1) == [0, 20_000, 20_000, 70_000]
    assert release().distances(np.zeros(4, np.int64), 0.1) == [0, 0, 0, 0]


@pytest.mark.parametrize("relation", [NULL, ADD, REPLACE])
@pytest.mark.parametrize("quantiles", [(0.01, 0.99), (0.05, 0.95)])
def test_ten_thousand_normals_are_bounded_well(relation, quantiles):
    values = np.random.default_rng(0).normal(size=(10_000, 1))
    wide = ColumnGrid(lower=np.full(1, -20.0), upper=np.full(1, 20.0))
    true = np.quantile(values, quantiles)
    for seed in range(5):
        found = bounds(
            values, grid=wide, chooser=SeededChooser(seed), quantiles=quantiles, relation=relation
        )
        assert np.abs(found[0] - true).max() < 0.35, found


@pytest.mark.parametrize("share", [0.4, 1.6])
def test_the_units_that_are_needed_are_where_noise_ends(share):
    asked = release(columns=3)
    count = int(share * asked.units_needed())
    values = np.random.default_rng(0).normal(size=(count, 3))
    wide = ColumnGrid(lower=np.full(3, -20.0), upper=np.full(3, 20.0))
    found = [bounds(values, grid=wide, chooser=SeededChooser(seed)) for seed in range(10)]
    width = np.median([(each[:, 1] - each[:, 0]) for each in found])
    assert width > 10 if share < 1 else 3 < width < 3.6, width


def test_half_the_epsilon_is_less_exact():
    values = np.random.default_rng(0).normal(size=(300, 1))
    wide = ColumnGrid(lower=np.full(1, -5.0), upper=np.full(1, 5.0))
    true = np.quantile(values, (0.25, 0.75))
    errors = {
        cost: np.mean(
            [
                np.abs(
                    bounds(
                        values,
                        grid=wide,
                        chooser=SeededChooser(seed),
                        quantiles=(0.25, 0.75),
                        epsilon=cost,
                    )[0]
                    - true
                ).mean()
                for seed in range(20)
            ]
        )
        for cost in (0.1, 10.0)
    }
    assert errors[0.1] > 5 * errors[10.0]
    assert errors[10.0] < 0.05


def test_the_secure_source_bounds_too_and_never_the_same_way():
    values = np.random.default_rng(0).normal(size=(200, 3))
    wide = ColumnGrid(lower=np.full(3, -50.0), upper=np.full(3, 50.0))
    first, second = (bounds(values, grid=wide, chooser=SecureChooser()) for _ in range(2))
    assert (first[:, 0] < first[:, 1]).all()
    assert (first != second).any()


def test_values_at_and_beyond_the_ends_count_as_the_ends():
    found = bounds([[0.0], [1.0], [-1e30], [1e30], [0.6]], quantiles=(0.1, 0.9))
    assert found.tolist() == [[0.0, 1.0]]
    assert bounds([[0.6]] * 3).tolist() == [[0.5, 0.75]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_left_out_silently(bad, recwarn):
    good = [[0.3, 0.6]] * 5
    grid = ColumnGrid(lower=np.zeros(2), upper=np.ones(2), cells=4)
    for poisoned in ([*good, [bad, 0.6]], [*good, [bad, bad]], [[bad, bad]]):
        found = bounds(poisoned, grid=grid)
        assert found.shape == (2, 2)
        if len(poisoned) > 1:
            assert found.tolist() == [[0.25, 0.5], [0.5, 0.75]]
    assert not recwarn


@pytest.mark.parametrize("relation", [NULL, ADD, REPLACE])
def test_a_unit_of_a_thousand_rows_moves_nothing_more_than_a_unit_of_one(relation):
    others = [[0.1]] * 4 + [[0.9]] * 3
    asked = release(relation=relation)
    most = float(rank_sensitivity(relation, asked.quantiles)) * UNIT_WEIGHT * 10_000
    moved = {}
    for rows in (1, 1000):
        sides = {}
        for value in (0.1, 0.9, None):
            mine = [] if value is None else [[value]] * rows
            chooser = Nearest()
            units = [*range(7), *[7] * len(mine)]
            bounds([*others, *mine], units, chooser=chooser, relation=relation)
            sides[value] = np.array([distances for distances, _ in chooser.asked], float)
        pairs = [(0.1, 0.9)] if relation is REPLACE else [(0.1, None), (0.9, None)]
        moved[rows] = max(np.abs(sides[a] - sides[b]).max() for a, b in pairs)
    assert moved[1] == most
    assert 0.999 * most < moved[1000] <= most


@given(
    st.lists(
        st.lists(st.sampled_from([0.1, 0.3, 0.6, 0.9, np.nan]), min_size=1, max_size=5),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.sampled_from([-9.0, 0.3, 0.9, np.nan]), max_size=5),
    st.sampled_from([0.01, 0.25, 0.5, 0.9]),
)
@settings(max_examples=100, deadline=None)
def test_no_unit_moves_a_distance_beyond_the_sensitivity(rows_of_units, other, quantile):
    distances = []
    for units in (rows_of_units, rows_of_units[1:], [other, *rows_of_units[1:]]):
        cells = CellWeights(GRID)
        for rows in units:
            if rows:
                cells.add(np.array(rows)[:, None], row_weights(np.full(len(rows), len(rows))))
        distances.append(np.array(release((quantile,)).distances(cells.weights[0], quantile)))
    for relation, pair in ((NULL, (0, 1)), (ADD, (0, 1)), (REPLACE, (0, 2)), (REPLACE, (0, 1))):
        moved = np.abs(distances[pair[0]] - distances[pair[1]]).max()
        most = rank_sensitivity(relation, (quantile,)) * UNIT_WEIGHT * 10_000
        assert int(moved) <= most


def test_the_constants_of_each_relation():
    assert rank_sensitivity(REPLACE, (0.01, 0.99)) == 1
    for relation in (NULL, ADD):
        assert rank_sensitivity(relation, (0.01, 0.99)) == Fraction(99, 100)
        assert rank_sensitivity(relation, (0.5,)) == Fraction(1, 2)
        assert rank_sensitivity(relation, (0.2, 0.5)) == Fraction(8, 10)
    with pytest.raises(ConfigError, match="policy_level"):
        rank_sensitivity(Relation.POLICY_LEVEL, (0.5,))


@pytest.mark.parametrize("relation", [NULL, ADD, REPLACE])
@pytest.mark.parametrize("cost", [0.5, 0.1, 3.0, 1e-3])
def test_epsilon_follows_from_the_scale_of_what_is_drawn(relation, cost):
    asked = release((0.01, 0.9), epsilon=cost, columns=3, relation=relation)
    event = asked.event
    assert event.count == 6
    assert event.epsilon * event.count <= cost
    assert event.epsilon * event.count == pytest.approx(cost, rel=1e-12)
    facts = event.derivation
    assert 2 * facts["sensitivity"] / facts["scale"] == pytest.approx(event.epsilon, rel=1e-12)
    chooser = Nearest()
    grid = ColumnGrid(lower=np.zeros(3), upper=np.ones(3), cells=4)
    asked.release(CellWeights(grid), chooser)
    assert len(chooser.asked) == event.count
    for _, scale in chooser.asked:
        unit = Fraction(UNIT_WEIGHT * 10_000)
        exact = 2 * rank_sensitivity(relation, asked.quantiles) * unit / Fraction(scale)
        assert exact <= Fraction(event.epsilon), "rounding makes the choice too sharp"
    for accountant in ("pure", "pld"):
        spent = epsilon([event], delta=0.0, relation=relation, accountant=accountant)
        assert spent == pytest.approx(cost, rel=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.2},
        {"derivation": {"mechanism": "permute_and_flip", "sensitivity": 1.0}},
        {"derivation": {"mechanism": "permute_and_flip", "sensitivity": 1.0, "scale": 0.0}},
        {"derivation": {"mechanism": "permute_and_flip", "sensitivity": 0.0, "scale": 9.0}},
        {"derivation": {"mechanism": "permute_and_flip", "sensitivity": "1", "scale": 9.0}},
        {"derivation": {"mechanism": "permute_and_flip", "sensitivity": 10**400, "scale": 9.0}},
    ],
)
def test_an_event_cannot_state_less_than_its_derivation(change):
    values = release().event.model_dump()
    assert PureDpEvent.model_validate(values) == release().event
    with pytest.raises(ValidationError, match="sensitivity"):
        PureDpEvent.model_validate(values | change)


def test_rows_of_a_unit_never_weigh_more_than_the_unit():
    for rows in (1, 3, 7, 1000, UNIT_WEIGHT, UNIT_WEIGHT + 1, 2**40):
        assert 0 <= rows * int(row_weights(np.array([rows]))[0]) <= UNIT_WEIGHT


def test_crossed_choices_are_put_in_order():
    class Crossed:
        answers = iter([3, 1])

        def choose(self, distances, *, scale, tag=0):
            return next(self.answers)

    chosen = release().release(CellWeights(GRID), Crossed())
    assert chosen.tolist() == [[1, 3]]
    assert bounds_between(GRID, chosen).tolist() == [[0.25, 1.0]]


def test_edges_of_wide_and_odd_ranges_are_exact_at_the_ends():
    grid = ColumnGrid(lower=np.array([-1e30, 0.1]), upper=np.array([1e30, 0.7]))
    ends = grid.edges(np.array([[0, 1024], [0, 1024]]))
    assert ends.tolist() == [[-1e30, 1e30], [0.1, 0.7]]
    assert grid.cells_of(0, np.array([-1e38, 0.0, 1e38], np.float32)).tolist() == [0, 512, 1023]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: release(epsilon=0.0), "epsilon"),
        (lambda: release(columns=0), "columns"),
        (lambda: release(()), "quantiles must rise"),
        (lambda: release((0.9, 0.1)), "quantiles must rise"),
        (lambda: release((0.0, 0.5)), "four decimals"),
        (lambda: release((0.5, 1.0)), "four decimals"),
        (lambda: release((0.12345,)), "0.12345"),
        (lambda: release((float("nan"),)), "nan"),
        (lambda: release(columns=2).release(CellWeights(GRID), Nearest()), "columns=2"),
        (lambda: CellWeights(GRID).add(np.zeros(3), np.ones(3, np.int64)), r"\(N, 1\)"),
        (lambda: ColumnGrid(lower=np.zeros(1), upper=np.zeros(1)), "lower < upper"),
        (lambda: ColumnGrid(lower=np.zeros(1), upper=np.full(1, np.inf)), "finite"),
        (lambda: ColumnGrid(lower=np.full(1, -1e308), upper=np.full(1, 1e308)), "finite"),
        (lambda: ColumnGrid(lower=np.zeros(2), upper=np.ones(1)), r"\(B,\)"),
        (lambda: ColumnGrid(lower=np.zeros(1), upper=np.ones(1), cells=0), "cells"),
    ],
)
def test_what_is_out_of_range_is_named(make, message):
    with pytest.raises(ConfigError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
