"""What PrivORL's agents earn as they learn, on real rows and on rows released from them.

The paper's figure 9 shows TD3+BC on HalfCheetah and Maze2D-medium at epsilon 10; EDAC is an agent
of its tables I and II. Recordings, releases and settings are those of `utility_maze2d` and
`utility_mujoco`, and so is the work folder; EDAC has TD3+BC's widths and rates, and nothing was
tuned for it. A cell is one agent of one seed: a small JSON file in
``benchmarks/results/utility_curves``, so that cells made on one machine are committed and the
command goes on elsewhere. Cells that were not run are blank in the table.

    python -m benchmarks.utility_curves --agents edac --mazes umaze --work FOLDER --save
    python -m benchmarks.utility_curves --agents td3bc --mazes medium --epsilons 10 --save
    python -m benchmarks.utility_curves --kept --save

Reference: PrivORL, tables I and II, figure 9.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import cells, harness, utility_table
from benchmarks.harness import Result
from benchmarks.utility_cells import Cell as Release
from benchmarks.utility_cells import Scale, Table
from benchmarks.utility_scales import (
    MAZE_TABLES,
    MUJOCO_TABLES,
    PAPER_EDAC_J,
    PAPER_EDAC_N,
)
from distributed_privrl.core.errors import PrivRLError
from distributed_privrl.environments import register
from distributed_privrl.evaluation.intervals import mean_interval
from distributed_privrl.evaluation.plots import learning_curves
from distributed_privrl.evaluation.returns import LearningCurve, Returns, normalised
from distributed_privrl.experiments.trials import learning_curve

NAME = "utility_curves"
FOLDER = harness.RESULTS / NAME
SEEDS = 3
"""Of each agent; the paper has five."""
METHODS = tuple(MAZE_TABLES)
TABLES: Mapping[tuple[str, str], Table] = {
    (method, maze): table
    for tables in (MAZE_TABLES, MUJOCO_TABLES)
    for method, table in tables.items()
    for maze, _ in table.paper
}
"""By method and task."""
TASKS = tuple(dict.fromkeys(maze for _, maze in TABLES))
EDAC: Mapping[str, Mapping[tuple[str, float], float]] = {
    "privorl_n": PAPER_EDAC_N,
    "privorl_j": PAPER_EDAC_J,
}
"""Shares in the paper's tables I and II."""
FIGURE_9 = (("privorl_n", "medium", 10.0), ("privorl_n", "halfcheetah", 10.0))
"""Method, task and epsilon of the paper's curves, of TD3+BC."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell(cells.Cell):
    """One agent.

    Args:
        method: of `utility_maze2d`, see `METHODS`.
        maze: a task of its table.
        variant: ``real`` (recorded rows) or ``ours`` (released ones).
        epsilon: of the release; None: real rows.
        agent: iql, td3bc or edac.
        seed: public seed of the agent.
        scale: of recordings, generators and agents.
    """

    method: str = METHODS[0]
    maze: str
    variant: str
    epsilon: float | None
    agent: str
    seed: int
    scale: str = "cpu"

    @property
    def table(self) -> Table:
        """The utility table that the task belongs to.

        Raises:
            KeyError: the method has none of this task.
        """
        return TABLES[self.method, self.maze]

    @property
    def size(self) -> Scale:
        """The size of everything."""
        return self.table.scales[self.scale]

    @property
    def options(self) -> Mapping[str, Any]:
        """Settings of the agent that differ from its defaults; EDAC's are those of TD3+BC."""
        agents = self.size.agents
        return agents.get(self.agent, agents["td3bc"])

    @property
    def release(self) -> Release:
        """The cell of the utility table whose rows it learns from."""
        return Release(maze=self.maze, variant=self.variant, epsilon=self.epsilon)

    @property
    def line(self) -> tuple[Any, ...]:
        """What its seeds have in common."""
        return (self.method, self.maze, self.variant, self.epsilon, self.agent)

    @property
    def settings(self) -> dict[str, Any]:
        """What a figure depends on."""
        size, private = self.size, self.variant != "real"
        made = {
            "synthetic": size.synthetic,
            "delta": size.delta,
            "generator": size.overrides[self.table.method_of(self.variant)],
        }
        return {
            **dataclasses.asdict(self),
            "rows": size.steps,
            "episode_steps": size.episode_steps,
            "options": dict(self.options),
            "agent_steps": size.agent_steps,
            "episodes": size.episodes,
            **(made if private else {}),
        }


