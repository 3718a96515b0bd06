"""The comparison: blank lines, medians, which cells need public rows, a ceiling, the picture."""

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import comparison, table_attacks, utility_tables
from benchmarks.cells import store_of
from benchmarks.comparison import result_of
from benchmarks.comparison_plot import plot
from benchmarks.comparison_stored import key_of, stored_cells
from benchmarks.harness import RESULTS
from benchmarks.protocol import grid_judge
from benchmarks.protocol.grid_judge import GridSettings
from benchmarks.protocol.rows import Rows as MazeRows
from benchmarks.protocol.starts import Score
from benchmarks.table_judges import JudgeScale, solved
from benchmarks.table_methods import METHODS
from benchmarks.tables.catalogue import TABLES
from benchmarks.tables.source import RecordedTable
from benchmarks.utility_tables import Cell, cells_of, dataset_of
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRANSITION
from distributed_privrl.environments.mazes import Maze
from distributed_privrl.evaluation.membership import AttackFigures, Estimate, Roc
from distributed_privrl.experiments.attacks import Attacked
from distributed_privrl.experiments.audit import Audit


def _row(
    method: str, epsilon: float | None, seed: int, **figures: float | None
) -> dict[str, object]:
    row = {"table": "icu_sepsis", "method": method, "epsilon": epsilon, "seed": seed}
    cost = {} if epsilon is None else {"cpu s": 90.0, "memory MB": 500}
    return {**row, **cost, "figures": figures, "commit": "abc"}


def _cell(method: str, epsilon: float | None, seed: int = 0) -> Cell:
    return Cell(table="icu_sepsis", method=method, epsilon=epsilon, seed=seed)


def test_what_was_not_run_is_a_blank_line_and_generators_make_a_median() -> None:
    wanted = [_cell("fresh real", None), *(_cell("pgm", 1.0, seed) for seed in range(3))]
    wanted += [_cell("privsyn", 1.0), _cell("privsyn", 4.0)]
    values = {0: 0.78, 1: 0.8, 2: 0.7}
    rows = [_row("fresh real", None, 0, **{"exact value": 0.81})]
    rows += [_row("pgm", 1.0, seed, **{"exact value": value}) for seed, value in values.items()]
    result = result_of(wanted, rows)
    fresh, pgm, privsyn = result.cells
    assert (fresh["exact value"], fresh["CPU min"], fresh["epsilon"]) == ("0.81", "", "")
    assert (pgm["exact value"], pgm["generators"]) == ("0.78 (0.7 .. 0.8)", 3)
    assert (pgm["CPU min"], pgm["MB"], pgm["marginal"]) == ("1.5", "500", "")
    assert pgm["runs"]["1"] == {"exact value": 0.8}
    assert (pgm["commits"], privsyn["commits"]) == ("abc", "")
    blank = {key: value for key, value in privsyn.items() if key not in ("table", "method")}
    assert blank.pop("epsilon") == "1, 4"  # in one line, as there is neither
    assert blank.pop("generators") == 0
    assert not any(blank.values())
    assert result.ratios == {"icu_sepsis: pgm, eps 1: exact value": 0.78}
    assert (result.facts["cells"], result.facts["wanted"]) == (4, 6)


def test_stored_cells_count_where_the_work_folder_has_none() -> None:
    wanted = [_cell("pgm", 1.0, seed) for seed in (0, 1)]
    rows = [_row("pgm", 1.0, 0, marginal=0.5)]
    stored = [_row("pgm", 1.0, seed, marginal=0.9) | {"commit": "old"} for seed in (0, 1)]
    stored += [_row("marginals", 1.0, 0, marginal=0.1)]  # nobody asked for it
    (line,) = result_of(wanted, rows, stored=stored).cells
    assert (line["marginal"], line["commits"]) == ("0.7 (0.5 .. 0.9)", "abc, old")


def test_earlier_results_are_read_as_cells_each_once() -> None:
    cells = list(stored_cells())
    keys = [key_of(cell) for cell in cells]
    assert len(keys) == len(set(keys))
    found = dict(zip(keys, cells, strict=True))
    fleet = json.loads((RESULTS / "utility_tables_fleet_tails.json").read_text())
    line = next(one for one in fleet["cells"] if one["cell"] == "marginals, eps 10")
    one = found["fleet", "marginals", 10.0, 2]
    assert (one["figures"], one["commit"]) == (line["runs"]["2"], fleet["commit"])
    assert one["memory MB"] > 100
    assert {"cpu s"} & set(found["fleet", "real", None, 0]) == set()
    assert list(stored_cells(["nobody"])) == []


def test_a_comparison_s_lines_are_read_as_cells_and_blank_ones_have_none(tmp_path: Path) -> None:
    wanted = [_cell("fresh real", None), *(_cell("pgm", 1.0, seed) for seed in (0, 1))]
    wanted += [_cell("privsyn", 1.0), _cell("privsyn", 4.0)]
    rows = [_row("fresh real", None, 0, marginal=0.9)]
    rows += [_row("pgm", 1.0, seed, marginal=0.5 + seed) for seed in (0, 1)]
    lines = {"commit": "later", "cells": result_of(wanted, rows).cells}
    (tmp_path / "comparison.json").write_text(json.dumps(lines))
    assert list(stored_cells(["comparison"], folder=tmp_path)) == rows


