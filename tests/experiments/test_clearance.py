"""What lets rows go: files that a valid certificate names, or a declaration that nothing denies."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from distributed_privrl.core.errors import UnsafeError, VerificationError
from distributed_privrl.data.metadata import CERTIFICATE_KEY, FILE_NAME, SIDES_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.clearance import cleared, proof_of, proven, release_of
from distributed_privrl.privacy.certificate import LATER_KEYS, METADATA, digest_of
from tests.worlds.certified import certify

NAME = "a/b-v0"


@pytest.fixture
def store(tmp_path: Path) -> DatasetStore:
    store = DatasetStore(tmp_path / "datasets")
    for dataset, count in ((NAME, 20), ("a/other-v0", 30)):
        store.write_transitions(
            dataset,
            Transitions(
                observations=np.zeros((count, 2)),
                actions=np.zeros((count, 1)),
                rewards=np.arange(count),
                next_observations=np.zeros((count, 2)),
                terminated=np.zeros(count, bool),
                truncated=np.zeros(count, bool),
                unit_ids=np.arange(count),
            ),
            layout="transitions",
            observation_space=Box(-1, 1, (2,)),
            action_space=Box(-1, 1, (1,)),
        )
    return store


def test_files_that_the_certificate_names_are_released(store: DatasetStore) -> None:
    assert release_of(store, NAME) is None
    certificate = certify(store, NAME)
    release = release_of(store, NAME)
    assert release is not None
    assert release.certificate_digest == certificate.digest
    rows = store.read_transitions(NAME, unit="transition")
    assert proof_of(proven(rows, release), reader="x") is release
    for bare in (rows, proven(rows, release).select(slice(3))):
        with pytest.raises(UnsafeError, match="with the proof"):
            proof_of(bare, reader="x")


@pytest.mark.parametrize("status", ["invalid", "non_private"])
def test_another_status_releases_nothing(store: DatasetStore, status: str) -> None:
    certify(store, NAME, status=status)
    assert release_of(store, NAME) is None
    with pytest.raises(UnsafeError, match="RLlib may not read it"):
        cleared(store, NAME, reader="RLlib", ledger=None)


def _epsilon(store: DatasetStore, values: dict[str, Any]) -> None:
    values["epsilon"] = 0.1


def _no_outputs(store: DatasetStore, values: dict[str, Any]) -> None:
    values["outputs"] = []
    values["digest"] = digest_of(values)


def _test_noise(store: DatasetStore, values: dict[str, Any]) -> None:
    values["noise_source"] = "insecure_seeded"
    values["digest"] = digest_of(values)


def _nothing_paid(store: DatasetStore, values: dict[str, Any]) -> None:
    values["ledger_entries"] = []
    values["digest"] = digest_of(values)


def _little(store: DatasetStore, values: dict[str, Any]) -> None:
    for name in set(values) - {"status", "digest"}:
        del values[name]


def _other_rows(store: DatasetStore, values: dict[str, Any]) -> None:
    parquet = "data/transitions.parquet"
    content = (store.root / "a/other-v0" / parquet).read_bytes()
    (store.root / NAME / parquet).write_bytes(content)


def _more_files(store: DatasetStore, values: dict[str, Any]) -> None:
    (store.root / NAME / "data" / "more.parquet").write_text("rows")


def _fewer_files(store: DatasetStore, values: dict[str, Any]) -> None:
    (store.root / NAME / "data" / "main_data.hdf5").unlink()


def _other_spaces(store: DatasetStore, values: dict[str, Any]) -> None:
    path = store.metadata_file(NAME)
    told = json.loads(path.read_text())
    other = told["observation_space"].replace("1.0", "9.0")
    assert other != told["observation_space"]
    path.write_text(json.dumps({**told, "observation_space": other}))


def _other_seams(store: DatasetStore, values: dict[str, Any]) -> None:
    store.update_metadata(NAME, {"seam_error": {"inside": 0.0}})


@pytest.mark.parametrize(
    "harm",
    [
        *(_epsilon, _no_outputs, _test_noise, _nothing_paid, _little),
        *(_other_rows, _more_files, _fewer_files, _other_spaces, _other_seams),
    ],
)
def test_a_certificate_that_does_not_fit_is_refused(store: DatasetStore, harm: Any) -> None:
    values = certify(store, NAME).to_dict()
    harm(store, values)
    store.update_metadata(NAME, {"privacy_certificate": json.loads(json.dumps(values))})
    with pytest.raises(VerificationError, match=r"^a/b-v0: "):
        release_of(store, NAME)


def test_a_certificate_of_rows_alone_still_counts_and_a_split_changes_nothing(
    store: DatasetStore,
) -> None:
    assert {CERTIFICATE_KEY, SIDES_KEY} == LATER_KEYS
    assert FILE_NAME == METADATA
    certify(store, NAME)
    store.update_metadata(NAME, {SIDES_KEY: ["a/b-training-v0"]})
    assert release_of(store, NAME) is not None
    values = certify(store, NAME).to_dict()
    rows = [one for one in values["outputs"] if not one["id"].endswith("metadata.json")]
    assert len(rows) == len(values["outputs"]) - 1
    values["outputs"] = rows
    values["digest"] = digest_of(values)
    store.update_metadata(NAME, {CERTIFICATE_KEY: values})
    assert release_of(store, NAME) is not None


def test_the_certificate_of_another_dataset_is_refused(store: DatasetStore) -> None:
    values = certify(store, "a/other-v0").to_dict()
    store.update_metadata(NAME, {"privacy_certificate": values})
    with pytest.raises(VerificationError, match="is not what the certificate names"):
        release_of(store, NAME)


def test_a_side_of_sensitive_rows_is_not_public_by_word(store: DatasetStore) -> None:
    store.update_metadata(NAME, {"declared_public": True})
    release = release_of(store, NAME)
    assert release is not None
    assert release.certificate_digest is None
    store.update_metadata(NAME, {"split_of": ["a/all-v0"]})
    with pytest.raises(UnsafeError, match="it is a side of a/all-v0"):
        release_of(store, NAME)
