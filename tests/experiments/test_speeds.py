"""How fast a machine is, and the minutes that plans make of it."""

from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.config import RunConfig
from distributed_privrl.experiments import speed_probe, speeds
from distributed_privrl.experiments.registry import load_config, parse_config, plan_run
from distributed_privrl.marginals import belief
from distributed_privrl.privacy.accounting import coarse_figures
from distributed_privrl.stages.effort import Effort
from tests.marginals.programs import chained
from tests.worlds.overrides import changed

CONFIGS = Path(__file__).parents[2] / "tune_configs"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data" / "speeds.json"
    monkeypatch.setattr(speeds, "speeds_file", lambda: path)
    return path


def test_work_takes_what_its_parts_take() -> None:
    one = speeds.REFERENCE
    effort = Effort(
        joint_counts=3,
        rounds=10,
        private_rows=1e9,
        learned_steps=4e3,
        learned_rows=2e9,
        drawn_rows=3e9,
    )
    parts = one.start + 3 * one.joint_count + 10 * one.round
    parts += 4e3 * one.learned_step + 2e9 * one.learned_row + 3e9 * one.drawn_row
    assert one.seconds(effort) == pytest.approx(parts + 1e9 * one.private_row)
    assert one.seconds(effort, workers=4) == pytest.approx(parts + 1e9 * one.private_row / 4)
    assert one.seconds(effort + effort) == pytest.approx(2 * one.seconds(effort) - one.start)


def test_speeds_are_kept_and_damage_is_as_if_nobody_measured(kept: Path) -> None:
    assert speeds.stored_speeds() is None
    speeds.store_speeds(speeds.REFERENCE)
    assert speeds.stored_speeds() == speeds.REFERENCE
    for damage in ("", "{}", "[1]", kept.read_text().replace("round", "lap")):
        kept.write_text(damage)
        assert speeds.stored_speeds() is None


@pytest.mark.parametrize(
    "name",
    ["marginals_fleet", "privorl_ar_maze2d", "privorl_n_maze2d", "privorl_j_maze2d"],
)
def test_plans_of_synthesisers_have_minutes(name: str, kept: Path) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    with coarse_figures():  # as the command plans
        plan = plan_run(config)
    if plan.effort is None:  # nobody knows the columns before the dataset is here
        pytest.skip("no column is known")
    facts = speeds.time_of(config, plan.effort, speeds.stored_speeds()).facts()
    low, high = facts["minutes_between"]
    assert 0.05 < low < facts["minutes"] < high < 10_000
    assert not facts["measured"]


def test_a_small_run_measures_a_machine(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    asked = speed_probe._config

    def coarse(*given: Any) -> RunConfig:
        values = asked(*given).model_dump(mode="json", by_alias=True, exclude_unset=True)
        table = {"bins": 4, "cells": 200, "draws": 500}
        return parse_config(
            changed(
                values,
                {
                    "training__pretraining__marginals__table": table,
                    "training__pretraining__marginals__selection__tables": 2,
                    "training__pretraining__marginals__rows": 500,
                },
            ),
            source="a small measurement",
        )

    monkeypatch.setattr(speed_probe, "_config", coarse)
    small = {
        "ROUNDS": 3,
        "BATCH": 64,
        "STEPS": 4,
        "SIZE": 200,
        "AGENT_STEPS": 50,
        "UNITS": 500,
        "SMALL": (4,),
        "LARGE": (256,),
    }
    for name, value in small.items():
        monkeypatch.setattr(speed_probe, name, value)
    told: list[str] = []
    found = speed_probe.measure("here", progress=lambda stage, *_: told.append(stage))
    assert found.machine == "here"
    assert all(
        getattr(found, name) > 0
        for name in (
            "start",
            "joint_count",
            "round",
            "private_row",
            "learned_step",
            "learned_row",
            "drawn_row",
        )
    )
    assert found.memory > 1e8
    assert {"measuring, private rounds", "measuring, marginals"} <= set(told)
