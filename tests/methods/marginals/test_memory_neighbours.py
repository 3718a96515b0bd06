"""Gaps and levels over neighbouring datasets, on the assembled path from the store to the release.

Persons are made for the worst case: flags that say neither, numbers that are none, numbers beyond
the bounds, nobody measured, one row alone, more rows than the cap, twins.
"""

import logging
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import LocalExecutor, WorkerGroup
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.marginals import belief, cleaning
from distributed_privrl.marginals.asked import levels_asked
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import CountSpec, CountWorker, StoredSteps
from distributed_privrl.marginals.plan import integer_sensitivity
from distributed_privrl.marginals.stage import rollout_columns, table_of
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from tests.marginals.answers import Answers, moved, what_may_leave
from tests.marginals.programs import Chooses, chained, plan_of, program_of
from tests.worlds.world import World

DATASET, PUBLIC, UNITS, LONGEST, MAX_LENGTH = "clinic/tests-v0", "clinic/open-v0", 200, 6, 20
TABLE = DeclaredTable.model_validate(
    {
        "columns": {
            "observation": ["day", "hdl", "pulse", "ill"],
            "action": "dose",
            "reward": "gain",
            "trajectory": "stay",
            "order": "day",
            "unit": "patient",
            "terminated": "last",
        },
        "kinds": {
            "hdl": {"type": "number", "missing": "indicator"},
            "dose": {"type": "number", "missing": "indicator"},
            "ill": {"type": "flag"},
        },
    }
)
WIDEST = np.array([1e30, 1e30, 1, 1e30, 1], np.float32)
OBSERVATION = TableBox(np.where(WIDEST > 1, -WIDEST, 0), WIDEST, ((2, 3), (4, 5)))
ACTION = TableBox(np.array([-1e30, 0], np.float32), np.array([1e30, 1], np.float32), ((1, 2),))
BOUNDS = """
observation: {low: [0, 10, -4], high: [30, 110, 4], step: [1, 1, 0]}
action: {low: [0], high: [5], step: [1]}
reward: {low: 0, high: 1, step: 1}
"""
MEMORY = ["hdl", "pulse", "ill", "day"]
State = tuple[float, float, float, float, float]
Stay = tuple[Sequence[State], bool, tuple[float, float], float]
"""States, the last of them reached by the last row; whether it terminates; dose and gain."""


def stays(found: Sequence[Stay], owners: Any = 1) -> Trajectories:
    """Return stays, of one person if nothing else is said."""
    lengths = [len(states) - 1 for states, *_ in found]
    offsets, ends = offsets_of(np.array(lengths)), [end for _, end, _, _ in found]
    last = [np.zeros(sum(lengths), bool) for _ in range(2)]
    for end, place in zip(ends, offsets[1:] - 1, strict=True):
        last[0 if end else 1][place] = True
    doses = np.array([dose for _, _, dose, _ in found], np.float32)
    return Trajectories(
        observations=np.concatenate([np.array(states, np.float32) for states, *_ in found]),
        actions=np.repeat(doses, lengths, axis=0),
        rewards=np.repeat(np.array([gain for *_, gain in found], np.float32), lengths),
        terminated=last[0],
        truncated=last[1],
        offsets=offsets,
        unit_ids=np.broadcast_to(np.array(owners, np.uint64), len(lengths)).copy(),
    )


def others(seed: int = 0, count: int = UNITS, first: int = 1000) -> Trajectories:
    """Return a few visits of each of the others, of whom half have a gap in each test."""
    source, found, owners = np.random.default_rng(seed), list[Stay](), []
    for unit in range(count):
        own = source.normal(60, 15)
        for _ in range(1 + unit % 2):
            states, day = list[State](), 0
            for _ in range(source.integers(1, LONGEST)):
                gap, hdl = source.random() < 0.5, np.clip(np.round(own + source.normal()), 10, 110)
                states.append(
                    (day, 10 if gap else hdl, gap, source.normal(), source.random() < 0.3)
                )
                day += int(source.integers(0, 4))
            none = source.random() < 0.3
            dose = (0, 1) if none else (float(source.integers(6)), 0)
            found.append(([*states, states[-1]], True, dose, float(source.integers(2))))
            owners.append(first + unit)
    return stays(found, owners)


