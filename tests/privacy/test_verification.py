import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from distributed_privrl.core.errors import VerificationError
from distributed_privrl.privacy.certificate import (
    Output,
    digest_of,
    sign_certificate,
    with_outputs,
)
from distributed_privrl.privacy.events import (
    GaussianEvent,
    LaplaceEvent,
    ParallelEvent,
    PoissonGaussianEvent,
    charged_rounds,
    repeated,
)
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from distributed_privrl.privacy.verification import verify_certificate
from tests.privacy.stages import COUNT, INSECURE, ROUNDS, certificate, stage
from tests.worlds.ledgers import open_run, release


@pytest.fixture(scope="module")
def built():
    return certificate()


def write(path, values):
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "certificate.json"


def refused(file, values, message, **options):
    with pytest.raises(VerificationError, match=message) as caught:
        verify_certificate(write(file, values), **options)
    assert "\n" not in str(caught.value)


def test_a_certificate_verifies_as_written(built, file):
    verification = verify_certificate(write(file, built.to_json()))
    assert verification.certificate == built
    assert verification.epsilon == pytest.approx(built.epsilon)
    assert verification.signed_by is None
    assert not verification.ledger_checked


def altered_event(values, **changed):
    values["stages"][1]["events"][0].update(changed)


ALTERATIONS = {
    "epsilon": (lambda values: values.update(epsilon=values["epsilon"] / 2), "epsilon"),
    "epsilon, a little": (lambda values: values.update(epsilon=values["epsilon"] * 0.985), "eps"),
    "delta": (lambda values: values.update(delta=1e-9), "delta"),
    "epsilon_rdp": (lambda values: values.update(epsilon_rdp=0.1), "epsilon_rdp"),
    "count": (lambda values: altered_event(values, count=100), "epsilon"),
    "noise multiplier": (lambda values: altered_event(values, noise_multiplier=9.0), "epsilon"),
    "probability": (lambda values: altered_event(values, sampling_probability=0.001), "epsilon"),
    "stage delta": (lambda values: values["stages"][1].update(delta=1e-5), "epsilon|delta"),
    "dropped stage": (lambda values: values["stages"].pop(), "epsilon"),
    "dropped stages": (lambda values: values["stages"].clear(), "no stages"),
    "units": (lambda values: values["stages"][1].update(units=10**6), "1/units"),
    "relation": (lambda values: values["stages"][1].update(relation="replace_one"), "replace_one"),
    "status": (lambda values: values.update(status="non_private"), "status"),
    "noise source": (lambda values: values.update(noise_source="insecure_seeded"), "not secure"),
    "no noise source": (lambda values: values.update(noise_source=None), "not secure"),
    "unknown key": (lambda values: values.update(extra=1), "unknown key 'extra'"),
    "unknown event": (lambda values: altered_event(values, kind="wishful"), "stages"),
    "unknown event key": (lambda values: altered_event(values, sigma=1.0), "sigma"),
    "missing key": (lambda values: values.pop("method"), "missing"),
    "schema": (lambda values: values.update(schema=2), "schema 2"),
    "infinite epsilon": (lambda values: altered_event(values, noise_multiplier=1e-4), "epsilon"),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_certificate_is_refused_even_with_a_new_digest(built, file, name):
    alter, message = ALTERATIONS[name]
    values = built.to_dict()
    alter(values)
    with pytest.raises(VerificationError):
        verify_certificate(write(file, values))
    values["digest"] = digest_of(values)
    refused(file, values, message)


@pytest.mark.parametrize(
    "alter",
    [
        lambda values: values.update(digest="0" * 64),
        lambda values: values.update(method="another"),
        lambda values: values.update(created="2000-01-01T00:00:00+00:00"),
        lambda values: values.update(ledger_entries=[]),
        lambda values: values["stages"][1].update(assumptions=[]),
    ],
)
def test_what_costs_nothing_to_alter_is_covered_by_the_digest(built, file, alter):
    values = built.to_dict()
    alter(values)
    refused(file, values, "digest")


def test_insecure_noise_does_not_verify(file):
    insecure = certificate(noise_source=INSECURE).to_dict()
    refused(file, insecure, "status is invalid")
    insecure["status"] = "valid"
    insecure["digest"] = digest_of(insecure)
    refused(file, insecure, "not secure")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "JSON object"),
        ('{"schema": 1, "schema": 1}', "given twice"),
        ('{"schema": 1, "epsilon": NaN}', "NaN"),
        ('{"schema": 1, "epsilon": Infinity}', "Infinity"),
        ("[" * 100_000, "not valid JSON"),
        ("\x00\xff", "not valid JSON"),
        ("{}", "schema None"),
        ('{"schema": 1}', "missing"),
    ],
)
def test_what_is_no_certificate_is_refused(file, text, message):
    refused(file, text, message)


def test_a_missing_file_is_refused(file):
    with pytest.raises(VerificationError, match="no certificate at"):
        verify_certificate(file)


