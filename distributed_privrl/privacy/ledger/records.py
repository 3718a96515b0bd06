"""What the ledger answers with: frozen records."""

import json
import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING, Any, Literal

from distributed_privrl.core.checks import check_delta, check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.units import Relation

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

ROUNDING = 1e-9
"""Relative; sums of floating-point charges may be so far off."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """The budget of one dataset and what is charged to it.

    ``fingerprint`` is of its rows, ``partition`` of which of them belong to the same unit;
    ``spent_*`` are sums over entries, open ones at what they hold, and over what runs hold before
    they charge it (basic composition).
    """

    id: int
    dataset: str
    fingerprint: str
    partition: str
    unit: str
    relation: Relation
    epsilon: float
    delta: float
    spent_epsilon: float
    spent_delta: float

    @property
    def remaining_epsilon(self) -> float:
        """Epsilon that may still be charged; 0 where rounding alone is left."""
        return _rest(self.epsilon, self.spent_epsilon)

    @property
    def remaining_delta(self) -> float:
        """Delta that may still be charged; 0 where rounding alone is left."""
        return _rest(self.delta, self.spent_delta)

    @property
    def left(self) -> str:
        """What may still be charged, in words."""
        rest = (
            ("epsilon", self.remaining_epsilon, self.epsilon),
            ("delta", self.remaining_delta, self.delta),
        )
        return " and ".join(
            f"{name} {left:.6g} of {limit:.6g}" if left else f"nothing of {name} {limit:.6g}"
            for name, left, limit in rest
        )


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Two datasets that look alike and share nobody, as their operator says, and why."""

    dataset: str
    fingerprint: str
    other: str
    other_fingerprint: str
    why: str
    created: str

    def other_than(self, dataset: str) -> str:
        """Return the other of the two."""
        return self.other if dataset == self.dataset else self.dataset


def _rest(limit: float, spent: float) -> float:
    rest = limit - spent
    return rest if rest > limit * ROUNDING else 0.0


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One charge: a run of private rounds, or one release.

    ``epsilon`` and ``delta`` are what is charged now: the whole hold until it is settled.
    ``committed_rounds <= drawn_rounds <= reserved_rounds <= max_rounds`` always. ``units`` is the
    number of units that the run counted on; ``certificate_digest`` says which certificate states
    the entry, ``beside_digests`` (from `Ledger.reserved` alone) which do for what lies beside it.
    """

    id: str
    dataset: str
    unit: str
    relation: Relation
    kind: Literal["rounds", "release"]
    reserved_rounds: int
    drawn_rounds: int
    committed_rounds: int
    max_rounds: int
    epsilon: float
    delta: float
    event: dict[str, Any]
    status: Literal["open", "settled"]
    created: str
    made_by: str | None
    units: int | None
    certificate_digest: str | None
    beside_digests: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A block of rounds of a run, charged whether or not they are drawn.

    ``repeated`` says that this nonce had been reserved before: what was drawn under it is in
    ``drawn`` at best, so only a caller who knows that nothing was may draw.
    """

    nonce: str
    run_id: str
    first_round: int
    rounds: int
    drawn: int
    committed: int
    abandoned: bool
    repeated: bool


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """What became of the sum that a run held which was given up.

    Args:
        freed_epsilon: of what it had begun nothing of: free again.
        freed_delta: likewise.
        charged_epsilon: of what it drew or may have drawn: spent.
        charged_delta: likewise.
    """

    freed_epsilon: float
    freed_delta: float
    charged_epsilon: float
    charged_delta: float


