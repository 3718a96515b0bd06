"""A dataset in an object store is seen through its manifest, whole or not at all."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, StorageError, UnsafeError
from distributed_privrl.core.files import UNFINISHED
from distributed_privrl.core.places import ObjectUri
from distributed_privrl.data import objects, remote
from distributed_privrl.data.bounds import bounds_from_file
from distributed_privrl.data.objects import Objects
from distributed_privrl.data.remote import MANIFEST
from distributed_privrl.data.store import DatasetStore
from tests.data.conftest import ACTION_SPACE, OBSERVATION_SPACE, SPACES, assert_same, walk
from tests.worlds.bucket import stand_in

URI, ID = "s3://clinic/sets", "ward/stays-v0"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand for a bucket, and its own TMPDIR."""
    return stand_in(tmp_path, monkeypatch) / "sets"


def written(dataset: str = ID, **more: Any) -> DatasetStore:
    store = DatasetStore(URI)
    store.write_trajectories(dataset, walk(), unit_column="patient_id", **SPACES, **more)
    return store


def copies(tmp_path: Path) -> list[Path]:
    return [p for p in (tmp_path / "temporary").rglob("*") if p.is_file() and p.name != ".lock"]


def test_a_dataset_is_written_read_listed_and_removed(bucket: Path) -> None:
    written()
    other = DatasetStore(URI)
    assert (other.ids(), other.holds(ID), other.holds("ward/others-v0")) == ([ID], True, False)
    assert_same(other.read_trajectories(ID), walk())
    assert other.place == URI
    with pytest.raises(ConfigError, match="exists already in s3://clinic/sets"):
        written()
    with pytest.raises(ConfigError, match="inside the dataset 'ward/stays-v0'"):
        written(f"{ID}/inner-v0")
    other.remove(ID)
    assert (DatasetStore(URI).ids(), [p for p in bucket.rglob("*") if p.is_file()]) == ([], [])
    with pytest.raises(ConfigError, match="no dataset 'ward/stays-v0' in s3://clinic/sets"):
        other.info(ID)
    written()  # its id is free again


def test_copies_are_their_owner_s_and_go_with_the_store(bucket: Path, tmp_path: Path) -> None:
    store = written()
    store = DatasetStore(URI)
    store.info(ID)
    assert [path.name for path in copies(tmp_path)] == ["metadata.json"]  # and no row yet
    store.read_trajectories(ID)
    files = copies(tmp_path)
    assert {path.name for path in files} > {"metadata.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    (folder,) = (tmp_path / "temporary").iterdir()
    assert folder.name.startswith(UNFINISHED)
    for path in (folder, *(one for one in folder.rglob("*") if one.is_dir())):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    del store
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_writer_that_stops_before_the_manifest_has_written_nothing(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(self: Objects, name: str, content: bytes) -> None:
        raise StorageError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "put", stops)
        with pytest.raises(StorageError, match="killed"):
            written()
    left = [path for path in bucket.rglob("*") if path.is_file()]
    assert left  # objects that nothing names
    store = DatasetStore(URI)
    assert (store.ids(), store.holds(ID)) == ([], False)
    store.clear()
    assert [path for path in bucket.rglob("*") if path.is_file()] == left  # perhaps it goes on
    for path in left:
        os.utime(path, (0, 0))
    written("ward/others-v0").clear()
    assert not any(path.exists() for path in left)
    assert_same(DatasetStore(URI).read_trajectories("ward/others-v0"), walk())


def test_a_change_that_stops_leaves_what_was_there(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = written()

    def stops(self: Objects, name: str, content: bytes) -> None:
        raise StorageError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "put", stops)
        with pytest.raises(StorageError, match="killed"):
            store.update_metadata(ID, {"privacy_certificate": {"status": "valid"}})
    for one in (store, DatasetStore(URI)):
        assert one.info(ID).certificate == {}
        assert_same(one.read_trajectories(ID), walk())
    store.update_metadata(ID, {"privacy_certificate": {"status": "valid"}})
    for one in (store, DatasetStore(URI)):
        assert one.info(ID).certificate == {"status": "valid"}
    old = [
        path for path in bucket.rglob("metadata.json") if b"certificate" not in path.read_bytes()
    ]
    assert old == []  # what was replaced is gone


def test_a_reader_sees_changes_of_others(bucket: Path) -> None:
    reader, writer = written(), DatasetStore(URI)
    writer.update_metadata(ID, {"note": 1})
    assert "note" in json.loads(reader.metadata_file(ID).read_text())
    writer.remove(ID)
    writer.write_trajectories(ID, walk((5,)), **SPACES)
    assert len(reader.read_trajectories(ID)) == 1


def test_what_lies_beside_the_data_is_published_too(bucket: Path) -> None:
    store = written(complete=lambda folder: (folder / "beside.txt").write_text("x") and {})
    (store.folder(ID) / "beside.txt").unlink()
    (store.folder(ID) / "other.txt").write_text("y")
    store.changed(ID)
    other = DatasetStore(URI)
    names = {path.name for path in other.folder(ID).iterdir()}
    assert names == {"data", "other.txt"}


def changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_rows_that_were_changed_in_the_store_are_not_read(bucket: Path, tmp_path: Path) -> None:
    written()
    changed(next(bucket.rglob("main_data.hdf5")))
    with pytest.raises(StorageError, match="not what the manifest says"):
        DatasetStore(URI).read_trajectories(ID)
    next(bucket.rglob("main_data.hdf5")).unlink()
    with pytest.raises(StorageError, match="no such object"):
        DatasetStore(URI).read_trajectories(ID)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 2, "has format 2"),
        ("dataset", "ward/others-v0", "is not of ward/stays-v0"),
        ("files", "none", "is damaged"),
        ("path", "../../outside", "is not of ward/stays-v0"),
        ("path", "/outside", "is not of ward/stays-v0"),
        ("object", ".privrl/../../outside", "is not of ward/stays-v0"),
        ("object", "outside", "is not of ward/stays-v0"),
    ],
)
def test_a_manifest_of_another_s_making_leads_nowhere(
    bucket: Path, key: str, value: Any, message: str
) -> None:
    written()
    path = bucket / ID / MANIFEST
    manifest = json.loads(path.read_text())
    (manifest if key in manifest else manifest["files"][0])[key] = value
    path.write_text(json.dumps(manifest))
    with pytest.raises(StorageError, match=message):
        DatasetStore(URI).folder(ID)


