"""Bugs in private quantiles: sensitivity, scale, what a unit weighs, what is charged."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from distributed_privrl.privacy import quantiles
from distributed_privrl.privacy.choosing import SecureChooser
from distributed_privrl.privacy.quantiles import QuantileRelease
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages import bounding

Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_sensitivity(factor: Fraction) -> Plant:
    """Sensitivity, and with it the scale, are not what one unit can change."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = quantiles.rank_sensitivity
        patch.setattr(
            quantiles, "rank_sensitivity", lambda relation, of: factor * right(relation, of)
        )

    return plant


def constants_of_another_relation(patch: pytest.MonkeyPatch) -> None:
    """A replaced unit counts as one that is removed."""
    right = quantiles.rank_sensitivity
    patch.setattr(
        quantiles, "rank_sensitivity", lambda _, of: right(Relation.REPLACE_WITH_NULL, of)
    )


def rows_are_units(patch: pytest.MonkeyPatch) -> None:
    """Every row has a unit's weight."""
    patch.setattr(
        bounding, "row_weights", lambda rows: np.full(len(rows), quantiles.UNIT_WEIGHT, np.int64)
    )


def each_choice_at_the_whole_epsilon(patch: pytest.MonkeyPatch) -> None:
    """Every quantile is drawn at the epsilon of all of them together."""
    right = QuantileRelease.release

    def release(self: QuantileRelease, cells: Any, chooser: Any) -> Any:
        return right(replace(self, epsilon=self.epsilon * self.choices), cells, chooser)

    patch.setattr(QuantileRelease, "release", release)


def one_choice_charged(patch: pytest.MonkeyPatch) -> None:
    """Two quantiles are drawn, one is charged."""
    right = QuantileRelease.event.fget
    assert right is not None
    patch.setattr(
        QuantileRelease, "event", property(lambda self: right(self).model_copy(update={"count": 1}))
    )


def bad_values_are_errors(patch: pytest.MonkeyPatch) -> None:
    """A value that is not finite raises."""
    right = quantiles.CellWeights.add

    def add(self: Any, values: Any, weights: Any) -> None:
        assert np.isfinite(values).all(), "a value is not finite"
        right(self, values, weights)

    patch.setattr(quantiles.CellWeights, "add", add)


def wrong_scale(patch: pytest.MonkeyPatch) -> None:
    """Choices are sharper than they should be."""
    right = SecureChooser.choose

    def choose(self: SecureChooser, distances: Any, *, scale: float, tag: int = 0) -> int:
        return right(self, distances, scale=0.75 * scale, tag=tag)

    patch.setattr(SecureChooser, "choose", choose)
