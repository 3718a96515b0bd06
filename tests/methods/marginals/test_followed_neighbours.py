"""Whole runs on a table that says nothing of what follows last rows, over neighbouring datasets.

Answers are fixed: what moves before the noise is at most what is charged, and no byte that may
leave differs. Persons are made for the worst case: rows that all go on, that none goes on, in one
cell of each column, spread over several, or improper, some of them in what follows alone.
"""

import functools
import itertools
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from distributed_privrl.data.importing import from_table
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.registry import parse_config, planned_events
from distributed_privrl.marginals import belief, cleaning
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.plan import integer_sensitivity, score_span
from distributed_privrl.marginals.stage import foreseen_table
from distributed_privrl.marginals.together import from_tensors
from distributed_privrl.methods.marginals.method import MarginalsMethod
from distributed_privrl.methods.marginals.trajectories import TrajectoryMarginalsMethod
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.marginals.answers import Answers, moved, what_may_leave
from tests.marginals.programs import chained
from tests.worlds.world import World

DATASET, UNITS, LONGEST = "ward/stays-v0", 60, 60
WARDS = [f"w{i}" for i in range(9)]
DOSES = ["none", "half", "whole"]
SCHEMA: dict[str, Any] = {
    "columns": {
        "observation": ["ward", "strain"],
        "action": "dose",
        "reward": "gain",
        "trajectory": "stay",
        "order": "day",
        "unit": "patient",
        "terminated": "last",
    },
    "kinds": {
        "ward": {"type": "category", "values": WARDS},
        "dose": {"type": "category", "values": DOSES},
    },
    "spaces": {"observation": {"type": "box"}},
}
BOUNDS = """
observation: {low: [0], high: [9], step: [1]}
reward: {low: 0, high: 1, step: 1}
"""
Day = tuple[str, float, str, float]
"""Ward, strain, dose and gain."""


def table(stays: Sequence[tuple[str, Sequence[Day]]], name: str = "stay") -> pd.DataFrame:
    """Return the rows of stays, each with whose it is."""
    rows = [
        (patient, f"{name} {number}", day, *row)
        for number, (patient, days) in enumerate(stays)
        for day, row in enumerate(days)
    ]
    return pd.DataFrame(rows, columns=["patient", "stay", "day", "ward", "strain", "dose", "gain"])


@functools.cache
def others() -> pd.DataFrame:
    """Return stays of 1 to 4 days of all other patients, of whom most stay in their ward."""
    source = np.random.default_rng(0)
    stays: list[tuple[str, list[Day]]] = []
    for patient in range(UNITS):
        ward, strain, days = source.integers(9), source.integers(10), list[Day]()
        for _ in range(source.integers(2, 6)):
            dose, gain = source.integers(3), float(source.integers(2))
            days.append((WARDS[ward], float(strain), DOSES[dose], gain))
            ward = 4 * dose if source.random() < 0.3 else ward
            strain = np.clip(strain + dose - 1, 0, 9)
        stays.append((f"p{patient}", days))
    return table(stays)


CORNER: Day = ("w0", 0.0, "whole", 1.0)
FAR: Day = ("w8", 9.0, "none", 0.0)
NOTHING: Day = ("elsewhere", math.nan, "twice", math.inf)
MOVED: Day = ("elsewhere", 0.0, "whole", 1.0)
"""Improper in what is observed alone."""


def person(*stays: Sequence[Day]) -> pd.DataFrame:
    return table([("somebody", stay) for stay in stays], "theirs")


PEOPLE: dict[str, pd.DataFrame | None] = {
    "nobody": None,
    "all rows go on": person([CORNER] * 3 * LONGEST),
    "all rows are last": person(*[[FAR]] * 200),
    "one ward after the other": person(
        *([(WARDS[i % 9], i % 10, DOSES[i % 3], i % 2) for i in range(12)] for _ in range(4))
    ),
    "improper in what follows": person([CORNER, MOVED], [CORNER, CORNER, MOVED, CORNER], [NOTHING]),
}


METHODS = {"marginals": MarginalsMethod, "marginals_j": TrajectoryMarginalsMethod}


