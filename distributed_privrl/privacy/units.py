"""Privacy units, neighbouring relations and budgets: types, never bare strings and floats."""

import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from distributed_privrl.core.checks import check_delta, check_positive
from distributed_privrl.core.errors import ConfigError, UnsafeError

TRANSITION = "transition"
TRAJECTORY = "trajectory"


def unit_in_words(unit: str) -> str:
    """Return what a sentence calls one unit: a column's name alone says nothing to a reader.

    Example:
        >>> unit_in_words("trajectory"), unit_in_words("patient_id")
        ('trajectory', 'value of patient_id')
    """
    return unit if unit in (TRANSITION, TRAJECTORY) else f"value of {unit}"


class Relation(StrEnum):
    """When two datasets are neighbours.

    ``REPLACE_WITH_NULL``: one unit's contribution becomes zero; the number of units is public.
    ``ADD_OR_REMOVE``: one unit is added or removed. ``REPLACE_ONE``: one unit becomes another.
    ``POLICY_LEVEL``: one expert policy is removed or made null (expert-level DP); it protects the
    set of policies, not the data they produced.
    """

    REPLACE_WITH_NULL = "replace_with_null"
    ADD_OR_REMOVE = "add_or_remove"
    REPLACE_ONE = "replace_one"
    POLICY_LEVEL = "policy_level"

    @property
    def contributions(self) -> int:
        """By how many units' contributions a sum over neighbours differs: 2 under replace_one."""
        return 2 if self is Relation.REPLACE_ONE else 1


def covers(account_unit: str, run_unit: str, relation: Relation) -> bool:
    """Say whether a run that protects ``run_unit`` may be charged to an ``account_unit`` account.

    The same unit, always. Under ``replace_one`` a run that protects whole trajectories covers each
    of their transitions, for a trajectory with another transition is another trajectory. Under the
    other relations it does not: that trajectory is neither gone nor null. Nothing else converts: a
    column's name says nothing about what else it contains.
    """
    if account_unit == run_unit:
        return True
    whole = account_unit == TRANSITION and run_unit == TRAJECTORY
    return whole and relation is Relation.REPLACE_ONE


FEWEST_UNITS = 2
"""Of a dataset: one unit alone has nobody to hide among."""


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """An upper bound on (epsilon, delta) for one unit under one relation.

    Args:
        epsilon: > 0.
        delta: in [0, 1).
        unit: what one person contributes.
        relation: when two datasets are neighbours.

    Raises:
        ConfigError: a value is out of range.
    """

    epsilon: float
    delta: float
    unit: str
    relation: Relation = Relation.REPLACE_WITH_NULL

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_delta("delta", self.delta)
        if not self.unit:
            raise ConfigError("unit must be named: transition, trajectory or a column")


@dataclass(frozen=True, kw_only=True)
class UnitCount:
    """The number of units, and why it may be known: declared public, or counted with noise.

    ``margin`` says how far the true number may lie above ``value``: 0 where it is declared.
    """

    value: int
    source: Literal["declared", "dp"]
    margin: int = 0

    def __post_init__(self) -> None:
        check_positive("units", self.value)
        if self.margin < 0:
            raise ConfigError(f"margin must be at least 0, got {self.margin}")

    @property
    def at_most(self) -> int:
        """The number of units that is exceeded with small probability only."""
        return self.value + self.margin


def check_delta_for_people(delta: float) -> None:
    """Refuse the delta of a budget that no run could spend: two units need less than a half.

    Nobody has counted the units when a budget is set; `check_delta_for_units` refuses what is too
    much for as many as there are.

    Raises:
        UnsafeError: ``delta >= 1/2``.
    """
    if delta >= 1 / FEWEST_UNITS:
        raise UnsafeError(
            f"delta={delta:g} is not below 1/units for any number of units: with probability delta"
            " anything may be shown; choose a tenth of 1/units or less, 1e-5 for up to 10,000 units"
        )


def check_delta_for_units(delta: float, units: UnitCount) -> None:
    """Refuse a delta that would let one of the units be published.

    Raises:
        UnsafeError: ``delta >= 1/units``, at the largest number that a noisy count leaves likely.

    Warns:
        UserWarning: ``delta > 1/(10 units)``.

    Reference: PRIVACY.md section 2.
    """
    if delta >= 1 / units.at_most:
        raise UnsafeError(
            f"delta={delta:g} is not below 1/units = {1 / units.at_most:g}: releasing one unit"
            f" whole would satisfy it; choose delta <= {0.1 / units.at_most:.0e}"
        )
    if delta > 0.1 / units.at_most:
        warnings.warn(
            f"delta={delta:g} is above 1/(10 units) = {0.1 / units.at_most:g}; use a smaller one",
            stacklevel=2,
        )
