"""Agents on real and on released rows at a tiny scale, and what the table makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import utility_curves
from benchmarks.utility_curves import FOLDER, Cell, kept_cells, result_of
from distributed_privrl.evaluation.trainer import find_trainer


def row(epsilon: float | None, seed: int, earned: float, **changes: Any) -> dict[str, Any]:
    return {
        "method": "privorl_n",
        "maze": "medium",
        "variant": "real" if epsilon is None else "ours",
        "epsilon": epsilon,
        "agent": "td3bc",
        "seed": seed,
        "scale": "cpu",
        "return": earned,
        "steps": [10, 20],
        "curve": [0.0, earned],
        "certified_epsilon": epsilon,
        "noise_multiplier": None,
        "agent_cpu_s": 60 * (1 + seed),
        "release_cpu_s": 0,
        **changes,
    }


def test_seeds_come_together_and_what_was_not_run_is_blank() -> None:
    rows = [row(10.0, 1, 30.0), row(10.0, 0, 20.0), row(None, 0, 40.0)]
    result = result_of([*rows, row(None, 0, 7.0, maze="umaze", agent="iql")], "cpu")
    lines = {
        (one["maze"], one["rows"], one["agent"], one["epsilon"]): one
        for one in result.cells
        if one["method"] == "privorl_n"
    }
    ours = lines["medium", "ours", "td3bc", 10.0]
    assert (ours["return"], ours["seeds"], ours["agent CPU s"]) == (25.0, [20.0, 30.0], 90.0)
    assert ours["95 %"].endswith("(t, n=2)")
    assert ours["curve"] == {"steps": [10, 20], "seeds": [[0.0, 20.0], [0.0, 30.0]]}
    assert lines["medium", "real", "td3bc", None]["95 %"] is None
    assert lines["umaze", "real", "iql", None]["return"] == 7.0
    blank = lines["large", "ours", "edac", 10.0]
    assert (blank["return"], blank["seeds"], blank["certified"]) == (None, [], None)
    assert blank["paper, share"] == pytest.approx(80.6 / 89.9)
    assert result.figures["png"].startswith(b"\x89PNG")
    assert not result_of([], "cpu").figures


def test_edac_is_trained_with_widths_and_rates_of_td3bc() -> None:
    for (method, maze), table in utility_curves.TABLES.items():
        for scale in table.scales:
            cell = Cell(
                method=method,
                maze=maze,
                variant="real",
                epsilon=None,
                agent="edac",
                seed=0,
                scale=scale,
            )
            assert cell.options == table.scales[scale].agents["td3bc"]
            assert find_trainer("edac", cell.options).name == "edac"
            assert json.loads(json.dumps(cell.settings)) == cell.settings


def test_agents_are_trained_once_on_real_and_on_released_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--scale", "quick", "--mazes", "medium", "--epsilons", "10", "--seeds", "1"]
    command += ["--agents", "td3bc", "edac", f"--work={tmp_path / 'work'}"]
    command += [f"--cells={tmp_path / 'cells'}", f"--out={tmp_path}"]
    utility_curves.main(command)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["done"] == 4
    files = sorted((tmp_path / "cells").iterdir())
    stamps = [path.stat().st_mtime_ns for path in files]
    found = [json.loads(path.read_text()) for path in files]
    assert {(one["variant"], one["agent"]) for one in found} == {
        (rows, agent) for rows in ("real", "ours") for agent in ("td3bc", "edac")
    }
    for one in found:
        assert one["return"] == pytest.approx(sum(one["curve"][-5:]) / len(one["curve"][-5:]))
        assert (one["certified_epsilon"] or 0) <= 10
        assert (one["certified_epsilon"] is None) == (one["variant"] == "real")
    cells = json.loads((tmp_path / "utility_curves.json").read_text())["cells"]
    assert sum(bool(one["seeds"]) for one in cells) == 4
    assert (tmp_path / "utility_curves.png").exists()
    utility_curves.main([*command, "--kept"])
    utility_curves.main(command)
    assert [path.stat().st_mtime_ns for path in files] == stamps
    monkeypatch.setattr(Cell, "options", {"hidden": [8]})
    assert kept_cells(tmp_path / "cells", "quick") == []  # of other settings


def test_a_task_that_a_method_has_not_is_refused(tmp_path: Path) -> None:
    for given in (["--method", "privorl_j", "--mazes", "halfcheetah"], ["--method", "privorl_j"]):
        scale = ["--scale", "quick" if "halfcheetah" in given else "paper"]
        with pytest.raises(SystemExit):
            utility_curves.main([*given, *scale, f"--work={tmp_path}", f"--cells={tmp_path}"])
    assert not list(tmp_path.iterdir())


def test_committed_cells_are_of_the_settings_of_the_code() -> None:
    found = kept_cells(FOLDER, "cpu")
    assert len(found) == len(list(FOLDER.glob("*.json")))
    for one in found:
        last = one["curve"][-5:]
        assert one["return"] == pytest.approx(sum(last) / len(last))
