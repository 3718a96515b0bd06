"""Changes of numbers, cut to the bounds, over neighbouring datasets; noisy answers are fixed.

Persons are made for the worst case: numbers beyond the bounds, a time that falls though the rows
are ordered by it, ties, and numbers that are none, in what follows a row alone or in the row.
"""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from distributed_privrl.core.executor import LocalExecutor, WorkerGroup
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.marginals import belief, cleaning, implied
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import CountSpec, CountWorker
from distributed_privrl.marginals.flow import told_by_flow
from distributed_privrl.marginals.plan import integer_sensitivity, score_span
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import Steps, steps_in_time, time_groups
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from tests.marginals.answers import Answers, moved, what_may_leave
from tests.marginals.programs import Chooses, chained, plan_of, program_of
from tests.worlds.world import World

DATASET, UNITS, LONGEST, WARDS = "school/years-v0", 60, 60, 9
TABLE = DeclaredTable.model_validate(
    {
        "columns": {
            "observation": ["year", "level", "ward"],
            "action": "dose",
            "reward": "gain",
            "trajectory": "stay",
            "order": "year",
            "unit": "patient",
            "terminated": "last",
        },
        "kinds": {"ward": {"type": "category", "values": [f"w{i}" for i in range(WARDS)]}},
    }
)
WIDEST = np.array([1e30, 1e30] + [1] * WARDS, np.float32)
SPACES = TableBox(np.where(WIDEST > 1, -WIDEST, 0), WIDEST, ((2, 2 + WARDS),)), Discrete(3)
BOUNDS = """
observation: {low: [0, -4], high: [9, 4], step: [1, 0]}
reward: {low: 0, high: 1, step: 1}
"""
ASKED = [["year", "end"], ["ward", "next ward"]]
Stay = tuple[Sequence[NDArray[np.float32]], bool, int, float]
"""States, the last of them reached by the last row; whether it terminates; dose and gain."""


def state(year: float, level: float, ward: int | None) -> NDArray[np.float32]:
    return np.array([year, level, *(i == ward for i in range(WARDS))], np.float32)


def stays(found: Sequence[Stay], owners: Any = 1) -> Trajectories:
    """Return stays, of one person if nothing else is said."""
    lengths = [len(states) - 1 for states, *_ in found]
    offsets, ends = offsets_of(np.array(lengths)), [end for _, end, _, _ in found]
    last = [np.zeros(sum(lengths), bool) for _ in range(2)]
    for end, place in zip(ends, offsets[1:] - 1, strict=True):
        last[0 if end else 1][place] = True
    return Trajectories(
        observations=np.concatenate([np.stack(states) for states, *_ in found]),
        actions=np.repeat([dose for _, _, dose, _ in found], lengths),
        rewards=np.repeat(np.array([gain for *_, gain in found], np.float32), lengths),
        terminated=last[0],
        truncated=last[1],
        offsets=offsets,
        unit_ids=np.broadcast_to(np.array(owners, np.uint64), len(lengths)).copy(),
    )


def others() -> Trajectories:
    """Return a few years of each of the others: a level that comes back, and mostly one ward."""
    source, found = np.random.default_rng(0), list[Stay]()
    for _ in range(UNITS):
        year, level, ward = source.integers(0, 6), source.normal(), int(source.integers(WARDS))
        states = []
        for _ in range(source.integers(1, 5)):
            states.append(state(year, np.clip(level, -4, 4), ward))
            year, level = year + 1, 0.6 * level + 0.8 * source.normal()
            ward = ward if source.random() < 0.7 else int(source.integers(WARDS))
        states.append(states[-1])
        found.append((states, True, int(source.integers(3)), float(source.integers(2))))
    return stays(found, 1000 + np.arange(UNITS))


