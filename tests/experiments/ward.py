"""A ward whose stays get a budget, and what one might try to get another."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.experiments.accounts import give_budget
from distributed_privrl.experiments.run import run
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from tests.methods.tiny import config

STAYS, STEPS = 400, 5
NAME = "ward/stays-v0"


def stays(seed: int = 1, count: int = STAYS, *, patients: int = 4) -> Trajectories:
    """Stays of ``STEPS`` steps, of patients who take turns."""
    source = np.random.default_rng(seed)
    return Trajectories(
        observations=source.uniform(-1, 1, (count * (STEPS + 1), 4)),
        actions=source.uniform(-1, 1, (count * STEPS, 2)),
        rewards=source.uniform(0, 1, count * STEPS),
        terminated=np.zeros(count * STEPS, bool),
        truncated=np.zeros(count * STEPS, bool),
        offsets=np.arange(count + 1) * STEPS,
        unit_ids=np.arange(count) % patients,
    )


class Ward:
    """Datasets of stays, and a ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = DatasetStore(folder / "datasets")
        self.url = f"sqlite:///{folder / 'ledger.sqlite'}"
        self.ledger = Ledger(self.url)

    def write(self, name: str, rows: Trajectories, **settings: Any) -> None:
        spaces = {"observation_space": Box(-1, 1, (4,)), "action_space": Box(-1, 1, (2,))}
        settings = {"unit_column": "patient", "layout": "packed", **spaces, **settings}
        self.store.write_trajectories(name, rows, **settings)

    def rewrite(self, name: str, rows: Trajectories, **settings: Any) -> None:
        folder = self.store.root / name
        folder.rename(self.folder / f"old-{len(list(self.folder.iterdir()))}")
        self.write(name, rows, **settings)

    def budget(self, name: str, unit: str = "patient", **declared: Any) -> None:
        budget = PrivacyBudget(epsilon=5.0, delta=1e-5, unit=unit)
        give_budget(self.store, self.ledger, dataset=name, budget=budget, **declared)

    def charge(self, name: str, unit: str = "patient") -> None:
        """Spend some of a budget, as a run does."""
        account = next(one for one in self.ledger.accounts() if one.dataset == name)
        self.ledger.release_once(
            nonce=f"run-{name}/count",
            dataset=name,
            fingerprint=f"{account.fingerprint}:{account.partition}",
            unit=unit,
            relation=Relation.REPLACE_WITH_NULL,
            epsilon=0.5,
            delta=0.0,
            event={},
            draw=lambda: 1,
        )

    def run(self, name: str, *, resume: bool = False, unit: str = "patient", **data: Any) -> None:
        about = {"sensitive": name, "public": [], "unit": unit, "units": 400, **data}
        run(
            config(data=about),
            LocalExecutor(),
            out=self.folder / "run",
            ledger_url=self.url,
            store=self.store,
            resume=resume,
        )


def grid(*, states: int, seed: int = 1, count: int = 500) -> dict[str, Any]:
    """Rows of a world with few states, and spaces that declare how many."""
    source = np.random.default_rng(seed)
    rows = Trajectories(
        observations=source.integers(0, 5, count * (STEPS + 1)),
        actions=source.integers(0, 2, count * STEPS),
        rewards=source.uniform(0, 1, count * STEPS),
        terminated=np.zeros(count * STEPS, bool),
        truncated=np.zeros(count * STEPS, bool),
        offsets=np.arange(count + 1) * STEPS,
        unit_ids=np.arange(count),
    )
    spaces = {"observation_space": Discrete(states), "action_space": Discrete(2)}
    return {"rows": rows, **spaces}


def cut_after(rows: Trajectories, ends: NDArray[np.bool_]) -> Trajectories:
    """The same transitions, with further trajectories after these steps."""
    steps = rows.transitions("trajectory")
    last = rows.offsets[1:] - 1
    ends = ends.copy()
    ends[last] = True
    stops = np.flatnonzero(ends) + 1
    lengths = np.diff(stops, prepend=0)
    offsets = offsets_of(lengths)
    where = np.arange(len(steps)) + np.repeat(np.arange(len(lengths)), lengths)
    observations = np.empty((len(steps) + len(lengths), 4), np.float32)
    observations[where] = steps.observations
    observations[offsets[1:] + np.arange(len(lengths))] = steps.next_observations[stops - 1]
    return Trajectories(
        observations=observations,
        actions=steps.actions,
        rewards=steps.rewards,
        terminated=steps.terminated,
        truncated=steps.truncated,
        offsets=offsets,
        unit_ids=steps.unit_ids[offsets[:-1]],
    )
