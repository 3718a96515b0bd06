"""The utility table at a tiny scale: every cell is there, kept, and made by the product."""

import argparse
import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import utility_maze2d, utility_mujoco, utility_table
from benchmarks.cells import CONFIGURATIONS
from benchmarks.utility_cells import Cell, Scale, Table, run_config
from benchmarks.utility_rows import agent_columns, release_figures, share_in_walls
from benchmarks.utility_scales import CPU, MAZE_TABLES, MUJOCO_TABLES, QUICK, QUICK_J
from benchmarks.utility_table import run_cell
from benchmarks.utility_tasks import TABLE_MAZES, TASKS
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments.mazes import MAZES
from distributed_privrl.evaluation.trajectory_score import TrajectoryScoreConfig
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.registry import (
    load_config,
    method_named,
    parse_config,
    plan_run,
)
from distributed_privrl.methods.privorl.config import PrivorlArJConfig
from tests.worlds.opened import opened

N, J = MAZE_TABLES["privorl_n"], MAZE_TABLES["privorl_j"]
AGENTS = {"iql": {"hidden": [8]}, "td3bc": {"hidden": [8]}}
FEW = QUICK.with_overrides(
    ["training.rounds=4", "training.block_rounds=2", "training.expected_batch_size=64"]
)
"""Nothing is asked of what these rounds learn."""


def with_quick(
    monkeypatch: pytest.MonkeyPatch, tables: Mapping[str, Table], method: str, scale: Scale
) -> None:
    scales = {**tables[method].scales, "quick": scale}
    monkeypatch.setitem(tables, method, replace(tables[method], scales=scales))  # type: ignore[arg-type]


