"""What ``privrl sweep`` says before it runs anything; what it runs is tested with Ray Tune."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributed_privrl.experiments.sweeps.jobs import SweepDirectory
from tests.cli.conftest import Workplace
from tests.cli.light import check_light
from tests.worlds import grid, sweeps


def write(workplace: Workplace, selection: Any = sweeps.COMPOSE, **changes: Any) -> Path:
    """Write a sweep's file; what is None is left out."""
    values = {**sweeps.values(selection), **changes}
    path = workplace.folder / "sweep.yaml"
    kept = {key: value for key, value in values.items() if value is not None}
    path.write_text(yaml.safe_dump(kept))
    return path


def test_a_dry_run_shows_trials_cost_and_the_budget_line(workplace, understands):
    result = workplace.privrl("sweep", write(workplace), "--dry-run")
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.split("\n\n")[0].splitlines()
    assert head.split()[:2] == ["horizon", "epsilon"]
    assert [row.split()[:3] for row in rows] == [
        ["10", "1", "1"],
        ["10", "2", "2"],
        ["20", "1", "1"],
        ["20", "2", "2"],
    ]
    lines = dict(line.split(None, 1) for line in result.stdout.split("\n\n")[1].splitlines())
    assert lines["trials"] == "4"
    assert lines["pays"].startswith("compose: epsilon 6, delta 0.0004: every trial is charged")
    assert "CPU minutes" in lines["time"]
    assert lines["disk"].endswith("GB")
    assert "--epsilon 6 --delta 0.0004 --unit trajectory" in lines["budget"]
    assert understands(lines["budget"])
    assert {path.name for path in workplace.folder.iterdir()} == {"stays.yaml", "sweep.yaml"}


def test_a_plan_of_a_sweep_is_its_dry_run(workplace):
    file = write(workplace)
    dry = workplace.privrl("sweep", file, "--dry-run", "--json", "-o", "privacy.delta=2e-4")
    plan = workplace.privrl("plan", "--sweep", file, "--json", "-o", "privacy.delta=2e-4")
    assert plan.exit_code == 0, plan.output
    assert plan.stdout == dry.stdout
    facts = json.loads(plan.stdout)
    assert (facts["pays"], facts["expected"], facts["epsilon"]) == ("compose", 4, 6)
    assert facts["delta"] == pytest.approx(8e-4)
    assert [one["values"] for one in facts["trials"]] == [
        {"horizon": horizon, "epsilon": epsilon} for horizon in (10, 20) for epsilon in (1, 2)
    ]
    assert facts["minutes"] >= 0
    assert facts["gigabytes"] > 0


def test_a_pilot_measures_a_trial_on_what_stands_in(workplace):
    """DP-APVI's trials take a second; nothing is charged, and the sensitive rows are not there."""
    file = write(workplace, sweeps.PUBLIC)
    sweeps.write_stand_in(grid.Grid(workplace.folder).store)
    shutil.rmtree(workplace.datasets / grid.DATASET)
    shown = workplace.privrl("plan", "--sweep", file, "--pilot")
    assert shown.exit_code == 0, shown.output
    time = next(line for line in shown.stdout.splitlines() if line.startswith("time"))
    assert re.search(r"agents included, by a pilot of \S+ CPU seconds on ward/public-stays", time)
    assert not (workplace.folder / "ledger.sqlite").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--sweep", "--pilot"], "selection.pays=compose: a pilot looks at public rows alone"),
        (["--sweep", "--rows", "a/b-v0"], "--rows with --pilot"),
        (["--pilot"], "--pilot goes with --sweep"),
    ],
)
def test_a_pilot_without_public_rows_or_a_sweep_is_refused(workplace, words, expected):
    result = workplace.privrl("plan", write(workplace), *words)
    assert result.exit_code == 2, result.output
    assert expected in result.stderr


