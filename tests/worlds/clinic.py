"""A clinic whose stays are split in two, beside a public dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.splitting import split
from distributed_privrl.data.trajectories import Transitions
from tests.worlds.mazes import config
from tests.worlds.world import World

ROWS, SIZES = 40, {"observation_space": 4, "action_space": 2}
STAYS, PUBLIC = "clinic/stays-v0", "clinic/public-v0"
SIDES = ("clinic/stays-training-v0", "clinic/stays-held-out-v0")


class Clinic(World):
    """Stays, split in two, a public dataset, and a ledger."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.make(STAYS, seed=1)
        self.make(PUBLIC, seed=2, metadata={"declared_public": True})
        split(self.store, STAYS, held_out_share=0.5, seed=0)

    def make(self, dataset: str, *, seed: int, **settings: Any) -> None:
        """Write stays that a seed makes."""
        source = np.random.default_rng(seed)
        rows = Transitions(
            observations=source.uniform(-1, 1, (ROWS, 4)),
            actions=source.uniform(-1, 1, (ROWS, 2)),
            rewards=source.uniform(0, 1, ROWS),
            next_observations=source.uniform(-1, 1, (ROWS, 4)),
            terminated=np.zeros(ROWS, bool),
            truncated=np.zeros(ROWS, bool),
            unit_ids=np.arange(ROWS) // 2,
        )
        self.write(dataset, rows, **settings)

    def write(self, dataset: str, rows: Transitions, limit: float = 1, **settings: Any) -> None:
        spaces = {name: Box(-limit, limit, (size,)) for name, size in SIZES.items()}
        self.store.write_transitions(dataset, rows, layout="transitions", **spaces, **settings)

    def config(self, sensitive: str, public: Sequence[str] = (), **changes: Any) -> RunConfig:
        about = {
            "sensitive": sensitive,
            "public": list(public),
            "unit": "transition",
            "units": ROWS,
        }
        return config(data=about, **changes)
