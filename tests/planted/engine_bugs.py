"""Bugs in the order in which the engine spends a budget."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages import run
from distributed_privrl.stages.first_releases import first_stage

NULL = Relation.REPLACE_WITH_NULL


def opened_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """A run opens the charge of its first stage alone."""
    right = run.open_charges
    patch.setattr(run, "open_charges", lambda context, charges: right(context, charges[:1]))


def stages_left_open(patch: pytest.MonkeyPatch) -> None:
    """A stage reads what the one before released, whose cost is still open."""
    right, late = run.settle_charge, []

    def settle(name: str, data: Any, context: Any, plan: Any) -> Any:
        late.append((name, data, context, plan))
        if name == "filter":
            return _unsettled(*late[-1])
        return [right(*one) for one in late][-1]

    def _unsettled(name: str, data: Any, context: Any, plan: Any) -> Any:
        return first_stage(name, data, plan.schedule[0][0], relation=NULL, units=plan.units), 0

    patch.setattr(run, "settle_charge", settle)


def count_left_out(patch: pytest.MonkeyPatch) -> None:
    """The noisy count is charged, and not certified."""
    right = run.count_units
    patch.setattr(run, "count_units", lambda *a, **k: (right(*a, **k)[0], None))


def charges_opened_later(patch: pytest.MonkeyPatch) -> None:
    """Charges are opened by whoever draws first: public work begins without them."""
    patch.setattr(run, "open_charges", lambda context, charges: None)


def refusals_keep_their_hold(patch: pytest.MonkeyPatch) -> None:
    """A run that is refused keeps what it held."""
    right, open_holds = run.held_budget, []

    @contextlib.contextmanager
    def kept(*arguments: Any) -> Iterator[None]:
        open_holds.append(right(*arguments))
        open_holds[-1].__enter__()
        yield

    patch.setattr(run, "held_budget", kept)