def run_cell(cell: Cell, folder: Path, work: Path) -> dict[str, Any]:
    """Return what is kept of a cell, or train its agent now; a cell of other settings is old.

    Privacy: as `utility_table.run_cell`.
    """
    path = folder / f"{cell.name}.json"
    return cells.kept_of(path, cell.settings, lambda: _trained(cell, work))


def _trained(cell: Cell, work: Path) -> dict[str, Any]:
    store, release = cells.store_of(work), cell.release
    everywhere = sorted((cell.maze, *release.task.public))  # recordings' seeds go by the place
    utility_table.collect_tasks(everywhere, cell.size, store)
    made = utility_table.run_cell(release, cell.table, cell.size, work, releases_only=True)
    clock = time.process_time()
    (trial,) = utility_table.trained(
        release, cell.size, work, agents={cell.agent: cell.options}, seeds=[cell.seed]
    )
    if "failed" in trial:
        raise PrivRLError(f"{cell.name}: the agent failed with {trial['failed']}")
    curve, reference = learning_curve(trial), cell.release.task.reference(store)
    names = ("certified_epsilon", "noise_multiplier", "marginal", "correlation", "release_cpu_s")
    return {
        **dataclasses.asdict(cell),
        "return": normalised(curve.figure(), reference),
        "steps": list(curve.steps),
        "curve": [normalised(returns.mean, reference) for returns in curve.returns],
        **{name: made.get(name) for name in names},
        "agent_cpu_s": round(time.process_time() - clock),
        "made": cells.made_by(),
    }


def shown_lines() -> list[tuple[Any, ...]]:
    """Return the lines of the table, run or not: EDAC of tables I and II, and figure 9."""
    of_edac = [
        (method, maze, epsilon, "edac") for method, paper in EDAC.items() for maze, epsilon in paper
    ]
    wanted = [*of_edac, *((*one, "td3bc") for one in FIGURE_9)]
    lines: dict[tuple[Any, ...], None] = {}
    for method, maze, epsilon, agent in wanted:
        lines[method, maze, "real", None, agent] = None
        lines[method, maze, "ours", epsilon, agent] = None
    return list(lines)


def kept_cells(folder: Path, scale: str) -> list[dict[str, Any]]:
    """Return the cells of a scale that are kept under the settings of the code."""
    names = {one.name for one in dataclasses.fields(Cell)}
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    own = [Cell(**{key: row[key] for key in names}) for row in rows]
    found = (cells.found_of(folder / f"{cell.name}.json", cell.settings) for cell in own)
    return [row for row in found if row is not None and row["scale"] == scale]


def result_of(rows: Sequence[Mapping[str, Any]], scale: str) -> Result:
    """Return the table of kept cells, blank what is not there, and the picture of figure 9."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {one: [] for one in shown_lines()}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        key = tuple(row[name] for name in ("method", "maze", "variant", "epsilon", "agent"))
        groups.setdefault(key, []).append(row)
    lines = [_line(key, group) for key, group in groups.items()]
    curves = {
        f"{maze}, {variant}": [_curve_of(row) for row in group]
        for (method, maze, variant, epsilon, agent), group in groups.items()
        for figure in FIGURE_9
        if group and agent == "td3bc" and (method, maze) == figure[:2]
        if epsilon in (None, figure[2])
    }
    png = learning_curves(curves, ylabel="normalised return", image_format="png") if curves else b""
    return Result(
        cells=lines,
        ratios={},
        facts={"done": sum(map(len, groups.values()))},
        figures={"png": png} if png else {},
        notes=[
            "Normalised returns (0 the random policy, 100 the planner, or a recording's last policy"
            " where there is none), the mean of the last five of ten evaluations; 95 % of the mean"
            " over agent seeds. One generator a release: it says nothing of another's. Ours is the"
            " generator of `utility_maze2d` at the same scale. A blank line was not run.",
            *_sizes(scale),
            "Cells are kept as they end: those of one table may be of several commits, which their"
            f" files in `benchmarks/results/{NAME}` name, with the load of the machine.",
        ],
    )


def _sizes(scale: str) -> Iterator[str]:
    """Yield what a reader must know of each table's size."""
    for table in {one.name: one for one in TABLES.values()}.values():
        if (size := table.scales.get(scale)) is not None:
            yield (
                f"{table.name}: TD3+BC and EDAC {json.dumps(dict(size.agents['td3bc']))},"
                f" {size.agent_steps:,} steps; {size.steps:,} recorded and {size.synthetic:,}"
                " released rows."
            )


