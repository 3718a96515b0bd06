import json
import os
import re
from pathlib import Path

import pytest

from distributed_privrl.cli import execution
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import evaluate as module


def test_report_is_written_anew(finished):
    page = finished.out / "report.html"
    page.unlink()
    result = finished.workplace.privrl("report", finished.out)
    assert result.exit_code == 0, result.output
    private = finished.out / "private" / "report.html"
    assert result.stdout.splitlines() == [
        f"report           {page}",
        f"not for release  {private}",
    ]
    assert page.is_file()


def test_report_of_something_else(workplace):
    result = workplace.privrl("report", workplace.folder)
    assert result.exit_code == 2
    assert "no finished run" in result.stderr


def test_evaluate_passes_everything_on(workplace, monkeypatch):
    given = {}

    def evaluate_datasets(request, around, **arguments):
        given.update(vars(request) | vars(around) | arguments)
        failed = {"other, seed 1": "RuntimeError: no luck"}
        return {
            **{"dataset": "a-v0", "environment": None, "kind": "released", "iql": 1.5},
            **{"normalised": {"iql": 12.34}, "failed": failed},
        }

    monkeypatch.setattr(DatasetStore, "info", lambda *_: None)
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
        *("-o", "iql.beta=3", "--resume"),
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "dataset          a-v0",
        "iql              mean return 1.50, normalised 12.3",
        "report           o/report.html (post-processing of a released dataset)",
        "not for release  o/private/report.html (it compares with rows of b-v0)",
    ]
    assert "warning: other, seed 1 failed: RuntimeError: no luck; --resume" in result.stderr
    assert "rllib_discrete_bcq" in given.pop("more_trainers")
    assert not started  # who checks everything first starts it
    assert given.pop("start_executor")() is started[0]
    assert (started[1].workers, started[1].cpus_per_worker) == (4, 0.5)
    store, progress = given.pop("store"), given.pop("progress")
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
        "options": {"iql": {"beta": 3}},
        "seeds": 2,
        "steps": 30,
        "episodes": 4,
        "offline": False,
        "out": Path("o"),
        "parallel": 4,
        "device": "cpu",
        "ledger_url": None,
        "resume": True,
    }


@pytest.mark.parametrize(
    ("trainers", "message"),
    [
        ("", "has an empty name"),
        ("bc,,iql", "has an empty name"),
        ("bc, iql,bc", "names bc twice"),
        ("none,bc", "none stands alone"),
    ],
)
def test_trainers_must_be_named(workplace, trainers, message):
    result = workplace.privrl(
        "evaluate", "--synthetic", "a-v0", "--out", "o", "--trainers", trainers
    )
    assert result.exit_code == 2
    assert f"--trainers={trainers!r}" in result.stderr
    assert message in result.stderr


@pytest.mark.parametrize("option", ["beta=3", "iql.beta", "iql.=3", ".beta=3"])
def test_an_option_names_agent_key_and_value(workplace, option):
    result = workplace.privrl("evaluate", "--synthetic", "a-v0", "--out", "o", "-o", option)
    assert result.exit_code == 2
    assert f"-o {option} must look like AGENT.KEY=VALUE, e.g. iql.beta=3" in result.stderr


def test_an_unknown_executor_is_refused_in_plain_words(workplace):
    result = workplace.privrl(
        *("evaluate", "--synthetic", "a-v0", "--out", "o", "--executor", "dask")
    )
    assert result.exit_code == 2
    assert "'dask' is not one of" in result.stderr
    assert "Value error" not in result.stderr


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


def test_nothing_is_said_of_rows_that_may_not_leave(finished, tmp_path):
    out = tmp_path / "evaluation"
    result = finished.workplace.privrl(
        *("evaluate", "--synthetic", "clinic/stays-v0", "--trainers", "bc", "--steps", 10),
        *("--episodes", 1, "--out", out, "-o", "bc.hidden=[8]", "-o", "bc.batch_size=16"),
    )
    assert result.exit_code == 0, result.output
    (trial,) = json.loads((out / "private" / "evaluation.json").read_text())
    figures = {f"{value:.{digits}f}" for value in curve_values(trial) for digits in (1, 2, 3, 4)}
    said = result.stdout + result.stderr
    assert figures
    assert not figures & set(re.findall(r"-?\d+\.\d+", said))
    assert "mean return" not in said
    assert not re.search(r"\d s\b", result.stderr)  # nor how long it took
    why = "clinic/stays-v0 has no valid certificate and was not declared public"
    assert f"{out / 'private' / 'report.html'} ({why})" in result.stdout


