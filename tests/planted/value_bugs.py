"""Mistakes that one could make in the sums behind a policy's value."""

from typing import Any

import numpy as np
import pytest

from distributed_privrl.data.proper import proper_transitions
from distributed_privrl.evaluation.off_policy.released import ReleasedModels, UnitFigures
from distributed_privrl.methods.policy_value import method, program
from tests.worlds.judged import REAL


def models_of_real_rows(patch: pytest.MonkeyPatch) -> None:
    """Who acted, and what actions are worth, is fitted on the very rows that are judged."""
    patch.setattr(method, "proper_transitions", lambda store, _: proper_transitions(store, REAL))


def a_unit_counts_twice(patch: pytest.MonkeyPatch) -> None:
    """The bound is that of one number, and two are added."""
    right = program.unit_integers
    patch.setattr(program, "unit_integers", lambda *given: 2 * right(*given))


def values_beside_those_before(patch: pytest.MonkeyPatch) -> None:
    """A unit's value is told as a difference from the mean of the units before it."""
    right, before = ReleasedModels.figures, []

    def figures(self: ReleasedModels, *given: Any) -> UnitFigures:
        found = right(self, *given)
        mean = float(np.mean(before)) if before else 0.0
        before.append(found.earned)
        return UnitFigures(found.value - mean, found.earned - mean)

    patch.setattr(ReleasedModels, "figures", figures)
