"""PrivORL-j on Ray: what is trained and drawn is what one process trains and draws."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.release import TRAINED, read_chunks
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.worlds.walks import SENSITIVE, Walks, walk_store

Made = tuple[dict[str, Any], NDArray[np.float32], int]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return walk_store(tmp_path_factory.mktemp("walks"))


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


LOCAL: dict[int, Made] = {}
"""What one process made, by the number of workers."""


def made_here(folder: Path, master: DatasetStore, workers: int) -> Made:
    """Run in this process, once for each number of workers."""
    if workers not in LOCAL:
        LOCAL[workers] = made(folder, master, LocalExecutor(), workers)
    return LOCAL[workers]


def made(folder: Path, master: DatasetStore, executor: Executor, workers: int) -> Made:
    """Run on copies of everything; return parameters, drawn steps and rounds that were charged."""
    world = Walks(folder, master).budget()
    result = world.run(executor=executor, key=3, runtime__workers=workers)
    checkpoint = result.directory.checkpoint
    tensors, _ = load_checkpoint(
        checkpoint / TRAINED, run_id=result.directory.run_id, stage="rounds"
    )
    steps = np.concatenate(list(read_chunks(checkpoint / "synthetic", 3)))
    (entry,) = world.ledger.entries(SENSITIVE)
    return {name: value.numpy() for name, value in tensors.items()}, steps, entry.drawn_rounds


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_ray_trains_and_draws_what_the_local_executor_does(
    workers: int,
    master: DatasetStore,
    tmp_path: Path,
    ray_executor: Executor,
) -> None:
    local, steps, rounds = made_here(tmp_path / "local", master, workers)
    remote, others, charged = made(tmp_path / "ray", master, ray_executor, workers)
    assert rounds == charged == 4
    assert local.keys() == remote.keys()
    for name, value in local.items():
        np.testing.assert_allclose(remote[name], value, atol=1e-6, err_msg=name)
    assert np.abs(local["parameters"] - local["ema"]).max() > 0
    np.testing.assert_allclose(others, steps, atol=1e-4)


def test_the_number_of_workers_changes_nothing(master: DatasetStore, tmp_path: Path) -> None:
    one, _, _ = made_here(tmp_path / "one", master, 1)
    two, _, _ = made_here(tmp_path / "two", master, 2)
    np.testing.assert_allclose(two["parameters"], one["parameters"], atol=1e-6)
