"""What a run of marginals is charged: every draw, and no more than the budget."""

import math
from dataclasses import replace

import pytest

from distributed_privrl.core.config import PrivacyConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.marginals.plan import (
    MarginalsPlan,
    SelectionConfig,
    integer_sensitivity,
    marginals_plan,
    score_span,
    share_of_choices,
    tables_in_all,
)
from distributed_privrl.marginals.verdict import pairs_in_words, verdict_of
from distributed_privrl.marginals.workload import LARGEST_WEIGHT
from distributed_privrl.methods.marginals.config import MarginalsJTraining, MarginalsTraining
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.schedules import merged
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.stages.verdict import OF_STRONG_PAIRS, Grade
from tests.marginals.programs import plan_of
from tests.marginals.rows import few_columns

COLUMNS = few_columns()


@pytest.fixture(scope="module")
def plan() -> MarginalsPlan:
    return plan_of(COLUMNS, steps=3, tables=7)


def test_a_step_of_columns_and_steps_of_choices_that_halve(plan: MarginalsPlan) -> None:
    assert plan.counts == (4, 2, 1)
    assert (plan.steps, plan.spare, plan.block_rounds) == (4, 0, 1)
    kinds = [[(event.kind, event.count) for event in step] for step in plan.schedule]
    assert kinds[0] == [("discrete_gaussian", 1)]
    assert kinds[1:] == [
        [("bounded_range", count), ("discrete_gaussian", count)] for count in plan.counts
    ]


def test_what_is_charged_is_what_the_releases_draw(plan: MarginalsPlan) -> None:
    for release, events in zip(plan.releases, plan.schedule, strict=True):
        drawn = (release.columns, release.choices, release.tables)
        assert events == tuple(one.event for one in drawn if one is not None)
        assert release.count == (0 if release.columns else release.choices.count)
    first, later = plan.releases[0].columns, plan.releases[1:]
    assert first is not None
    assert first.sensitivity == UNIT_WEIGHT * math.sqrt(COLUMNS.histograms)
    for one in later:
        assert one.choices is not None
        assert one.tables is not None
        assert one.choices.span == 3 * LARGEST_WEIGHT * UNIT_WEIGHT
        assert one.tables.sensitivity == UNIT_WEIGHT


def test_the_budget_is_kept_and_spent(plan: MarginalsPlan) -> None:
    whole = epsilon(merged(plan.schedule), delta=1e-5, relation=Relation.REPLACE_WITH_NULL)
    assert 0.99 * 8 < whole <= 8
    assert plan.epsilon(plan.steps, certified=True) == pytest.approx(whole, rel=1e-3)


def test_shares_are_parts_of_one_release_of_all(plan: MarginalsPlan) -> None:
    """The inverse squares of noise multipliers add up, a choice counting as epsilon^2 / 4."""
    first, one = plan.releases[0].columns, plan.releases[1]
    assert first is not None
    assert one.choices is not None
    assert one.tables is not None
    columns = first.noise_multiplier**-2
    tables = 7 * one.tables.noise_multiplier**-2
    choices = 7 * one.choices.epsilon**2 / 4
    total = columns + tables + choices
    assert [columns / total, choices / total, tables / total] == pytest.approx([0.35, 0.1, 0.55])


@pytest.mark.parametrize(
    ("relation", "contributions"),
    [("replace_with_null", 1), ("add_or_remove", 1), ("replace_one", 2)],
)
def test_sensitivities_by_relation(relation: str, contributions: int) -> None:
    one = Relation(relation)
    assert integer_sensitivity(one) == UNIT_WEIGHT * math.sqrt(contributions)
    assert score_span(one) == 12 * UNIT_WEIGHT * contributions


def test_a_schedule_that_charges_something_else_is_refused(plan: MarginalsPlan) -> None:
    with pytest.raises(UnsafeError, match="must charge what"):
        replace(plan, schedule=(plan.schedule[1], *plan.schedule[1:]))


def test_without_privacy_nothing_is_charged() -> None:
    plan = plan_of(COLUMNS, epsilon=None)
    assert (plan.budget, plan.schedule, plan.releases, plan.counts) == (None, (), (), (1, 1))


def test_more_units_and_epsilon_measure_more() -> None:
    ask = SelectionConfig()
    few, some, many = (
        tables_in_all(ask, columns=10, units=units, epsilon=1.0) for units in (10, 10_000, 10**9)
    )
    assert (few, some, many) == (3, 9, 30)
    assert tables_in_all(ask, columns=10, units=10_000, epsilon=0.1) < some
    assert tables_in_all(SelectionConfig(tables=4), columns=10, units=10, epsilon=1.0) == 4


def test_choices_are_the_surer_the_fewer_units_there_are() -> None:
    shares = [
        share_of_choices(SelectionConfig(), units=units, epsilon=1.0)
        for units in (10, 600, 2000, 10**9)
    ]
    assert shares == pytest.approx([0.2, 0.174, 0.1, 0.1], abs=0.001)
    assert share_of_choices(SelectionConfig(choices_share=0.3), units=10, epsilon=1.0) == 0.3
    rest = share_of_choices(SelectionConfig(columns_share=0.85), units=10, epsilon=1.0)
    assert rest == pytest.approx(0.075), "few units are found out after their count was charged"


def test_shares_that_leave_nothing_and_large_deltas_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave nothing for joint counts"):
        plan_of(COLUMNS, columns_share=0.6, choices_share=0.4)


def test_a_step_that_chooses_more_than_it_pays_for_is_refused(plan: MarginalsPlan) -> None:
    with pytest.raises(UnsafeError, match="as many joint counts"):
        replace(plan, counts=tuple(2 * count for count in plan.counts))
    with pytest.raises(UnsafeError, match="equally many"):
        replace(plan.releases[1], count=plan.releases[1].count + 1)


