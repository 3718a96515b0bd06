"""The benchmark of texts at a tiny scale, and what its table makes of cells."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from benchmarks import cells, text_levers, utility_text
from benchmarks.text_methods import (
    AUG_PE,
    FINE_TUNING,
    LEVERS,
    PRIVATE,
    PUBLIC,
    SHUFFLED,
    UNTUNED,
    Cell,
    run_values,
)
from benchmarks.text_sides import QUICK, Sides


def row(method: str, epsilon: float | None, value: float, *, seed: int = 0) -> dict[str, Any]:
    figures = dict.fromkeys(utility_text.FIGURES, value)
    return {"method": method, "epsilon": epsilon, "seed": seed, "figures": figures}


def test_cells_that_did_not_run_are_empty_and_means_are_of_seeds_that_did() -> None:
    rows = [row(AUG_PE, 1.0, 0.2), row(AUG_PE, 1.0, 0.4, seed=2)]
    result = utility_text.result_of(rows)
    lines = {(line["row"], line["epsilon"]): line for line in result.cells}
    assert lines[AUG_PE, "1"]["similarity"] == pytest.approx(0.3)
    assert set(lines[AUG_PE, "1"]["runs"]) == {"0", "2"}
    assert lines[AUG_PE, "none"]["similarity"] is None
    assert lines[FINE_TUNING, "4"]["ran"] == 0
    assert set(result.ratios.values()) == {None}


def test_a_ladder_out_of_order_is_seen_and_gains_count_from_the_untuned_model() -> None:
    rows = [row(PRIVATE, None, 3.0), row(PUBLIC, None, 2.0), row(SHUFFLED, None, 1.0)]
    rows += [row(UNTUNED, None, 1.0), row("dp_votes", 1.0, 1.5)]
    found = utility_text.result_of(rows).ratios
    assert found["similarity orders the ladder"] == 1.0
    assert found["frechet orders the ladder"] == 0.0  # less is better there
    assert found["similarity dp_votes"] == 0.25


def test_a_method_is_better_where_each_seed_is_by_every_measure() -> None:
    rows = [row(UNTUNED, None, 1.0), row(UNTUNED, None, 1.0, seed=1)]
    lower = {"frechet": 0.5, "sentence frechet": 0.5}
    rows += [row("dp_votes", 1.0, 1.5), row("dp_votes", 1.0, 1.5, seed=1)]
    rows += [row("dp_votes_soft", 1.0, 2.0), row("dp_votes_soft", 1.0, 0.9, seed=1)]
    rows += [row(AUG_PE, 1.0, 2.0), row(FINE_TUNING, 4.0, 1.5, seed=2)]  # of no untuned seed
    rows[2]["figures"] |= lower
    found = utility_text.result_of(rows).facts
    better = {"1": [AUG_PE, "dp_votes"], "4": [], "none": []}
    assert found["better next tokens in each seed"] == better
    assert found["better on all in each seed"]["1"] == []
    rows[3]["figures"] |= lower
    assert utility_text.result_of(rows).facts["better on all in each seed"]["1"] == ["dp_votes"]


def test_texts_are_made_and_judged_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    work = tmp_path / "work"
    command = ["--scale", "quick", "--seeds", "1", "--work", str(work), "--out", str(tmp_path)]
    utility_text.main(
        [*command, "--methods", PRIVATE, "dp_votes_centred", AUG_PE, "--epsilons", "1"]
    )
    first = capsys.readouterr().out.splitlines()[-1]
    found = json.loads((tmp_path / "utility_text.json").read_text())
    lines = {(line["row"], line["epsilon"]): line for line in found["cells"]}
    for method in ("dp_votes_centred", AUG_PE):
        (run,) = lines[method, "1"]["runs"].values()
        assert 0.99 < run["certified epsilon"] <= 1
        assert lines[method, "none"]["ran"] == 0
    assert lines[PRIVATE, "-"]["copies"] == 1.0
    assert lines["dp_votes", "1"]["ran"] == 0
    held, corpus = Sides(work=work, sizes=QUICK, seed=cells.DATA_SEED)._divided
    assert len(held) >= QUICK.held_out
    assert {one.module for one in held}.isdisjoint(one.module for one in corpus)
    kept = sorted((work / "cells").iterdir())
    stamps = [path.stat().st_mtime_ns for path in kept]
    utility_text.main([*command, "--kept"])
    assert capsys.readouterr().out.splitlines()[-1] == first
    assert [path.stat().st_mtime_ns for path in kept] == stamps


def test_a_lever_changes_how_a_model_learns_and_nothing_else(tmp_path: Path) -> None:
    sides = Sides(work=tmp_path, sizes=QUICK, seed=cells.DATA_SEED)
    vars(sides)["private"] = ("a text",)  # what a run is told of it is how many there are
    plain = run_values(Cell(method="dp_votes_centred", epsilon=1.0, seed=0), sides)
    for lever in LEVERS:
        own = run_values(Cell(method="dp_votes_centred", epsilon=1.0, seed=0, lever=lever), sides)
        assert {name: own[name] for name in own if name != "training"} == {
            name: plain[name] for name in plain if name != "training"
        }
        changed = {
            name for name, value in own["training"].items() if plain["training"][name] != value
        }
        assert changed <= {"options", "steps", "samples", "prompts_per_step"}, lever
        assert bool(changed) == bool(lever)


def test_levers_have_lines_of_their_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["--quick", "--seeds", "1", "--work", str(tmp_path), "--rows", UNTUNED, "rate 3e-5"]
    text_levers.main([*command, PRIVATE])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "next token dp_votes_centred rate 3e-5" in found["ratios"]
    assert found["levers"]["rate 3e-5"] == {"options": {"learning_rate": 3e-5}}
    rows = [row("dp_votes_centred", 1.0, 1.0), row("dp_votes_centred", 1.0, 3.0, seed=1)]
    rows += [row("dp_votes_centred", 1.0, 5.0) | {"lever": "25 x 512"}]
    lines = text_levers.result_of(rows).cells
    assert [(line["lever"], line["similarity"]) for line in lines] == [
        ("-", 2.0),
        ("25 x 512", 5.0),
    ]