INF, NAN = np.inf, np.nan
LOW, HIGH, GAP = (0, 10, 0, -4, 0), (30, 110, 0, 4, 1), (0, 10, 1, -4, 0)
FLAGS = [(0, 50, flag, 0, 0) for flag in (0.5, NAN, INF, -1, 2, 1e30)]
NUMBERS = [(0, none, 0, 0, 0) for none in (NAN, INF, -INF)]
ODD_GAPS = [(0, none, 1, 0, 0) for none in (NAN, INF, 1e30, 110)]
PULSES = [(0, 50, 0, none, 0) for none in (NAN, INF, -INF)]
NONE = [*FLAGS, *NUMBERS, *PULSES]
DOSE, NO_DOSE = (5.0, 0.0), (0.0, 1.0)
PEOPLE: dict[str, Trajectories] = {
    "one row": stays([([HIGH, LOW], False, DOSE, 1)]),
    "one row, a gap": stays([([GAP, GAP], True, NO_DOSE, 1)]),
    "all gaps": stays([([GAP] * 7, True, NO_DOSE, 0)] * 5),
    "many stays": stays([([HIGH, GAP, LOW], False, DOSE, 1)] * 60),
    "one long stay": stays([([HIGH, LOW] * 40, True, DOSE, 1)]),
    "cut within a stay": stays([([HIGH] * 9, False, DOSE, 1), ([LOW] * 40, True, DOSE, 1)]),
    "beyond": stays([([(0, 1e30, 0, -1e30, 1), (0, -1e30, 0, 1e30, 1)] * 9, True, DOSE, 1)]),
    "gap first": stays([([GAP, HIGH, HIGH, GAP, LOW], True, DOSE, 1)] * 4),
    "none first": stays([([none, HIGH, GAP, HIGH], False, DOSE, 1) for none in NONE]),
    "none later": stays([([HIGH, GAP, none, HIGH, HIGH], True, DOSE, 1) for none in NONE]),
    "nothing follows": stays([([HIGH, none], False, DOSE, 1) for none in NONE]),
    "nothing proper": stays([([none] * 3, True, DOSE, 1) for none in NONE]),
    "odd gaps": stays([([odd, HIGH, odd], True, DOSE, 1) for odd in ODD_GAPS]),
    "odd doses": stays(
        [
            ([HIGH, LOW, GAP], True, (one, flag), 1)
            for one in (NAN, 1e30)
            for flag in (0, 0.5, NAN, 1)
        ]
    ),
}


def signalling() -> Trajectories:
    """Return stays with the kind of nan that a cast to other floats complains of."""
    rows = stays([([GAP, HIGH, HIGH, GAP, LOW], True, DOSE, 1)] * 4)
    none = np.array([0x7FA00000], np.uint32).view(np.float32)
    for place in range(4):
        rows.observations[5 * place + 1 : 5 * place + 2, place] = (
            none  # bits are copied as they are
        )
    actions = rows.actions.copy()
    actions[0:1, 0], actions[5:6, 1] = none, none
    return replace(rows, actions=actions)


PEOPLE["none that signals"] = signalling()
OTHERS = others()
WORST = Trajectories.concatenate(
    [PEOPLE[one] for one in ("none later", "gap first", "beyond", "odd doses", "cut within a stay")]
)


