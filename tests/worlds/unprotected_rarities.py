"""Swings in which single people stand out, and a run of MOPO, which protects nobody."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.primorl.config import MopoConfig
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts
from distributed_privrl.methods.primorl.start_states import environment_starts
from tests.gates.leak_runs import figures_of, raw_rows
from tests.gates.leak_secrets import Secrets
from tests.worlds.overrides import parsed
from tests.worlds.rarities import FIRST_ID, RARE_REWARD
from tests.worlds.swings import BOUNDS, config_values
from tests.worlds.world import World

DATASET = "rare/swings-v0"
PEOPLE, DECLARED = 61, 50
STARTS = 30
LARGEST = 7.871234893798828
"""The largest speed, in one row."""


def swings(seed: int = 6) -> Trajectories:
    """Return trajectories of 20 to 40 steps within a pendulum's bounds; two of each tenth person's.

    What is learned of them is worth nothing: they follow no law.
    """
    source = np.random.default_rng(seed)
    numbers = np.concatenate([np.arange(PEOPLE), np.arange(0, PEOPLE, 10)])
    lengths = source.integers(20, 41, len(numbers))
    offsets = offsets_of(lengths)
    steps = int(offsets[-1])
    angles = source.uniform(-np.pi, np.pi, steps + len(numbers))
    speeds = source.uniform(-7, 7, len(angles))
    speeds[200] = LARGEST
    rewards = source.uniform(-16, 0, steps).astype(np.float32)
    rewards[400] = RARE_REWARD
    ends = np.zeros(steps, bool)
    ends[offsets[1:] - 1] = True
    return Trajectories(
        observations=np.stack([np.cos(angles), np.sin(angles), speeds], axis=1).astype(np.float32),
        actions=source.uniform(-2, 2, (steps, 1)).astype(np.float32),
        rewards=rewards,
        terminated=np.zeros(steps, bool),
        truncated=ends,
        offsets=offsets,
        unit_ids=(FIRST_ID + 13 * numbers).astype(np.uint64),
    )


class UnprotectedRarities(World):
    """The swings, a ledger, and a place for a run."""

    dataset = DATASET

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, bounds=BOUNDS)
        self.recorded = swings()
        self.store.write_trajectories(
            DATASET,
            self.recorded,
            unit_column="person",
            layout="packed",
            observation_space=Box(np.float32([-1, -1, -8]), np.float32([1, 1, 8])),
            action_space=Box(-2, 2, (1,)),
        )

    def config(self, **changes: Any) -> RunConfig:
        """Return the run's configuration."""
        values = config_values(
            method="mopo",
            data={
                **{"sensitive": DATASET, "unit": "person", "units": DECLARED, "max_length": 100},
                **{"environment": "Pendulum-v1", "bounds": str(self.bounds)},
            },
            privacy__epsilon=None,
            evaluation={"episodes": 1, "horizon": 3},
            training__policy__starts=STARTS,
        )
        return parsed(values | changes, MopoConfig)

    def secrets(self) -> Secrets:
        """Return what must not be found; the public starts of rollouts excuse their numbers."""
        config = self.config()
        assert isinstance(config, MopoConfig)
        facts = EnsembleFacts.of(config.model, config.data, self.store)
        rows = self.store.read_transitions(DATASET, unit="transition")
        tables = (raw_rows(self.store, DATASET), facts.encoder.encode(rows).rows)
        starts = environment_starts(
            str(config.data.environment),
            count=STARTS,
            streams=Streams(config.seed).child("starts"),
        )
        return Secrets(
            rows=tables,
            public=(starts.pool.numpy(),),
            figures=figures_of(self.recorded),
            planted={
                "the largest speed": LARGEST,
                "a rare reward": RARE_REWARD,
                "the first person's id": FIRST_ID,
                "the last person's id": FIRST_ID + 13 * (PEOPLE - 1),
                "the number of people": PEOPLE,
                "the number of swings": len(self.recorded),
                "the number of steps": len(self.recorded.rewards),
            },
        )
