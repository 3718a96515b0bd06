"""Stays in which single patients stand out, and tiny runs of marginals on them.

Some numbers, a category and ids are met once, and how many rows and patients there are is declared
as something else: whoever finds one of them in what left a run knows where it came from.
"""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.experiments.registry import parse_config
from tests.gates.leak_secrets import Secrets
from tests.worlds.overrides import changed
from tests.worlds.world import World

DATASET, RELEASED = "rare/stays-v0", "rare/private-v0"
STAYS, PATIENTS, DECLARED = 437, 311, 300
FIRST_ID = 7_300_000_417
"""Of the patients, whose ids follow one another with gaps."""
SPACES: dict[str, Any] = {"observation_space": Box(0, 50, (3,)), "action_space": Discrete(5)}
BOUNDS = """
observation: {low: [0, 0, 0], high: [10, 10, 9], step: [0, 0, 1]}
reward: [-1, 1]
"""
LARGEST, BEYOND, RARE_REWARD = 9.871234893798828, 41.23456573486328, -0.7654321193695068
"""The largest number within its bounds, one beyond them, and a reward; each in one row."""
RARE_ACTION = 4


def stays(seed: int = 3, *, rare: bool = True) -> Trajectories:
    """Return stays of 2 to 9 days; numbers go together.

    Args:
        seed: of all draws.
        rare: whether single patients stand out.
    """
    source = np.random.default_rng(seed)
    lengths = source.integers(2, 10, STAYS)
    offsets = offsets_of(lengths)
    steps = int(offsets[-1])
    severity = source.gamma(2.0, 1.0, steps + STAYS).clip(0, 8)
    pressure = (severity + source.normal(0, 0.5, len(severity))).clip(0, 9)
    observations = np.stack([severity, pressure, np.floor(severity)], axis=1).astype(np.float32)
    if rare:
        observations[100, 0], observations[200, 1] = LARGEST, BEYOND
    before = np.delete(severity, offsets[1:] + np.arange(STAYS))
    actions = np.minimum(before.astype(np.int64) // 2, 3)
    rewards = np.tanh(before / 4 - 1 + source.normal(0, 0.1, steps)).astype(np.float32)
    if rare:
        actions[300], rewards[400] = RARE_ACTION, RARE_REWARD
    ends = np.zeros(steps, bool)
    ends[offsets[1:] - 1] = source.random(STAYS) < 0.6
    truncated = np.zeros(steps, bool)
    truncated[offsets[1:] - 1] = ~ends[offsets[1:] - 1]
    numbers = np.concatenate([np.arange(PATIENTS), source.integers(0, PATIENTS, STAYS - PATIENTS)])
    return Trajectories(
        observations=observations,
        actions=actions,
        rewards=rewards,
        terminated=ends,
        truncated=truncated,
        offsets=offsets,
        unit_ids=(FIRST_ID + 13 * numbers).astype(np.uint64),
    )


def people(recorded: Trajectories) -> dict[str, float]:
    """Return ids and exact numbers of people, stays and days, by what they are."""
    return {
        "a rare reward": RARE_REWARD,
        "the first patient's id": FIRST_ID,
        "the last patient's id": FIRST_ID + 13 * (PATIENTS - 1),
        "the number of patients": PATIENTS,
        "the number of stays": STAYS,
        "the number of days": len(recorded.rewards),
        "the number of stays that terminate": int(recorded.terminated.sum()),
    }


def planted(recorded: Trajectories) -> dict[str, float]:
    """Return the numbers that are to be found nowhere, by what they are."""
    numbers = {"the largest number": LARGEST, "a number beyond its bounds": BEYOND}
    return {**numbers, **people(recorded)}


MEASURES: dict[str, Any] = {
    "epsilon": 0.5,
    "pairs": [["observation_0", "reward"], ["action", "next_observation_2"]],
    "events": [{"column": "action", "value": RARE_ACTION}],
}
VALUES: dict[str, dict[str, Any]] = {
    "marginals": {
        "evaluation": {"measures": MEASURES},
        "model": {"bins": 6, "cells": 200, "draws": 500, "rows_per_unit": 3},
        "training": {"steps": 2, "tables": 3},
        "output": {"dataset": RELEASED, "size": 250},
    },
    "marginals_j": {
        "data__max_length": 60,
        "model": {"bins": 6, "cells": 200, "draws": 500, "rows_per_unit": 3},
        "training": {"steps": 2, "tables": 3, "sampling": {"max_length": 12}},
        # Some 150 days: a report that says how many it shows names no number of stays by chance.
        "output": {"dataset": RELEASED, "size": 24},
    },
    "privsyn": {
        "model": {"bins": 6, "cells": 200, "rows_per_unit": 3},
        "training": {"sampling": {"rows": 500, "iterations": 3}},
        "output": {"dataset": RELEASED, "size": 250},
    },
    "privorl_ar": {
        "evaluation": {"measures": MEASURES},
        "model": {"bins": 8, "hidden": [16], "column_frequencies": 1, "reward_levels": []},
        "training": {
            "rounds": 4,
            "expected_batch_size": 64,
            "clip_norm": 0.5,
            "pretraining": {
                "steps": 4,
                "batch_size": 32,
                "from": "marginals",
                "marginals": {
                    "share": 0.6,
                    "rows": 500,
                    "table": {"bins": 4, "draws": 500},
                    "selection": {"steps": 2, "tables": 2},
                },
            },
        },
        "output": {"dataset": RELEASED, "size": 150},
    },
}
"""What runs have that they do not share."""


class Rarities(World):
    """The stays, a ledger, and a place for runs.

    Args:
        folder: that holds all of it.
        method: that runs.
    """

    dataset = DATASET

    def __init__(self, folder: Path, method: str) -> None:
        super().__init__(folder, bounds=BOUNDS)
        self.method, self.recorded = method, stays()
        self.store.write_trajectories(
            DATASET, self.recorded, unit_column="patient", layout="packed", **SPACES
        )

    def config(self, **changes: Any) -> RunConfig:
        """Return the configuration of a run."""
        values: dict[str, Any] = {
            "method": self.method,
            "data": {
                "sensitive": DATASET,
                "unit": "patient",
                "units": DECLARED,
                "bounds": str(self.bounds),
            },
            "privacy": {"epsilon": 6.0, "delta": 1e-4},
            "runtime": {"workers": 2, "executor": "local"},
        }
        settings = changed(values, VALUES[self.method] | changes)
        return parse_config(settings, source="the stays' configuration")

    def secrets(self, rows: Any, figures: tuple[float, ...]) -> Secrets:
        """Return what must not be found; no public row excuses a number."""
        nothing = (np.zeros((1, rows.shape[1]), np.float32),)
        return Secrets(
            rows=(rows,), public=nothing, figures=figures, planted=planted(self.recorded)
        )
