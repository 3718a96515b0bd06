import warnings

import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.units import (
    TRAJECTORY,
    TRANSITION,
    PrivacyBudget,
    Relation,
    UnitCount,
    check_delta_for_units,
    covers,
)


@pytest.mark.parametrize(
    ("account", "run", "relations"),
    [
        (TRANSITION, TRANSITION, set(Relation)),
        (TRAJECTORY, TRAJECTORY, set(Relation)),
        ("patient_id", "patient_id", set(Relation)),
        (TRANSITION, TRAJECTORY, {Relation.REPLACE_ONE}),
        (TRAJECTORY, TRANSITION, set()),
        ("patient_id", TRAJECTORY, set()),
        (TRAJECTORY, "patient_id", set()),
    ],
)
def test_a_run_is_charged_to_an_account_that_it_covers(account, run, relations):
    """A trajectory with a transition less is another trajectory: neither gone nor null."""
    assert {relation for relation in Relation if covers(account, run, relation)} == relations


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": float("inf")}, "epsilon"),
        ({"delta": -1e-9}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"unit": ""}, "unit"),
    ],
)
def test_budgets_refuse_impossible_values(changed, name):
    with pytest.raises(ConfigError, match=name):
        PrivacyBudget(**{"epsilon": 1.0, "delta": 1e-6, "unit": TRAJECTORY, **changed})


def test_the_default_relation_is_replace_with_null():
    budget = PrivacyBudget(epsilon=1.0, delta=0.0, unit=TRAJECTORY)
    assert budget.relation is Relation.REPLACE_WITH_NULL


def test_delta_is_refused_warned_about_or_taken():
    units = UnitCount(value=1000, source="declared")
    with pytest.raises(UnsafeError, match="1/units"):
        check_delta_for_units(1e-3, units)
    with pytest.warns(UserWarning, match="smaller"):
        check_delta_for_units(5e-4, units)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_delta_for_units(1e-4, units)


def test_delta_is_checked_against_the_most_units_that_a_noisy_count_leaves_likely():
    counted = UnitCount(value=1000, source="dp", margin=500)
    assert counted.at_most == 1500
    for refused in (9e-4, 1 / 1500):
        with pytest.raises(UnsafeError, match="1/units"):
            check_delta_for_units(refused, counted)
    with pytest.warns(UserWarning, match="smaller"):
        check_delta_for_units(6.6e-4, counted)


@pytest.mark.parametrize("values", [{"value": 0}, {"value": 5, "margin": -1}])
def test_a_unit_count_is_positive_and_its_margin_not_negative(values):
    with pytest.raises(ConfigError, match=r"units|margin"):
        UnitCount(**values, source="declared")
