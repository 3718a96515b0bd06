"""Tiny runs of PrivORL-AR that pre-train on marginals: one number, one choice, no public rows."""

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.privorl.config import PrivorlArConfig
from tests.worlds.overrides import changed, parsed
from tests.worlds.world import World

ROWS = 1200
LOANS = "shelf/loans-v0"
SPACES = {"observation_space": Box(-1.0, 1.0, (1,)), "action_space": Discrete(2)}


BOUNDS = "observation: {low: [-1], high: [1]}\nreward: [-1, 1]\n"


def values(bounds: str = "bounds.yaml", **changes: Any) -> dict[str, Any]:
    """Return a run; ``section__key=value`` changes it."""
    made: dict[str, Any] = {
        "method": "privorl_ar",
        "data": {
            "sensitive": LOANS,
            "unit": "transition",
            "units": ROWS,
            "bounds": bounds,
        },
        "privacy": {"epsilon": 6.0, "delta": 1e-5},
        "model": {"bins": 8, "hidden": [16], "column_frequencies": 1, "reward_levels": []},
        "training": {
            "rounds": 6,
            "expected_batch_size": 64,
            "clip_norm": 0.5,
            "pretraining": {
                "steps": 6,
                "batch_size": 32,
                "from": "marginals",
                "marginals": {
                    "share": 0.6,
                    "rows": 500,
                    "table": {"bins": 4, "draws": 2000},
                    "selection": {"steps": 2, "tables": 2},
                },
            },
        },
        "output": {"dataset": "shelf/private-v0", "size": 100},
        "runtime": {"workers": 1, "executor": "local"},
    }
    return changed(made, changes)


def loan_store(root: Any) -> DatasetStore:
    """Write the loans into a new store."""
    source = np.random.default_rng(5)
    before = source.normal(0.3, 0.15, (ROWS, 1)).clip(-1, 1)
    chosen = (before[:, 0] + source.normal(0, 0.1, ROWS) > 0.3).astype(np.int64)
    after = (before + 0.2 * chosen[:, None] + source.normal(0, 0.05, (ROWS, 1))).clip(-1, 1)
    rows = Transitions(
        observations=before.astype(np.float32),
        actions=chosen,
        rewards=after[:, 0].astype(np.float32),
        next_observations=after.astype(np.float32),
        terminated=after[:, 0] > 0.6,
        truncated=np.zeros(ROWS, bool),
        unit_ids=np.arange(ROWS, dtype=np.uint64),
    )
    store = DatasetStore(root)
    store.write_transitions(LOANS, rows, layout="transitions", metadata={}, **SPACES)
    return store


class Shelf(World):
    """The loans, and runs on them."""

    dataset = LOANS
    allowed: ClassVar[dict[str, Any]] = {"epsilon": 6.0, "delta": 1e-5, "unit": "transition"}

    def __init__(self, folder: Any, master: DatasetStore) -> None:
        super().__init__(folder, master, BOUNDS)

    def config(self, **changes: Any) -> PrivorlArConfig:
        """Return the configuration of a run."""
        return parsed(values(str(self.bounds), **changes), PrivorlArConfig)
