"""A tiny run of PriMORL: fifty swings of a pendulum and models that train in a second."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.accounts import give_budget
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget

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
    for path, value in changes.items():
        *sections, key = path.split("__")
        target = values
        for section in sections:
            target[section] = {**target[section]}
            target = target[section]
        target[key] = value
    return values


class World:
    """A copy of the swings, and a ledger with a budget."""

    def __init__(
        self,
        folder: Path,
        master: DatasetStore,
        *,
        epsilon: float = 20.0,
        unit: str = "trajectory",
    ) -> None:
        shutil.copytree(master.root, folder / "datasets")
        (folder / "bounds.yaml").write_text(BOUNDS)
        self.folder, self.store = folder, DatasetStore(folder / "datasets")
        self.url = f"sqlite:///{folder / 'ledger.sqlite'}"
        self.ledger = Ledger(self.url)
        give_budget(
            self.store,
            self.ledger,
            dataset=DATASET,
            budget=PrivacyBudget(epsilon=epsilon, delta=1e-3, unit=unit),
        )

    def config(self, **changes: Any) -> PrimorlConfig:
        """Return the run's configuration."""
        changes = {"data__bounds": str(self.folder / "bounds.yaml"), **changes}
        parsed = parse_config(config_values(**changes), source="test")
        assert isinstance(parsed, PrimorlConfig)
        return parsed

    def run(
        self,
        name: str = "run",
        *,
        resume: bool = False,
        key: int | None = 7,
        progress: Callable[..., None] = silent,
        **changes: Any,
    ) -> Any:
        """Run it; ``key`` seeds the noise, None draws it as a real run does."""
        return program.run(
            self.config(**changes),
            LocalExecutor(),
            out=self.folder / name,
            ledger_url=self.url,
            store=self.store,
            resume=resume,
            insecure_key=key,
            progress=progress,
        )


def files_outside_private(folder: Path) -> Iterator[str]:
    """Yield what may leave a run's folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "private" not in path.relative_to(folder).parts:
            yield str(path.relative_to(folder))
