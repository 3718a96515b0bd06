"""Rows of large units weigh less where they are counted, and are as many again where drawn."""

import numpy as np
import pytest

from distributed_privrl.core.config import DataConfig
from distributed_privrl.data.trajectories import Trajectories, Transitions
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.config import TableConfig
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.unit_sizes import UnitSizes
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.marginals.programs import Chooses, chained, plan_of, program_of
from tests.marginals.rows import column_counts, few_columns, group, joint_counts, steps_of

SIZES = UnitSizes(2, 16)
COLUMNS = few_columns().with_unit_sizes(SIZES)
LARGE, SMALL = 14, 2
"""Rows of two kinds of units; the large ones take action 1, the small ones action 0."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "estimated", chained)


def two_kinds(units: int = 40) -> Transitions:
    """Return the rows of as many large units as small ones."""
    rows, owners = [], []
    for unit in range(units):
        action = unit % 2
        count = LARGE if action else SMALL
        rows += [(3.0 * action, action, 0.0, 3.0 * action, False)] * count
        owners += [unit] * count
    return steps_of(rows, owners)


@pytest.mark.parametrize("most", [1, 2, 3, 100, 100_000, None])
@pytest.mark.parametrize("cap", [1, 2, 50])
def test_classes_rise_without_gaps_and_have_sizes_of_their_own(cap: int, most: int | None) -> None:
    sizes = UnitSizes(cap, most)
    starts, rows = sizes.starts, sizes.rows
    assert len(starts) == len(rows) == sizes.count <= 7
    assert (np.diff(starts) > 0).all()
    assert (starts[0], rows[0]) == (0, cap)
    if sizes.count > 1:
        assert starts[1] == cap + 1
        assert (rows[1:] >= starts[1:]).all()
        assert (rows[1:-1] <= starts[2:]).all()
    assert sizes.count == 1 or most is None or most > cap
    largest = 10 * cap if most is None else most
    classes = sizes.classes(np.arange(1, largest + 1))
    assert classes[0] == 0
    assert set(np.diff(classes)) <= {0, 1}
    assert classes.max() < sizes.count


def test_no_column_where_rows_of_all_units_weigh_alike() -> None:
    plain = few_columns()
    assert plain.with_unit_sizes(UnitSizes(10, 10)) is plain
    assert plain.unit_sizes is None


@pytest.mark.parametrize(
    ("unit", "cap", "most", "expected"),
    [
        ("transition", None, None, 1),
        ("patient", None, 10, 1),
        ("patient", 2000, 100, 1),
        ("patient", None, None, 7),
        ("patient", 5, 20, 3),
        ("trajectory", None, 40, 3),
    ],
)
def test_the_configuration_tells_the_classes(
    unit: str, cap: int | None, most: int | None, expected: int
) -> None:
    data = DataConfig.model_validate({"sensitive": "a/b-v0", "unit": unit, "max_length": most})
    assert TableConfig(rows_per_unit=cap).unit_sizes(data).count == expected


def test_a_row_has_the_class_of_its_unit_and_no_more_weight() -> None:
    rows = two_kinds(2)
    counts = column_counts(rows, COLUMNS, cap=2)
    assert counts[-SIZES.count :].tolist() == [UNIT_WEIGHT, 0, 0, LARGE * (UNIT_WEIGHT // LARGE)]
    table = joint_counts(rows, COLUMNS, (1, 5), cap=2)
    assert np.count_nonzero(table) == 2
    assert table[0, 0] == UNIT_WEIGHT
    assert table[1, -1] == LARGE * (UNIT_WEIGHT // LARGE)


def test_the_class_is_of_the_rows_that_count() -> None:
    counts = column_counts(two_kinds(2), COLUMNS, cap=2, most=3)
    assert counts[-SIZES.count :].tolist() == [UNIT_WEIGHT, 3 * (UNIT_WEIGHT // 3), 0, 0]


def model_of(rows: Transitions, columns: TableColumns) -> TableModel:
    """Return the model of counts without noise, in which the unit's class has told of actions."""
    plan = plan_of(columns, epsilon=None, steps=1, tables=3)
    program = program_of(columns, plan, Chooses())
    workers = group(rows, columns, cap=2)
    for step in range(plan.steps):
        program.prepare(step)
        program.step(step, workers, None)
    return program.model()


def shares(drawn: Transitions | Trajectories) -> float:
    """Return the share of rows with action 1."""
    return float(np.mean(drawn.actions == 1))


def test_rows_are_drawn_as_often_as_there_are_and_not_units() -> None:
    random = np.random.default_rng(0)
    plain = model_of(two_kinds(), few_columns()).transitions(20_000, random)
    assert shares(plain) == pytest.approx(0.5, abs=0.02)
    told = model_of(two_kinds(), COLUMNS).transitions(20_000, random)
    # A class stands for units of 8 to 16 rows, these have 14.
    assert shares(told) == pytest.approx(LARGE / (LARGE + SMALL), abs=0.06)
    assert np.mean(told.observations > 1) == pytest.approx(LARGE / (LARGE + SMALL), abs=0.06)


def test_no_unit_needs_more_rows_than_count_to_weigh_one() -> None:
    data = DataConfig.model_validate({"sensitive": "a/b-v0", "unit": "patient", "max_length": 4})
    assert TableConfig().row_cap(data) == TableConfig(rows_per_unit=2000).row_cap(data) == 4
    assert TableConfig(rows_per_unit=3).row_cap(data) == 3
