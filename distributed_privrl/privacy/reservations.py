"""Comparing a certificate with what the ledger reserved for it."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from distributed_privrl.core.errors import ConfigError, VerificationError
from distributed_privrl.privacy.certificate import AccountKey, Certificate, Cost, Stage
from distributed_privrl.privacy.events import ROUNDS
from distributed_privrl.privacy.ledger import LedgerEntry
from distributed_privrl.privacy.schedules import reserved_events
from distributed_privrl.privacy.units import Relation

TOLERANCE = 0.01
"""Relative: how far a stated figure may be from the recomputed one."""

EventKey = tuple[str, str, Relation, str, str]
"""Dataset, unit, relation, delta to 12 digits, and the event's parameters."""


class ReservationLedger(Protocol):
    """The part of a ledger that verification needs."""

    def reserved(self, entry_id: str) -> LedgerEntry | None:
        """Return what was reserved under ``entry_id``."""
        ...


def check_reservations(
    certificate: Certificate,
    costs: Mapping[AccountKey, Cost],
    ledger: ReservationLedger,
    path: Path,
) -> None:
    """Compare the stages' events, deltas and costs with the entries', then what was certified.

    Args:
        certificate: that states them.
        costs: of each account, recomputed from the stages.
        ledger: has the entries.
        path: of the certificate, for messages.

    Raises:
        VerificationError: they differ, or the ledger knows another certificate.
    """
    charged: dict[str, float] = defaultdict(float)
    for entry in check_charged(certificate, ledger, path):
        charged[entry.dataset] += entry.epsilon
    for (dataset, *_), cost in costs.items():
        if cost.epsilon > charged[dataset] * (1 + TOLERANCE):
            raise VerificationError(
                f"{path}: costs epsilon={cost.epsilon:.6g} for {dataset!r}, the ledger charged"
                f" {charged[dataset]:.6g}"
            )
    _check_certified(certificate, ledger, path)


def check_charged(
    certificate: Certificate, ledger: ReservationLedger, source: Path | str
) -> list[LedgerEntry]:
    """Compare the stages' events and deltas with those that the entries reserved; return these.

    Args:
        certificate: that states them.
        ledger: has the entries.
        source: of the certificate, for messages.

    Raises:
        VerificationError: they differ, or an entry is missing or of another account.
    """
    if len(set(certificate.ledger_entries)) != len(certificate.ledger_entries):
        raise VerificationError(f"{source}: names a ledger entry twice")
    entries, reserved = [], Counter[EventKey]()
    for entry_id in certificate.ledger_entries:
        entry = ledger.reserved(entry_id)
        if entry is None:
            raise VerificationError(f"{source}: the ledger has no entry {entry_id!r}")
        _check_account(entry, certificate, source)
        for event, count in _reserved_events(entry):
            reserved[_event_key(entry, event)] += count
        entries.append(entry)
    stated: Counter[EventKey] = Counter()
    for stage in certificate.stages:
        for stage_event in stage.events:
            event, count = _without_count(stage_event.model_dump(mode="json"))
            stated[_event_key(stage, event)] += count
    if +stated != +reserved:
        raise VerificationError(f"{source}: {_difference(stated, reserved)}")
    return entries


def _check_certified(certificate: Certificate, ledger: ReservationLedger, path: Path) -> None:
    """Refuse any rewrite: each entry knows the digests of the certificates that state it."""
    for entry_id in certificate.ledger_entries:
        entry = ledger.reserved(entry_id)
        if entry is None or entry.certificate_digest is None:
            raise VerificationError(f"{path}: the ledger has no certificate for entry {entry_id!r}")
        if certificate.digest not in (entry.certificate_digest, *entry.beside_digests):
            raise VerificationError(
                f"{path}: the ledger has another certificate for entry {entry_id!r}, with digest"
                f" {entry.certificate_digest}"
            )


def _event_key(about: Stage | LedgerEntry, event: str) -> EventKey:
    return about.dataset, about.unit, about.relation, f"{about.delta:.12g}", event


def _check_account(entry: LedgerEntry, certificate: Certificate, source: Path | str) -> None:
    account = (entry.dataset, entry.unit, entry.relation)
    if any((one.dataset, one.unit, one.relation) == account for one in certificate.stages):
        return
    raise VerificationError(
        f"{source}: no stage is about the account of ledger entry {entry.id!r}"
        f" ({entry.dataset}, {entry.unit}, {entry.relation.value})"
    )


def _reserved_events(entry: LedgerEntry) -> list[tuple[str, int]]:
    """Return the events that an entry reserved, and how often each happened."""
    values = dict(entry.event)
    if values["kind"] == ROUNDS:
        try:
            done = reserved_events(values, entry.reserved_rounds)
        except ConfigError as error:
            raise VerificationError(f"ledger entry {entry.id!r}: {error}") from error
        return [_without_count(event.model_dump(mode="json")) for event in done]
    if entry.kind == ROUNDS:
        raise VerificationError(
            f"ledger entry {entry.id!r} does not say what its rounds release: it was written by an"
            " earlier version; verify without --ledger, or with that version"
        )
    return [_without_count(values)]


def _without_count(event: dict[str, Any]) -> tuple[str, int]:
    """Return an event's parameters as text, and how often it happened."""
    count = event.pop("count", 1)
    return json.dumps(event, sort_keys=True), int(count)


def _difference(stated: Counter[EventKey], reserved: Counter[EventKey]) -> str:
    key = next(key for key in (*stated, *reserved) if stated[key] != reserved[key])
    *_, delta, event = key
    return f"states {stated[key]} of {event} at delta={delta}, the ledger reserved {reserved[key]}"