LOW, HIGH = state(0, -4, 0), state(9, 4, 8)
BEYOND = state(-3, -9, 0), state(-2, -1e30, 0), state(12, 1e30, 8), state(15, 5, 8)
NONE = state(np.inf, 0, 0), state(0, np.nan, 0), state(0, -np.inf, 0), state(0, 0, None)
PEOPLE: dict[str, Trajectories] = {
    "one row": stays([([LOW, HIGH], False, 2, 1)]),
    "rises": stays([([LOW, HIGH], False, 2, 1)] * 80),
    "falls": stays([([HIGH, LOW], False, 2, 1)] * 80),
    "falls from beyond": stays([([BEYOND[3], BEYOND[0]], False, 2, 1)] * 80),
    "moves beyond the low end": stays([(BEYOND[:2], False, 2, 1)] * 80),
    "moves beyond the high end": stays([(BEYOND[2:], False, 2, 1)] * 80),
    "stays low": stays([([LOW, LOW], False, 2, 1)] * 80),
    "stays high": stays([([HIGH, HIGH], False, 2, 1)] * 80),
    "all last": stays([([LOW, LOW], True, 2, 1)] * 80),
    "ties": stays([([LOW] * 70, True, 0, 0)]),
    "spread": stays([([state(i, i % 9 - 4, i % 9) for i in range(13)], True, 1, 1)] * 4),
    "nothing follows": stays([([LOW, none], False, 2, 1) for none in NONE]),
    "nothing proper": stays([([none] * 3, True, 2, 1) for none in NONE]),
    "one of three": stays([([HIGH, none, HIGH, LOW], False, 2, 1) for none in NONE]),
}
OTHERS = others()
WORST = Trajectories.concatenate([PEOPLE["falls from beyond"], PEOPLE["one of three"]])
SAME = [
    ("moves beyond the low end", "stays low"),
    ("moves beyond the high end", "stays high"),
    ("falls from beyond", "falls"),
    ("nothing follows", ""),
    ("nothing proper", ""),
]
"""What lies beyond the bounds counts as these, and what is no number does not count."""


class Kept:
    """A source of rows.

    Args:
        rows: of some people.
    """

    def __init__(self, rows: Trajectories) -> None:
        self.rows = rows

    def __call__(self) -> Iterator[tuple[Steps, NDArray[np.uint64]]]:
        steps = self.rows.transitions("patient")
        times = np.concatenate([np.arange(length) for length in self.rows.lengths])
        yield steps_in_time(steps, times), np.repeat(self.rows.unit_ids, self.rows.lengths)


def table(method: str, coding: Any = "counted") -> TableColumns:
    """Return the columns of a method, of which the year, it is declared, never falls."""
    ends = np.array([[0, 9, 1], [-4, 4, 0], [0, 1, 1]], float)
    names = ("observation_0", "observation_1", "reward")
    bounds = Bounds(low=ends[:, 0], high=ends[:, 1], step=ends[:, 2], columns=names)
    rising = TABLE.rising(held=True)
    kinds = 3 if method == "marginals_j" else 2
    found = step_columns(*SPACES, bounds, next_observation=coding, ends=kinds, rising=rising)
    if method == "marginals_j":
        found = trajectory_columns(
            found, groups=time_groups(5), previous=True, longest=5, alike=3.0
        )
    return replace(found, ends_unseen=True)


def group(rows: Trajectories, columns: TableColumns) -> WorkerGroup:
    spec = CountSpec(source=Kept(rows), columns=columns, rows_per_unit=3, max_rows_per_unit=LONGEST)
    return LocalExecutor().start(CountWorker, [spec])


@pytest.mark.parametrize("coding", ["counted", "difference"])
@pytest.mark.parametrize("method", ["marginals", "marginals_j"])
def test_changes_are_in_one_cell_each_and_weigh_what_their_unit_does(
    method: str, coding: str
) -> None:
    columns = table(method, coding)
    bins = [np.arange(size) for size in columns.sizes]
    pairs = [(0, place) for place in columns.of("next_observation")]

    def counts(rows: Trajectories) -> list[NDArray[np.int64]]:
        workers = group(rows, columns)
        (tables,) = workers.call("tables", {"bins": bins, "cliques": pairs})
        return [workers.call("columns")[0], *tables]

    def shares(one: str, other: str, relation: Relation) -> list[float]:
        unit = integer_sensitivity(relation)
        charged = [unit * columns.histograms**0.5, *[unit] * len(pairs)]
        apart = zip(found[one], found[other], charged, strict=True)
        return [moved("L2", x, y) / cost for x, y, cost in apart]

    found = {
        name: counts(Trajectories.concatenate([rows, OTHERS])) for name, rows in PEOPLE.items()
    }
    found[""] = counts(OTHERS)
    for one, other in SAME:
        assert shares(one, other, Relation.REPLACE_WITH_NULL) == [0.0] * (1 + len(pairs)), one
    for name in PEOPLE:
        assert max(shares(name, "", Relation.REPLACE_WITH_NULL)) <= 1, name
    for one, other in itertools.combinations(found, 2):
        assert max(shares(one, other, Relation.REPLACE_ONE)) <= 1, (one, other)
    assert min(shares("rises", "", Relation.REPLACE_WITH_NULL)[1:]) > 0.999
    assert shares("rises", "falls", Relation.REPLACE_ONE)[1] > 0.999
    change = next(i for i in columns.of("next_observation") if columns[i].difference)
    fell, stayed = (found[name][1 + pairs.index((0, change))] for name in ("falls", "stays high"))
    np.testing.assert_array_equal(fell, stayed)  # what never falls has stayed