def curve_values(trial):
    values = [value for evaluation in trial["curve_returns"] for value in evaluation]
    return [*values, sum(values) / len(values)]


@pytest.fixture
def released(workplace, monkeypatch):
    """What `evaluate_datasets` returns, or raises, is what a test puts here."""
    found = {"dataset": "a-v0", "environment": None, "kind": "released"}

    def evaluate_datasets(request, around, **_):
        if "raises" in found:
            raise found["raises"]
        if found.pop("starts", False):
            around.start_executor()
        return found

    monkeypatch.setattr(DatasetStore, "info", lambda *_: None)
    monkeypatch.setattr(module, "evaluate_datasets", evaluate_datasets)
    return found


@pytest.mark.parametrize(("other", "code"), [("failed", 1), (1.5, 0)])
def test_the_exit_code_says_whether_an_agent_was_trained(workplace, released, other, code):
    released |= {"iql": "failed", "bc": other, "failed": {"iql, seed 0": "RuntimeError: no luck"}}
    result = workplace.privrl(
        *("evaluate", "--synthetic", "a-v0", "--trainers", "iql,bc", "--out", "o")
    )
    assert result.exit_code == code
    assert "iql" in result.stdout


def test_what_is_public_is_told(workplace, released):
    released["kind"] = "public"
    result = workplace.privrl("evaluate", "--synthetic", "a-v0", "--trainers", "none", "--out", "o")
    assert "o/report.html (of a dataset declared public)" in result.stdout
    assert "not for release" not in result.stdout


def test_an_interrupt_says_how_to_go_on(workplace, released, monkeypatch):
    monkeypatch.chdir(workplace.folder)
    kept = workplace.folder / "my runs" / "agents"
    kept.mkdir(parents=True)
    released["raises"] = KeyboardInterrupt()
    words = ("evaluate", "--synthetic", "a-v0", "--trainers", "bc, iql", "--out", "my runs")
    for given in (words, (*words, "--resume")):
        result = workplace.privrl(*given)
        assert result.exit_code == 130
        line = "privrl evaluate --synthetic a-v0 --trainers 'bc, iql' --out 'my runs' --resume"
        assert result.stderr == f"interrupted: go on with `{line}`\n"
    secret = ("--ledger", "postgresql://me:word@host/ledger")
    assert "word" not in workplace.privrl(*words, *secret).stderr
    kept.rmdir()  # before anything was kept there is nothing to resume
    line = line.removesuffix(" --resume")
    assert workplace.privrl(*words).stderr == f"interrupted: go on with `{line}`\n"


def test_a_ray_that_does_not_start_is_one_line(workplace, released, monkeypatch):
    def start_executor(_):
        raise RuntimeError("no port\nis free")

    monkeypatch.setattr(execution, "start_executor", start_executor)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    released["starts"] = True
    result = workplace.privrl("evaluate", "--synthetic", "a-v0", "--seeds", 2, "--out", "o")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: Ray does not start (RuntimeError: no port is free): give --executor local\n"
    )


def test_local_needs_no_ray(workplace, released, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    started = []
    monkeypatch.setattr(execution, "start_executor", started.append)
    released["starts"] = True
    result = workplace.privrl(
        *("evaluate", "--synthetic", "a-v0", "--seeds", 2, "--executor", "local", "--out", "o")
    )
    assert result.exit_code == 0, result.output
    assert started[0].executor == "local"


def test_agents_are_not_started_for_a_gpu_that_is_not_there(workplace, released, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    released["starts"] = True
    asked = ("--executor", "local", "--gpus-per-agent", 1)
    result = workplace.privrl("evaluate", "--synthetic", "a-v0", *asked, "--out", "o")
    assert result.exit_code == 2
    assert "--gpus-per-agent=1, but torch sees no GPU in 1 of 1 workers" in result.stderr


def test_help_lists_the_agents(workplace):
    from distributed_privrl.agents.algorithms import ALGORITHMS

    text = " ".join(workplace.privrl("evaluate", "--help").stdout.split())
    assert all(re.search(rf"\b{name}\b", text) for name in ALGORITHMS)
