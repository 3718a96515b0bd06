"""A few swings of a pendulum, and a world of its own for each test."""

from pathlib import Path

import pytest

from distributed_privrl.data.store import DatasetStore
from tests.worlds.swings import Swings, swing_store


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return swing_store(tmp_path_factory.mktemp("swings"))


@pytest.fixture
def world(tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch) -> Swings:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    return Swings(tmp_path, master)