@pytest.mark.parametrize(
    ("units", "epsilon", "columns", "grade"),
    [
        (111, 4.0, 12, Grade.HOPELESS),  # where nothing tells how many values columns have
        (1000, 0.01, 12, Grade.HOPELESS),
        (1000, 1.0, 9, Grade.LIMITED),
        (4043, 4.0, 17, Grade.FINE),  # planes of a fleet
    ],
)
def test_a_plan_says_what_its_noise_leaves(
    units: int, epsilon: float, columns: int, grade: Grade
) -> None:
    plan = marginals_plan(
        PrivacyConfig.model_validate({"epsilon": epsilon, "delta": 1e-5}),
        SelectionConfig(),
        unit="patient",
        units=UnitCount(value=units, source="declared"),
        columns=columns,
        histograms=columns,
        epsilon=epsilon,
        delta=1e-5,
    )
    assert plan.verdict is not None
    assert plan.verdict.grade is grade
    assert bool(plan.verdict.advice) == (grade is not Grade.FINE)


def test_a_verdict_counts_what_stands_out_by_three_deviations() -> None:
    for column, joint, grade in (
        (9.9, 1.2, Grade.FINE),
        (9.9, 1.3, Grade.LIMITED),
        (10.1, 1.2, Grade.HOPELESS),
    ):
        found = verdict_of(300, (), column_noise_units=column, joint_noise_units=joint)
        assert found.grade is grade
        assert (OF_STRONG_PAIRS in found.reason) == (grade is Grade.FINE)


def test_a_verdict_says_how_rare_a_value_may_be() -> None:
    """A cell of three deviations of its noise is told from it, and one of less is not."""
    found = verdict_of(900, (), column_noise_units=9.2, joint_noise_units=2.5)
    assert (
        "a category, or a single value of a number, that fewer than about 28 units have, and two of"
        " them that fewer than about 8 have together, may be lost or invented"
    ) in found.reason


def test_a_verdict_names_the_key_that_asks_for_fewer_joint_counts() -> None:
    def advice(column: float, fewer: str) -> str:
        return verdict_of(
            300, (), column_noise_units=column, joint_noise_units=2, fewer=fewer
        ).advice

    assert "fewer joint counts (training.tables: 6)" in advice(9.9, "training.tables: 6")
    assert "joint counts" not in advice(9.9, "")  # there is one alone
    assert "joint counts" not in advice(10.1, "training.tables: 6")  # columns have no more noise
    for table, where in (
        (MarginalsTraining, "training.tables"),
        (MarginalsJTraining, "training.tables"),
        (SelectionConfig, "training.pretraining.marginals.selection.tables"),
    ):
        assert where == table.TABLES_KEY


def test_columns_of_few_values_need_fewer_bins() -> None:
    flags, numbers = (2, 2, 2, 101), (2, 101, 101)
    for noise, sizes, grade in (
        (24.0, flags, Grade.LIMITED),
        (26.0, flags, Grade.HOPELESS),
        (24.0, numbers, Grade.HOPELESS),
    ):
        found = verdict_of(300, sizes, column_noise_units=noise, joint_noise_units=20)
        assert found.grade is grade
    assert found.reason.endswith("where half of the columns need 10 bins")


@pytest.mark.parametrize(
    ("units", "grade"), [(1000, Grade.HOPELESS), (3000, Grade.LIMITED), (100_000, Grade.FINE)]
)
def test_a_plan_of_a_wide_table_says_how_few_of_its_pairs_are_counted(
    units: int, grade: Grade
) -> None:
    plan = marginals_plan(
        PrivacyConfig.model_validate({"epsilon": 1.0, "delta": 1e-6}),
        SelectionConfig(tables=18),
        unit="person",
        units=UnitCount(value=units, source="declared"),
        columns=22,
        histograms=22,
        epsilon=1.0,
        delta=1e-6,
    )
    assert plan.verdict is not None
    assert plan.verdict.grade is grade
    told = "of 231 pairs of columns 18 are counted" in plan.verdict.reason
    assert told == (grade is not Grade.HOPELESS), "where nothing survives, pairs do not matter"
    if grade is Grade.FINE:
        assert plan.verdict.reason.startswith("of 231 pairs"), "before all that sounds well"
    assert plan.details["pairs_of_columns"] == 231


def test_a_plan_that_counts_all_pairs_speaks_of_none_that_is_lost() -> None:
    assert pairs_in_words(4, 6) == ""
    assert "of 6 pairs of columns 5 are counted" in pairs_in_words(4, 5)


def test_a_verdict_says_how_many_rows_a_unit_needs_to_weigh_one() -> None:
    noise = {"column_noise_units": 1.0, "joint_noise_units": 1.0}
    assert "rows_per_unit" not in verdict_of(300, (), **noise).reason
    assert "50 rows or more" in verdict_of(300, (), rows_per_unit=50, **noise).reason


def test_choices_among_many_columns_take_longer() -> None:
    """Each choice looks at all pairs of them."""

    def effort(columns: int) -> float:
        plan = marginals_plan(
            PrivacyConfig.model_validate({"epsilon": None, "delta": 1e-6}),
            SelectionConfig(tables=18),
            unit="person",
            units=UnitCount(value=5000, source="declared"),
            columns=columns,
            histograms=columns,
            epsilon=None,
            delta=1e-6,
        )
        assert plan.effort is not None
        return plan.effort.joint_counts

    assert 18 < effort(12) < 1.3 * 18
    assert 4 < effort(46) / effort(12) < 5