def test_bounds_are_read_from_an_object(bucket: Path) -> None:
    bucket.mkdir(parents=True)
    text = "{observation: {low: -1, high: 2}, action: {low: -1, high: 1}, reward: [0, 3]}"
    (bucket / "bounds.yaml").write_text(text)
    found = bounds_from_file(ObjectUri(f"{URI}/bounds.yaml"), OBSERVATION_SPACE, ACTION_SPACE)
    np.testing.assert_array_equal(found.high, [2, 2, 1, 3])
    with pytest.raises(ConfigError, match=r"sets/none\.yaml: there is no such object"):
        bounds_from_file(ObjectUri(f"{URI}/none.yaml"), OBSERVATION_SPACE, ACTION_SPACE)


def test_a_folder_s_uri_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", (tmp_path / "my sets").as_uri())
    DatasetStore().write_trajectories(ID, walk(), **SPACES)
    store = DatasetStore(tmp_path / "my sets")
    assert (store.ids(), store.place) == ([ID], str(tmp_path / "my sets"))
    assert not list((tmp_path / "my sets").rglob(remote.MANIFEST))


@pytest.mark.parametrize(
    ("scheme", "variable", "endpoint", "error"),
    [
        ("s3", "AWS_ENDPOINT_URL_S3", "http://minio:9000", UnsafeError),
        ("s3", "AWS_ENDPOINT_URL", "minio:9000", UnsafeError),
        ("s3", "AWS_ENDPOINT_URL_S3", "https://me:hunter2@minio:9000", UnsafeError),
        ("s3", "AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1", StorageError),
        ("gs", "CLOUD_STORAGE_EMULATOR_ENDPOINT", "http://fake:4443", UnsafeError),
        ("gs", "CLOUD_STORAGE_TESTBENCH_ENDPOINT", "http://fake:4443", UnsafeError),
        ("gs", "CLOUD_STORAGE_EMULATOR_ENDPOINT", "https://me:hunter2@fake:4443", UnsafeError),
    ],
)
def test_no_rows_in_clear_text_and_no_password_in_an_endpoint(
    scheme: str,
    variable: str,
    endpoint: str,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        variable: endpoint,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "hunter3",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    objects.filesystem_of.cache_clear()
    with pytest.raises(error) as raised:
        DatasetStore(f"{scheme}://clinic/sets").ids()
    objects.filesystem_of.cache_clear()
    assert not any(secret in str(raised.value) for secret in ("hunter", "somebody"))
