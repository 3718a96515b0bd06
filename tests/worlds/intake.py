"""A table of admissions, of patients with a few each, and tiny runs of marginals on it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.registry import parse_config
from tests.worlds.overrides import changed
from tests.worlds.world import World

DATASET, RELEASED = "intake/admissions-v0", "intake/private-v0"
PATIENTS, ROWS = 300, 613
SPACES: dict[str, Any] = {
    "observation_space": Box(0, 10, (2,)),
    "action_space": Discrete(3, start=1),
}
BOUNDS = """
observation: {low: [0, 0], high: [10, 4], step: [0, 1]}
reward: [0, 1]
"""
WIDE_BOUNDS = "observation: {low: [0, 0], high: [10, 5]}\nreward: [0, 1]\n"
"""Those of `telling` rows."""
FIRST_UNIT = 80_417_000_001
"""Of patients whose numbers are met by chance nowhere."""
FIRST_STORED = 93_517_000_001
"""Likewise, of those in `telling_store`: a test that leaks the others may come before."""


def admissions(count: int = ROWS, seed: int = 1, *, patients: int = PATIENTS) -> Transitions:
    """Return admissions of patients who have few of them, or many; numbers go together."""
    source = np.random.default_rng(seed)
    severity = source.gamma(2.0, 1.0, count)
    wards = np.minimum(severity.astype(np.int64), 4)
    actions = 1 + (severity > 1.5) + (severity > 3)
    observations = np.stack([np.minimum(severity, 10), wards], axis=1)
    after = np.stack([np.minimum(0.8 * severity, 10), np.maximum(wards - 1, 0)], axis=1)
    units = np.minimum(source.geometric(1.5 / patients, count) - 1, patients - 1)
    return Transitions(
        observations=observations,
        actions=actions,
        rewards=(actions == 1 + wards // 2).astype(np.float32),
        next_observations=after,
        terminated=severity > 4,
        truncated=np.zeros(count, bool),
        unit_ids=units,
    )


def public_admissions(count: int) -> Transitions:
    """Return admissions of patients of another hospital."""
    rows = admissions(count, seed=9)
    return replace(rows, unit_ids=rows.unit_ids + np.uint64(10**6))


def telling(rows: Transitions, first: int) -> Transitions:
    """Return admissions whose numbers and patients are met by chance nowhere."""
    source = np.random.default_rng(first)
    parts = source.uniform(0.1, 0.9, (2, len(rows.rewards)))
    after = np.asarray(rows.next_observations)
    return replace(
        rows,
        observations=rows.observations + np.stack([0 * parts[0], parts[0]], axis=1),
        next_observations=after + np.stack([0 * parts[1], parts[1]], axis=1),
        unit_ids=np.asarray(rows.unit_ids, np.uint64) + np.uint64(first),
    )


def admission_store(root: Path) -> DatasetStore:
    """Write the admissions into a new store."""
    store = DatasetStore(root)
    write(store, DATASET, admissions())
    return store


def telling_store(root: Path) -> DatasetStore:
    """Write the admissions into a new store, with `telling` numbers."""
    store = DatasetStore(root)
    write(store, DATASET, telling(admissions(), FIRST_STORED))
    return store


def write(store: DatasetStore, dataset: str, rows: Transitions, **settings: Any) -> None:
    """Write admissions."""
    about = {"layout": "transitions", "unit_column": "patient", **SPACES}
    store.write_transitions(dataset, rows, **(about | settings))


_DRAWN = {"chunk_rows": 150}
SETTINGS: dict[str, dict[str, Any]] = {
    "marginals": {
        "model": {"bins": 6, "cells": 200, "draws": 500, "rows_per_unit": 2},
        "training": {"steps": 2, "tables": 3, "sampling": _DRAWN},
    },
    "pgm": {
        "model": {"bins": 4, "cells": 200, "draws": 500, "rows_per_unit": 2, "model_cells": 2000},
        "training": {"pairs": 4, "triples": 1, "sampling": _DRAWN},
    },
    "privsyn": {
        "model": {"bins": 6, "cells": 200, "rows_per_unit": 2},
        "training": {"sampling": _DRAWN | {"rows": 600, "iterations": 5}},
    },
}
"""What tiny runs of each method are told."""


def config_values(bounds: Path, method: str = "marginals", **changes: Any) -> dict[str, Any]:
    """Return a run on the admissions; ``section__key=value`` changes it."""
    values: dict[str, Any] = {
        "method": method,
        "data": {
            "sensitive": DATASET,
            "unit": "patient",
            "units": PATIENTS,
            "bounds": str(bounds),
        },
        "privacy": {"epsilon": 4.0, "delta": 1e-4},
        "output": {"dataset": RELEASED, "size": 250},
        "runtime": {"workers": 2, "executor": "local"},
        **SETTINGS[method],
    }
    return changed(values, changes)


class Intake(World):
    """The admissions, a ledger, and a place for runs.

    Args:
        folder: that holds all of it.
        master: see `World`.
        method: that runs.
    """

    dataset, key = DATASET, 7
    allowed: ClassVar[dict[str, Any]] = {"epsilon": 50.0, "delta": 3e-4, "unit": "patient"}

    def __init__(
        self, folder: Path, master: DatasetStore | None = None, method: str = "marginals"
    ) -> None:
        super().__init__(folder, master, BOUNDS)
        self.method = method
        if master is None:
            admission_store(self.store.root)

    def config(self, **changes: Any) -> RunConfig:
        values = config_values(self.bounds, self.method, **changes)
        return parse_config(values, source="the admissions' configuration")