def test_a_long_list_is_cut_in_words_and_whole_in_json(workplace):
    file = write(workplace, search={"privacy.epsilon": {"grid": list(range(1, 31))}})
    shown = workplace.privrl("sweep", file, "--dry-run")
    assert "and 10 more: --json lists them" in shown.stdout
    listed = json.loads(workplace.privrl("sweep", file, "--dry-run", "--json").stdout)
    assert len(listed["trials"]) == 30


def test_a_public_sweep_costs_nobody_anything(workplace):
    file = write(workplace, sweeps.PUBLIC)
    missing = workplace.privrl("sweep", file, "--dry-run")
    assert missing.exit_code == 2
    assert f"no dataset '{sweeps.STAND_IN}'" in missing.stderr
    environment = grid.Grid(workplace.folder)
    sweeps.write_stand_in(environment.store)
    result = workplace.privrl("sweep", file, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "public: nothing: public rows stand in" in result.stdout
    assert "ledger budget" not in result.stdout


@pytest.mark.parametrize(
    ("changes", "words", "expected"),
    [
        ({"selection": None}, ["--dry-run"], "selection.pays' must say who pays for the choice"),
        ({"selection": {"pays": "me"}}, ["--dry-run"], "public (rows of nobody stand in), compose"),
        ({"search": None}, ["--dry-run"], "'search' is missing: name keys and their values"),
        ({"search": {"data.sensitive": {"grid": ["a/b-v0"]}}}, ["--dry-run"], "is not searched"),
        ({"search": {"model.horizon": {"grid": [4], "choice": [4]}}}, ["--dry-run"], "give one of"),
        ({"search": {"model.horizons": {"grid": [4]}}}, ["--dry-run"], "model.horizons"),
        ({}, [], "--out is missing: name a folder for the sweep, or give --dry-run"),
        ({}, ["--out", "o", "--json"], "--json goes with --dry-run"),
        ({}, ["--out", "o", "--resume"], "holds no sweep to go on with: leave --resume out"),
    ],
)
def test_what_is_missing_or_wrong_is_said_in_a_line(workplace, changes, words, expected):
    result = workplace.privrl("sweep", write(workplace, **changes), *words)
    assert result.exit_code == 2, result.output
    assert expected in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_policy_that_nobody_can_try_is_refused_before_it_is_paid_for(workplace):
    values = grid.values(data={"environment": None})
    result = workplace.privrl("sweep", write(workplace, data=values["data"]), "--dry-run")
    assert result.exit_code == 2
    assert "by policy needs data.environment" in result.stderr


def test_a_sweep_without_a_budget_says_how_to_give_one(workplace, understands):
    result = workplace.privrl("sweep", write(workplace), "--out", workplace.folder / "out")
    assert result.exit_code == 3, result.output
    assert understands(result.stderr.split("`")[1])
    assert not (workplace.folder / "out").exists()


def test_an_interrupted_sweep_says_how_to_go_on(workplace, monkeypatch, understands):
    out = workplace.folder / "out"

    def interrupt(*_: Any, **__: Any) -> None:
        SweepDirectory(out).file.write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("distributed_privrl.experiments.sweeps.preparing.prepared_jobs", interrupt)
    words = ["-o", "privacy.delta=2e-4", "--ledger", "postgresql://me:secret@host/ledger"]
    result = workplace.privrl("sweep", write(workplace), "--out", out, *words)
    assert result.exit_code == 130, result.output
    line = result.stderr.split("`")[1]
    assert understands(line)
    assert line.endswith("-o privacy.delta=2e-4 --ledger LEDGER --resume")


def test_help_says_who_can_pay(workplace):
    said = " ".join(workplace.privrl("sweep", "--help").stdout.split())
    for payer in ("public: a dataset", "compose: every trial", "private: a hidden number"):
        assert payer in said
    assert "--resume" in said
    assert "as `privrl sweep --dry-run`" in " ".join(
        workplace.privrl("plan", "--help").stdout.split()
    )


def test_a_dry_run_imports_neither_ray_nor_torch(workplace):
    check_light(["sweep", str(write(workplace)), "--dry-run"], 0)
