"""Checking a certificate that somebody else wrote: nothing in it is taken on trust."""

import json
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError, UnsafeError, VerificationError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.privacy.certificate import (
    AccountKey,
    Certificate,
    Cost,
    Stage,
    account_costs,
    canonical_body,
    digest_of,
    hash_output,
    total_cost,
    total_cross_check,
)
from distributed_privrl.privacy.events import EVENTS, ROUNDS, repeated
from distributed_privrl.privacy.ledger import LedgerEntry
from distributed_privrl.privacy.units import Relation

TOLERANCE = 0.01

EventKey = tuple[str, str, Relation, str, str]
"""Dataset, unit, relation, delta to 12 digits, and the event's parameters."""


class ReservationLedger(Protocol):
    """The part of a ledger that verification needs."""

    def reserved(self, entry_id: str) -> LedgerEntry | None:
        """Return what was reserved under ``entry_id``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was checked, beyond what every verification checks.

    Args:
        certificate: as read.
        epsilon: recomputed from the stages.
        outputs_checked: ids of the outputs whose hash was compared.
        outputs_missing: ids of the outputs that were not found; empty unless that was allowed.
        ledger_checked: whether a ledger confirmed the reservations.
        signed_by: public key of the signature, in hex; whose it is, is the reader's to know.
    """

    certificate: Certificate
    epsilon: float
    outputs_checked: tuple[str, ...]
    outputs_missing: tuple[str, ...]
    ledger_checked: bool
    signed_by: str | None


def verify_certificate(
    path: Path,
    *,
    ledger: ReservationLedger | None = None,
    outputs_root: Path | None = None,
    public_key: str | None = None,
    allow_missing_outputs: bool = False,
) -> Verification:
    """Verify the certificate in the file at ``path``.

    Epsilon, delta and the Renyi cross-check are recomputed from the stages alone; digest,
    signature and the hashes of the outputs must match. A consistent rewrite of the whole file is
    caught by ``ledger`` or ``public_key`` alone.

    Args:
        path: ``certificate.json``.
        ledger: compares what was reserved.
        outputs_root: where outputs are looked for by id, and in the certificate's folder; all
            that are found must match.
        public_key: Ed25519 key in hex that must have signed.
        allow_missing_outputs: outputs that are not found are named in the result, not refused.

    Raises:
        VerificationError: one line that says what does not hold, or which outputs are missing.
        StorageError: a file cannot be read.
    """
    values = _read(path)
    certificate = _parse(values, path)
    if digest_of(values) != certificate.digest:
        raise VerificationError(f"{path}: the digest does not match: the file was changed")
    if certificate.status != "valid":
        raise VerificationError(f"{path}: status is {certificate.status}, not valid")
    if certificate.noise_source in (None, "insecure_seeded"):
        raise VerificationError(f"{path}: noise source {certificate.noise_source} is not secure")
    signed_by = _check_signature(certificate, values, public_key, path)
    costs = _recomputed(certificate, path)
    checked, missing = _check_outputs(certificate, [outputs_root or path.parent, path.parent], path)
    if ledger is not None:
        _check_reservations(certificate, costs, ledger, path)
    if missing and not allow_missing_outputs:
        raise VerificationError(
            f"{path}: outputs not found, so not checked: {', '.join(missing)}; give their folder"
            " with --data, or check all else with --allow-missing-outputs"
        )
    return Verification(
        certificate=certificate,
        epsilon=total_cost(costs).epsilon,
        outputs_checked=checked,
        outputs_missing=missing,
        ledger_checked=ledger is not None,
        signed_by=signed_by,
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise VerificationError(f"no certificate at {path}: give the path of certificate.json")
    with storage_errors(f"read {path}"):
        content = path.read_bytes()
    try:
        values = json.loads(content, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise VerificationError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise VerificationError(f"{path} must hold a JSON object")
    return values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key is given twice")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _parse(values: dict[str, Any], path: Path) -> Certificate:
    schema = values.get("schema")
    if schema != 1:
        raise VerificationError(
            f"{path}: schema {schema!r} is not 1: use the version that wrote it"
        )
    try:
        return validate(Certificate, values, source=str(path))
    except ConfigError as error:
        raise VerificationError(str(error)) from error


def _check_signature(
    certificate: Certificate, values: Mapping[str, Any], public_key: str | None, path: Path
) -> str | None:
    signature = certificate.signature
    if signature is None:
        if public_key is not None:
            raise VerificationError(f"{path} is not signed")
        return None
    if public_key is not None and signature.public_key != public_key.lower():
        raise VerificationError(f"{path} is signed by another key, {signature.public_key}")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.public_key))
        key.verify(bytes.fromhex(signature.value), canonical_body(values))
    except (InvalidSignature, ValueError) as error:
        raise VerificationError(f"{path}: the signature does not match") from error
    return signature.public_key