def _line(key: tuple[Any, ...], group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    method, maze, variant, epsilon, agent = key
    earned = [row["return"] for row in group]
    interval = mean_interval(earned) if earned else None
    paper = EDAC[method].get((maze, epsilon)) if agent == "edac" else None
    return {
        "method": method,
        "maze": maze,
        "rows": variant,
        "epsilon": epsilon,
        "agent": agent,
        "certified": group[0]["certified_epsilon"] if group else None,
        "noise": group[0]["noise_multiplier"] if group else None,
        "return": float(np.mean(earned)) if earned else None,
        "95 %": None if interval is None else f"{interval:.4g}",
        "seeds": earned,
        "paper, share": paper,
        "agent CPU s": float(np.mean([row["agent_cpu_s"] for row in group])) if group else None,
        "release CPU s": max((row["release_cpu_s"] for row in group), default=None),
        "curve": {
            "steps": group[0]["steps"] if group else [],
            "seeds": [row["curve"] for row in group],
        },
    }


def _curve_of(row: Mapping[str, Any]) -> LearningCurve:
    return LearningCurve(
        steps=tuple(row["steps"]), returns=tuple(Returns((value,)) for value in row["curve"])
    )


def cells_of(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells in the order in which they are worth most: seed after seed."""
    for seed in range(options.seeds):
        for maze in options.mazes:
            for epsilon in (None, *options.epsilons):
                for agent in options.agents:
                    yield Cell(
                        method=options.method,
                        maze=maze,
                        variant="real" if epsilon is None else "ours",
                        epsilon=epsilon,
                        agent=agent,
                        seed=seed,
                        scale=options.scale,
                    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the agents that are missing and print the table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}")
    parser.add_argument("--method", choices=METHODS, default=METHODS[0])
    parser.add_argument("--scale", choices=("cpu", "quick", "paper"), default="cpu")
    parser.add_argument("--mazes", nargs="+", default=["umaze"], choices=TASKS)
    parser.add_argument("--epsilons", nargs="*", type=float, default=[10.0, 1.0])
    parser.add_argument("--agents", nargs="+", default=["edac"], choices=("iql", "td3bc", "edac"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--kept", action="store_true", help="print finished cells, make none")
    parser.add_argument(
        "--work", type=Path, help="kept between commands (default: that of the utility table)"
    )
    parser.add_argument("--cells", type=Path, default=FOLDER, help="folder of finished cells")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    register()
    about = {"scale": options.scale, "seed": harness.SEED, **harness.machine()}
    for maze in options.mazes:
        table = TABLES.get((options.method, maze))
        if table is None or options.scale not in table.scales:
            parser.error(f"{options.method} has no {maze} at the scale {options.scale}")
    for cell in () if options.kept else cells_of(options):
        row = run_cell(cell, options.cells, options.work or Path(cell.table.name))
        print(f"{cell.name}: {json.dumps(row)}", flush=True)
    result = result_of(kept_cells(options.cells, options.scale), options.scale)
    folder = options.out or (harness.RESULTS if options.save else None)
    harness.publish(NAME, result, about, folder=folder)


if __name__ == "__main__":
    main()
