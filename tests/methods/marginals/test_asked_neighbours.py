"""Whole runs that are asked for joint counts, over neighbouring datasets; noisy answers are fixed.

Persons are made for the worst case: all rows in one cell of each pair that is asked for, in a few
trajectories or in many, and above what is declared to be their limit.
"""

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.marginals import belief, cleaning
from distributed_privrl.marginals.plan import integer_sensitivity, score_span
from distributed_privrl.marginals.together import from_tensors
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.marginals.answers import Answers, moved, what_may_leave
from tests.marginals.programs import chained
from tests.worlds.world import World

DATASET, UNITS = "ward/stays-v0", 80
TABLE = DeclaredTable.model_validate(
    {
        "columns": {
            "observation": ["low", "high", "born"],
            "action": "dose",
            "reward": "gain",
            "trajectory": "stay",
            "unit": "patient",
        },
        "kinds": {
            "low": {"type": "number", "at_most": "high"},
            "born": {"type": "number", "lasting": True},
        },
    }
)
BOUNDS = """
observation: {low: [0, 0, 0], high: [9, 9, 9], step: [1, 1, 1]}
reward: {low: 0, high: 1, step: 1}
"""
ASKED = [["low", "high"], ["dose", "gain"]]


def trajectories(
    observations: Sequence[Sequence[float]],
    lengths: Sequence[int],
    *,
    actions: Any,
    rewards: Any,
    owners: Any = 1,
) -> Trajectories:
    """Return trajectories that terminate, of one person if nothing else is said.

    Args:
        observations: of all steps, or one for all of them.
        lengths: steps of each.
        actions: of each step, or one for all of them.
        rewards: likewise.
        owners: of each trajectory.
    """
    count, steps = len(lengths), sum(lengths)
    offsets = offsets_of(np.array(lengths))
    last = np.zeros(steps, bool)
    last[offsets[1:] - 1] = True
    return Trajectories(
        observations=np.broadcast_to(np.array(observations, np.float32), (steps + count, 3)).copy(),
        actions=np.broadcast_to(actions, steps).copy(),
        rewards=np.broadcast_to(np.array(rewards, np.float32), steps).copy(),
        terminated=last,
        truncated=np.zeros(steps, bool),
        offsets=offsets,
        unit_ids=np.broadcast_to(np.array(owners, np.uint64), count).copy(),
    )


def others() -> Trajectories:
    """Return two short stays of each of the others."""
    source = np.random.default_rng(0)
    lengths = source.integers(1, 5, 2 * UNITS)
    steps = int(lengths.sum())
    high = source.integers(0, 10, steps + len(lengths))
    low = np.minimum(high, source.integers(0, 10, len(high)))
    born = np.repeat(source.integers(0, 10, len(lengths)), lengths + 1)
    return trajectories(
        np.stack([low, high, born], axis=1),
        lengths.tolist(),
        actions=source.integers(0, 3, steps),
        rewards=source.integers(0, 2, steps),
        owners=1000 + np.arange(len(lengths)) // 2,
    )


PEOPLE = {
    "one cell": trajectories([[0, 0, 9]], [6, 6], actions=2, rewards=1),
    "many stays, above the limit": trajectories([[9, 0, 0]], [1] * 300, actions=0, rewards=0),
}


class Ward(World):
    """Stays of the others, and of one person more or none.

    Args:
        folder: that holds all of it.
        method: that runs.
        person: who may be there.
    """

    dataset = DATASET

    def __init__(self, folder: Path, method: str, person: Trajectories | None) -> None:
        super().__init__(folder, bounds=BOUNDS)
        self.method = method
        self.store.write_trajectories(
            DATASET,
            others() if person is None else Trajectories.concatenate([person, others()]),
            unit_column="patient",
            layout="packed",
            declared=TABLE,
            observation_space=Box(0, 9, (3,)),
            action_space=Discrete(3),
        )

    def config(self, **_: Any) -> Any:
        longest = {"sampling": {"max_length": 3}} if self.method == "marginals_j" else {}
        values = {
            "method": self.method,
            "data": {
                "sensitive": DATASET,
                "unit": "patient",
                "units": UNITS,
                "max_length": 60,
                "bounds": str(self.bounds),
            },
            "privacy": {"epsilon": 20.0, "delta": 1e-4},
            "model": {"bins": 4, "cells": 100, "draws": 100, "rows_per_unit": 3},
            "training": {"steps": 1, "tables": 3, "together": ASKED, **longest},
            "output": {"dataset": "ward/private-v0", "size": 5},
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parse_config(values, source="test")


def left(folder: Path, method: str, answers: Answers, person: Trajectories | None) -> Any:
    """Run in a folder of the same name each time.

    Returns:
        what may leave, what was asked for, events, and the columns of each joint count.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    place, answers.asked = Ward(folder, method, person), []
    config = place.config()
    result = place.afford(config).start(config, anyway=True)
    assert result.certificate.status == "valid"
    (stage,) = result.certificate.stages
    path = result.directory.checkpoint / "marginals.safetensors"
    tensors, _ = load_checkpoint(path, run_id=result.directory.run_id, stage="rounds")
    made = [one.columns for one in from_tensors(tensors) or []]
    return what_may_leave(place, result), answers.asked, stage.events, made


@pytest.mark.parametrize("method", ["marginals", "marginals_j"])
def test_a_person_moves_what_is_asked_for_by_what_is_charged_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(cleaning, "_TRIALS", 0)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    answers = Answers(seed=0)
    answers.plant(monkeypatch)
    nobody, asked, events, made = left(tmp_path / "place", method, answers, None)
    assert made[:2] == [("observation_0", "observation_1"), ("action", "reward")]
    columns, choices, tables = events
    assert (columns.count, choices.count, tables.count) == (1, 3, 3)
    unit = integer_sensitivity(Relation.REPLACE_WITH_NULL)
    span = score_span(Relation.REPLACE_WITH_NULL)
    joint = ("L2", unit)
    assert tables.sensitivity == unit
    assert [(kind, charged) for kind, charged, _ in asked] == [
        ("L2", columns.sensitivity),
        joint,
        joint,
        ("range", span),
        joint,
    ], "two choices are charged and not drawn, and nothing is drawn that is not charged"
    draws = {"nobody": [exact for *_, exact in asked]}
    for name, person in PEOPLE.items():
        files, theirs, *same = left(tmp_path / "place", method, answers, person)
        assert same == [events, made], name
        assert files == nobody, f"{name}: what may leave tells of exact counts"
        assert [one[:2] for one in theirs] == [one[:2] for one in asked]
        draws[name] = [exact for *_, exact in theirs]
    for (one, mine), (other, theirs) in itertools.combinations(draws.items(), 2):
        relation = Relation.REPLACE_WITH_NULL if one == "nobody" else Relation.REPLACE_ONE
        more = integer_sensitivity(relation) / unit, score_span(relation) / span
        shares = [
            moved(kind, x, y) / charged / more[kind == "range"]
            for (kind, charged, _), x, y in zip(asked, mine, theirs, strict=True)
        ]
        assert max(shares) <= 1, (one, other, shares)
        if one == "nobody":  # all of a person's weight is in one cell of each pair
            assert min(shares[1:3]) > 0.999
