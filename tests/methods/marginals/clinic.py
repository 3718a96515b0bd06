"""Tests of others, and of people who are made for the worst case, as a world of `marginals_j`."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from distributed_privrl.core.executor import LocalExecutor, WorkerGroup
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import CountSpec, CountWorker, StoredSteps
from distributed_privrl.marginals.stage import rollout_columns, table_of
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.marginals.answers import Answers, what_may_leave
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
