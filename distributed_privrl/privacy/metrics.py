"""Values that may leave: the type says why, and nothing without such a type is written.

A value is public (`PublicValue`), or it is computed from the answer of a release that the ledger
was charged for (`ReleasedValue`). The second kind is made by `Answer.map` alone, and an `Answer` by
the functions below alone, from what proves the release: a settled entry of the ledger or a
certificate. So no number becomes a released value because somebody names an entry beside it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from distributed_privrl.core.errors import UnsafeError

if TYPE_CHECKING:  # accountants are slow to import: not for a refusal
    from distributed_privrl.privacy.certificate import Certificate
    from distributed_privrl.privacy.ledger import LedgerEntry

Scalar = bool | int | float | str | None
Shown = Scalar | tuple[Scalar, ...]
"""What a metric or a fact may be; a tuple is a list in JSON."""

T = TypeVar("T")
S = TypeVar("S")
_MADE_HERE = object()
"""Proof that a constructor is called from this module."""


@dataclass(frozen=True)
class PublicValue:
    """A value that depends on no private data: a round number, a budget, a public loss.

    Raises:
        TypeError: ``value`` is neither a scalar nor a tuple of scalars; a `Sensitive` is none.
    """

    value: Shown

    def __post_init__(self) -> None:
        _check_shown(self.value)


@dataclass(frozen=True, init=False)
class ReleasedValue:
    """A value that depends on private data through charged releases; `Answer.map` makes it.

    Args:
        value: computed from answers and public values alone.
        ledger_entry: id of the entry that paid last for an answer.

    Raises:
        TypeError: it is made elsewhere, or ``value`` is neither a scalar nor a tuple of scalars.

    Privacy:
        Post-processing of the releases that the ledger was charged for.
    """

    value: Shown
    ledger_entry: str

    def __init__(self, value: Shown, *, ledger_entry: str, made: object = None) -> None:
        _check_made(self, made)
        _check_shown(value)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "ledger_entry", ledger_entry)


class Answer(Generic[T]):
    """What a release returned, or what is computed from answers and public values alone.

    Args:
        value: the noisy answer or what follows from it; it may be shown to anybody.
        entries: ids of the ledger's entries that paid, in the order of the charges.

    Raises:
        TypeError: it is made elsewhere than in this module.

    Privacy:
        Post-processing of the entries' releases. A function that is mapped must use its arguments
        and public facts alone: what it takes from around it is its author's to answer for, and
        sensitive metadata cannot be used there without being opened (`core.sensitive`).
    """

    __slots__ = ("entries", "value")

    def __init__(self, value: T, entries: tuple[str, ...], *, made: object = None) -> None:
        _check_made(self, made)
        self.value = value
        self.entries = entries

    @property
    def ledger_entry(self) -> str:
        """Id of the entry that paid last."""
        return self.entries[-1]

    def map(self, f: Callable[..., Shown], *others: "Answer[Any] | PublicValue") -> ReleasedValue:
        """Return ``f`` of the answer, and of further answers and public values, to be shown.

        Example:
            ``count.map(lambda units: units // 2)``; ``mean.map(share_of, PublicValue(500.0))``
        """
        made = self.then(f, *others)
        return ReleasedValue(made.value, ledger_entry=made.ledger_entry, made=_MADE_HERE)

    def then(self, f: Callable[..., S], *others: "Answer[Any] | PublicValue") -> "Answer[S]":
        """Return ``f`` of the answer, and of further answers and public values, as an answer.

        Raises:
            TypeError: one of ``others`` is neither.
        """
        wrong = [type(one).__name__ for one in others if type(one) not in (Answer, PublicValue)]
        if wrong:
            raise TypeError(f"answers go with answers and public values, not with {wrong[0]}")
        entries = dict.fromkeys(self.entries)
        for one in others:
            entries |= dict.fromkeys(one.entries) if isinstance(one, Answer) else {}
        value = f(self.value, *(one.value for one in others))
        return Answer(value, tuple(entries), made=_MADE_HERE)

    def paid_by(self, entry: str) -> "Answer[T]":
        """Return the same where one of several entries alone paid for what is computed of it.

        Raises:
            UnsafeError: the answer knows no such entry.
        """
        if entry not in self.entries:
            raise UnsafeError(f"{entry} is none of the entries that paid: {list(self.entries)}")
        return Answer(self.value, (entry,), made=_MADE_HERE)


def settled_answer(entry: "LedgerEntry", value: T) -> Answer[T]:
    """Return what the rounds or the release of a settled entry returned.

    Args:
        entry: as the ledger has it, after the charge was settled.
        value: what was released under it.

    Raises:
        UnsafeError: the entry is still open.
    """
    if entry.status != "settled":
        raise UnsafeError(f"ledger entry {entry.id} is open: what it pays for is not there yet")
    return Answer(value, (entry.id,), made=_MADE_HERE)


def stated_answer(certificate: "Certificate") -> "Answer[Certificate]":
    """Return what a certificate states, which is public or was released.

    Raises:
        UnsafeError: it names no entry of the ledger.
    """
    return Answer(certificate, _paid(certificate), made=_MADE_HERE)


def released_file(certificate: "Certificate", path: Path) -> Answer[Path]:
    """Return a released file, such as a policy, as an answer.

    Args:
        certificate: valid; among its outputs is the file's name.
        path: of the file.

    Raises:
        UnsafeError: the certificate is not valid, or it is not of this very file.
    """
    from distributed_privrl.privacy.certificate import hash_output

    _check_valid(certificate)
    stated = {output.id: output.sha256 for output in certificate.outputs}
    if stated.get(path.name) != hash_output(path):
        raise UnsafeError(f"{path} is not what its certificate states: do not release it")
    return Answer(path, _paid(certificate), made=_MADE_HERE)


def released_dataset(certificate: "Certificate", dataset: str) -> Answer[str]:
    """Return a released dataset's id as an answer: whoever has it may read its rows.

    Args:
        certificate: valid, and held against the dataset's files before; it lists them.
        dataset: its id.

    Raises:
        UnsafeError: the certificate is not valid, or lists no file of the dataset.
    """
    _check_valid(certificate)
    if not any(output.id.startswith(f"{dataset}/") for output in certificate.outputs):
        raise UnsafeError(f"the certificate is of no file of {dataset}: do not release it")
    return Answer(dataset, _paid(certificate), made=_MADE_HERE)


def metrics_record(**values: PublicValue | ReleasedValue) -> dict[str, Any]:
    """Return what may be written to ``metrics.jsonl`` or as a checkpoint's facts, for JSON.

    Numbers that are not finite become null.

    Raises:
        TypeError: a value says neither that it is public nor who paid for it.

    Example:
        >>> metrics_record(round=PublicValue(3), stage=PublicValue("rounds"))
        {'round': 3, 'stage': 'rounds'}
    """
    record: dict[str, Any] = {}
    for name, value in values.items():
        if type(value) not in (PublicValue, ReleasedValue):
            raise TypeError(
                f"metric {name!r} is a bare {type(value).__name__}: wrap it in PublicValue, or map"
                " the answer of the release that it comes from; anything else may not leave"
            )
        record[name] = _plain(value.value)
        if isinstance(value, ReleasedValue):
            record[f"{name}_ledger_entry"] = value.ledger_entry
    return record


def _plain(value: Shown) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _paid(certificate: "Certificate") -> tuple[str, ...]:
    if not certificate.ledger_entries:
        raise UnsafeError("the certificate names no ledger entry: nothing was released under it")
    return certificate.ledger_entries


def _check_valid(certificate: "Certificate") -> None:
    if certificate.status != "valid":
        raise UnsafeError(f"the certificate is {certificate.status}: nothing of it is released")


def _check_made(value: object, made: object) -> None:
    if made is not _MADE_HERE:
        raise TypeError(
            f"a {type(value).__name__} is not made of a value and an entry's name: map the answer"
            " of the release (Answer.map), which comes from a settled entry or a certificate"
        )


def _check_shown(value: object) -> None:
    parts: Sequence[object] = value if isinstance(value, tuple) else (value,)
    for part in parts:
        if not (part is None or isinstance(part, bool | int | float | str)):
            raise TypeError(f"a metric is a number, a text or null, got {type(part).__name__}")
