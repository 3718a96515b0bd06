"""The utility table at a tiny scale: every cell is there, kept, and made by the product."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import utility_maze2d
from benchmarks.utility_cells import ABLATIONS, CPU, PAPER, QUICK, SCALES, Cell, run_config
from benchmarks.utility_maze2d import run_cell, shares
from distributed_privrl.experiments.registry import parse_config, plan_run


def test_the_table_is_made_kept_and_read_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCALES, "quick", replace(QUICK, agents={"iql": {}, "td3bc": {}}))
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
    run = tmp_path / "work" / "runs" / "eval-umaze-ours-5"
    assert json.loads((run / "certificate.json").read_text())["epsilon"] <= 5


def test_shares_are_of_the_mean_and_their_interval_holds_both_sides() -> None:
    row, real = {"cell": "a", "iql": [40.0, 60.0]}, {"iql": [100.0, 100.0]}
    found = shares(row, real, "iql")
    assert found["share"] == 0.5
    assert (found["low"], found["high"]) == (0.4, 0.6)


@pytest.mark.parametrize("scale", sorted(SCALES))
@pytest.mark.parametrize("variant", ["ours", *ABLATIONS])
def test_every_cell_has_a_valid_configuration_within_its_budget(
    scale: str, variant: str, tmp_path: Path
) -> None:
    cell = Cell(maze="umaze", variant=variant, epsilon=1.0)
    assert cell.public == ("medium", "large")
    values = run_config(cell, SCALES[scale], keep=tmp_path)
    config = parse_config(values, source="cell")
    if scale == "cpu" and variant in ("ours", "rdp"):
        assert plan_run(config).epsilon(1) < 1.0
    assert config.output.dataset == cell.output


def test_overrides_reach_every_run_and_the_paper_s_cells_are_on_the_table(tmp_path: Path) -> None:
    scale = CPU.with_overrides(["training.rounds=7"])
    cell = Cell(maze="large", variant="ours", epsilon=None)
    assert run_config(cell, scale, keep=tmp_path)["training"]["rounds"] == 7
    assert {maze for maze, _ in PAPER} == set(utility_maze2d.TABLE_MAZES)


def test_a_cell_that_is_kept_is_not_run_again(tmp_path: Path) -> None:
    cell = Cell(maze="umaze", variant="ours", epsilon=1.0)
    path = tmp_path / "cells" / f"{cell.name}.json"
    path.parent.mkdir()
    path.write_text('{"kept": true}')
    assert run_cell(cell, QUICK, tmp_path) == {"kept": True}