def test_the_table_is_made_kept_and_read_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(FEW, agents=AGENTS, steps=1000, synthetic=500)
    with_quick(monkeypatch, MAZE_TABLES, "privorl_n", small)
    command = ["--scale", "quick", "--mazes", "eval-umaze", "--epsilons", "5", "--parallel", "1"]
    command += ["--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    utility_maze2d.main(command)
    first = capsys.readouterr().out.splitlines()
    found = json.loads(first[-1])
    assert found["cells"] == 2
    assert set(found["ratios"]) == {"eval-umaze_eps5_iql", "eval-umaze_eps5_td3bc"}
    utility_maze2d.main(command)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found
    saved = json.loads((tmp_path / "utility_maze2d.json").read_text())
    real, ours = saved["cells"]
    assert (real["variant"], ours["variant"]) == ("real", "ours")
    assert real["marginal"] is None
    assert 0 < ours["marginal"] < 1
    assert ours["z"] > 0
    assert ours["unit"] == "transition"
    assert [len(ours[f"{trainer} seeds"]) for trainer in AGENTS] == [QUICK.seeds] * len(AGENTS)
    assert ours["iql"] == pytest.approx(np.mean(ours["iql seeds"]))
    assert 0 <= ours["in walls"] <= 1
    assert not any("TrajScore" in name for name in ours)
    run = tmp_path / "work" / "runs" / "eval-umaze-ours-5"
    assert json.loads((run / "certificate.json").read_text())["epsilon"] <= 5


@pytest.mark.slow
def test_the_table_of_trajectories_has_its_rows_and_what_only_they_have(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_quick(
        monkeypatch, MAZE_TABLES, "privorl_j", replace(QUICK_J, agents={"iql": AGENTS["iql"]})
    )
    short = TrajectoryScoreConfig(window=2, width=8, steps=2, sample=16, permutations=2)
    figures = functools.partial(release_figures, config=short)
    monkeypatch.setattr(utility_table, "release_figures", figures)
    command = ["--method", "privorl_j", "--scale", "quick", "--mazes", "eval-umaze"]
    command += ["--epsilons", "10", "--parallel", "1"]
    utility_maze2d.main([*command, "--work", str(tmp_path / "work"), "--out", str(tmp_path)])
    capsys.readouterr()
    saved = json.loads((tmp_path / "utility_maze2d_j.json").read_text())
    rows = {row["variant"]: row for row in saved["cells"]}
    assert list(rows) == ["real", "ours", *MAZE_TABLES["privorl_j"].rows]
    assert set(saved["ratios"]) == {"eval-umaze_eps10_iql"}
    for name, row in rows.items():
        whole = name not in ("real", "privorl_ar", "privorl_n")
        assert row["unit"] == (None if name == "real" else "trajectory" if whole else "transition")
        assert (row["TrajScore (chance, real)"] is not None) == whole
        assert (row["seams inside, between (a step)"] is not None) == whole
        assert (row["in walls"] is None) == (name == "real")
    store = DatasetStore(tmp_path / "work" / "datasets")
    assert set(store.read_trajectories("maze/eval-umaze-v0").lengths) == {64}
    assert opened(store.info("synthetic/eval-umaze-ours-10-v0").total_trajectories) == 20
    certificate = tmp_path / "work" / "runs" / "eval-umaze-ours-10" / "certificate.json"
    assert json.loads(certificate.read_text())["stages"][0]["unit"] == "trajectory"


def test_rows_of_41_numbers_have_a_table_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_quick(monkeypatch, MUJOCO_TABLES, "privorl_n", replace(FEW, steps=600, synthetic=300))
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    short = {"training_steps": 9, "reference_episodes": 1, "snapshots": 1}
    for name in ("halfcheetah", "halfcheetah-expert"):
        monkeypatch.setitem(TASKS, name, replace(TASKS[name], options=short))  # type: ignore[arg-type]
    command = ["--scale", "quick", "--epsilons", "10", "--releases", "--no-real"]
    command += ["--parallel", "1", "--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    utility_mujoco.main(command)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["cells"] == 1
    (ours,) = json.loads((tmp_path / "utility_mujoco.json").read_text())["cells"]
    assert 0 < ours["marginal"] < 1
    assert ours["in walls"] is None
    assert (ours["iql"], ours["iql 95 %"]) == (None, None), "no agent was trained"
    assert ours["paper, iql share"] == 0.76
    store, task = DatasetStore(tmp_path / "work" / "datasets"), TASKS["halfcheetah"]
    returns = opened(store.info(task.dataset).metadata)["reference_returns"]
    reference = task.reference(store)
    assert (reference.random, reference.planner) == (returns["random"], returns["expert"])
    rows = store.read_transitions(task.dataset, unit="transition")
    assert 2 * rows.observations.shape[1] + rows.actions.shape[1] + 1 == 41


def test_horizons_are_rows_of_their_own_at_the_epsilons_that_are_asked_for() -> None:
    asked: dict[str, Any] = {"mazes": ["eval-umaze"], "epsilons": [], "ablations": []}
    asked |= {"no_real": True, "ablation_epsilons": ["none", "1"], "ablation_mazes": None}
    options = argparse.Namespace(horizons=[8, 64], **asked)
    cells = list(utility_table.cells_of(options, J))
    assert [cell.name for cell in cells] == [
        "eval-umaze-horizon_8-none",
        "eval-umaze-horizon_8-1",
        "eval-umaze-horizon_64-none",
        "eval-umaze-horizon_64-1",
    ]
    options = argparse.Namespace(horizons=[8], **{**asked, "ablation_mazes": ["umaze", "large"]})
    assert [cell.maze for cell in utility_table.cells_of(options, J)] == ["umaze"] * 2 + [
        "large"
    ] * 2
    assert cells[0].public == ("eval-medium", "eval-large")
    config = run_config(cells[2], J, J.scales["cpu"], keep=Path("kept"))
    assert (config["model"]["horizon"], config["privacy"]["epsilon"]) == (64, None)
    training = config["training"]
    assert training["pretraining"]["batch_size"] * 64 == 1024
    own = (training["expected_batch_size"], training["all_fragments"])
    assert own == (512, True), "those of the published table, not the row's of the transformer"


def test_the_example_of_whole_trajectories_has_the_table_s_settings() -> None:
    example = load_config(CONFIGURATIONS / "privorl_ar_j_maze2d.yaml", [])
    cell = Cell(maze="umaze", variant="ours", epsilon=1.0)
    values = run_config(cell, J, J.scales["cpu"], keep=Path("kept"))
    table = parse_config(values, source="the table")
    assert isinstance(example, PrivorlArJConfig)
    assert isinstance(table, PrivorlArJConfig)
    training = table.training
    assert (training.spare, training.block_rounds) == (10, 10)
    assert example.training.spare_rounds == 10
    plain = training.model_copy(update={"spare": None, "block_rounds": None})
    assert example.training == plain
    assert (example.model, example.privacy) == (table.model, table.privacy)


def test_states_in_walls_are_counted_by_the_public_map() -> None:
    maze = MAZES["umaze"]
    free = [maze.centre(*cell) for cell in maze.free_cells]
    walls = [maze.centre(row, column) for row, column in np.argwhere(maze.cells)]
    assert share_in_walls(np.array(free), maze) == 0
    assert share_in_walls(np.array(walls), maze) == 1
    assert share_in_walls(np.array([*free[:1], *walls[:3]]), maze) == 0.75


def test_what_a_line_says_of_an_agent_names_how_its_intervals_were_made() -> None:
    row, real = {"iql": [40.0, 50.0, 60.0]}, {"iql": [99.0, 100.0, 101.0]}
    assert agent_columns("iql", row, real) == {
        "iql": 50.0,
        "iql seeds": [40.0, 50.0, 60.0],
        "iql 95 %": "25 .. 75 (t, n=3)",
        "iql share": 0.5,
        "iql share 95 %": "0.25 .. 0.75 (Fieller, n=3 and 3)",
    }
    unknown = agent_columns("iql", row, {"iql": [-1.0, 1.0, 9.0]})
    assert unknown["iql share 95 %"] == "unknown", "real rows may earn nothing"
    alone = agent_columns("iql", {"iql": [40.0]}, None)
    assert (alone["iql 95 %"], alone["iql share"]) == ("unknown", None)
    assert agent_columns("iql", {"iql": []}, real)["iql share 95 %"] is None


@pytest.mark.parametrize(
    ("table", "scale", "variant"),
    [
        pytest.param(table, scale, variant, id=f"{table.name}-{scale}-{variant}")
        for table in (*MAZE_TABLES.values(), *MUJOCO_TABLES.values())
        for scale in table.scales
        for variant in ("ours", *table.variants)
    ],
)
def test_every_cell_has_a_valid_configuration_within_its_budget(
    table: Table, scale: str, variant: str, tmp_path: Path
) -> None:
    cell = Cell(maze=table.mazes[0], variant=variant, epsilon=1.0)
    assert cell.public in (("medium", "large"), ("halfcheetah-expert",))
    values = run_config(cell, table, table.scales[scale], keep=tmp_path)
    config = parse_config(values, source="cell")
    assert config.method == table.method_of(variant)
    assert config.data.unit == table.unit_of(variant)
    if scale == "cpu" and variant in ("ours", "rdp", "privorl_n"):
        assert plan_run(config).epsilon(1) < 1.0
    assert config.output.dataset == cell.output


def test_overrides_reach_every_run_and_the_paper_s_cells_are_on_the_table(tmp_path: Path) -> None:
    scale = CPU.with_overrides(["training.rounds=7"])
    cell = Cell(maze="large", variant="ours", epsilon=None)
    assert run_config(cell, N, scale, keep=tmp_path)["training"]["rounds"] == 7
    for table in (N, J):
        assert {maze for maze, _ in table.paper} == set(TABLE_MAZES)


@pytest.mark.parametrize("epsilon", [1.0, None])
def test_trajectories_keep_to_a_support_that_is_charged_where_anything_is(
    epsilon: float | None, tmp_path: Path
) -> None:
    cell = Cell(maze="umaze", variant="ours", epsilon=epsilon)
    config = parse_config(run_config(cell, J, J.scales["cpu"], keep=tmp_path), source="cell")
    assert isinstance(config, PrivorlArJConfig)
    assert config.model.public_parts == ("next_observation",)
    charged = method_named(config.method).declare(config).charged_before
    assert charged == ({} if epsilon is None else {"support": 0.1})
    assert (plan_run(config).budget is None) == (epsilon is None)


@pytest.mark.parametrize("rows", [["--ablations", "rdp"], ["--scale", "paper"]])
def test_what_a_table_has_not_is_refused(rows: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        utility_maze2d.main(["--method", "privorl_j", "--work", str(tmp_path), *rows])
    assert not list(tmp_path.iterdir())


def test_a_cell_that_is_kept_is_not_run_again(tmp_path: Path) -> None:
    cell = Cell(maze="umaze", variant="ours", epsilon=1.0)
    path = tmp_path / "cells" / f"{cell.name}.json"
    path.parent.mkdir()
    path.write_text('{"kept": true}')
    assert run_cell(cell, N, QUICK, tmp_path) == {"kept": True}
