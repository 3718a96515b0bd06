"""Whole runs whose candidates are bins and halves of what a number becomes, over neighbours.

Noisy answers are fixed, so that a run asks the same of any rows. What a person moves of it is
counted by such workers as the run started, of that person alone. Persons are made for the worst
case: one row, one more than weigh alike, three times as many as count; all in one cell, on either
side of the cut between halves, to and fro over it, from end to end; of whose rows all but one go
on, half, or none.
"""

import functools
import itertools
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from distributed_privrl.data.importing import from_table
from distributed_privrl.data.shards import shard_of
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.marginals import belief, cleaning, program
from distributed_privrl.marginals.counting import CountSpec, CountWorker
from distributed_privrl.marginals.plan import integer_sensitivity, score_span
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.marginals.tables import Clique, JointCount, Maps, blocks
from distributed_privrl.privacy.units import Relation
from tests.marginals.answers import Answers, moved, what_may_leave
from tests.marginals.programs import chained
from tests.worlds.world import World

DATASET, UNITS, LONGEST, CAP, TOP = "ward/delays-v0", 400, 30, 3, 40
SHARDS = 1 << 40
"""So many that each person has one."""
SCHEMA: dict[str, Any] = {
    "columns": {
        "observation": ["delay", "load"],
        "action": "crew",
        "reward": "gain",
        "trajectory": "day",
        "order": "hour",
        "unit": "pilot",
        "terminated": "last",
    },
    "kinds": {"crew": {"type": "category", "values": ["small", "large"]}},
    "spaces": {"observation": {"type": "box"}},
}
BOUNDS = f"""
observation: {{low: [0, 0], high: [{TOP}, {TOP}], step: [1, 1]}}
reward: {{low: 0, high: 1, step: 1}}
"""
Hour = tuple[float, float, str, float]
"""Delay, load, crew and gain."""
METHODS = ["marginals", "marginals_j"]
NULL = Relation.REPLACE_WITH_NULL


def table(days: Sequence[tuple[str, Sequence[Hour]]]) -> pd.DataFrame:
    """Return the rows of days, each with whose it is."""
    rows = [
        (pilot, f"{pilot} {number}", hour, *row)
        for number, (pilot, hours) in enumerate(days)
        for hour, row in enumerate(hours)
    ]
    return pd.DataFrame(rows, columns=["pilot", "day", "hour", "delay", "load", "crew", "gain"])


@functools.cache
def others() -> pd.DataFrame:
    """Return days of a few hours of all others, whose delays loosely follow each other."""
    source = np.random.default_rng(0)
    days: list[tuple[str, list[Hour]]] = []
    for pilot in range(UNITS):
        delay, hours = source.normal(), list[Hour]()
        for _ in range(source.integers(2, 5)):
            load, crew = source.integers(TOP + 1), ("small", "large")[int(delay > 0)]
            level = float(np.clip(np.rint(TOP / 2 + 8 * delay), 0, TOP))
            hours.append((level, float(load), crew, float(source.integers(2))))
            delay = 0.6 * delay + 0.8 * source.normal()
        days.append((f"p{pilot}", hours))
    return table(days)


