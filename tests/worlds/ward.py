"""A ward whose stays get a budget, and what one might try to get another."""

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from tests.worlds.ledgers import release
from tests.worlds.mazes import config
from tests.worlds.world import World

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


class Ward(World):
    """Datasets of stays, and a ledger."""

    allowed: ClassVar[dict[str, Any]] = {"epsilon": 5.0, "delta": 1e-5, "unit": "patient"}

    def write(self, name: str, rows: Trajectories, **settings: Any) -> None:
        spaces = {"observation_space": Box(-1, 1, (4,)), "action_space": Box(-1, 1, (2,))}
        settings = {"unit_column": "patient", "layout": "packed", **spaces, **settings}
        self.store.write_trajectories(name, rows, **settings)

    def rewrite(self, name: str, rows: Trajectories, **settings: Any) -> None:
        folder = self.store.root / name
        folder.rename(self.folder / f"old-{len(list(self.folder.iterdir()))}")
        self.write(name, rows, **settings)

    def charge(self, name: str, unit: str = "patient") -> None:
        """Spend some of a budget, as a run does."""
        account = next(one for one in self.ledger.accounts() if one.dataset == name)
        fingerprint = f"{account.fingerprint}:{account.partition}"
        about = {"dataset": name, "fingerprint": fingerprint, "unit": unit, "event": {}}
        release(self.ledger, f"run-{name}/count", lambda: 1, **about, epsilon=0.5)

    def config(self, **data: Any) -> RunConfig:
        """Return a run on a dataset of the ward; keywords are its ``data``."""
        about = {"sensitive": NAME, "public": [], "unit": "patient", "units": 400}
        return config(data={**about, **data})


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