class School(World):
    """Years of the others, and of one person more or none.

    Args:
        folder: that holds all of it.
        person: who may be there.
    """

    dataset = DATASET

    def __init__(self, folder: Path, person: Trajectories | None) -> None:
        super().__init__(folder, bounds=BOUNDS)
        self.store.write_trajectories(
            DATASET,
            OTHERS if person is None else Trajectories.concatenate([person, OTHERS]),
            unit_column="patient",
            layout="packed",
            declared=TABLE,
            observation_space=SPACES[0],
            action_space=SPACES[1],
        )

    def config(self, **_: Any) -> Any:
        values = {
            "method": "marginals_j",
            "data": {
                "sensitive": DATASET,
                "unit": "patient",
                "units": UNITS,
                "max_length": LONGEST,
                "bounds": str(self.bounds),
            },
            "privacy": {"epsilon": 20.0, "delta": 1e-4},
            "model": {
                "next_observation": "difference",
                "bins": 4,
                "cells": 100,
                "draws": 100,
                "rows_per_unit": 3,
                "trajectories_per_unit": 1,
            },
            "training": {
                "steps": 1,
                "tables": 3,
                "together": ASKED,
                "sampling": {"max_length": 3},
            },
            "output": {"dataset": "school/private-v0", "size": 5},
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parse_config(values, source="test")


def left(folder: Path, answers: Answers, person: Trajectories | None) -> tuple[Any, Any]:
    """Run in a folder of the same name; return what may leave, and what was asked for."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    place, answers.asked = School(folder, person), []
    config, said = place.config(), list[tuple[Any, ...]]()
    result = place.afford(config).start(
        config, anyway=True, progress=lambda *facts: said.append(facts)
    )
    assert result.certificate.status == "valid"
    (stage,) = result.certificate.stages
    rising = place.store.info(DATASET).rising
    assert rising == (0,), "it is declared, whatever the rows are"
    files = {"said": said, "events": stage.events, **what_may_leave(place, result)}
    return files, answers.asked


def test_flows_are_told_by_released_counts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte that may leave differs where the noisy answers do not, and flows are among them."""
    told = []

    def watched(*facts: Any) -> Any:
        told.append(told_by_flow(*facts))
        return told[-1]

    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(cleaning, "_TRIALS", 0)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    monkeypatch.setattr(implied, "told_by_flow", watched)
    answers = Answers(seed=0)
    answers.plant(monkeypatch)
    files, nobody = left(tmp_path / "place", answers, None)
    assert any(told)
    unit, span = (of(Relation.REPLACE_WITH_NULL) for of in (integer_sensitivity, score_span))
    kinds = [one[:2] for one in nobody[1:]]
    assert nobody[0][1] == files["events"][0].sensitivity
    assert kinds == [("L2", unit)] * 2 + [("range", span), ("L2", unit)], "what is asked for first"
    theirs, asked = left(tmp_path / "place", answers, WORST)
    assert theirs.keys() == files.keys()
    changed = [one for one, content in files.items() if theirs[one] != content]
    assert not changed, f"{changed} tell of exact counts"
    for (kind, charged, x), (*same, y) in zip(nobody, asked, strict=True):
        assert same == [kind, charged]
        assert 0 < moved(kind, x, y) <= charged, kind


def test_a_resume_at_each_step_makes_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    columns = table("marginals_j", "difference")
    plan, workers = plan_of(columns, steps=2, tables=2, epsilon=None), group(OTHERS, columns)
    (year, level, ward), after = columns.of("observation"), columns.of("next_observation")
    asked = (year, after[0]), (ward, after[2]), (level, after[1])
    kept: list[dict[str, Any]] = []

    def made(done: int = 0) -> Any:
        program = program_of(columns, plan, Chooses(), rows=300, most_bins=6, asked=asked)
        if done:
            program.restore(kept[done - 1], done)
        for step in range(done, plan.steps):
            program.prepare(step)
            program.step(step, workers, None)
            kept.extend([program.tensors()] if not done else [])
        return program.model()

    whole = made()
    assert any(columns[i].difference for clique in whole.field.potentials for i in clique)
    for done in range(1, plan.steps):
        potentials = made(done).field.potentials
        assert potentials.keys() == whole.field.potentials.keys()
        for clique, values in whole.field.potentials.items():
            np.testing.assert_array_equal(potentials[clique], values)


def test_weights_of_all_rows_of_a_unit_are_one_unit_at_most() -> None:
    """Improper rows, two of three here, weigh nothing and leave no more to the others."""
    columns = table("marginals_j")
    (counts,) = group(PEOPLE["one of three"], columns).call("columns")
    (end,) = columns.of("end")
    start = int(np.cumsum(columns.counted)[end]) - columns.counted[end]
    weight = counts[start : start + columns.counted[end]].sum() / UNIT_WEIGHT
    assert weight == pytest.approx(1 / 3, rel=1e-3)