@dataclass(frozen=True, kw_only=True)
class Hold:
    """What a run may still charge, spent for everybody else until it is charged or freed."""

    run_id: str
    dataset: str
    unit: str
    relation: Relation
    epsilon: float
    delta: float
    held_epsilon: float
    held_delta: float
    units: int | None
    status: Literal["open", "closed"]
    created: str
    made_by: str | None


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What a run asks to hold; ``epsilon`` and ``delta`` are all that it may ever charge."""

    run_id: str
    dataset: str
    fingerprint: str
    unit: str
    relation: Relation
    epsilon: float
    delta: float
    units: int | None

    def __post_init__(self) -> None:
        _check_cost(self.epsilon, self.delta, self.units)

    def columns(self) -> dict[str, Any]:
        """Return what a stored hold must equal to be this one, opened before."""
        return {
            "unit": self.unit,
            "relation": Relation(self.relation).value,
            "held_epsilon": self.epsilon,
            "held_delta": self.delta,
            "units": self.units,
        }


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What a run or release asks for.

    Args:
        entry_id: of the ledger's entry.
        kind: rounds, reserved in blocks, or one release.
        dataset: id of the dataset.
        fingerprint: of its rows, and after a colon of their partition into units.
        unit: that is protected.
        relation: under which it is.
        epsilon: cost of all rounds, >= 0.
        delta: cost of all rounds.
        max_rounds: that may be reserved, spare ones included.
        event: what is released, as JSON.
        units: how many there are; the account's deltas must stay below 1/units.
        hold: the run that holds the cost already; None: it must be left of the budget.
    """

    entry_id: str
    kind: Literal["rounds", "release"]
    dataset: str
    fingerprint: str
    unit: str
    relation: Relation
    epsilon: float
    delta: float
    max_rounds: int = 1
    event: dict[str, Any]
    units: int | None = None
    hold: str | None = None

    def __post_init__(self) -> None:
        _check_cost(self.epsilon, self.delta, self.units)
        check_positive("max_rounds", self.max_rounds)

    def columns(self) -> dict[str, Any]:
        """Return what a stored entry must equal to be this charge, made before."""
        return {
            "kind": self.kind,
            "hold": self.hold,
            "unit": self.unit,
            "relation": Relation(self.relation).value,
            "held_epsilon": self.epsilon,
            "held_delta": self.delta,
            "max_rounds": self.max_rounds,
            "event": as_json("event", self.event),
            "units": self.units,
        }


def _check_cost(epsilon: float, delta: float, units: int | None) -> None:
    if not 0 <= epsilon < math.inf:
        raise ConfigError(f"epsilon must be a finite number >= 0, got {epsilon!r}")
    check_delta("delta", delta)
    if units is not None:
        check_positive("units", units)


def as_json(name: str, value: Any) -> str:
    """Return ``value`` as JSON text with sorted keys.

    Raises:
        ConfigError: it holds something that JSON does not know.
    """
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be made of JSON values: {error}") from error


def as_entry(row: "RowMapping", *, beside: tuple[str, ...] = ()) -> LedgerEntry:
    """Return the record of a row of entries joined with its account's ``dataset``."""
    names = set(LedgerEntry.__dataclass_fields__) - {"beside_digests"}
    values: dict[str, Any] = {name: row[name] for name in names} | {"beside_digests": beside}
    values.update(event=json.loads(row["event"]), relation=Relation(row["relation"]))
    return LedgerEntry(**values)


def as_hold(row: "RowMapping") -> Hold:
    """Return the record of a row of holds joined with its account's ``dataset``."""
    values = {name: row[name] for name in Hold.__dataclass_fields__}
    return Hold(**values | {"relation": Relation(row["relation"])})


def as_reservation(row: "RowMapping") -> Reservation:
    """Return the record of a row of blocks, one that was there before."""
    values = dict(row)
    run_id = values.pop("entry_id")
    return Reservation(**values, run_id=run_id, repeated=True)


def budget_line(dataset: str, unit: str, relation: Relation, budget: tuple[float, float]) -> str:
    """Return the command that sets a budget; numbers are rounded up, so that they suffice."""
    epsilon, delta = map(_rounded_up, budget)
    line = f"privrl ledger budget {dataset} --epsilon {epsilon} --delta {delta} --unit {unit}"
    return line if relation is Relation.REPLACE_WITH_NULL else f"{line} --relation {relation}"


def _rounded_up(value: float) -> str:
    nearly = Decimal(repr(value * (1 - ROUNDING / 10)))  # so that 1e-5 stays 1e-5
    return f"{float(Context(prec=6, rounding=ROUND_CEILING).create_decimal(nearly)):.6g}"