@pytest.mark.drawn
def test_the_picture_is_the_same_svg_for_the_same_figures_and_may_be_empty() -> None:
    series = {("icu_sepsis", "exact value"): {"pgm": {1.0: 0.7, 10.0: 0.8}, "privsyn": {1.0: 0.6}}}
    levels = {("icu_sepsis", "exact value"): 0.81}
    picture = plot(series, levels=levels)
    assert picture == plot(series, levels=levels)
    assert picture != plot(series, levels={})
    text = "".join(ElementTree.fromstring(picture).itertext())
    assert all(name in text for name in ("pgm", "privsyn", "fresh real rows", "survival"))
    assert plot({}, levels={}).startswith(b"<?xml")


def test_methods_that_learn_from_public_rows_have_cells_where_there_are_some() -> None:
    options = argparse.Namespace(
        tables=["icu_sepsis", "umaze"], methods=comparison.METHODS, epsilons=["1", "10"]
    )
    options.generators = 1
    cells = list(cells_of(options))
    taught = {name for name in comparison.METHODS if METHODS[name].public}
    assert taught == {"pre_pate_gan", "privorl_ar_public"}
    for table, expected in (("icu_sepsis", set()), ("umaze", taught)):
        assert {cell.method for cell in cells if cell.table == table} & taught == expected
    assert utility_tables._needed([cell for cell in cells if cell.method == "pgm"]) == [
        "icu_sepsis",
        "umaze",
    ]
    assert set(utility_tables._needed(cells)) == {"icu_sepsis", "umaze", "medium", "large"}


def test_a_maze_is_judged_on_a_grid_and_the_ceiling_has_the_rows_of_whole_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, store = TABLES["umaze"], DatasetStore(tmp_path)
    table.import_into(store, dataset_of(table), quick=True)
    monkeypatch.setattr(utility_tables, "LARGEST_RELEASE", 1000)
    ceiling = utility_tables._as_many_as_released(table, store, np.random.default_rng(0))
    assert set(np.unique(ceiling.unit_ids, return_counts=True)[1]) == {table.unit_rows}
    assert 1000 <= len(ceiling) <= 1000 + table.unit_rows
    asked = []

    def judge(rows: MazeRows, maze: Maze, settings: GridSettings) -> tuple[Score, list[Score]]:
        asked.append((len(rows), maze.name, settings.sweeps))
        score = Score(earned=9.0, normalised=12.5, reach=0.5, hold=None)
        return score, [score]

    monkeypatch.setattr(grid_judge, "judge", judge)
    scale = JudgeScale(
        agent={}, agent_steps=1, episodes=1, agents=0, grid=GridSettings(sweeps=9, shifts=(0.0,))
    )
    found = solved(table, ceiling, scale)
    assert asked == [(len(ceiling), "umaze", 9)]
    assert found == {"grid points": 12.5, "grid reach": 0.5}
    fleet = solved(
        TABLES["fleet"], store.read_transitions(dataset_of(table), unit=TRANSITION), scale
    )
    assert fleet == {}


def test_an_attack_has_rows_of_another_recording_held_out_and_none_where_there_are_no_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, asked = TABLES["umaze"], []
    assert isinstance(table, RecordedTable)
    rate = Estimate(value=0.02, low=0.0, high=0.1, chance=0.01)
    figures = AttackFigures(
        area=Estimate(value=0.6, low=0.55, high=0.65, chance=0.5),
        p_value=0.001,
        true_positive_rates={0.01: rate, 0.1: None},
        roc=Roc(false_positive_rates=np.arange(2.0), true_positive_rates=np.arange(2.0)),
        members=70,
        non_members=60,
        member_groups=7,
        non_member_groups=6,
    )
    answers = iter(["not applicable", Attacked(figures=figures, areas={}, rounds=3)])

    def audit_run(run: Path, *, out: Path, held_out: str, store: DatasetStore) -> Audit:
        asked.append((run.name, held_out, out.exists()))
        return Audit(canary="none", membership=next(answers))

    monkeypatch.setattr(table_attacks, "audit_run", audit_run)
    store, out = store_of(tmp_path), tmp_path / "audit"
    out.mkdir()
    arguments = {"out": out, "quick": True}
    assert table_attacks.attacked(table, tmp_path / "run", tmp_path, **arguments) == {}
    found = table_attacks.attacked(table, tmp_path / "run", tmp_path, **arguments)
    assert (found["attack area"], found["true positives at 0.01"]) == (0.6, 0.02)
    assert (found["true positives at 0.1"], found["members scored"]) == (None, 70)
    assert asked == [("run", "table/umaze-held-out-v0", False)] * 2
    table.import_into(store, dataset_of(table), quick=True)
    ours, held_out = (
        store.read_transitions(name, unit=TRANSITION).observations
        for name in (dataset_of(table), "table/umaze-held-out-v0")
    )
    assert ours.shape == held_out.shape
    assert not np.isin(ours[:, 0], held_out[:, 0]).all()