class Stays(World):
    """A table of stays, imported; of one person more or none.

    Args:
        folder: that holds all of it.
        method: that runs.
        rows: of the person.
    """

    dataset = DATASET

    def __init__(self, folder: Path, method: str, rows: pd.DataFrame | None) -> None:
        super().__init__(folder, bounds=BOUNDS)
        self.method = method
        whole = others()
        if rows is not None:  # a part before all others, and a part behind them
            first = rows["stay"].isin(rows["stay"].unique()[::2])
            whole = pd.concat([rows[first], whole, rows[~first]])
        from_table(whole, SCHEMA, dataset=DATASET, store=self.store)
        assert self.store.info(DATASET).last_rows_copied

    def config(self, **_: Any) -> Any:
        longest = {"sampling": {"max_length": 3}} if self.method == "marginals_j" else {}
        values = {
            "method": self.method,
            "data": {
                "sensitive": DATASET,
                "unit": "patient",
                "units": UNITS,
                "max_length": LONGEST,
                "bounds": str(self.bounds),
            },
            "privacy": {"epsilon": 20.0, "delta": 1e-4},
            "model": {
                "bins": 4,
                "cells": 200,
                "draws": 200,
                "rows_per_unit": 3,
                "trajectories_per_unit": 1,
            },
            "training": {"steps": 1, "tables": 2, **longest},
            "output": {"dataset": "ward/private-v0", "size": 5},
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parse_config(values, source="test")


def left(
    folder: Path, method: str, answers: Answers, rows: pd.DataFrame | None
) -> tuple[dict[str, Any], Any, TableColumns]:
    """Run in a folder of the same name each time.

    Returns:
        what may leave, with all that was said; what was asked for; the table's columns.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    place, answers.asked = Stays(folder, method, rows), []
    config, said = place.config(), list[tuple[Any, ...]]()
    result = place.afford(config).start(
        config, anyway=True, progress=lambda *facts: said.append(facts)
    )
    assert result.certificate.status == "valid"
    path = result.directory.checkpoint / "marginals.safetensors"
    tensors, _ = load_checkpoint(path, run_id=result.directory.run_id, stage="rounds")
    made = [one.columns for one in from_tensors(tensors) or []]
    assert any("next_" in name or "change_" in name for one in made for name in one)
    (stage,) = result.certificate.stages
    foreseen = foreseen_table(config.data, place.store, METHODS[method](config).table).columns
    assert foreseen is not None
    assert planned_events(config, place.store) == stage.events
    files = {"said": said, "made": made, "events": stage.events, **what_may_leave(place, result)}
    return files, answers.asked, foreseen


def histograms(counts: NDArray[np.int64], columns: TableColumns) -> Iterator[NDArray[np.int64]]:
    """Yield the histograms of which the counts of all columns consist, as a table's facts say."""
    ends = np.cumsum(columns.counted)
    assert ends[-1] == len(counts)
    for place, end in enumerate(ends):
        size = columns[place].size if place < len(columns) else columns.counted[place]
        start = end - columns.counted[place]
        yield from (one for one in np.split(counts[start:end], [size]) if len(one))


@pytest.mark.parametrize("method", METHODS)
def test_a_person_moves_what_is_charged_at_most_whether_rows_go_on_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(cleaning, "_TRIALS", 0)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    answers = Answers(seed=0)
    answers.plant(monkeypatch)
    runs = {name: left(tmp_path / "place", method, answers, rows) for name, rows in PEOPLE.items()}
    files, nobody, columns = runs["nobody"]
    for name, (theirs, *_) in runs.items():
        assert theirs.keys() == files.keys(), name
        changed = [one for one, content in files.items() if theirs[one] != content]
        assert not changed, f"{name}: {changed} tell of exact counts"
    null = Relation.REPLACE_WITH_NULL
    unit, span = integer_sensitivity(null), score_span(null)
    (_, charged, none), *rest = nobody
    assert [one[:2] for one in rest] == [("range", span), ("L2", unit)] * 2
    for (one, (_, mine, _)), (other, (_, theirs, _)) in itertools.combinations(runs.items(), 2):
        relation = null if one == "nobody" else Relation.REPLACE_ONE
        more = integer_sensitivity(relation) / unit, score_span(relation) / span
        for (kind, cost, x), (*same, y) in zip(mine, theirs, strict=True):
            assert same == [kind, cost]
            share = moved(kind, x, y) / cost / more[kind == "range"]
            assert share <= 1, (one, other, kind, share)
    weights = {}
    for name, (_, asked, _) in runs.items():
        parts = histograms(asked[0][2] - none, columns)
        weights[name] = [float(np.abs(part).sum()) / UNIT_WEIGHT for part in parts]
        assert max(weights[name]) <= 1, (name, weights[name])
        assert len(weights[name]) == round((charged / unit) ** 2), "histograms that are charged"
    assert min(weights["all rows go on"]) > 0.999
    assert weights["all rows are last"].count(0) == len(columns.codings)
    told = {name: moved("L2", nobody[2][2], asked[2][2]) for name, (_, asked, _) in runs.items()}
    assert told["all rows go on"] > 0.999 * unit
    assert told["all rows are last"] == 0, "nothing is counted of what follows a last row"