def _recomputed(certificate: Certificate, path: Path) -> dict[AccountKey, Cost]:
    if not certificate.stages:
        raise VerificationError(f"{path}: there are no stages to recompute epsilon from")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            costs = account_costs(certificate.stages)
        figure = total_cross_check(certificate.stages)
    except (ConfigError, UnsafeError) as error:
        raise VerificationError(f"{path}: {error}") from error
    total = total_cost(costs)
    for name, stated, recomputed in (
        ("epsilon", certificate.epsilon, total.epsilon),
        ("delta", certificate.delta, total.delta),
        ("epsilon_rdp", certificate.epsilon_rdp, figure.epsilon),
    ):
        if not _agree(stated, recomputed):
            raise VerificationError(
                f"{path}: states {name}={_shown(stated)}, its stages give {_shown(recomputed)}"
            )
    return costs


def _agree(stated: float | None, recomputed: float | None) -> bool:
    if stated is None or recomputed is None:
        return stated is recomputed
    return math.isclose(stated, recomputed, rel_tol=TOLERANCE, abs_tol=1e-12)


def _shown(value: float | None) -> str:
    return "null" if value is None else f"{value:.6g}"


def _check_outputs(
    certificate: Certificate, roots: Sequence[Path], path: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    checked: list[str] = []
    missing: list[str] = []
    for output in certificate.outputs:
        targets = [(root / output.id).resolve() for root in roots]
        for root, target in zip(roots, targets, strict=True):
            if not target.is_relative_to(root.resolve()):
                raise VerificationError(f"{path}: output {output.id!r} points outside {root}")
        found = [target for target in dict.fromkeys(targets) if target.exists()]
        for target in found:
            if hash_output(target) != output.sha256:
                raise VerificationError(f"{path}: output {output.id!r} at {target} was changed")
        (checked if found else missing).append(output.id)
    return tuple(checked), tuple(missing)


def _check_reservations(
    certificate: Certificate,
    costs: Mapping[AccountKey, Cost],
    ledger: ReservationLedger,
    path: Path,
) -> None:
    """Compare the stages' events, deltas and costs with the entries', then what was certified."""
    reserved: Counter[EventKey] = Counter()
    charged: dict[str, float] = defaultdict(float)
    if len(set(certificate.ledger_entries)) != len(certificate.ledger_entries):
        raise VerificationError(f"{path}: names a ledger entry twice")
    for entry_id in certificate.ledger_entries:
        entry = ledger.reserved(entry_id)
        if entry is None:
            raise VerificationError(f"{path}: the ledger has no entry {entry_id!r}")
        _check_account(entry, costs, entry_id, path)
        for event, count in _reserved_events(entry):
            reserved[_event_key(entry, event)] += count
        charged[entry.dataset] += entry.epsilon
    stated: Counter[EventKey] = Counter()
    for stage in certificate.stages:
        for stage_event in stage.events:
            event, count = _without_count(stage_event.model_dump(mode="json"))
            stated[_event_key(stage, event)] += count
    if +stated != +reserved:
        raise VerificationError(f"{path}: {_difference(stated, reserved)}")
    for (dataset, *_), cost in costs.items():
        if cost.epsilon > charged[dataset] * (1 + TOLERANCE):
            raise VerificationError(
                f"{path}: costs epsilon={cost.epsilon:.6g} for {dataset!r}, the ledger charged"
                f" {charged[dataset]:.6g}"
            )
    _check_certified(certificate, ledger, path)


def _check_certified(certificate: Certificate, ledger: ReservationLedger, path: Path) -> None:
    """Refuse any rewrite: each entry knows the digest of the one certificate that states it."""
    for entry_id in certificate.ledger_entries:
        entry = ledger.reserved(entry_id)
        if entry is None or entry.certificate_digest is None:
            raise VerificationError(f"{path}: the ledger has no certificate for entry {entry_id!r}")
        if entry.certificate_digest != certificate.digest:
            raise VerificationError(
                f"{path}: the ledger has another certificate for entry {entry_id!r}, with digest"
                f" {entry.certificate_digest}"
            )


def _event_key(about: Stage | LedgerEntry, event: str) -> EventKey:
    return about.dataset, about.unit, about.relation, f"{about.delta:.12g}", event


def _check_account(
    entry: LedgerEntry, costs: Mapping[AccountKey, Cost], entry_id: str, path: Path
) -> None:
    if (entry.dataset, entry.unit, entry.relation) in costs:
        return
    raise VerificationError(
        f"{path}: no stage is about the account of ledger entry {entry_id!r}"
        f" ({entry.dataset}, {entry.unit}, {entry.relation.value})"
    )


def _reserved_events(entry: LedgerEntry) -> list[tuple[str, int]]:
    """Return the events that an entry reserved, and how often each happened."""
    values = dict(entry.event)
    if values["kind"] == ROUNDS:
        events = EVENTS.validate_python(values["events"])
        done = [repeated(event, entry.reserved_rounds) for event in events]
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
