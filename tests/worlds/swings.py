"""A tiny run of PriMORL: fifty swings of a pendulum and models that train in a second."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed_privrl.collection.recipes import collect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.primorl.config import PrimorlConfig
from tests.worlds.overrides import changed, parsed
from tests.worlds.world import World

DATASET, UNITS = "pendulum/mixed-v0", 50
BOUNDS = """
observation: {low: [-1, -1, -8], high: [1, 1, 8]}
action: {low: [-2], high: [2]}
reward: [-16.2736044, 0]
"""


def swing_store(root: Path) -> DatasetStore:
    """Collect the swings into a new store, with their public bounds beside it."""
    store = DatasetStore(root)
    collect("pendulum-mixed", dataset=DATASET, store=store, steps=200 * UNITS, seed=1, options={})
    return store


def config_values(**changes: Any) -> dict[str, Any]:
    """Return a run on the swings; ``section__key=value`` changes it."""
    values: dict[str, Any] = {
        "method": "primorl",
        "data": {
            "sensitive": DATASET,
            "unit": "trajectory",
            "units": UNITS,
            "max_length": 200,
            "environment": "Pendulum-v1",
        },
        "privacy": {"epsilon": 5.0, "delta": 1e-3},
        "model": {"members": 2, "hidden": [16]},
        "training": {
            "rounds": 6,
            "expected_batch_size": 15,
            "policy": {
                "steps": 60,
                "hidden": [16, 16],
                "batch_size": 64,
                "rollouts": 200,
                "starts": 30,
            },
        },
        "evaluation": {"episodes": 0},
        "runtime": {"workers": 2, "executor": "local", "checkpoint_steps": 20},
    }
    return changed(values, changes)


class Swings(World):
    """A copy of the swings, and a ledger with a budget."""

    dataset, key = DATASET, 7

    def __init__(
        self, folder: Path, master: DatasetStore, *, epsilon: float = 20.0, unit: str = "trajectory"
    ) -> None:
        super().__init__(folder, master, BOUNDS)
        self.budget(epsilon=epsilon, delta=1e-3, unit=unit)

    def config(self, **changes: Any) -> PrimorlConfig:
        """Return the run's configuration."""
        values = config_values(**{"data__bounds": str(self.bounds), **changes})
        return parsed(values, PrimorlConfig)


def files_outside_private(folder: Path) -> Iterator[str]:
    """Yield what may leave a run's folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "private" not in path.relative_to(folder).parts:
            yield str(path.relative_to(folder))
