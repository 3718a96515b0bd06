"""Tables of the papers beside ours are those of the stored cells; what was not run is blank."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    cells,
    harness,
    paper_tables,
    utility_curves,
    utility_expert,
    utility_primorl,
    utility_scales,
)


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
        (utility_scales.PAPER_N, "PrivORL-n, table I"),
        (utility_scales.PAPER_J, "PrivORL-j, table II"),
        (utility_scales.PAPER_MUJOCO, "PrivORL-n, table I, HalfCheetah"),
        (utility_scales.PAPER_EDAC_N, "PrivORL-n, table I"),
        (utility_scales.PAPER_EDAC_J, "PrivORL-j, table II"),
    ):
        for (maze, epsilon), share in table.items():
            assert (where, maze, epsilon, share) in found
    for (task, epsilon), share in utility_primorl.PAPER.items():
        assert ("PriMORL, table 1", task, epsilon, share) in found
    for paper in (utility_expert.PAPER, utility_expert.ROUNDS_ALONE):
        for (environment, _, _, epsilon), share in paper.items():
            assert ("Expert level, table 2", environment, epsilon, share) in found
    for (environment, *_), mixed in utility_expert.MIXES.items():
        theirs = None if mixed is None else utility_expert.MIX_EPSILON
        assert ("Expert level, table 2, mixes", environment, theirs, mixed) in found


def test_ours_are_the_stored_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _kept_apart(tmp_path, monkeypatch, "utility_primorl")
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


def _kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *cells: dict[str, Any]
) -> None:
    """Copy a benchmark's stored table to where nothing else is, with cells that came later."""
    table = (harness.RESULTS / f"{name}.json").read_text()
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    (tmp_path / f"{name}.json").write_text(table)
    (tmp_path / name).mkdir(exist_ok=True)
    for number, cell in enumerate(cells):
        (tmp_path / name / f"{number}.json").write_text(json.dumps(cell))


def _pendulum(**changes: Any) -> dict[str, Any]:
    cell = {"task": "pendulum", "variant": "ours", "epsilon": 1.0, "seed": 3, "return": -100.0}
    made = {"certified_epsilon": 0.9725, "noise_multiplier": 1.492, "cpu_s": 600, "changes": []}
    return cell | made | {"data": -744.0} | changes


def test_cells_that_came_later_add_their_seeds_to_the_row_they_belong_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_pendulum() -> dict[float, dict[str, Any]]:
        lines = paper_tables.joined("utility_primorl", ("task", "row", "epsilon"), "cpu")
        return {
            one["epsilon"]: dict(one)
            for one in lines
            if (one["task"], one["row"]) == ("pendulum", "ours")
        }

    _kept_apart(tmp_path, monkeypatch, "utility_primorl")
    before = of_pendulum()
    _kept_apart(
        tmp_path,
        monkeypatch,
        "utility_primorl",
        _pendulum(seed=4, **{"return": -105.0}),
        _pendulum(),
        _pendulum(seed=2),  # is stored
        _pendulum(seed=5, noise_multiplier=3.0),  # another plan
        _pendulum(seed=6, changes=["training.rounds=3"]),
        _pendulum(seed=7, data=-700.0),  # another recording
        _pendulum(epsilon=0.7, seed=0, cpu_s=30),
    )
    found = of_pendulum()
    own = found.pop(0.7)
    assert (own["return"], own["seeds"], own["CPU s"]) == (-100.0, [-100.0], 30)
    joined, old = found[1.0], before[1.0]
    assert joined["seeds"] == [*old["seeds"], -100.0, -105.0]
    assert joined["return"] == pytest.approx(sum(joined["seeds"]) / 5)
    assert joined["CPU s"] == pytest.approx((3 * old["CPU s"] + 2 * 600) / 5)
    assert {**found, 1.0: old} == {key: before[key] for key in found}
    (line,) = (
        one
        for one in paper_tables.primorl("cpu")
        if (one["what"], one["epsilon, ours"]) == ("pendulum", 1.0)
    )
    assert line["interval"].method == "t, n=5"
    assert not paper_tables.joined("utility_primorl", ("task", "row", "epsilon"), "paper")


