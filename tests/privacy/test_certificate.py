import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from pydantic import ValidationError

from distributed_privrl.core.errors import ConfigError, StorageError, UnsafeError
from distributed_privrl.privacy import certificate as module
from distributed_privrl.privacy.accounting import RdpFigure, cross_check, epsilon
from distributed_privrl.privacy.certificate import (
    Certificate,
    Output,
    Stage,
    build_certificate,
    digest_of,
    hash_output,
    sign_certificate,
    with_outputs,
)
from distributed_privrl.privacy.events import (
    ApproximateDpEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    ParallelEvent,
    PureDpEvent,
    RepeatAndSelectEvent,
    drawn_from_floats,
)
from distributed_privrl.privacy.units import Relation
from tests.privacy.stages import COUNT, INSECURE, ROUNDS, certificate, count_stage, stage

CONTRACT = {
    "schema", "status", "method", "epsilon", "delta", "epsilon_rdp", "epsilon_rdp_reason",
    "stages", "spare_rounds", "noise_source", "ledger_entries", "outputs", "versions", "created",
    "digest",
}  # fmt: skip
STAGE_CONTRACT = {
    "name", "dataset", "unit", "relation", "units", "units_source", "accountant", "delta",
    "clip_norm", "assumptions", "events",
}  # fmt: skip


def cost(events, delta=1e-6):
    return epsilon(events, delta=delta, relation=Relation.REPLACE_WITH_NULL)


def test_the_json_is_the_contract():
    values = json.loads(certificate().to_json())
    assert set(values) == CONTRACT
    assert set(values["stages"][0]) == STAGE_CONTRACT
    assert values["schema"] == 1
    assert values["stages"][1]["events"] == [
        {
            "kind": "poisson_gaussian",
            "sampling_probability": 0.01,
            "noise_multiplier": 3.0,
            "count": 500,
        }
    ]
    assert values["digest"] == digest_of(values)


def test_json_and_model_are_the_same_thing():
    built = certificate()
    assert Certificate.model_validate(json.loads(built.to_json())) == built
    assert json.loads(built.model_dump_json()) == built.to_dict() == json.loads(built.to_json())