class Delays(World):
    """A table of delays, imported.

    Args:
        folder: that holds all of it.
        method: that runs.
        rows: of all people.
    """

    dataset = DATASET

    def __init__(self, folder: Path, method: str, rows: pd.DataFrame) -> None:
        super().__init__(folder, bounds=BOUNDS)
        self.method = method
        from_table(rows, SCHEMA, dataset=DATASET, store=self.store)
        assert self.store.info(DATASET).last_rows_copied

    def config(self, **_: Any) -> Any:
        longest = {"sampling": {"max_length": 3}} if self.method == "marginals_j" else {}
        values = {
            "method": self.method,
            "data": {
                "sensitive": DATASET,
                "unit": "pilot",
                "units": UNITS,
                "max_length": LONGEST,
                "bounds": str(self.bounds),
            },
            "privacy": {"epsilon": 10.0, "delta": 1e-4},
            "model": {
                "next_observation": "absolute",
                "bins": 12,
                "cells": 1000,
                "draws": 200,
                "rows_per_unit": CAP,
            },
            "training": {"steps": 1, "tables": 3, **longest},
            "output": {"dataset": "ward/private-v0", "size": 5},
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parse_config(values, source="test")


@dataclass
class Asked:
    """What a run asked for, none of which depends on rows where noisy answers are fixed.

    Args:
        specs: of its workers.
        bins: of each column.
        open_: candidates of each choice, and the parts that each is counted in.
        about: what each of them is scored by, beside exact counts.
        files: what may leave.
        draws: kind, what is charged and exact integers of each draw.
    """

    specs: list[CountSpec] = field(default_factory=list)
    bins: list[NDArray[np.int64]] = field(default_factory=list)
    open_: list[list[tuple[JointCount, Maps]]] = field(default_factory=list)
    about: list[list[tuple[NDArray[np.int64], dict[str, Any]]]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    draws: list[tuple[str, float, NDArray[np.int64]]] = field(default_factory=list)

    @property
    def cliques(self) -> list[Clique]:
        return sorted({count.clique for open_ in self.open_ for count, _ in open_})

    def counts(self, workers: Sequence[CountSpec]) -> dict[Clique, NDArray[np.int64]]:
        """Return exact counts over workers: of all columns, by no clique, and of candidates."""
        made = [CountWorker(one) for one in workers]
        found = {(): np.sum([one.columns() for one in made], axis=0)}
        tables = [one.tables(self.bins, self.cliques) for one in made]
        for place, clique in enumerate(self.cliques):
            found[clique] = np.sum([one[place] for one in tables], axis=0)
        return found

    def scores(self, exact: Mapping[Clique, NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
        """Yield the scores of each choice's candidates."""
        for open_, about in zip(self.open_, self.about, strict=True):
            found = [
                program.score(blocks(exact[count.clique], maps), expected, **settings)
                for (count, maps), (expected, settings) in zip(open_, about, strict=True)
            ]
            yield np.array(found, np.int64)


def asked(folder: Path, method: str, rows: pd.DataFrame, answers: Answers) -> Asked:
    """Run, and return what was asked for."""
    found, right, choose = Asked(), program.score, MarginalsProgram._chosen
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    place, answers.asked = Delays(folder, method, rows), []

    def chosen(self: MarginalsProgram, open_: Any, *rest: Any, **about: Any) -> Any:
        bins = self._belief.bins
        found.bins = [shape.bins for shape in bins.shapes]
        found.open_.append([(one, bins.maps(one)) for one in open_])
        found.about.append([])
        return choose(self, open_, *rest, **about)

    def scored(counts: Any, expected: Any, **about: Any) -> int:
        found.about[-1].append((expected, about))
        return right(counts, expected, **about)

    def begun(self: CountWorker, spec: CountSpec) -> None:
        found.specs.append(spec)
        start(self, spec)

    start = CountWorker.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MarginalsProgram, "_chosen", chosen)
        patch.setattr(program, "score", scored)
        patch.setattr(CountWorker, "__init__", begun)
        config = place.config()
        result = place.afford(config).start(config, anyway=True)
    assert result.certificate.status == "valid"
    found.files, found.draws = what_may_leave(place, result), answers.asked
    return found


def people(below: float) -> dict[str, list[list[Hour]]]:
    """Return days of persons who lie on either side of a cut.

    Args:
        below: the last value of the lower half.
    """
    low, above, high = 0.0, below + 1, float(TOP)
    full, many = CAP + 1, 3 * LONGEST
    paths: dict[str, tuple[Sequence[float], int, int]] = {  # delays, rows, rows of a day
        "a row below": ([below], 1, 1),
        "a row above": ([above], 1, 1),
        "low": ([low], full, full),
        "below": ([below], full, full),
        "above": ([above], full, full),
        "high": ([high], full, full),
        "low, and nothing follows": ([low], full, 1),
        "high, and nothing follows": ([high], full, 1),
        "many low": ([low], many, many),
        "many above": ([above], many, many),
        "many above, and nothing follows": ([above], many, 1),
        "over the cut": ([below, above], many, many),
        "over the cut, day after day": ([below, above], many, 2),
        "from end to end": ([low, high], many, many),
        "all over": (np.arange(TOP + 1.0).tolist(), many, many),
        "improper": ([below, math.nan], many, many),
    }
    found = {}
    for name, (delays, count, each) in paths.items():
        crew, gain = ("large", 1.0) if "above" in name else ("small", 0.0)
        rows = [(delays[i % len(delays)], below, crew, gain) for i in range(count)]
        found[name] = [rows[start : start + each] for start in range(0, count, each)]
    return found


def theirs(
    folder: Path, method: str, run: Asked, found: Mapping[str, list[list[Hour]]]
) -> dict[str, dict[Clique, NDArray[np.int64]]]:
    """Return what workers count of each person alone, each of whom has a shard of one dataset."""
    folder.mkdir()
    rows = table([(name, day) for name, days in found.items() for day in days])
    store = Delays(folder, method, rows).store
    (first, *_) = run.specs
    source: Any = first.source
    ids = list(dict.fromkeys(store.read_transitions(DATASET, unit="pilot").unit_ids.tolist()))
    shards = shard_of(np.array(ids, np.uint64), SHARDS).tolist()
    assert len(set(shards)) == len(found)
    counts = {}
    for name, shard in zip(found, shards, strict=True):
        ref = replace(source.ref, root=store.root, index=shard, count=SHARDS)
        counts[name] = run.counts([replace(first, source=replace(source, ref=ref))])
    return counts


def halves_of(run: Asked, place: int) -> NDArray[np.int64]:
    """Return the half of each cell of a number, where what it becomes is counted in halves."""
    columns = run.specs[0].columns
    after = next(i for i in columns.of("next_observation") if columns[i].like == place)
    (_, bins), (maps, halves) = (
        (maps, (count.parts, about["weight"]))
        for (count, maps), (_, about) in zip(run.open_[0], run.about[0], strict=True)
        if count.clique == (place, after)
    )
    assert (bins, halves) == ((0, 4), (2, 3)), "both are candidates, and halves weigh less"
    return np.asarray(maps[0][run.bins[place]])


@pytest.mark.parametrize("method", METHODS)
def test_halves_beside_bins_move_what_is_charged_at_most_and_by_all_of_it_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(cleaning, "_TRIALS", 0)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    answers = Answers(seed=0)
    answers.plant(monkeypatch)
    run = asked(tmp_path / "place", method, others(), answers)
    columns = run.specs[0].columns
    below = float(np.flatnonzero(halves_of(run, 0) == 0)[-1])
    days = people(below)
    found = theirs(tmp_path / "people", method, run, days)
    none = run.counts(run.specs)
    np.testing.assert_array_equal(none[()], run.draws[0][2])
    name = "over the cut"
    with_one = {clique: counts + found[name][clique] for clique, counts in none.items()}
    check_same(run, asked(tmp_path / "place", method, with_person(days[name]), answers), with_one)

    nobody = {clique: 0 * counts for clique, counts in none.items()}
    unit, charged = integer_sensitivity(NULL), run.draws[0][1]
    costs = {clique: unit if clique else charged for clique in none}
    assert charged == pytest.approx(unit * columns.histograms**0.5)
    worst = {"columns": 0.0, "all rows": 0.0, "rows that go on": 0.0, "scores": 0.0}
    for (one, mine), (other, counts) in itertools.combinations({"": nobody, **found}.items(), 2):
        more = 1.0 if not one else integer_sensitivity(Relation.REPLACE_ONE) / unit
        for clique, cost in costs.items():
            share = moved("L2", mine[clique], counts[clique]) / cost / more
            assert share <= 1, (one, other, clique)
            followed = "rows that go on" if columns.only_followed(clique) else "all rows"
            kind = followed if clique else "columns"
            worst[kind] = max(worst[kind], share if not one else 0.0)
    crowds = [nobody, none] + [
        {clique: none[clique] * others + 300 * found[name][clique] for clique in none}
        for name in ("many above", "low", "over the cut")
        for others in (0, 1)
    ]
    for crowd in crowds:  # whoever else is there: noisy answers are fixed
        scores = {
            name: list(run.scores({clique: crowd[clique] + counts[clique] for clique in crowd}))
            for name, counts in {"": nobody, **found}.items()
        }
        for (one, mine), (other, after) in itertools.combinations(scores.items(), 2):
            span = score_span(NULL if not one else Relation.REPLACE_ONE)
            for x, y in zip(mine, after, strict=True):
                share = moved("range", x, y) / span
                assert share <= 1, (one, other)
                worst["scores"] = max(worst["scores"], share if not one else 0.0)
    assert min(worst.values()) > 0.99, worst


def with_person(days: list[list[Hour]]) -> pd.DataFrame:
    """Return the rows of all others and of one person."""
    return pd.concat([others(), table([("somebody", day) for day in days])])


def check_same(run: Asked, other: Asked, exact: Mapping[Clique, NDArray[np.int64]]) -> None:
    """A run with one person more asks the same, of counts that have theirs beside the others'."""
    assert other.files.keys() == run.files.keys()
    changed = [name for name, content in run.files.items() if other.files[name] != content]
    assert not changed, f"{changed} tell of exact counts"
    for mine, theirs in zip(run.open_, other.open_, strict=True):
        assert [count for count, _ in mine] == [count for count, _ in theirs]
    np.testing.assert_array_equal(other.draws[0][2], exact[()])
    choices = [scores for kind, _, scores in other.draws if kind == "range"]
    for scores, expected in zip(choices, run.scores(exact), strict=True):
        np.testing.assert_array_equal(scores, expected)
