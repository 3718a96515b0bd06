"""Figure 1 at a tiny scale: every line is there, saved with its plot."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import harness, linear_figure, sepsis, utility_value_iteration
from benchmarks.harness import Result
from benchmarks.linear_figure import BUDGETS, INSTANCES, OURS, PAPER, Problem


def test_the_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line is computed; tuning chooses among ridges for those of the plot, not for levers."""
    monkeypatch.setattr(linear_figure, "HORIZON", 8)
    problem = cache(Problem)
    for module in (linear_figure, utility_value_iteration):
        monkeypatch.setattr(module, "problem", problem)
    alone = tuple(replace(lever, ridges=lever.ridges[-1:]) for lever in linear_figure.LEVERS)
    monkeypatch.setattr(linear_figure, "LEVERS", alone)
    arguments = ["--scale", "quick", "--out", str(tmp_path)]
    result = harness.main("utility_value_iteration", utility_value_iteration.run, arguments)
    lines = capsys.readouterr().out.splitlines()
    assert len({line.count("|") for line in lines[: 2 + len(result.cells)]}) == 1
    found = json.loads(lines[-1])
    assert found["benchmark"] == "utility_value_iteration"
    for method in (PAPER, OURS):
        for constants in ("leading", "tuned"):
            rows = [
                (row["instance"], row["rho"])
                for row in result.cells
                if (row["constants"], row["method"]) == (constants, method.name)
            ]
            assert rows == [(instance, budget) for instance in INSTANCES for budget in BUDGETS]
    for row in result.cells:
        assert 0 <= row["K=5"] <= problem(row["instance"]).best
        assert row["K=5"] == pytest.approx(np.mean(row["runs"]["K=5"]))
    ratios = found["ratios"]
    assert 0 <= ratios["below_pevi_tuned_ours_rho_25"] <= 1
    assert ratios["gap_tuned_vapvi"] < ratios["gap_tuned_ours_rho_0.1"]
    assert ratios["gap_tuned_ours_rho_25"] < ratios["gap_tuned_paper_rho_25"]
    assert (tmp_path / "utility_value_iteration.png").read_bytes().startswith(b"\x89PNG")
    shown = (tmp_path / "utility_value_iteration.md").read_text()
    assert all(lever.name in shown for lever in alone)


def test_the_command_saves_the_figure_and_the_price_in_icu_sepsis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = Result(cells=[{"figure": 1}], ratios={})
    monkeypatch.setattr(utility_value_iteration, "run", lambda quick: row)
    monkeypatch.setattr(sepsis, "result", lambda quick: row)
    utility_value_iteration.main(["--scale", "quick", "--out", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{suffix}"
        for name in ("utility_value_iteration", "utility_icu_sepsis")
        for suffix in ("md", "json")
    }
