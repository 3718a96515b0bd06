"""Checking a certificate that somebody else wrote: nothing in it is taken on trust."""

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError, UnsafeError, VerificationError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.privacy.certificate import (
    METADATA,
    AccountKey,
    Certificate,
    Cost,
    Output,
    account_costs,
    canonical_body,
    digest_of,
    hash_output,
    total_cost,
    total_cross_check,
)
from distributed_privrl.privacy.events import Event, ParallelEvent, RepeatAndSelectEvent
from distributed_privrl.privacy.loss_distributions import within
from distributed_privrl.privacy.reservations import (
    TOLERANCE,
    ReservationLedger,
    check_reservations,
)

MOST_BYTES = 2**24
"""Of a certificate."""
MOST_EVENTS = 256
"""Different ones of a certificate: an accountant takes up to a second for each."""
MOST_SECONDS = 60.0
"""That all of them may take together, of the processor: four times what a certificate should."""
MOST_NESTING = 8
"""Events within each other."""


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
    certificate = _unchanged(values, path)
    _check_valid(certificate, path)
    signed_by = _check_signature(certificate, values, public_key, path)
    costs = _recomputed(certificate, path)
    checked, missing = _check_outputs(certificate, [outputs_root or path.parent, path.parent], path)
    if ledger is not None:
        check_reservations(certificate, costs, ledger, path)
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


def read_certificate(path: Path) -> Certificate:
    """Return the certificate in the file at ``path``, of any status, if its digest matches.

    Raises:
        VerificationError: there is none, or it was changed.
        StorageError: it cannot be read.
    """
    return _unchanged(_read(path), path)


def verify_outputs(
    values: Mapping[str, Any], found: Sequence[Output], *, source: Path | str
) -> Certificate:
    """Return the certificate in ``values`` if it is valid and names exactly the files found.

    Epsilon is not recomputed: that is `verify_certificate`.

    Args:
        values: of ``certificate.json``, or of a dataset's metadata.
        found: id and hash of every file that it has to name.
        source: where the values come from, for messages.

    Raises:
        VerificationError: the digest does not match, the status is not valid, or a file is missing,
            changed, or not named.
    """
    certificate = _unchanged(values, source)
    _check_valid(certificate, source)
    stated = {output.id: output.sha256 for output in certificate.outputs}
    present = {output.id: output.sha256 for output in found}
    if not any(_describes(name) for name in stated):  # of versions that hashed the rows alone
        present = {name: digest for name, digest in present.items() if not _describes(name)}
    wrong = sorted(k for k in stated | present if stated.get(k) != present.get(k))
    if wrong or not stated:
        raise VerificationError(
            f"{source}: {', '.join(wrong) or 'no file'} is not what the certificate names: the"
            " release was changed; do not pass it on, write it again with privrl run"
        )
    return certificate


def _describes(output: str) -> bool:
    return PurePosixPath(output).name == METADATA


def _unchanged(values: Mapping[str, Any], source: Path | str) -> Certificate:
    certificate = _parse(values, source)
    if digest_of(values) != certificate.digest:
        raise VerificationError(f"{source}: the digest does not match: the file was changed")
    return certificate


def _check_valid(certificate: Certificate, source: Path | str) -> None:
    if certificate.status != "valid":
        raise VerificationError(f"{source}: status is {certificate.status}, not valid")
    if certificate.noise_source in (None, "insecure_seeded"):
        raise VerificationError(f"{source}: noise source {certificate.noise_source} is not secure")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise VerificationError(f"no certificate at {path}: give the path of certificate.json")
    with storage_errors(f"read {path}"), path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise VerificationError(f"{path} has more than {MOST_BYTES} bytes: it is no certificate")
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


def _parse(values: Mapping[str, Any], path: Path | str) -> Certificate:
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
    different = {event for stage in certificate.stages for event in _leaves(stage.events, path)}
    if len(different) > MOST_EVENTS:
        raise VerificationError(
            f"{path}: {len(different)} different events, more than the {MOST_EVENTS} that are"
            " recomputed"
        )
    try:
        with warnings.catch_warnings(), within(MOST_SECONDS):
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


def _leaves(events: Sequence[Event], path: Path, depth: int = 1) -> Iterator[str]:
    """Yield each event that holds no others, as JSON.

    Raises:
        VerificationError: events are nested deeper than `MOST_NESTING`.
    """
    if depth > MOST_NESTING:
        raise VerificationError(f"{path}: more than {MOST_NESTING} events within each other")
    for event in events:
        if isinstance(event, ParallelEvent):
            for branch in event.branches:
                yield from _leaves(branch, path, depth + 1)
        elif isinstance(event, RepeatAndSelectEvent):
            yield from _leaves(event.events, path, depth + 1)
        else:
            yield event.model_dump_json()


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
