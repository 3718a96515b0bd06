"""Private selection by agents of RLlib, on Ray: rows of a trial stay in the process it runs in."""

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from distributed_privrl.agents.options import DEFAULTS
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.trainer import Trainer
from distributed_privrl.experiments.sweeps import selection
from distributed_privrl.experiments.sweeps.config import load_sweep
from distributed_privrl.experiments.sweeps.selection import Selected, select
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.runtime.rllib.trainer import RLLIB_TRAINERS, RLlibTrainer
from tests.runtime.contests import WatchedWorker, kept_by_ray
from tests.runtime.rllib.watching import forbid_ray, left
from tests.worlds.choosing import drawn, make_quick
from tests.worlds.mazes import Mazes, ar_values, maze_store

TRAINER = "rllib_bc"
ONE_NUMBER = 8
"""Bytes; a row has eleven numbers."""


class AgentsWorld(Mazes):
    """Mazes whose trials are judged by an agent of RLlib."""

    def __init__(self, folder: Path, master: Any) -> None:
        super().__init__(folder, master)
        self.memory = folder / "memory"
        self.memory.mkdir()
        self.budget(epsilon=50.0, delta=1e-4)

    def select(
        self, executor: Executor, trainers: Mapping[str, Trainer] = RLLIB_TRAINERS
    ) -> Selected:
        values = ar_values(
            evaluation={"trainers": [TRAINER], "steps": 2, "episodes": 1},
            search={"seed": {"integers": [0, 10**9]}},
            selection={
                **{"pays": "private", "law": "geometric", "mean": 3, "actors": 1},
                "score": {"by": "agents"},
            },
        )
        path = self.folder / "sweep.yaml"
        path.write_text(yaml.safe_dump(values))
        return select(
            load_sweep(path),
            executor,
            out=self.folder / "run",
            ledger_url=self.url,
            store=self.store,
            memory=self.memory,
            more_trainers=trainers,
            anyway=True,
        )


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return maze_store(tmp_path_factory.mktemp("master"))


def test_a_trainer_that_hands_rows_on_is_refused_before_the_charge(
    tmp_path: Path, master: DatasetStore
) -> None:
    world = AgentsWorld(tmp_path, master)
    learning = RLlibTrainer("bc", DEFAULTS["bc"], learners=1)
    with drawn(2) as numbers, pytest.raises(UnsafeError, match="rllib_bc hands its rows"):
        world.select(LocalExecutor(), {TRAINER: learning})
    assert numbers == []
    assert world.ledger.entries() == []
    assert not (tmp_path / "run").exists()


def test_rows_of_a_trial_reach_no_ray_and_no_disk(
    tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_quick(monkeypatch)
    world = AgentsWorld(tmp_path, master)
    counted = forbid_ray(monkeypatch, tmp_path)
    with drawn(2):
        found = world.select(LocalExecutor())
    _check_winner(world, found)
    assert counted == []
    assert left(tmp_path) == []
    assert not [one for one in os.environ.items() if str(world.memory) in one[1]]


def _seen(known: set[Path]) -> dict[str, Any]:
    """Return what Ray keeps: output of the pool, what was ever in its store, and names."""
    import ray
    from ray._private.internal_api import node_stats
    from ray.experimental.internal_kv import _internal_kv_list

    (node,) = ray.nodes()
    store = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"]).store_stats
    return {
        "output": kept_by_ray(known, WatchedWorker),
        "objects": (store.cumulative_created_objects, store.cumulative_created_bytes),
        "names": {name.decode(errors="replace") for name in _internal_kv_list(b"")},
    }


@pytest.mark.slow
def test_what_ray_knows_is_the_same_for_one_trial_and_for_four(
    ray_executor: Executor,
    tmp_path: Path,
    master: DatasetStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_quick(monkeypatch)
    monkeypatch.setattr(selection, "SelectionWorker", WatchedWorker)
    seen: list[dict[str, Any]] = []
    known: set[Path] = set()
    for count in (1, 1, 4):
        world = AgentsWorld(tmp_path / str(len(seen)), master)
        with drawn(count):
            found = world.select(ray_executor)
        notes = world.folder / WatchedWorker.NOTES
        assert not notes.exists(), notes.read_text()
        _check_winner(world, found)
        seen.append(_seen(known))
    first, second, third = seen  # the very first selection brings names that stay
    assert first["output"] == second["output"] == third["output"]
    objects = np.diff([one["objects"] for one in seen], axis=0)
    assert (objects <= [1, ONE_NUMBER]).all(), objects  # Ray's own, and not always
    new = [len(after["names"] - before["names"]) for before, after in itertools.pairwise(seen)]
    assert new[0] == new[1]


def _check_winner(world: AgentsWorld, found: Selected) -> None:
    run = world.folder / "run"
    assert found.certificate is not None
    verify_certificate(run / "certificate.json", ledger=world.ledger, outputs_root=world.store.root)
    (entry,) = world.ledger.entries()
    assert (entry.status, entry.event["kind"]) == ("settled", "repeat_and_select")
    (agent,) = json.loads((run / "evaluation.json").read_text())
    assert agent["trainer"] == TRAINER
    assert agent["content"] == found.certificate.digest
    assert not list(world.memory.iterdir())
