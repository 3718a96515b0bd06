"""The expert level on Ray: hosts, workers and servers as actors release what one process does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.executor import Executor
from distributed_privrl.data.store import DatasetStore
from tests.worlds.crowd import Crowd, crowd_store

STABLE = "crowd/stable-v0"


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return crowd_store(tmp_path_factory.mktemp("crowd"))


def test_ray_releases_what_the_local_executor_does(
    master: DatasetStore,
    tmp_path: Path,
    ray_executor: Executor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    found: list[Any] = []
    for name, executor in (("local", None), ("ray", ray_executor)):
        world = Crowd(tmp_path / name, master)
        result = world.run(executor=executor, output__dataset=STABLE)
        policy = Policy.load(Path(result.released))
        weights = [one.detach().numpy().ravel() for one in policy.network.parameters()]
        stable = world.store.read_trajectories(STABLE)
        charged = sorted(entry.reserved_rounds for entry in world.ledger.entries())
        found.append((np.concatenate(weights), stable.observations, charged))
    local, remote = found
    assert local[2] == remote[2] == [4, 6]
    assert np.array_equal(local[1], remote[1])
    np.testing.assert_allclose(remote[0], local[0], atol=1e-6)
