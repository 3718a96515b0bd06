"""Shared fixtures: one local Ray a session, and storage that is nobody's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_privrl.core.executor import Executor


@pytest.fixture(autouse=True)
def own_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test away from the user's ledger and datasets."""
    monkeypatch.setenv("PRIVRL_LEDGER", f"sqlite:///{tmp_path / 'default-ledger.sqlite'}")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "default-datasets"))


@pytest.fixture(scope="session")
def ray_executor() -> Iterator[Executor]:
    """One local Ray for the whole session."""
    from distributed_privrl.runtime.executor import RayExecutor

    executor = RayExecutor(workers=4, cpus_per_worker=0.5)
    yield executor
    executor.close()
    import ray

    ray.shutdown()


LONG = ("test_j_attack.py", "test_leaks.py", "test_documentation.py")
"""Files that take longest: begun first, so that no process waits for the other with one of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest in front; the order is else that of the folders."""
    items.sort(key=lambda item: item.path.name not in LONG)