def test_the_digest_covers_everything_but_itself_and_the_signature():
    values = certificate().to_dict()
    body = {key: value for key, value in values.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    assert values["digest"] == hashlib.sha256(text.encode()).hexdigest()
    assert digest_of({**values, "signature": {"algorithm": "ed25519"}}) == values["digest"]
    for key in CONTRACT - {"digest"}:
        assert digest_of({**values, key: "altered"}) != values["digest"]


def test_stages_of_one_account_add_up():
    both = certificate()
    assert both.epsilon == pytest.approx(0.05 + cost((ROUNDS,)))
    assert both.delta == 1e-6
    twice = certificate(stage(), stage(name="again", delta=2e-6))
    assert twice.epsilon == pytest.approx(cost((ROUNDS,)) + cost((ROUNDS,), 2e-6))
    assert twice.delta == pytest.approx(3e-6)


def test_different_datasets_cost_the_largest():
    other = stage(dataset="clinic/ward-v0", delta=2e-6, events=(GaussianEvent(noise_multiplier=2),))
    built = certificate(stage(), other)
    assert built.epsilon == pytest.approx(cost(other.events, 2e-6))
    assert built.delta == 2e-6


def test_one_dataset_under_two_units_or_relations_is_refused():
    for changed in ({"unit": "transition"}, {"relation": "add_or_remove"}):
        with pytest.raises(UnsafeError, match="do not add up"):
            certificate(stage(), stage(**changed))


def test_the_cross_check_adds_up():
    figures = [
        cross_check(s.events, delta=s.delta, relation=Relation.REPLACE_WITH_NULL)
        for s in (stage(), stage(delta=2e-6))
    ]
    built = certificate(stage(), stage(name="again", delta=2e-6))
    assert built.epsilon_rdp == pytest.approx(sum(figure.epsilon for figure in figures))
    assert built.epsilon_rdp > built.epsilon
    assert built.epsilon_rdp_reason is None
    counted = certificate()
    assert counted.epsilon_rdp == pytest.approx(0.05 + figures[0].epsilon)


def test_a_cross_check_that_cannot_speak_gives_its_reason(monkeypatch):
    silent = RdpFigure(epsilon=None, reason="no order is finite")
    monkeypatch.setattr(module, "cross_check", lambda *_, **__: silent)
    built = certificate()
    assert built.epsilon_rdp is None
    assert built.epsilon_rdp_reason == "stage 'count': no order is finite"


def test_an_insecure_noise_source_makes_the_status_invalid():
    assert certificate().status == "valid"
    assert certificate(noise_source=INSECURE).status == "invalid"


def test_every_stage_that_draws_from_floats_states_the_noise_source_s_assumptions_once():
    stages = certificate(
        stage(assumptions=("float32_partial_sums", "float64_lattice_noise"))
    ).stages
    assert stages[0].assumptions == ("float32_partial_sums", "float64_lattice_noise")
    count, rounds = certificate().stages
    assert (count.assumptions, rounds.assumptions) == ((), ("float64_lattice_noise",))


EXACT = (
    COUNT,
    DiscreteGaussianEvent(noise_multiplier=3.0, sensitivity=2.0**17),
    PureDpEvent(
        epsilon=2.0,
        derivation={"mechanism": "permute_and_flip", "sensitivity": 1.0, "scale": 1.0},
    ),
    ApproximateDpEvent(epsilon=0.0, delta=1e-9),
    ParallelEvent(branches=((COUNT,), ())),
)
FROM_FLOATS = (
    GaussianEvent(noise_multiplier=3.0),
    LaplaceEvent(noise_multiplier=3.0),
    PureDpEvent(epsilon=0.5),
    ApproximateDpEvent(epsilon=0.1, delta=1e-9),
    ParallelEvent(branches=((COUNT,), (GaussianEvent(noise_multiplier=3.0),))),
    RepeatAndSelectEvent(
        distribution="poisson", mean=2.0, events=(COUNT, LaplaceEvent(noise_multiplier=3.0))
    ),
)


def test_exact_integers_need_no_assumption_and_all_else_does():
    assert not drawn_from_floats(EXACT)
    assert certificate(stage(events=EXACT)).stages[0].assumptions == ()
    for event in FROM_FLOATS:
        assert drawn_from_floats((*EXACT, event)), event.kind


def test_a_run_without_stages_is_non_private():
    built = build_certificate(
        method="privorl_n",
        stages=(),
        spare_rounds=0,
        noise_source=None,
        ledger_entries=(),
        outputs=(),
        versions={},
    )
    assert (built.status, built.epsilon, built.delta) == ("non_private", None, None)
    assert built.epsilon_rdp_reason
    assert Certificate.model_validate(built.to_dict()) == built


def test_a_delta_of_one_unit_is_refused():
    with pytest.raises(UnsafeError, match="1/units"):
        certificate(stage(units=1_000_000))
    with pytest.raises(UnsafeError, match="1/units"):
        certificate(stage(units=600_000), stage(units=600_000))
    with pytest.warns(UserWarning, match="smaller"):
        certificate(stage(units=200_000))


def test_stages_without_a_noise_source_are_refused():
    with pytest.raises(UnsafeError, match="noise source"):
        certificate(noise_source=None)


@pytest.mark.parametrize(
    "changed",
    [{"events": ()}, {"units": 0}, {"delta": 1.0}, {"accountant": "moments"}, {"sigma": 1.0}],
)
def test_stages_refuse_impossible_values(changed):
    with pytest.raises(ValidationError):
        stage(**changed)


def test_certificates_are_frozen():
    with pytest.raises(ValidationError):
        certificate().epsilon = 0.1


def test_with_outputs_replaces_them_and_the_digest():
    before = certificate()
    after = with_outputs(before, [Output(id="d/data.parquet", sha256="a" * 64)])
    assert after.outputs == (Output(id="d/data.parquet", sha256="a" * 64),)
    assert after.digest != before.digest
    assert after.digest == digest_of(after.to_dict())


def test_hashes_of_files_and_folders(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    assert hash_output(tmp_path / "a") == hashlib.sha256(b"one").hexdigest()
    first = hash_output(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b").write_bytes(b"two")
    second = hash_output(tmp_path)
    (tmp_path / "inner" / "b").rename(tmp_path / "inner" / "c")
    assert len({first, second, hash_output(tmp_path)}) == 3
    with pytest.raises(StorageError):
        hash_output(tmp_path / "missing")


def write_key(path, key, encryption=None):
    encryption = encryption or NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return path


def test_a_signature_names_its_key_and_keeps_the_digest(tmp_path):
    key = Ed25519PrivateKey.generate()
    built = certificate()
    signed = sign_certificate(built, write_key(tmp_path / "key.pem", key))
    assert signed.digest == built.digest
    assert signed.to_dict()["signature"]["public_key"] == key.public_key().public_bytes_raw().hex()
    assert with_outputs(signed, ()).signature is None


def test_keys_of_another_kind_are_refused(tmp_path):
    built, path = certificate(), tmp_path / "key.pem"
    with pytest.raises(StorageError):
        sign_certificate(built, path)
    path.write_text("no key")
    with pytest.raises(ConfigError, match="private key"):
        sign_certificate(built, path)
    with pytest.raises(ConfigError, match="Ed25519"):
        sign_certificate(built, write_key(path, ec.generate_private_key(ec.SECP256R1())))
    locked = write_key(path, Ed25519PrivateKey.generate(), BestAvailableEncryption(b"secret"))
    with pytest.raises(ConfigError, match="unencrypted"):
        sign_certificate(built, locked)


def test_a_count_stage_alone_is_pure():
    built = certificate(count_stage())
    assert (built.epsilon, built.delta) == (pytest.approx(0.05), 0.0)
    assert isinstance(built.stages[0], Stage)
