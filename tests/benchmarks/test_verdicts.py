"""The benchmark of verdicts: its tables, its measures, how it counts errors, what is stored."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import verdicts
from benchmarks.harness import RESULTS
from benchmarks.tables.generated import GENERATED, LIMIT, STEPS
from benchmarks.tables.rows import read_rows
from benchmarks.verdict_errors import (
    FAMILIES,
    best_limit,
    is_useful,
    judged,
    left_out,
    measures,
    result_of,
    safe_limit,
    survives,
)
from benchmarks.verdict_tables import REAL, TABLES, table_of
from benchmarks.verdicts import Cell, columns_of, values_of, wanted
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals.plan import SelectionConfig, tables_in_all
from distributed_privrl.marginals.verdict import FEWEST_CELLS, pairs_of
from distributed_privrl.stages.round_verdict import LITTLE_NOISE, MUCH_NOISE
from tests.docs.pages import ROOT

STORED: dict[str, Any] = json.loads((RESULTS / "verdicts.json").read_text())


def rows_of(name: str, people: int, seed: int, folder: Path, *, whole: bool) -> pd.DataFrame:
    table, store = table_of(name, people, seed, whole=whole), DatasetStore(folder)
    dataset = f"table/{name}-{people}-{seed}-v0"
    table.import_into(store, dataset)
    return columns_of(read_rows(store, dataset, table.naming).frame)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", GENERATED)
def test_generated_tables_have_strong_pairs_and_repeat(
    name: str, whole: bool, tmp_path: Path
) -> None:
    rows, again = (
        rows_of(name, 300, 3, tmp_path / folder, whole=whole) for folder in ("one", "other")
    )
    pd.testing.assert_frame_equal(rows, again)
    table = GENERATED[name]
    assert rows.shape == (300 * (STEPS if whole else 1), 2 * table.columns + 2)
    assert set(rows["choice"]) == set(range(table.choices))
    assert rows.drop(columns="choice").abs().to_numpy().max() <= LIMIT
    assert measures(rows, rows) == {"KS": 0.0, "pairs kept": 1.0}


def test_steps_of_a_person_follow_each_other(tmp_path: Path) -> None:
    rows = rows_of("chain", 20, 0, tmp_path, whole=True)
    after = rows["next_number 0"].to_numpy().reshape(20, STEPS)[:, :-1]
    np.testing.assert_array_equal(after, rows["number 0"].to_numpy().reshape(20, STEPS)[:, 1:])


def test_people_of_a_real_table_are_drawn_whole() -> None:
    frame = REAL["visits"].table()
    some, same, other = (table_of("visits", 50, seed, whole=True).table() for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(some, same)
    assert some["id"].nunique() == other["id"].nunique() == 50
    assert set(some["id"]) != set(other["id"])
    assert len(some) == frame["id"].isin(some["id"]).sum()
    assert len(table_of("visits", 10**6, 0, whole=True).table()) == len(frame)


def test_shuffled_columns_keep_no_pair_and_all_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    real = rows_of("chain", 3000, 0, tmp_path, whole=False)
    shuffled = real.apply(rng.permutation)
    assert measures(real, shuffled) == {"KS": 0.0, "pairs kept": 0.0}


def test_a_constant_or_missing_column_keeps_no_pair(tmp_path: Path) -> None:
    real = rows_of("chain", 500, 0, tmp_path, whole=False)
    empty = real.assign(**{"next_number 0": np.nan, "number 0": 1.0})
    kept, whole = measures(real, empty), measures(real, real)
    assert 0 < kept["pairs kept"] < whole["pairs kept"]
    assert kept["KS"] > 1 / real.shape[1]


def cell(table: str, grade: str, figure: float, kept: float, distance: float) -> dict[str, Any]:
    about = {"method": "marginals", "units": 100, "epsilon": 1.0, "seed": 0}
    figures = {"cells": figure, "bins of needed": figure / 20, "noise of a round": None}
    return {
        "table": table,
        **about,
        "grade": grade,
        **figures,
        "KS": distance,
        "pairs kept": kept,
    }


def test_errors_are_counted_as_what_they_are() -> None:
    rows = [
        cell("chain", "fine", 90, 1.0, 0.01),
        cell("chain", "fine", 70, 0.2, 0.1),
        cell("wide", "fine", 70, 0.9, 0.3),  # pairs are there, columns are not
        cell("wide", "hopeless", 3, 0.0, 0.4),
        cell("wide", "hopeless", 5, 0.0, 0.1),
        cell("wide", "hopeless", 6, 0.8, 0.1),
    ]
    found = result_of(rows, absent=["a million people"])
    assert found.ratios["marginals: fine and not useful"] == pytest.approx(2 / 3)
    assert found.ratios["marginals: refused and surviving"] == pytest.approx(2 / 3)
    assert found.ratios["marginals: refused and useful"] == pytest.approx(1 / 3)
    assert "Not run: a million people." in found.notes
    assert found.notes[0].startswith("6 cells.")


def test_what_is_useless_without_privacy_says_nothing_of_noise() -> None:
    able = cell("wide", "fine", 90, 1.0, 0.01) | {"epsilon": None, "grade": None}
    unable = able | {"table": "chain", "KS": 0.4}
    rows = [cell("chain", "fine", 90, 1.0, 0.4), cell("wide", "fine", 90, 0.0, 0.4), able, unable]
    assert judged(rows) == [rows[1]]
    found = result_of(rows)
    assert found.ratios["marginals: fine and not useful"] == 1
    assert (
        "2 cells are without privacy. Not useful even so: marginals on chain; the 1"
        in (found.notes[1])
    )


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_limits_set_good_runs_apart_on_either_side(sign: float) -> None:
    figures = (1, 2, 4, 8, 16, 32)
    passed = {1: 0.0, 2: 0.0, 4: 1.0, 8: 0.0, 16: 1.0, 32: 1.0}
    rows = [cell("chain", "fine", figure**sign, passed[figure], 0.0) for figure in figures]
    best, safe = (choose(rows, "cells", is_useful, sign) for choose in (best_limit, safe_limit))
    assert 2 < best**sign < 4 or 8 < best**sign < 16
    assert 8 < safe**sign < 16
    good, bad = rows[-2:], rows[:2]
    assert safe_limit(good, "cells", is_useful, sign) ** sign == pytest.approx(16)
    assert safe_limit(bad, "cells", is_useful, sign) ** sign > 2


def test_a_table_is_judged_by_the_limits_of_the_others() -> None:
    rows = [cell("chain", "fine", figure, float(figure > 4), 0.4) for figure in (2, 8)]
    rows += [cell("wide", "fine", figure, float(figure > 40), 0.4) for figure in (10, 80)]

    def kept(row: Any) -> bool:
        return bool(row["pairs kept"] > 0)

    found = left_out(rows, "cells", kept, 1.0, safe_limit)
    assert found is not None
    assert found.limits == {"chain": pytest.approx(800**0.5), "wide": pytest.approx(4)}
    assert (found.passed, found.passed_wrongly, found.good, found.missed) == (2, 1, 2, 1)
    assert left_out(rows[:2], "cells", kept, 1.0, safe_limit) is None


def options(work: Path, **changed: Any) -> argparse.Namespace:
    values = {"seeds": 3, "tables": list(TABLES), "methods": list(verdicts.SMALL), "most": 10**6}
    return argparse.Namespace(**{**values, "work": work, "kept": False, **changed})


def test_cells_have_names_of_their_own_and_finished_ones_can_be_asked_for(tmp_path: Path) -> None:
    every, absent = wanted(options(tmp_path))
    assert len({one.name for one in every}) == len(every)
    assert {one.units for one in every} >= {10**power for power in range(2, 7)}
    assert absent == list(verdicts.ABSENT)
    assert wanted(options(tmp_path, kept=True))[0] == []
    finished = tmp_path / "cells" / f"{every[5].name}.json"
    finished.parent.mkdir()
    finished.write_text("{}")
    kept, left = wanted(options(tmp_path, kept=True))
    assert kept == [every[5]]
    assert left[0] == f"{len(every) - 1} of {len(every)} planned cells"


@pytest.mark.parametrize("method", verdicts.SMALL)
def test_a_cell_declares_its_people_and_releases_five_thousand_rows(
    method: str, tmp_path: Path
) -> None:
    values = values_of(Cell(table="chain", method=method, units=120, epsilon=1.0, seed=0), tmp_path)
    whole = method.endswith("_j")
    assert values["data"]["units"] == 120
    assert values["data"]["unit"] == ("trajectory" if whole else "transition")
    assert values["output"]["size"] * (STEPS if whole else 1) == verdicts.RELEASE


def grade_of(row: dict[str, Any]) -> str:
    """Return the verdict that the limits of today have for a stored run."""
    noise = row["noise of a round"]
    if noise is not None:
        return "fine" if noise <= LITTLE_NOISE else "hopeless" if noise > MUCH_NOISE else "limited"
    if row["bins of needed"] < 1:
        return "hopeless"
    return "fine" if row["cells"] >= FEWEST_CELLS else "limited"


def test_stored_runs_were_judged_by_the_limits_of_the_code() -> None:
    for row in STORED["cells"]:
        assert row["grade"] == (None if row["epsilon"] is None else grade_of(row)), row


def test_no_stored_run_that_is_called_fine_was_useless() -> None:
    fine = [row for row in judged(STORED["cells"]) if row["grade"] == "fine"]
    assert len(fine) >= 20
    assert all(map(is_useful, fine))
    methods = {row["method"] for row in STORED["cells"]}
    assert methods == {method for family in FAMILIES.values() for method in family.methods}


def test_the_share_of_pairs_that_are_counted_tells_no_useful_run_from_a_useless_one() -> None:
    columns = {"wide": 19, "wages": 20}  # of a row, with what follows it
    shares: dict[bool, list[tuple[float, dict[str, Any]]]] = {True: [], False: []}
    for row in STORED["cells"]:
        if row["method"] == "marginals" and row["table"] in columns and row["grade"] == "limited":
            width = columns[row["table"]]
            counted = tables_in_all(
                SelectionConfig(), columns=width, units=row["units"], epsilon=row["epsilon"]
            )
            counted = max(counted, round(width / 2))  # the fewest when these runs were made
            shares[is_useful(row)].append((counted / pairs_of(width), row))
    smallest, useful = min(shares[True], key=lambda one: one[0])
    assert smallest < min(share for share, _ in shares[False])
    kept = useful["pairs kept"]
    said = f"with {round(smallest * 190)} of 190 pairs counted `wages` kept {kept:.0%} of the"
    assert said.replace("%", " %") in (ROOT / "docs/design/0004-verdicts.md").read_text()


def test_refusals_that_would_have_been_useful_are_on_the_page() -> None:
    page = (RESULTS / "verdicts.md").read_text()
    for method in {row["method"] for row in judged(STORED["cells"])}:
        refused = [
            row for row in STORED["cells"] if (row["method"], row["grade"]) == (method, "hopeless")
        ]
        useful, surviving = sum(map(is_useful, refused)), sum(map(survives, refused))
        assert (
            f"of {len(refused)} refused {useful} would have been, and columns of {surviving} would"
            " have survived"
        ) in next(line for line in page.splitlines() if line.startswith(f"{method}, "))
