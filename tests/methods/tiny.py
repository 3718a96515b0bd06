"""Tiny runs of PrivORL-n and PrivORL-AR: two small mazes, networks that train in a second."""

from pathlib import Path
from typing import Any

from distributed_privrl.collection.recipes import collect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.methods.privorl.config import PrivorlArConfig, PrivorlNConfig

PUBLIC = "test/medium-v0"
SENSITIVE = "test/umaze-v0"


def config_values(**changes: Any) -> dict[str, Any]:
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
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            values[section] = {**values[section], key: value}
        else:
            values[section] = value
    return values


def config(**changes: Any) -> PrivorlNConfig:
    parsed = parse_config(config_values(**changes), source="test")
    assert isinstance(parsed, PrivorlNConfig)
    return parsed


def ar_values(**changes: Any) -> dict[str, Any]:
    """The same run with the autoregressive model."""
    values = config_values()
    training = values["training"] | {"sampling": {"chunk_rows": 64}}
    model = {"bins": 8, "hidden": [8], "column_frequencies": 1}
    return config_values(
        **({"method": "privorl_ar", "model": model, "training": training} | changes)
    )


def ar_config(**changes: Any) -> PrivorlArConfig:
    parsed = parse_config(ar_values(**changes), source="test")
    assert isinstance(parsed, PrivorlArConfig)
    return parsed


def tiny_store(root: Path) -> DatasetStore:
    """Collect both mazes into a new store."""
    store = DatasetStore(root)
    for recipe, dataset, seed in (("maze2d-umaze", SENSITIVE, 1), ("maze2d-medium", PUBLIC, 2)):
        collect(recipe, dataset=dataset, store=store, steps=3000, seed=seed, options={})
    return store
