"""Marginals on Ray: what is released is what one process releases, bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals.stage import CHECKPOINT
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.worlds.intake import Intake, admission_store


def released(folder: Path, master: DatasetStore, executor: Executor) -> dict[str, Any]:
    """Run on copies of everything with two workers; return what was released and charged."""
    place = Intake(folder, master).budget()
    result = place.run(executor=executor)
    path, run_id = result.directory.checkpoint / CHECKPOINT, result.directory.run_id
    tensors, _ = load_checkpoint(path, run_id=run_id, stage="rounds")
    rows = place.store.read_transitions(str(result.released), unit="transition")
    (entry,) = place.ledger.entries()
    return {name: value.numpy() for name, value in tensors.items()} | {
        "observations": rows.observations,
        "actions": rows.actions,
        "rewards": rows.rewards,
        "next observations": rows.next_observations,
        "ends": rows.terminated,
        "charged": np.array([entry.epsilon, entry.reserved_rounds, entry.committed_rounds]),
    }


def test_ray_releases_what_one_process_releases(
    tmp_path: Path, ray_executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    master = admission_store(tmp_path / "master")
    local = released(tmp_path / "local", master, LocalExecutor())
    remote = released(tmp_path / "ray", master, ray_executor)
    assert local.keys() == remote.keys()
    assert sum(name.startswith("table.") for name in local) == 3
    for name, value in local.items():
        np.testing.assert_array_equal(remote[name], value, err_msg=name)
