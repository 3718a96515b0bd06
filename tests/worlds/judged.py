"""Stays in a gridworld, other stays that were released, and the value of an agent."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.policy_value.config import PolicyValueConfig
from distributed_privrl.privacy.units import Relation
from tests.worlds.certified import certify
from tests.worlds.grid import problem
from tests.worlds.overrides import changed, parsed
from tests.worlds.world import World

REAL, MADE = "ward/stays-v0", "made/stays-v0"
PATIENTS, STAYS, HORIZON = 60, 3, 20
RETURNS = (0.0, 1.0)


def stays(seed: int, patients: int = PATIENTS) -> Trajectories:
    """Return stays of patients who take turns, ``STAYS`` each."""
    drawn = sample_trajectories(problem(), trajectories=patients * STAYS, streams=Streams(seed))
    found = Trajectories.concatenate(list(drawn))
    return replace(found, unit_ids=(np.arange(len(found)) % patients).astype(np.uint64))


class Judged(World):
    """Real stays with a budget, and released ones."""

    dataset, key = REAL, 7
    allowed: ClassVar[dict[str, Any]] = {
        **{"epsilon": 50.0, "delta": 1e-3},
        **{"unit": "patient", "relation": Relation.REPLACE_ONE},
    }

    def __init__(self, folder: Path, master: DatasetStore | None = None) -> None:
        super().__init__(folder, master)
        if master is None:
            self.write(REAL, stays(3))
            self.write(MADE, stays(4))
            certify(self.store, MADE)

    def write(self, name: str, rows: Trajectories) -> None:
        """Write stays."""
        mdp = problem()
        self.store.write_trajectories(
            name,
            rows,
            observation_space=Discrete(mdp.states),
            action_space=Discrete(mdp.actions),
            unit_column="patient",
            layout="packed",
        )

    def config(self, **changes: Any) -> PolicyValueConfig:
        """Return a run; ``section__key=value`` changes it."""
        values = {
            "method": "policy_value",
            "data": {"sensitive": REAL, "unit": "patient", "units": PATIENTS},
            "privacy": {"epsilon": 2.0},
            "model": {"release": MADE, "returns": list(RETURNS), "horizon": HORIZON},
            "training": {"trainer": "bc", "steps": 40},
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parsed(changed(values, changes), PolicyValueConfig)


class Measured(Judged):
    """The same for patients of whom two numbers are measured, and who may be given a drug."""

    steps = 4

    @classmethod
    def stays(cls, seed: int) -> Trajectories:
        """Return stays of patients who take turns."""
        source, count = np.random.default_rng(seed), PATIENTS * STAYS
        rows = count * cls.steps
        return Trajectories(
            observations=source.uniform(0, 1, (rows + count, 2)).astype(np.float32),
            actions=source.integers(0, 2, rows),
            rewards=(source.random(rows) < 0.2).astype(np.float32),
            terminated=np.tile(np.arange(cls.steps) == cls.steps - 1, count),
            truncated=np.zeros(rows, np.bool_),
            offsets=np.arange(count + 1) * cls.steps,
            unit_ids=(np.arange(count) % PATIENTS).astype(np.uint64),
        )

    def __init__(self, folder: Path, real: Trajectories) -> None:
        World.__init__(self, folder)
        self.write(REAL, real)
        self.write(MADE, self.stays(4))
        certify(self.store, MADE)

    def write(self, name: str, rows: Trajectories) -> None:
        """Write stays."""
        self.store.write_trajectories(
            name,
            rows,
            observation_space=Box(0, 1, (2,)),
            action_space=Discrete(2),
            unit_column="patient",
            layout="packed",
        )
