"""The cells of the utility table: mazes, budgets, ablations, and the settings of each scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import with_overrides
from distributed_privrl.environments import environment_id

TABLE_MAZES = ("umaze", "medium", "large")
FAMILIES = (TABLE_MAZES, ("eval-umaze", "eval-medium", "eval-large"))

PAPER: Mapping[tuple[str, float | None], float] = {
    ("umaze", 10.0): 0.99,
    ("umaze", 1.0): 0.85,
    ("medium", 10.0): 0.97,
    ("medium", 1.0): 0.79,
    ("large", 10.0): 0.94,
    ("large", 1.0): 0.59,
}
"""Share of the real-data return that IQL reaches in paper 000, tables III and VIII."""

ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "no pre-training": {"training": {"pretraining": {"steps": 0}}},
    "no curiosity": {"training": {"pretraining": {"curiosity_rate": 0.0}}},
    "curiosity": {"training": {"pretraining": {"curiosity_rate": 0.3}}},
    "curiosity in fine-tuning": {"training": {"curiosity_rate": 0.3}},
    "pre-training only": {"training": {"rounds": 1}},
    "rdp": {"privacy": {"accountant": "rdp"}},
    "no frequencies": {"model": {"column_frequencies": 0}},
    "plain coding": {"model": {"reward_levels": [], "action_margin": 0.0}},
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run and its agents.

    Args:
        maze: the sensitive one.
        variant: ``real`` (agents on recorded rows), ``ours``, or an ablation.
        epsilon: None without privacy.
    """

    maze: str
    variant: str
    epsilon: float | None

    @property
    def name(self) -> str:
        """Name of the cell's files."""
        budget = "none" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.maze}-{self.variant.replace(' ', '_')}-{budget}"

    @property
    def public(self) -> tuple[str, ...]:
        """The public mazes: the others of the family."""
        if self.variant == "real":
            return ()
        family = next(family for family in FAMILIES if self.maze in family)
        return tuple(maze for maze in family if maze != self.maze)

    @property
    def output(self) -> str:
        """Id of the synthetic dataset."""
        return f"synthetic/{self.name.replace('.', '_')}-v0"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is.

    Args:
        steps: transitions a maze.
        synthetic: synthetic rows.
        delta: of every budget.
        overrides: of the run's configuration.
        agents: settings of each trainer that differ from its defaults.
        agent_steps: gradient steps an agent.
        episodes: episodes of an evaluation.
        seeds: agents a trainer.
    """

    steps: int
    synthetic: int
    delta: float
    overrides: Mapping[str, Any]
    agents: Mapping[str, Mapping[str, Any]]
    agent_steps: int
    episodes: int
    seeds: int = 3
    changes: Sequence[str] = field(default=())

    def with_overrides(self, changes: Sequence[str]) -> "Scale":
        """Return the scale with ``section.key=value`` changes to every run's configuration."""
        return replace(self, changes=tuple(changes))


_FAST_IQL = {
    "hidden": [128, 128],
    "learning_rate": 3e-4,
    "polyak": 0.05,
    "discount": 0.98,
    "beta": 10.0,
    "expectile": 0.9,
}
_FAST_TD3BC = {"hidden": [128, 128], "learning_rate": 1e-3, "polyak": 0.05, "discount": 0.97}

CPU = Scale(
    steps=1_000_000,
    synthetic=200_000,
    delta=1e-7,
    overrides={
        "model": {"width": 256, "depth": 5, "column_frequencies": 4},
        "training": {
            "rounds": 2000,
            "expected_batch_size": 4096,
            "clip_norm": 1.0,
            "block_rounds": 50,
            "spare": 50,
            "optimiser": {"learning_rate": 1e-3, "schedule": "cosine"},
            "pretraining": {"steps": 5000, "batch_size": 1024, "curiosity_rate": 0.0},
            "sampling": {"steps": 32, "churn": 0.0},
        },
    },
    agents={"iql": _FAST_IQL, "td3bc": _FAST_TD3BC},
    agent_steps=10_000,
    episodes=20,
)
QUICK = replace(
    CPU,
    steps=4000,
    synthetic=2000,
    delta=1e-5,
    overrides={
        "model": {"width": 32, "depth": 1},
        "training": {
            "rounds": 20,
            "expected_batch_size": 256,
            "pretraining": {"steps": 20, "batch_size": 64, "curiosity_rate": 0.0},
            "sampling": {"steps": 4, "churn": 0.0},
        },
    },
    agent_steps=20,
    episodes=2,
    seeds=2,
)
PAPER_SCALE = replace(
    CPU,
    synthetic=1_000_000,
    overrides={
        "model": {"width": 1024, "depth": 6},
        "training": {
            "rounds": 10_000,
            "expected_batch_size": 4096,
            "optimiser": {"learning_rate": 3e-4},
            "pretraining": {"steps": 50_000, "curiosity_rate": 0.3},
            "sampling": {"steps": 128},
        },
        "runtime": {"gpus_per_worker": 1},
    },
    agents={"iql": {}, "td3bc": {}},
    agent_steps=500_000,
    episodes=100,
    seeds=5,
)
SCALES: Mapping[str, Scale] = {"cpu": CPU, "quick": QUICK, "paper": PAPER_SCALE}


def run_config(cell: Cell, scale: Scale, *, keep: Path) -> dict[str, Any]:
    """Return the configuration of a cell's run.

    Args:
        cell: which.
        scale: of everything.
        keep: folder of finished pre-trainings, which cells of a maze share.
    """
    values: dict[str, Any] = {
        "method": "privorl_n",
        "seed": 0,
        "data": {
            "sensitive": f"maze/{cell.maze}-v0",
            "public": [f"maze/{maze}-v0" for maze in cell.public],
            "unit": "transition",
            "units": scale.steps,
            "environment": environment_id(cell.maze, dense=False),
        },
        "privacy": {"epsilon": cell.epsilon, "delta": scale.delta},
        "output": {"dataset": cell.output, "size": scale.synthetic},
        "evaluation": {"trainers": []},
    }
    for part in (scale.overrides, ABLATIONS.get(cell.variant, {})):
        values = _merged(values, part)
    values = _merged(values, {"training": {"pretraining": {"keep": str(keep.absolute())}}})
    return with_overrides(values, scale.changes)


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, change in changes.items():
        mine = merged.get(key)
        merged[key] = (
            _merged(mine, change)
            if isinstance(mine, Mapping) and isinstance(change, Mapping)
            else change
        )
    return merged
