"""The certificate: what was released, under which assumptions, and the epsilon that follows.

Everything in it is public. Its epsilon can be recomputed from its stages alone.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import AfterValidator, ConfigDict, Field, field_validator

from distributed_privrl.core.config import PositiveFloat, PositiveInt, StrictModel
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.privacy.accounting import Accountant, RdpFigure, cross_check, epsilon
from distributed_privrl.privacy.events import (
    Event,
    check_failures_charged,
    drawn_from_floats,
)
from distributed_privrl.privacy.units import Relation, UnitCount, check_delta_for_units

METADATA = "metadata.json"
"""What a dataset says of itself, beside its rows."""
LATER_KEYS = frozenset({"privacy_certificate", "split_into"})
"""Keys of it that are no part of a release: its certificate, and the sides it was split into."""
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Delta = Annotated[float, Field(ge=0, lt=1)]


class Stage(StrictModel):
    """What one part of a run released about one dataset, composed by one accountant."""

    name: str
    dataset: str
    unit: Annotated[str, Field(min_length=1)]
    relation: Relation
    units: PositiveInt
    units_source: Literal["declared", "dp"]
    accountant: Accountant
    delta: Delta
    clip_norm: PositiveFloat | None = None
    assumptions: tuple[str, ...] = ()
    events: Annotated[tuple[Event, ...], Field(min_length=1)]

    @field_validator("events")
    @classmethod
    def _with_their_failures(cls, events: tuple[Event, ...]) -> tuple[Event, ...]:
        check_failures_charged(events)
        return events


def _output_id(value: str) -> str:
    parts = value.split("/")
    if len(value) > LONGEST_ID or any(len(part.encode()) > LONGEST_NAME for part in parts):
        raise ValueError(f"must have {LONGEST_ID} characters at most, {LONGEST_NAME} bytes a name")
    if not value.isprintable():
        raise ValueError("must hold no control characters")
    return value


LONGEST_ID, LONGEST_NAME = 1024, 255
OutputId = Annotated[str, Field(min_length=1), AfterValidator(_output_id)]
"""The path of a file or folder below that of the outputs."""


class Output(StrictModel):
    """A released file or folder, and its `hash_output`."""

    id: OutputId
    sha256: Digest


class Signature(StrictModel):
    """An Ed25519 signature of the certificate's body."""

    algorithm: Literal["ed25519"] = "ed25519"
    public_key: Digest
    value: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class Certificate(StrictModel):
    """The contract of ``certificate.json``."""

    model_config = ConfigDict(
        validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    schema_version: Literal[1] = Field(default=1, alias="schema")
    status: Literal["valid", "invalid", "non_private"]
    method: str
    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    delta: Delta | None
    epsilon_rdp: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    epsilon_rdp_reason: str | None
    stages: tuple[Stage, ...]
    spare_rounds: Annotated[int, Field(ge=0)]
    noise_source: Literal["float64_lattice", "opendp", "insecure_seeded"] | None
    ledger_entries: tuple[str, ...]
    outputs: tuple[Output, ...]
    versions: dict[str, str]
    created: str
    digest: str = ""
    signature: Signature | None = Field(default=None, exclude_if=lambda value: value is None)

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON values."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """Return the text of ``certificate.json``."""
        return self.model_dump_json(indent=2) + "\n"


class Cost(NamedTuple):
    """An epsilon and delta."""

    epsilon: float
    delta: float


AccountKey = tuple[str, str, Relation]
"""A dataset, its unit and relation: costs of one account add up."""


def account_costs(stages: Sequence[Stage]) -> dict[AccountKey, Cost]:
    """Return what the stages cost each account; stages of one account add up.

    Raises:
        UnsafeError: one dataset under two units or relations, an infinite epsilon, or a delta that
            is not below 1/units.
        ConfigError: an accountant cannot take the events of its stage.
    """
    costs: dict[AccountKey, Cost] = {}
    for stage in stages:
        account = (stage.dataset, stage.unit, stage.relation)
        value = epsilon(
            stage.events, delta=stage.delta, relation=stage.relation, accountant=stage.accountant
        )
        if not math.isfinite(value):
            raise UnsafeError(f"stage {stage.name!r} has no finite epsilon: add noise")
        before = costs.get(account, Cost(0.0, 0.0))
        costs[account] = Cost(before.epsilon + value, before.delta + stage.delta)
    _check_one_account_per_dataset(costs)
    for account, cost in costs.items():
        units = max(s.units for s in stages if (s.dataset, s.unit, s.relation) == account)
        check_delta_for_units(cost.delta, UnitCount(value=units, source="declared"))
    return costs


def _check_one_account_per_dataset(costs: Mapping[AccountKey, Cost]) -> None:
    seen: set[str] = set()
    for dataset, unit, relation in costs:
        if dataset in seen:
            raise UnsafeError(
                f"dataset {dataset!r} appears under a second unit or relation ({unit},"
                f" {relation.value}): costs of different ones do not add up"
            )
        seen.add(dataset)


def total_cost(costs: Mapping[AccountKey, Cost]) -> Cost:
    """Return the largest cost of an account: what any one unit of any dataset is promised."""
    return Cost(
        max(cost.epsilon for cost in costs.values()), max(cost.delta for cost in costs.values())
    )


def total_cross_check(stages: Sequence[Stage]) -> RdpFigure:
    """Return the Renyi-DP epsilon of all stages, totalled as `account_costs` does."""
    totals: dict[str, float] = {}
    for stage in stages:
        figure = cross_check(stage.events, delta=stage.delta, relation=stage.relation)
        if figure.epsilon is None:
            return RdpFigure(epsilon=None, reason=f"stage {stage.name!r}: {figure.reason}")
        totals[stage.dataset] = totals.get(stage.dataset, 0.0) + figure.epsilon
    return RdpFigure(epsilon=max(totals.values()))


def build_certificate(
    *,
    method: str,
    stages: Sequence[Stage],
    spare_rounds: int,
    noise_source: tuple[str, bool, Sequence[str]] | None,
    ledger_entries: Sequence[str],
    outputs: Sequence[Output],
    versions: Mapping[str, str],
) -> Certificate:
    """Return the certificate of a run, with epsilon, cross-check, status and digest.

    Args:
        method: name of the method.
        stages: what was released; none makes the status ``non_private``.
        spare_rounds: rounds paid for and not run.
        noise_source: name, whether it can be certified, and its assumptions, which every stage
            states whose noise is not exact; None if nothing was drawn.
        ledger_entries: ids of the entries that the stages were charged to.
        outputs: what leaves.
        versions: of the package and what it computed with.

    Raises:
        UnsafeError: as in `account_costs`, or stages without a noise source.
        ConfigError: a value is out of range.
    """
    if stages and noise_source is None:
        raise UnsafeError("a certificate with stages needs the noise source that they used")
    name, certifiable, assumptions = noise_source or (None, True, ())
    cost: Cost | None = None
    figure = RdpFigure(epsilon=None, reason="nothing was released under differential privacy")
    if stages:
        cost, figure = total_cost(account_costs(stages)), total_cross_check(stages)
    private = "valid" if certifiable else "invalid"
    stated = [
        stage.model_copy(update={"assumptions": _merged(stage.assumptions, assumptions)})
        if drawn_from_floats(stage.events)
        else stage
        for stage in stages
    ]
    body = {
        "method": method,
        "status": private if stages else "non_private",
        "epsilon": cost.epsilon if cost else None,
        "delta": cost.delta if cost else None,
        "epsilon_rdp": figure.epsilon,
        "epsilon_rdp_reason": figure.reason,
        "stages": stated,
        "spare_rounds": spare_rounds,
        "noise_source": name,
        "ledger_entries": tuple(ledger_entries),
        "outputs": tuple(outputs),
        "versions": dict(versions),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return _sealed(Certificate.model_validate(body))


def _merged(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*first, *second]))


def stating_nothing(certificate: Certificate) -> Certificate:
    """Return the certificate of the same run without any guarantee: its rows are nobody's."""
    return build_certificate(
        method=certificate.method,
        stages=(),
        spare_rounds=0,
        noise_source=None,
        ledger_entries=(),
        outputs=certificate.outputs,
        versions=certificate.versions,
    )


def with_outputs(certificate: Certificate, outputs: Sequence[Output]) -> Certificate:
    """Return the certificate with these outputs, a new digest and no signature."""
    return _sealed(certificate.model_copy(update={"outputs": tuple(outputs), "signature": None}))


def sign_certificate(certificate: Certificate, private_key_pem_path: Path) -> Certificate:
    """Return the certificate with an Ed25519 signature of its body.

    Args:
        certificate: as it will be published; a later change makes the signature wrong.
        private_key_pem_path: unencrypted PKCS8 key in PEM form.

    Raises:
        ConfigError: the file holds no unencrypted Ed25519 private key.
        StorageError: the file cannot be read.
    """
    with storage_errors(f"read {private_key_pem_path}"):
        pem = private_key_pem_path.read_bytes()
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{private_key_pem_path} holds no unencrypted private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{private_key_pem_path} must hold an Ed25519 key")
    signature = Signature(
        public_key=key.public_key().public_bytes_raw().hex(),
        value=key.sign(canonical_body(certificate.to_dict())).hex(),
    )
    return certificate.model_copy(update={"signature": signature})


def canonical_body(values: Mapping[str, Any]) -> bytes:
    """Return what digest and signature cover: all but the two, keys sorted, no spaces."""
    body = {key: value for key, value in values.items() if key not in ("digest", "signature")}
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical body, in hex."""
    return hashlib.sha256(canonical_body(values)).hexdigest()


def _sealed(certificate: Certificate) -> Certificate:
    return certificate.model_copy(update={"digest": digest_of(certificate.to_dict())})


def hash_output(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and hashes of all files in a folder.

    Of a dataset's ``metadata.json`` it is that of its values, but for the keys that are written
    after the certificate (`LATER_KEYS`): the certificate itself is one of them.

    Raises:
        StorageError: something cannot be read.
    """
    with storage_errors(f"read {path}"):
        if path.is_dir():
            files = sorted(inner for inner in path.rglob("*") if inner.is_file())
            lines = [f"{hash_output(file)}  {file.relative_to(path).as_posix()}" for file in files]
            return hashlib.sha256("\n".join(lines).encode()).hexdigest()
        if path.name == METADATA:
            return hashlib.sha256(_told(path.read_bytes())).hexdigest()
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def _told(content: bytes) -> bytes:
    """Return what a dataset's metadata say, with keys sorted; what is no such file, as it is."""
    try:
        values = json.loads(content)
    except ValueError:
        return content
    if not isinstance(values, dict):
        return content
    told = {key: value for key, value in values.items() if key not in LATER_KEYS}
    return json.dumps(told, sort_keys=True).encode()
