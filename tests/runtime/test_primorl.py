"""PriMORL on Ray: models and policy are what one process learns, and cost the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.primorl.ensemble import load_ensemble
from distributed_privrl.methods.primorl.training import TRAINED
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.worlds.swings import Swings, swing_store

SMALL: dict[str, Any] = {
    "training__policy": {
        "steps": 20,
        "hidden": [16],
        "batch_size": 32,
        "rollouts": 50,
        "starts": 10,
    },
    "evaluation": {"episodes": 1, "every": 20, "horizon": 5},
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return swing_store(tmp_path_factory.mktemp("swings"))


def learned(folder: Path, master: DatasetStore, executor: Executor) -> dict[str, Any]:
    """Run on copies of everything with two workers; return what was learned and charged."""
    world = Swings(folder, master)
    result = world.run(executor=executor, **SMALL)
    run_id, released = result.directory.run_id, Path(result.released).parent
    trained = result.directory.checkpoint / TRAINED
    tensors, _ = load_checkpoint(trained, run_id=run_id, stage="rounds")
    _, ensemble = load_ensemble(released / "ensemble.safetensors")
    policy = Policy.load(released / "policy.safetensors")
    (entry,) = world.ledger.entries()
    return {
        "rounds": tensors["parameters"].numpy(),
        "ensemble": torch.cat([one.reshape(-1) for one in ensemble.parameters()]).numpy(),
        "actions": policy.act(np.random.default_rng(0).uniform(-1, 1, (50, 3))),
        "charged": (entry.epsilon, entry.reserved_rounds, entry.drawn_rounds),
    }


def test_ray_learns_what_one_process_learns(
    master: DatasetStore,
    tmp_path: Path,
    ray_executor: Executor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    local = learned(tmp_path / "local", master, LocalExecutor())
    remote = learned(tmp_path / "ray", master, ray_executor)
    assert local.pop("charged") == remote.pop("charged")
    for name, value in local.items():
        np.testing.assert_allclose(remote[name], value, atol=1e-5, err_msg=name)
    assert np.abs(local["rounds"] - local["ensemble"]).max() > 0
    assert np.ptp(local["actions"]) > 1e-3
