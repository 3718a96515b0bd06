import os
from pathlib import Path

import pytest

from distributed_privrl.cli import execution
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.experiments import evaluate as module


def test_report_is_written_anew(finished):
    page = finished.out / "report.html"
    page.unlink()
    result = finished.workplace.privrl("report", finished.out)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{page}\n"
    assert page.is_file()


def test_report_of_something_else(workplace):
    result = workplace.privrl("report", workplace.folder)
    assert result.exit_code == 2
    assert "no finished run" in result.stderr


def test_evaluate_passes_everything_on(workplace, monkeypatch):
    given = {}

    def evaluate_datasets(**arguments):
        given.update(arguments)
        failed = {"other, seed 1": "RuntimeError: no luck"}
        return {
            **{"dataset": "a-v0", "environment": None, "iql": 1.5, "failed": failed},
            **{"normalised": {"iql": 12.34}, "published": {"iql": "70.3, PrivORL-n on D4RL's"}},
        }

    started = []

    def start_executor(runtime):
        started.extend([LocalExecutor(), runtime])
        return started[0]

    monkeypatch.setattr(module, "evaluate_datasets", evaluate_datasets)
    monkeypatch.setattr(execution, "start_executor", start_executor)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    result = workplace.privrl(
        *("evaluate", "--synthetic", "a-v0", "--reference", "b-v0", "--env", "privrl/X-v0"),
        *("--public", "c-v0", "--embedding", "tsne"),
        *("--trainers", "iql, other", "--seeds", 2, "--steps", 30, "--episodes", 4, "--out", "o"),
        "--resume",
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "dataset           a-v0",
        "iql               mean return 1.50, normalised 12.3",
        "iql in the paper  normalised 70.3, PrivORL-n on D4RL's",
        "report            o/report.html",
        "not for release   o/private/report.html",
    ]
    assert "warning: other, seed 1 failed: RuntimeError: no luck; --resume" in result.stderr
    assert "rllib_discrete_bcq" in given.pop("more_trainers")
    assert (started[1].workers, started[1].cpus_per_worker) == (4, 0.5)
    store, progress = given.pop("store"), given.pop("progress")
    assert given.pop("executor") is started[0]
    assert (started[1].workers, started[1].executor) == (4, "ray")
    assert store.root == workplace.datasets
    assert callable(progress)
    assert given == {
        "synthetic": "a-v0",
        "reference": "b-v0",
        "public": "c-v0",
        "embedding": "tsne",
        "environment": "privrl/X-v0",
        "trainers": ("iql", "other"),
        "seeds": 2,
        "steps": 30,
        "episodes": 4,
        "out": Path("o"),
        "parallel": 4,
        "resume": True,
    }


@pytest.mark.parametrize("trainers", ["", " , "])
def test_trainers_must_be_named(workplace, trainers):
    result = workplace.privrl(
        "evaluate", "--synthetic", "a-v0", "--out", "o", "--trainers", trainers
    )
    assert result.exit_code == 2
    assert "--trainers" in result.stderr


def test_an_unknown_dataset_is_refused(workplace):
    result = workplace.privrl(
        *("evaluate", "--synthetic", "clinic/none-v0", "--env", "privrl/Maze2D-umaze-v0"),
        *("--out", workplace.folder / "o"),
    )
    assert result.exit_code == 2
    assert "clinic/none-v0" in result.stderr


def test_a_dataset_is_compared_without_agents(finished, tmp_path):
    out = tmp_path / "evaluation"
    result = finished.workplace.privrl(
        *("evaluate", "--synthetic", "clinic/private-v0", "--reference", "clinic/stays-v0"),
        *("--trainers", "none", "--out", out),
    )
    assert result.exit_code == 0, result.output
    assert (out / "report.html").is_file()
    private = out / "private" / "report.html"
    assert private.stat().st_mode & 0o077 == 0
    assert str(private) in result.stdout