def test_outputs_that_are_found_must_match(built, tmp_path, file):
    (tmp_path / "set-v0").mkdir()
    data = tmp_path / "set-v0" / "data.parquet"
    data.write_bytes(b"rows")
    digest = hashlib.sha256(b"rows").hexdigest()
    listed = [
        Output(id="set-v0/data.parquet", sha256=digest),
        Output(id="elsewhere.bin", sha256="0" * 64),
    ]
    write(file, with_outputs(built, listed).to_json())
    verification = verify_certificate(file, outputs_root=tmp_path, allow_missing_outputs=True)
    assert verification.outputs_checked == ("set-v0/data.parquet",)
    assert verification.outputs_missing == ("elsewhere.bin",)
    with pytest.raises(VerificationError, match=r"not found.*: elsewhere\.bin; .*--data"):
        verify_certificate(file, outputs_root=tmp_path)
    data.write_bytes(b"other rows")
    with pytest.raises(VerificationError, match=r"set-v0/data\.parquet.*was changed"):
        verify_certificate(file)
    outside = with_outputs(built, [Output(id="../../etc/hosts", sha256=digest)])
    refused(file, outside.to_json(), "points outside")


def one_round(**changed: Any) -> dict[str, Any]:
    return charged_rounds([ROUNDS.model_copy(update={"count": 1, **changed})])


@dataclass
class Entry:
    dataset: str = "clinic/stays-v0"
    unit: str = "trajectory"
    relation: Relation = Relation.REPLACE_WITH_NULL
    id: str = "run-1"
    kind: str = "rounds"
    reserved_rounds: int = 500
    epsilon: float = 5.0
    delta: float = 1e-6
    certificate_digest: str | None = None
    beside_digests: tuple[str, ...] = ()
    event: dict[str, Any] = field(default_factory=lambda: one_round())


class FakeLedger:
    """Entries that all know one certificate."""

    def __init__(self, certified, **entries):
        self.entries = {
            "run-1": Entry(),
            "run-1/count": Entry(
                kind="release",
                reserved_rounds=0,
                epsilon=0.05,
                delta=0.0,
                event=COUNT.model_dump(),
            ),
            **{key.replace("_", "-"): value for key, value in entries.items()},
        }
        for entry in filter(None, self.entries.values()):
            entry.certificate_digest = certified.digest

    def reserved(self, entry_id):
        return self.entries.get(entry_id)


def test_a_ledger_confirms_what_was_reserved(built, file):
    verification = verify_certificate(write(file, built.to_json()), ledger=FakeLedger(built))
    assert verification.ledger_checked


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "no entry 'run-1'"),
        (Entry(reserved_rounds=1000), "states 500 .* reserved 1000"),
        (Entry(reserved_rounds=400), "states 500 .* reserved 400"),
        (Entry(event=one_round(noise_multiplier=2.0)), "states"),
        (Entry(event=one_round(sampling_probability=0.02)), "0.0"),
        (Entry(event=GaussianEvent(noise_multiplier=3.0).model_dump()), "an earlier version"),
        (Entry(event=charged_rounds([GaussianEvent(noise_multiplier=3.0)])), "states"),
        (Entry(dataset="clinic/ward-v0"), "no stage is about"),
        (Entry(unit="transition"), "no stage is about"),
        (Entry(delta=2e-6), "at delta"),
        (Entry(unit="patient_id"), "no stage is about"),
        (Entry(relation=Relation.ADD_OR_REMOVE), "no stage is about"),
        (Entry(epsilon=0.01), "the ledger charged"),
    ],
)
def test_a_ledger_that_says_otherwise_refuses(built, file, entry, message):
    refused(file, built.to_json(), message, ledger=FakeLedger(built, run_1=entry))


def test_a_consistent_rewrite_is_caught_by_the_ledger_alone(built, file):
    fewer = PoissonGaussianEvent(**{**ROUNDS.model_dump(), "count": 100})
    rewritten = certificate(stage(events=(fewer,)), ledger_entries=("run-1",))
    verify_certificate(write(file, rewritten.to_json()))
    refused(file, rewritten.to_json(), "reserved 500", ledger=FakeLedger(built))


def test_rounds_of_several_releases_and_of_halves_are_compared_event_by_event(file):
    """A round of DP-VAPVI: three statistics of one half of the units, two of the other."""
    branches = ((GaussianEvent(noise_multiplier=30.0), GaussianEvent(noise_multiplier=40.0)),)
    halves = ParallelEvent(branches=(*branches, (LaplaceEvent(noise_multiplier=50.0),)))
    whole = GaussianEvent(noise_multiplier=60.0, count=2)
    entry = Entry(event=charged_rounds([halves, whole]), reserved_rounds=21)
    done = (repeated(halves, 21), GaussianEvent(noise_multiplier=60.0, count=42))
    right = certificate(stage(events=done), ledger_entries=("run-1",))
    ledger = FakeLedger(right, run_1=entry)
    assert verify_certificate(write(file, right.to_json()), ledger=ledger).ledger_checked
    for fewer in (
        (repeated(halves, 20), done[1]),
        (done[0], GaussianEvent(noise_multiplier=60.0, count=41)),
        (halves, done[1]),
    ):
        wrong = certificate(stage(events=fewer), ledger_entries=("run-1",))
        refused(file, wrong.to_json(), "states", ledger=FakeLedger(wrong, run_1=entry))


