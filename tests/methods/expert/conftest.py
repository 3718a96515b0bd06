"""A small crowd of experts, and a world of its own for each test."""

from pathlib import Path

import pytest

from distributed_privrl.data.store import DatasetStore
from tests.worlds.crowd import Crowd, crowd_store


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return crowd_store(tmp_path_factory.mktemp("crowd"))


@pytest.fixture
def world(tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    return Crowd(tmp_path, master)
