"""Tiny sweeps over DP-APVI on the gridworld, whose trials take a second."""

from pathlib import Path
from typing import Any

import yaml
from gymnasium.spaces import Discrete

from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import PUBLIC_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.sweeps.config import Sweep, load_sweep
from tests.worlds import grid
from tests.worlds.overrides import changed

STAND_IN = "ward/public-stays-v0"
COMPOSE: dict[str, Any] = {"pays": "compose", "score": {"by": "policy"}}
PUBLIC: dict[str, Any] = {"pays": "public", "score": {"by": "policy"}, "stand_in": STAND_IN}


def values(selection: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a sweep's file: two epsilons and two horizons; ``section__key=value`` changes it."""
    return changed(
        {
            **grid.values(runtime={"workers": 1}, evaluation={"episodes": 2}),
            "search": {"privacy.epsilon": {"grid": [1, 2]}, "model.horizon": {"grid": [10, 20]}},
            "selection": selection,
        },
        changes,
    )


def write(folder: Path, selection: dict[str, Any], **changes: Any) -> Path:
    """Write the file of a sweep into a folder, and return its path."""
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(values(selection, **changes)))
    return path


def sweep(folder: Path, selection: dict[str, Any], **changes: Any) -> Sweep:
    """Return the sweep."""
    return load_sweep(write(folder, selection, **changes))


def write_stand_in(store: DatasetStore, *, public: bool = True, dataset: str = STAND_IN) -> None:
    """Write stays that nobody had into a store."""
    mdp = grid.problem()
    store.write_trajectories(
        dataset,
        sample_trajectories(mdp, trajectories=grid.UNITS, streams=Streams(5)),
        observation_space=Discrete(mdp.states),
        action_space=Discrete(mdp.actions),
        environment=grid.GRID,
        layout="packed",
        metadata={PUBLIC_KEY: True} if public else None,
    )