def test_every_event_needs_its_own_entry(built, file):
    for entries in ((), ("run-1",), ("run-1", "run-1", "run-1/count")):
        missing = certificate(ledger_entries=entries)
        refused(file, missing.to_json(), "ledger", ledger=FakeLedger(built))


def test_single_releases_add_up_to_the_stage_s_count(file):
    release = GaussianEvent(noise_multiplier=20.0)
    three = stage(events=(release.model_copy(update={"count": 3}),))
    names = ("a", "b", "c")
    built = certificate(three, ledger_entries=names)
    entries = {n: Entry(kind="release", epsilon=1.0, event=release.model_dump()) for n in names}
    ledger = FakeLedger(built, **entries)
    assert verify_certificate(write(file, built.to_json()), ledger=ledger).ledger_checked
    refused(file, certificate(three, ledger_entries=names[:2]).to_json(), "states 3", ledger=ledger)


@pytest.fixture
def signed(built, tmp_path):
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return sign_certificate(built, path)


def test_a_signature_is_checked_and_named(signed, file):
    public_key = signed.signature.public_key
    write(file, signed.to_json())
    assert verify_certificate(file).signed_by == public_key
    assert verify_certificate(file, public_key=public_key.upper()).signed_by == public_key


def test_a_signature_of_something_else_or_by_someone_else_is_refused(signed, built, file):
    values = signed.to_dict()
    values["method"] = "another"
    values["digest"] = digest_of(values)
    refused(file, values, "signature does not match")
    refused(file, signed.to_json(), "another key", public_key="0" * 64)
    refused(file, built.to_json(), "not signed", public_key=signed.signature.public_key)
    values = signed.to_dict()
    values["signature"]["value"] = "0" * 128
    refused(file, values, "signature does not match")


REWRITES = {
    "unit": ({"unit": "transition"}, "no stage is about"),
    "delta": ({"delta": 2e-6}, "at delta"),
    "smaller delta": ({"delta": 9.999e-7}, "at delta"),
    "units": ({"units": 30_000}, "another certificate"),
    "clip norm": ({"clip_norm": 2.0}, "another certificate"),
}


@pytest.fixture
def reserved(tmp_path):
    """A ledger with a run and a count that are not certified yet, and their certificate."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    budget = PrivacyBudget(epsilon=3.0, delta=1e-5, unit="trajectory")
    about = {"dataset": "clinic/stays-v0", "fingerprint": "f" * 64}
    ledger.set_budget(**about, budget=budget)
    release(ledger, "run-1/count", lambda: 7, **about, epsilon=0.05, event=COUNT.model_dump())
    open_run(ledger, "run-1", **about, epsilon=1.0, max_rounds=600, event=one_round())
    ledger.reserve_rounds("run-1", rounds=500, nonce="block")
    yield ledger, certificate(outputs=(Output(id="set-v0", sha256="1" * 64),))
    ledger.close()


@pytest.fixture
def certified(reserved):
    ledger, written = reserved
    ledger.settle("run-1", reserved_rounds=500, epsilon=0.9, delta=1e-6)
    for entry_id in written.ledger_entries:
        ledger.certify(entry_id, written.digest)
    return ledger, written


def test_a_real_ledger_confirms_what_was_certified(certified, file):
    ledger, written = certified
    write(file, written.to_json())
    assert verify_certificate(file, ledger=ledger, allow_missing_outputs=True).ledger_checked


@pytest.mark.parametrize("name", REWRITES)
def test_a_consistent_rewrite_is_refused_by_a_real_ledger(certified, file, name):
    changed, message = REWRITES[name]
    ledger, written = certified
    stages = [each.model_copy(update=changed) for each in written.stages]
    if "delta" in changed:
        stages = [written.stages[0], stages[1]]
    rewritten = certificate(*stages, outputs=written.outputs)
    verify_certificate(write(file, rewritten.to_json()), allow_missing_outputs=True)
    refused(file, rewritten.to_json(), message, ledger=ledger)


@pytest.mark.parametrize("outputs", [(), (Output(id="set-v0", sha256="2" * 64),)])
def test_rewritten_outputs_are_refused_by_a_real_ledger(certified, file, outputs):
    ledger, written = certified
    rewritten = with_outputs(written, outputs)
    verify_certificate(write(file, rewritten.to_json()), allow_missing_outputs=True)
    refused(file, rewritten.to_json(), "another certificate", ledger=ledger)


def test_what_the_ledger_never_certified_is_refused(reserved, file):
    ledger, written = reserved
    refused(file, written.to_json(), "no certificate for entry 'run-1'", ledger=ledger)
    ledger.reserve_rounds("run-1", rounds=100, nonce="second block")
    refused(file, written.to_json(), "reserved 600", ledger=ledger)
