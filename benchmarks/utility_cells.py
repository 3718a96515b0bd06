"""The cells of a utility table: mazes and budgets, the size of everything, a cell's run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import cells
from benchmarks.utility_tasks import TASKS, Task
from distributed_privrl.core.config import with_overrides


@dataclass(frozen=True, kw_only=True)
class Cell(cells.Cell):
    """One run and its agents.

    Args:
        maze: the sensitive one, or another task of `TASKS`.
        variant: ``real`` (agents on recorded rows), ``ours``, or another of the table's.
        epsilon: None without privacy.
    """

    maze: str
    variant: str
    epsilon: float | None

    @property
    def name(self) -> str:
        """Name of the cell's files."""
        return self.row.replace(" ", "_")

    @property
    def public(self) -> tuple[str, ...]:
        """The tasks whose rows are public."""
        return () if self.variant == "real" else self.task.public

    @property
    def task(self) -> Task:
        """The sensitive rows."""
        return TASKS[self.maze]

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
        overrides: of the run's configuration, by method.
        episode_steps: of a recorded trajectory; None: the maze's time limit.
        agents: settings of each trainer that differ from its defaults.
        agent_steps: gradient steps an agent.
        episodes: episodes of an evaluation.
        seeds: agents a trainer.
    """

    steps: int
    synthetic: int
    delta: float
    overrides: Mapping[str, Mapping[str, Any]]
    agents: Mapping[str, Mapping[str, Any]]
    agent_steps: int
    episodes: int
    episode_steps: int | None = None
    seeds: int = 3
    changes: Sequence[str] = field(default=())

    def with_overrides(self, changes: Sequence[str]) -> "Scale":
        """Return the scale with ``section.key=value`` changes to every run's configuration."""
        return replace(self, changes=tuple(changes))


@dataclass(frozen=True, kw_only=True)
class Table:
    """What the command makes of a method.

    Args:
        name: of its results.
        method: of the rows called ``ours``.
        scales: by name.
        variants: changes of each other row.
        paper: share that IQL reaches in the paper, by maze and epsilon.
        mazes: unless others are asked for.
        epsilons: likewise.
        rows: variants that are made unless others are asked for.
        rows_epsilon: their epsilon, likewise.
    """

    name: str
    method: str
    scales: Mapping[str, Scale]
    variants: Mapping[str, Mapping[str, Any]]
    paper: Mapping[tuple[str, float | None], float]
    mazes: Sequence[str]
    epsilons: Sequence[str]
    rows: Sequence[str] = ()
    rows_epsilon: str = "1"

    def method_of(self, variant: str) -> str:
        """Return the method of a row."""
        return str(self.variants.get(variant, {}).get("method", self.method))

    def unit_of(self, variant: str) -> str:
        """Return what a row protects."""
        by_row = self.method_of(variant) in ("privorl_n", "privorl_ar")
        return "transition" if by_row else "trajectory"


def run_config(cell: Cell, table: Table, scale: Scale, *, keep: Path) -> dict[str, Any]:
    """Return the configuration of a cell's run.

    Args:
        cell: which.
        table: of the method.
        scale: of everything.
        keep: folder of finished pre-trainings, which cells of a maze share.
    """
    method, unit = table.method_of(cell.variant), table.unit_of(cell.variant)
    episodes = unit == "trajectory"
    length = scale.episode_steps if episodes else None
    values: dict[str, Any] = {
        "method": method,
        "seed": 0,
        "data": {
            "sensitive": cell.task.dataset,
            "public": [TASKS[name].dataset for name in cell.public],
            "unit": unit,
            "units": scale.steps // (length or 1),
            "environment": cell.task.environment,
            **({"max_length": length} if episodes else {}),
        },
        "privacy": {"epsilon": cell.epsilon, "delta": scale.delta},
        "output": {"dataset": cell.output, "size": scale.synthetic // (length or 1)},
        "evaluation": {"trainers": []},
    }
    for part in (scale.overrides[method], table.variants.get(cell.variant, {})):
        values = merged(values, part)
    if cell.epsilon is None and values["training"].get("sampling", {}).get("support"):
        values = merged(values, {"training": {"sampling": {"support": None}}})  # it is charged
    values = merged(values, {"runtime": {"pretrained": str(keep.absolute())}})
    return with_overrides(values, scale.changes)


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with changes to some keys of its sections."""
    result = dict(values)
    for key, change in changes.items():
        mine = result.get(key)
        result[key] = (
            merged(mine, change)
            if isinstance(mine, Mapping) and isinstance(change, Mapping)
            else change
        )
    return result
