"""Stays in a finite problem in which single patients stand out, and runs of value iteration."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.features import FeatureMap
from tests.gates.leak_runs import figures_of, raw_rows
from tests.gates.leak_secrets import Secrets
from tests.worlds.overrides import changed, parsed
from tests.worlds.rarities import (
    DATASET,
    DECLARED,
    FIRST_ID,
    PATIENTS,
    RARE_REWARD,
    STAYS,
    people,
)
from tests.worlds.world import World

STATES, ACTIONS, HORIZON = 8, 3, 6
RARE_STATE, RARE_ACTION = STATES - 1, ACTIONS - 1
"""Visited by one patient, once."""
REWARDS = (-1.0, 1.0)
FEATURES = 4
WIDTH = 12
"""Counts of a time step are small: so many beside one another are met by chance nowhere."""


def stays(seed: int = 5) -> Trajectories:
    """Return stays of 4 to 8 days among states, whose rewards are all different numbers."""
    source = np.random.default_rng(seed)
    lengths = source.integers(4, 9, STAYS)
    offsets = offsets_of(lengths)
    steps = int(offsets[-1])
    states = source.integers(0, RARE_STATE, steps + STAYS)
    before = np.arange(steps) + np.repeat(np.arange(STAYS), lengths)
    actions = source.integers(0, ACTIONS, steps)
    states[before[402]], actions[402] = RARE_STATE, RARE_ACTION
    mean = states[before] / 8 - 0.5 + 0.1 * actions
    rewards = np.tanh(mean + source.normal(0, 0.2, steps)).astype(np.float32)
    rewards[402] = RARE_REWARD
    ends = np.zeros(steps, bool)
    ends[offsets[1:] - 1] = source.random(STAYS) < 0.6
    truncated = np.zeros(steps, bool)
    truncated[offsets[1:] - 1] = ~ends[offsets[1:] - 1]
    numbers = np.concatenate([np.arange(PATIENTS), source.integers(0, PATIENTS, STAYS - PATIENTS)])
    return Trajectories(
        observations=states,
        actions=actions,
        rewards=rewards,
        terminated=ends,
        truncated=truncated,
        offsets=offsets,
        unit_ids=(FIRST_ID + 13 * numbers).astype(np.uint64),
    )


def below_one_another(column: NDArray[Any]) -> NDArray[np.float32]:
    """Return each number with the next one, ``(N - 1, 2)``, as a column would be stored."""
    return np.stack([column[:-1], column[1:]], axis=1).astype(np.float32)


class FiniteRarities(World):
    """The stays, a ledger, and a place for runs.

    Args:
        folder: that holds all of it.
        method: ``apvi`` or ``vapvi``.
    """

    dataset = DATASET

    def __init__(self, folder: Path, method: str) -> None:
        super().__init__(folder)
        self.method, self.recorded = method, stays()
        self.store.write_trajectories(
            DATASET,
            self.recorded,
            unit_column="patient",
            layout="packed",
            observation_space=Discrete(STATES),
            action_space=Discrete(ACTIONS),
        )

    @cached_property
    def features(self) -> Path:
        """A file of public features of states, no two of which are orthogonal."""
        table = np.random.default_rng(2).uniform(0.1, 0.45, (STATES, FEATURES))
        path = self.folder / "features.safetensors"
        FeatureMap(table=table, actions=ACTIONS).save(path)
        return path

    def config(self, **changes: Any) -> RunConfig:
        """Return the configuration of a run."""
        model = {"horizon": HORIZON, "reward_range": list(REWARDS), "max_trajectories_per_unit": 2}
        if self.method == "vapvi":
            # Values by their size: centred ones are so small that no variance is asked for.
            model |= {"features": str(self.features), "centre_values": False}
        values = {
            "method": self.method,
            "data": {"sensitive": DATASET, "unit": "patient", "units": DECLARED},
            "privacy": {"epsilon": 30.0, "delta": 1e-4},  # else all values are the lowest
            "model": model,
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parsed(changed(values, changes), ApviConfig, VapviConfig)

    def secrets(self) -> Secrets:
        """Return what must not be found; no public row excuses a number.

        States and actions are whole numbers that anything holds, so that no row has two telling
        numbers beside each other. Its reward has: the next row's, as they lie in a column, raw and
        as workers scale them.
        """
        rows = raw_rows(self.store, DATASET)
        low, high = REWARDS
        scaled = (self.recorded.rewards.astype(np.float64) - low) / (high - low)
        columns = [below_one_another(one) for one in (self.recorded.rewards, scaled)]
        tables = (rows, *columns)
        return Secrets(
            rows=tables,
            public=tuple(np.zeros((1, table.shape[1]), np.float32) for table in tables),
            figures=figures_of(self.recorded),
            planted=people(self.recorded),
            learned=[scaled],
            weight=1,
            width=WIDTH,
        )
