"""Tables of the papers beside ours are those of the stored cells; what was not run is blank."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, paper_tables, utility_expert, utility_primorl, utility_scales


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epsilon is computed once, in a test of its own."""
    monkeypatch.setattr(paper_tables, "accounted", lambda *_: {})


def test_every_figure_of_a_paper_has_a_line() -> None:
    found = {
        (one["where"], one["what"].partition(",")[0], one["epsilon, theirs"], one["theirs"])
        for make in paper_tables.PAPERS.values()
        for one in make("cpu")
    }
    for table, where in (
        (utility_scales.PAPER_N, "PrivORL-n, tables III and VIII"),
        (utility_scales.PAPER_J, "PrivORL-j, table II"),
        (utility_scales.PAPER_MUJOCO, "PrivORL-n, HalfCheetah"),
    ):
        for (maze, epsilon), share in table.items():
            assert (where, maze, epsilon, share) in found
    for (task, epsilon), share in utility_primorl.PAPER.items():
        assert ("PriMORL, table 1", task, epsilon, share) in found
    for (environment, _, _, epsilon), share in utility_expert.PAPER.items():
        assert ("Expert level, table 2", environment, epsilon, share) in found


def test_ours_are_the_stored_cells() -> None:
    stored = json.loads((harness.RESULTS / "utility_primorl.json").read_text())["cells"]
    (cell,) = (
        one
        for one in stored
        if (one["task"], one["row"], one["epsilon"]) == ("pendulum", "ours", 0.1)
    )
    (shown,) = (
        one
        for one in paper_tables.primorl("cpu")
        if (one["what"], one["epsilon, ours"]) == ("pendulum", 0.1)
    )
    assert shown["ours"] == cell["return"]
    assert shown["by PLD"] == cell["certified"]
    assert shown["interval"].low < min(cell["seeds"]) < max(cell["seeds"]) < shown["interval"].high
    assert shown["CPU min"] == cell["CPU s"] / 60
    mopo = [one["return"] for one in stored if one["task"] == "pendulum" and one["row"] == "mopo"]
    assert shown["without privacy"] == max(mopo)


def test_ablations_and_costs_are_those_of_the_kept_cells() -> None:
    lines = list(paper_tables.privorl_ablations("cpu"))
    (kept,) = (
        one
        for one in json.loads((harness.RESULTS / "sweep_horizon.json").read_text())["cells"]
        if (one["horizon"], one["epsilon"]) == (16, 10)
    )
    (shown,) = (one for one in lines if (one["what"], one["epsilon, ours"]) == ("horizon 16", 10))
    assert (shown["ours"], shown["interval"]) == (kept["score"], kept["score 95 %"])
    costs = [one for one in lines if one["where"] == "PrivORL, table XI"]
    assert {one["what"].partition(",")[0] for one in costs} == set(paper_tables.PAPER_COSTS)
    assert any(one["CPU min"] and one["MB"] for one in costs if one["theirs"])
    assert not any(one["ours"] for one in paper_tables.privorl_ablations("paper"))


def test_an_interval_says_how_it_was_made_and_a_range_is_no_interval() -> None:
    shown = {
        (name, one["what"], one["epsilon, ours"], key): one[key]
        for name, make in paper_tables.PAPERS.items()
        for one in make("cpu")
        for key in ("interval", "its interval")
        if one[key] is not None
    }
    swept = {key: text for key, text in shown.items() if key[0] == "PrivORL, ablations and costs"}
    assert swept
    assert all(text.endswith("(t, n=3)") for text in swept.values())
    shown = {key: text for key, text in shown.items() if key not in swept}
    ranges = {key: text for key, text in shown.items() if isinstance(text, str)}
    assert {name for name, *_ in ranges} == {"PrivORL"}
    assert all(text.endswith("(range, n=3)") for text in ranges.values())
    (kept,) = (
        one
        for one in json.loads((harness.RESULTS / "utility_mujoco.json").read_text())["cells"]
        if (one["variant"], one["epsilon"]) == ("ours", 1.0)
    )
    expected = f"{kept['iql, range of 3']} (range, n=3)"
    assert expected in {text for (_, what, _, _), text in ranges.items() if "halfcheetah" in what}
    made = {text.method for key, text in shown.items() if key not in ranges}
    assert made == {"t, n=2", "t, n=3"}
    there = {(name, key) for name, _, _, key in shown}
    for name in ("PrivORL", "PriMORL", "Expert level"):
        assert {(name, "interval"), (name, "its interval")} <= there


def test_what_was_not_run_is_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = [one for make in paper_tables.PAPERS.values() for one in make("cpu")]
    assert any(one["ours"] is not None for one in there)
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    for make in paper_tables.PAPERS.values():
        lines = list(make("cpu"))
        assert lines
        for one in lines:
            measured = ("ours", "interval", "by PLD", "without privacy", "its interval", "CPU min")
            assert all(one[key] is None for key in measured), one
    text = paper_tables.tables("cpu")
    assert "None" not in text
    assert "| -" not in text.replace("|--", "")


def test_a_scale_takes_the_cells_that_were_run_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    cells = [{"task": "pendulum"}]
    for scale, counts_for in (("cpu", {"cpu"}), ("paper", {"paper"}), ("full", {"cpu", "paper"})):
        text = json.dumps({"scale": scale, "cells": cells})
        (tmp_path / "utility_primorl.json").write_text(text)
        found = {one for one in ("cpu", "paper") if paper_tables.stored("utility_primorl", one)}
        assert found == counts_for


def test_a_line_has_no_other_columns() -> None:
    with pytest.raises(KeyError, match="a line has no surprise"):
        paper_tables.line("where", "what", surprise=1)


def test_epsilon_is_that_of_the_stored_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    stored: list[dict[str, Any]] = json.loads(
        (harness.RESULTS / "utility_primorl.json").read_text()
    )["cells"]
    (cell,) = (
        one
        for one in stored
        if (one["task"], one["row"], one["epsilon"]) == ("pendulum", "ours", 1)
    )
    setting = utility_primorl.Setting(work=Path("work"), data_seed=1, changes=(), trajectories=None)
    own = utility_primorl.Cell(task="pendulum", variant="ours", epsilon=1.0, seed=0)
    values = utility_primorl.values_of(own, setting, None)
    costs = paper_tables.accounted(values, cell["noise"])
    assert costs["by PLD"] == pytest.approx(cell["certified"], rel=1e-3)
    assert costs["by PLD"] < costs["by the paper's accountant"] < 2 * costs["by PLD"]
    assert paper_tables.accounted(values, 1.1 * cell["noise"]) == {}
