"""Agents on Ray: what an actor raises stays in the cluster's records, so it quotes no row."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.collection import collect
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.progress import silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.trials import (
    TRAINING,
    TRAINING_ON_PRIVATE,
    TrialSpec,
    content_of,
    run_trials,
)

DATASET = "gym/own-v0"
SECONDS = 60.0


@dataclass(frozen=True)
class Quoting:
    """Fails and quotes the rows."""

    name: str
    agent: str = "bc"
    released_rows_only: bool = False
    keeps_rows: bool = True

    def with_settings(self, settings: Any) -> "Quoting":
        return self

    def train(self, transitions: Any, spaces: Any, **options: Any) -> Any:
        raise RuntimeError(f"{self.name} found the reward {transitions.rewards[0]}")


def _recorded() -> str:
    """Return what the cluster keeps of the tasks that ran, errors included."""
    from ray._private.state import state

    return "".join(str(one) for one in state._get_all_task_events())


@pytest.fixture
def store(tmp_path: Path) -> DatasetStore:
    found = DatasetStore(tmp_path / "datasets")
    collect("cartpole-mixed", dataset=DATASET, store=found, steps=100)
    return found


def test_an_error_on_rows_is_not_recorded(store: DatasetStore, ray_executor: Executor) -> None:
    import ray

    for stage in (TRAINING_ON_PRIVATE, TRAINING):
        spec = TrialSpec(
            root=str(store.root),
            dataset=DATASET,
            content=content_of(store, DATASET),
            environment="CartPole-v1",
            trainer="quiet",
            seed=0,
            steps=1,
            episodes=1,
            more={"quiet": Quoting("quiet")},
        )
        (result,) = run_trials([spec], ray_executor, parallel=1, progress=silent, stage=stage)
        assert result["failed"] == "RuntimeError"
        assert "quiet found the reward 1.0" in result["reason"]  # its owner is told
    plain = ray.remote(num_cpus=0, max_retries=0)(_loud)
    with pytest.raises(RuntimeError):
        ray.get(plain.remote())
    deadline = time.monotonic() + SECONDS
    while "loud found the reward" not in (recorded := _recorded()):
        assert time.monotonic() < deadline, "an error of others should be recorded"
        time.sleep(0.2)
    assert "quiet found the reward" not in recorded


def _loud() -> None:
    raise RuntimeError("loud found the reward")
