"""Agents on recorded rows at a tiny scale, and what the table makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import utility_agents
from distributed_privrl.collection.recipes import RECIPES
from distributed_privrl.evaluation.trainer import TRAINERS
from distributed_privrl.runtime.rllib.trainer import RLLIB_TRAINERS


def line(task: str, agent: str, earned: float) -> dict[str, Any]:
    return {"task": task, "agent": agent, "return": earned}


def test_tasks_are_recipes_and_agents_that_exist() -> None:
    for task in utility_agents.TASKS.values():
        assert task.recipe in RECIPES
        assert set(task.trainers) <= {*TRAINERS, *RLLIB_TRAINERS}
    compared = {
        (task, agent) for task, *agents in utility_agents.RATIOS.values() for agent in agents
    }
    assert compared <= {
        (name, agent) for name, task in utility_agents.TASKS.items() for agent in task.trainers
    }


def test_ratios_are_of_the_tasks_that_were_run() -> None:
    lines = [line("umaze", "iql", 50.0), line("umaze", "rllib_iql", 45.0)]
    assert utility_agents.result_of(lines).ratios == {"rllib_iql_vs_plain": 0.9}
    assert utility_agents.result_of([line("pendulum", "bc", -900.0)]).ratios == {}


def test_agents_are_trained_once_and_shown_with_their_seeds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["--scale", "quick", "--seeds", "2", "--work", str(tmp_path / "work")]
    utility_agents.main([*command, "--out", str(tmp_path)])
    first = capsys.readouterr().out.splitlines()
    cells = json.loads((tmp_path / "utility_agents.json").read_text())["cells"]
    assert [cell["agent"] for cell in cells] == ["td3bc", "bc"]
    assert all(len(cell["seeds"]) == 2 for cell in cells)
    assert all(cell["95 %"].endswith("(t, n=2)") for cell in cells)
    kept = sorted((tmp_path / "work" / "pendulum" / "agents").iterdir())
    stamps = [path.stat().st_mtime_ns for path in kept]
    assert len(kept) == 4
    utility_agents.main(command)
    assert capsys.readouterr().out.splitlines()[:4] == first[:4]
    assert [path.stat().st_mtime_ns for path in kept] == stamps
