"""Tiny runs of PrivORL-n and PrivORL-AR: two small mazes, networks that train in a second."""

from pathlib import Path
from typing import Any

from distributed_privrl.collection.recipes import collect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.config import PrivorlArConfig, PrivorlNConfig
from tests.worlds.overrides import changed, parsed
from tests.worlds.world import World

PUBLIC = "test/medium-v0"
SENSITIVE = "test/umaze-v0"


def config_values(**changes: Any) -> dict[str, Any]:
    """Return a run on the mazes; ``section__key=value`` changes it."""
    values: dict[str, Any] = {
        "method": "privorl_n",
        "data": {
            "sensitive": SENSITIVE,
            "public": [PUBLIC],
            "unit": "transition",
            "units": 3000,
            "environment": "privrl/Maze2D-umaze-v0",
        },
        "privacy": {"epsilon": 5.0, "delta": 1e-5},
        "model": {"width": 16, "depth": 1, "time_width": 8},
        "training": {
            "rounds": 6,
            "expected_batch_size": 64,
            "pretraining": {"steps": 6, "batch_size": 32, "curiosity_sampler_steps": 2},
            "sampling": {"steps": 4, "chunk_rows": 64},
        },
        "output": {"dataset": "test/private-v0", "size": 150},
        "runtime": {"workers": 2, "executor": "local"},
    }
    return changed(values, changes)


def config(**changes: Any) -> PrivorlNConfig:
    """Return the run's configuration."""
    return parsed(config_values(**changes), PrivorlNConfig)


def ar_values(**changes: Any) -> dict[str, Any]:
    """Return the same run with the autoregressive model."""
    values = config_values()
    training = values["training"] | {"sampling": {"chunk_rows": 64}}
    model = {"bins": 8, "hidden": [8], "column_frequencies": 1}
    return config_values(
        **({"method": "privorl_ar", "model": model, "training": training} | changes)
    )


def ar_config(**changes: Any) -> PrivorlArConfig:
    """Return its configuration."""
    return parsed(ar_values(**changes), PrivorlArConfig)


def maze_store(
    root: Path, sensitive: str = SENSITIVE, public: str = PUBLIC, *, declared: bool = False
) -> DatasetStore:
    """Collect both mazes into a new store; ``declared``: the other one is declared public."""
    store = DatasetStore(root)
    for recipe, dataset, seed in (("maze2d-umaze", sensitive, 1), ("maze2d-medium", public, 2)):
        about: dict[str, Any] = {"public": declared and dataset == public, "options": {}}
        collect(recipe, dataset=dataset, store=store, steps=3000, seed=seed, **about)
    return store


class Mazes(World):
    """The mazes, and runs of PrivORL-n on them."""

    dataset = SENSITIVE
    config = staticmethod(config)