class Clinic(World):
    """Tests of the others, and of one person more or none.

    Args:
        folder: that holds all of it.
        people: who may be there.
        layout: of the dataset.
        public: with public rows.
    """

    dataset = DATASET

    def __init__(
        self,
        folder: Path,
        *people: Trajectories,
        layout: Any = "packed",
        public: bool = False,
        table: DeclaredTable = TABLE,
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        super().__init__(folder, bounds=BOUNDS)
        self.public = public
        for name, rows in [(DATASET, Trajectories.concatenate([*people]))] + [
            (PUBLIC, others(seed=5, count=30, first=5000))
        ] * public:
            self.store.write_trajectories(
                name,
                rows,
                unit_column="patient",
                layout=layout,
                declared=table,
                observation_space=OBSERVATION,
                action_space=ACTION,
            )

    def config(self, **changes: Any) -> Any:
        model = {
            "memory": MEMORY,
            "bins": 5,
            "cells": 100,
            "draws": 100,
            "rows_per_unit": 4,
            "trajectories_per_unit": 1,
        }
        data = {
            "sensitive": DATASET,
            "unit": "patient",
            "units": UNITS,
            "max_length": MAX_LENGTH,
            "bounds": str(self.bounds),
        }
        values = {
            "method": "marginals_j",
            "data": data | ({"public": [PUBLIC]} if self.public else {}),
            "privacy": {"epsilon": 20.0, "delta": 1e-4},
            "model": model | changes.pop("model", {}),
            "training": {"steps": 1, "tables": 6, "sampling": {"max_length": LONGEST}},
            "output": {"dataset": "clinic/private-v0", "size": 8},
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parse_config(values | changes, source="test")

    def columns(self, config: Any = None) -> TableColumns:
        config = config or self.config()
        table = rollout_columns(config.data, config.model, longest=LONGEST)
        return table_of(config.data, self.store, table, found=None)

    def group(self, columns: TableColumns, workers: int = 1, cap: Any = MAX_LENGTH) -> WorkerGroup:
        refs = shard_refs(self.store, DATASET, count=workers, unit="patient", max_rows_per_unit=cap)
        specs = [
            CountSpec(
                source=StoredSteps(ref=ref, max_trajectories_per_unit=UNIT_WEIGHT),
                columns=columns,
                rows_per_unit=4,
                max_rows_per_unit=cap,
            )
            for ref in refs
        ]
        return LocalExecutor().start(CountWorker, specs)


def counts_of(place: Clinic, columns: TableColumns, **options: Any) -> list[NDArray[np.int64]]:
    """Return all columns, and joint counts of all pairs and of some triples, over all cells."""
    workers = place.group(columns, **options)
    bins = [np.arange(size) // max(1, size // 12) for size in columns.sizes]
    cliques = [*combinations(range(len(columns)), 2)]
    cliques += [(*one, len(columns) - 1) for one in levels_asked(columns)]
    tables = workers.call("tables", {"bins": bins, "cliques": cliques})
    found = [np.sum([one[i] for one in tables], axis=0) for i in range(len(cliques))]
    return [np.sum(workers.call("columns"), axis=0), *found]


def histograms(columns: TableColumns, counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return each histogram of the columns by itself."""
    sizes: list[int] = []
    for one in columns.columns:
        if one.counted:
            sizes += [one.size, one.counted - one.size] if one.counted > one.size else [one.size]
    sizes += [columns.lengths] if columns.lengths else []
    assert len(sizes) == columns.histograms
    assert sum(sizes) == len(counts)
    return np.split(counts, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize(
    ("coding", "layout", "cap"),
    [
        ("absolute", "packed", MAX_LENGTH),
        ("difference", "packed", MAX_LENGTH),
        ("auto", "packed", MAX_LENGTH),
        ("auto", "episodes", None),
    ],
)
def test_nobody_moves_a_count_of_gaps_and_levels_by_more_than_a_unit(
    coding: str, layout: str, cap: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = dict[str, list[NDArray[np.int64]]]()
    with (
        warnings.catch_warnings(),
        np.errstate(all="raise"),
        caplog.at_level(logging.DEBUG, "distributed_privrl"),
    ):
        warnings.simplefilter("error", RuntimeWarning)
        for name, rows in ({"": None} | PEOPLE | {"worst": WORST}).items():
            people = [OTHERS] if rows is None else [rows, OTHERS]
            place = Clinic(tmp_path / "place", *people, layout=layout)
            columns = place.columns(place.config(model={"next_observation": coding}))
            caplog.clear()
            found[name] = counts_of(place, columns, cap=cap)
            assert not caplog.records, name
    assert len(columns.of("memory")) == 4
    unit = integer_sensitivity(Relation.REPLACE_WITH_NULL)
    assert unit == UNIT_WEIGHT
    most = 0.0
    for name in PEOPLE:
        (all_columns, *tables), (nobody, *without) = found[name], found[""]
        apart = [
            moved("L1", one, other)
            for one, other in zip(
                [*histograms(columns, all_columns), *tables],
                [*histograms(columns, nobody), *without],
                strict=True,
            )
        ]
        assert max(apart) <= UNIT_WEIGHT, name
        assert moved("L2", all_columns, nobody) <= unit * columns.histograms**0.5, name
        most = max(most, *apart)
    assert most > 0.99 * UNIT_WEIGHT
    one_unit = integer_sensitivity(Relation.REPLACE_ONE)
    for one, other in combinations(found, 2):
        shares = [moved("L2", x, y) for x, y in zip(found[one], found[other], strict=True)]
        assert shares[0] <= one_unit * columns.histograms**0.5, (one, other)
        assert max(shares[1:]) <= one_unit, (one, other)
    for x, y in zip(found["nothing proper"], found[""], strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("layout", ["packed", "episodes"])
def test_counts_do_not_depend_on_workers_or_layout(layout: str, tmp_path: Path) -> None:
    twin = replace(WORST, unit_ids=np.full_like(WORST.unit_ids, 2))
    place = Clinic(tmp_path / "place", WORST, OTHERS, twin, layout=layout)
    columns = place.columns()
    one, *more = (counts_of(place, columns, workers=workers) for workers in (1, 2, 4))
    single = Clinic(tmp_path / "single", WORST, OTHERS)
    alone = Clinic(tmp_path / "alone", OTHERS)
    own = [counts_of(of, columns) for of in (single, alone)]
    for place_, first in enumerate(one):
        for other in more:
            np.testing.assert_array_equal(other[place_], first)
        with_one, without = (counts[place_] for counts in own)
        np.testing.assert_array_equal(first - with_one, with_one - without)  # twins are alike


def left(folder: Path, answers: Answers, person: Trajectories | None, **facts: Any) -> Any:
    """Run in a folder of the same name; return what may leave, what was asked for, and rows."""
    answers.asked = []
    place = Clinic(folder, *([OTHERS] if person is None else [person, OTHERS]), **facts)
    said = list[tuple[Any, ...]]()
    result = place.afford(place.config()).start(
        place.config(), anyway=True, progress=lambda *told: said.append(told)
    )
    assert result.certificate.status == "valid"
    (stage,) = result.certificate.stages
    files = {"said": said, "events": stage.events, **what_may_leave(place, result)}
    return files, answers.asked, place


@pytest.mark.parametrize("public", [False, True])
def test_gaps_and_levels_are_told_by_released_counts_alone(
    public: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte that may leave differs where the noisy answers do not."""
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(cleaning, "_TRIALS", 0)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    answers = Answers(seed=0)
    answers.plant(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        files, nobody, place = left(tmp_path / "place", answers, None, public=public)
        assert nobody[0][1] == files["events"][0].sensitivity
        assert [one[0] for one in nobody[1:3]] == ["L2", "L2"], "levels, which nobody chose"
        assert len(nobody[0][2]) == sum(place.columns().counted)
        (made,) = place.store.iter_trajectories("clinic/private-v0", unit="trajectory")
        assert made.observations.shape[1] == 5
        assert set(np.unique(made.observations[:, 2])) <= {0.0, 1.0}
        theirs, asked, _ = left(tmp_path / "place", answers, WORST, public=public)
    assert theirs.keys() == files.keys()
    changed = [one for one, content in files.items() if theirs[one] != content]
    assert not changed, f"{changed} tell of exact counts"
    for (kind, charged, x), (*same, y) in zip(nobody, asked, strict=True):
        assert same == [kind, charged]
        assert 0 < moved(kind, x, y) <= charged, kind


def test_a_resume_with_other_levels_or_gaps_is_refused(tmp_path: Path) -> None:
    place = Clinic(tmp_path / "place", OTHERS)
    columns = place.columns()
    plan = plan_of(columns, steps=2, tables=2, epsilon=None)

    def program(of: TableColumns) -> Any:
        return program_of(of, plan, Chooses(), rows=300, most_bins=6, asked=levels_asked(of))

    made = program(columns)
    made.step(0, place.group(columns), None)
    program(columns).restore(made.tensors(), 1)
    others = [
        place.columns(place.config(model={"memory": names})) for names in ([], ["hdl"], ["pulse"])
    ]
    plain = [
        replace(one, cells=replace(one.cells, gaps=False)) if one.cells and one.gaps else one
        for one in columns.columns
    ]
    others.append(replace(columns, columns=tuple(plain)))
    for other in others:
        with pytest.raises(UnsafeError, match="new run"):
            program(other).restore(made.tensors(), 1)
