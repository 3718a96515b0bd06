"""A ward that is a gridworld, and runs of DP-APVI and DP-VAPVI on its stays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from gymnasium.spaces import Discrete

from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import tabular_problem
from distributed_privrl.environments.tabular import TabularMdp
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.privacy.units import Relation
from tests.worlds.overrides import parsed
from tests.worlds.world import World

GRID, HORIZON, UNITS = "privrl/Gridworld-v0", 20, 400
DATASET = "ward/stays-v0"


def problem() -> TabularMdp:
    found = tabular_problem(GRID)
    assert found is not None
    return found


def values(method: str = "apvi", **changes: Any) -> dict[str, Any]:
    """Return a run on the stays; ``section={key: value}`` changes it."""
    sections: dict[str, dict[str, Any]] = {
        "data": {
            "sensitive": DATASET,
            "unit": "trajectory",
            "units": UNITS,
            "environment": GRID,
        },
        "privacy": {"epsilon": 5.0, "delta": 1e-4},
        "model": {"horizon": HORIZON},
        "training": {},
        "runtime": {"workers": 2, "executor": "local"},
        "evaluation": {},
    }
    if method == "vapvi":
        sections["model"]["features"] = "one_hot"
    for name, section in changes.items():
        sections[name] = {**sections[name], **section}
    return {"method": method, **sections}


def config(method: str = "apvi", **changes: Any) -> Any:
    """Return the run's configuration."""
    return parsed(values(method, **changes), ApviConfig, VapviConfig)


class Grid(World):
    """A dataset of the gridworld, a ledger, and a place for runs."""

    dataset, key = DATASET, 7
    allowed: ClassVar[dict[str, Any]] = {
        **{"epsilon": 50.0, "delta": 1e-3},
        **{"unit": "trajectory", "relation": Relation.REPLACE_ONE},
    }

    def __init__(self, folder: Path, master: DatasetStore | None = None) -> None:
        super().__init__(folder, master)
        if master is None:
            mdp = problem()
            self.store.write_trajectories(
                DATASET,
                sample_trajectories(mdp, trajectories=UNITS, streams=Streams(3)),
                observation_space=Discrete(mdp.states),
                action_space=Discrete(mdp.actions),
                environment=GRID,
                layout="packed",
            )

    def run(self, values: Mapping[str, Any], name: str = "run", **options: Any) -> RunResult:
        """Run what the values say; a ``key`` of 0 is none."""
        key = options.pop("key", self.key) or None
        config = parsed(values, ApviConfig, VapviConfig)
        return self.start(config, name, insecure_key=key, **options)