@pytest.mark.parametrize("name", ["utility_primorl", "utility_expert"])
def test_every_cell_that_was_committed_is_on_its_table(name: str) -> None:
    keys = {
        "utility_primorl": ("task", "row", "epsilon"),
        "utility_expert": ("environment", "experts", "agent", "row", "epsilon"),
    }[name]
    lines = {tuple(one[key] for key in keys): one for one in paper_tables.joined(name, keys, "cpu")}
    for cell in cells.committed(name):
        line = lines[tuple({**cell, "row": cell["variant"]}[key] for key in keys)]
        assert cell["return"] in line["seeds"]
        assert cell["made"]["commit"]


def test_mixes_of_steps_are_rows_of_their_p(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = {"environment": "cartpole", "experts": 3000, "agent": "discrete_cql", "epsilon": 10.0}
    made = {"certified_epsilon": 9.6, "noise_multiplier": 3.149, "cpu_s": 60, "changes": []}
    later = [
        {**cell, **made, "variant": "p 0.8", "seed": seed, "return": 700.0 + seed}
        for seed in range(2)
    ]
    _kept_apart(tmp_path, monkeypatch, "utility_expert", *later)
    mixes = {
        one["what"]: one
        for one in paper_tables.expert("cpu")
        if one["where"] == "Expert level, table 2, mixes"
    }
    found = mixes["cartpole, discrete_cql, m = 3,000, p = 0.8"]
    assert (found["theirs"], found["ours"], found["CPU min"]) == (1.03, 700.5, 1.0)
    assert found["interval"].method == "t, n=2"
    assert mixes["cartpole, discrete_cql, m = 3,000, p = 0"]["ours"] is None
    (rounds,) = (
        one
        for one in paper_tables.joined("utility_expert", paper_tables._EXPERT_KEYS, "cpu")
        if one["agent"] == "discrete_cql"
        and (one["environment"], one["experts"], one["row"]) == ("cartpole", 3000, "dp_sgd")
        and one["epsilon"] == utility_expert.MIX_EPSILON
    )
    assert mixes["cartpole, discrete_cql, m = 3,000, p = 1"]["ours"] == rounds["return"]


def test_edac_and_learning_curves_are_those_of_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    about = {"certified_epsilon": 9.9, "noise_multiplier": 0.5, "release_cpu_s": 60}
    rows = [
        {
            "method": "privorl_n",
            "maze": maze,
            "variant": "real" if epsilon is None else "ours",
            "epsilon": epsilon,
            "agent": agent,
            "seed": seed,
            "return": earned + seed,
            "steps": [1000, 2000],
            "curve": [0.0, earned + 10 * seed],
            "agent_cpu_s": 120,
            **(about | {"noise_multiplier": None} if epsilon is None else about),
        }
        for maze, epsilon, agent, earned in (
            ("umaze", 10.0, "edac", 50.0),
            ("umaze", None, "edac", 60.0),
            ("medium", None, "td3bc", 30.0),
            ("medium", 10.0, "td3bc", 20.0),
        )
        for seed in range(2)
    ]
    result = utility_curves.result_of(rows, "cpu")
    text = json.dumps({"scale": "cpu", "cells": list(result.cells)})
    (tmp_path / "utility_curves.json").write_text(text)
    lines = {
        (one["what"], one["epsilon, theirs"]): one
        for one in paper_tables.privorl_agents("cpu")
        if one["where"] != "PrivORL-j, table II"
    }
    edac = lines["umaze, EDAC", 10.0]
    assert (edac["ours"], edac["without privacy"], edac["CPU min"]) == (50.5, 60.5, 3.0)
    assert edac["interval"].method == "t, n=2"
    assert lines["umaze, EDAC", 1.0]["ours"] is None
    assert lines["umaze, EDAC", 1.0]["without privacy"] == 60.5
    last = lines["medium, TD3+BC, step 2,000", 10.0]
    assert (last["ours"], last["without privacy"]) == (25.0, 35.0)
    assert lines["medium, TD3+BC, step 1,000", 10.0]["ours"] == 0.0
    assert lines["halfcheetah, TD3+BC", 10.0]["ours"] is None
    assert not any(one["ours"] for one in paper_tables.privorl_agents("paper"))


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
    assert {"t, n=2", "t, n=3"} <= made
    assert all(method.startswith("t, n=") for method in made)
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
