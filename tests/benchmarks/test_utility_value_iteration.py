"""Figure 1 at a tiny scale: every line is there, saved with its plot."""

import json
from pathlib import Path

import pytest

from benchmarks import harness, utility_value_iteration
from benchmarks.linear_figure import BUDGETS, INSTANCES, OURS, PAPER, problem


def test_the_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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
    ratios = found["ratios"]
    assert 0 <= ratios["below_pevi_tuned_ours_rho_25"] <= 1
    assert ratios["gap_tuned_vapvi"] < ratios["gap_tuned_ours_rho_0.1"]
    assert ratios["gap_tuned_ours_rho_25"] < ratios["gap_tuned_paper_rho_25"]
    assert (tmp_path / "utility_value_iteration.png").read_bytes().startswith(b"\x89PNG")
    assert "as published" in (tmp_path / "utility_value_iteration.md").read_text()
