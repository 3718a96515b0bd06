"""The benchmark of people for rounds: its table."""

from pathlib import Path

import pytest

from benchmarks import units_for_rounds


def test_the_ratios_compare_with_marginals() -> None:
    row = {"table": "wide", "units": 10, "seed": 0, "noise of a round": None, "KS": 0.1}
    row |= {"pairs kept": 1.0, "correlation error": 0.1}
    found = units_for_rounds.result_of(
        [{**row, "method": "marginals", "area": 0.6}, {**row, "method": "hybrid", "area": 0.5}]
    )
    assert found.ratios == {"wide, 10, hybrid, seed 0: area beside marginals": pytest.approx(-0.1)}
    assert [cell["method"] for cell in found.cells] == ["marginals", "hybrid"]


def test_a_configuration_is_a_run(tmp_path: Path) -> None:
    cell = units_for_rounds.Cell(table="groups", method="hybrid", units=50, epsilon=1.0, seed=0)
    values = units_for_rounds.values_of(cell, tmp_path)
    assert values["training"]["expected_batch_size"] == 10
    assert values["training"]["pretraining"]["from"] == "marginals"
