"""The cells of a utility table: releases of the product, and agents trained on them.

Every cell is a run of the product (ledger, certificate, release) and the agents trained on what it
released. Cells are kept as they end; the same command goes on where it stopped.
"""

import argparse
import dataclasses
import functools
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import cells, harness
from benchmarks.utility_cells import Cell, Scale, Table, run_config
from benchmarks.utility_rows import release_figures, result_of
from benchmarks.utility_scales import HORIZONS
from benchmarks.utility_tasks import TASKS
from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.returns import normalised
from distributed_privrl.experiments.trials import (
    TrialSpec,
    content_of,
    learning_curve,
    run_trials,
)


def collect_tasks(names: Sequence[str], scale: Scale, store: DatasetStore) -> None:
    """Record each task's rows, unless they are there; seeds go by the place among ``names``."""
    short: dict[str, Any] = {}
    if scale.episode_steps is not None:
        short = {"episode_steps": scale.episode_steps, "layout": "packed"}
    for index, task in enumerate(TASKS[name] for name in names):
        if task.dataset not in store.ids():
            collect(
                task.recipe,
                dataset=task.dataset,
                store=store,
                steps=scale.steps,
                seed=100 + index,
                options={**task.options, **short},
            )


def run_cell(
    cell: Cell, table: Table, scale: Scale, work: Path, *, releases_only: bool = False
) -> dict[str, Any]:
    """Release a dataset (or take the real one), train the agents, and return the cell.

    Args:
        cell: which.
        table: of the method.
        scale: of everything.
        work: folder of datasets, runs, ledgers and finished cells.
        releases_only: stop before the agents; the cell is not kept, the release is.

    Privacy: the unit is the method's (`Table.unit_of`); the ledger lies in ``work``; datasets are
    simulated, so that the comparison with the real rows may be shown.
    """
    path, own = cells.file_of(cell, work), (cell, table, scale, work)
    if releases_only and not path.exists():
        return {**_released(*own), **{trainer: [] for trainer in scale.agents}, "agents_cpu_s": 0}
    return cells.kept(path, lambda: _with_agents(*own))


def _with_agents(cell: Cell, table: Table, scale: Scale, work: Path) -> dict[str, Any]:
    row = _released(cell, table, scale, work)
    clock = time.process_time()
    scores = _agents(cell, scale, work)
    return {**row, **scores, "agents_cpu_s": round(time.process_time() - clock)}


def _released(cell: Cell, table: Table, scale: Scale, work: Path) -> dict[str, Any]:
    """Return what a row says of its release, which is made unless it is kept."""
    row: dict[str, Any] = {**dataclasses.asdict(cell), "cell": cell.name, "release_cpu_s": 0}
    if cell.variant == "real":
        return row
    kept = work / "releases" / f"{cell.name}.json"
    found = cells.kept(kept, lambda: _release(cell, table, scale, work))
    return {**row, "unit": table.unit_of(cell.variant), **found}


def _release(cell: Cell, table: Table, scale: Scale, work: Path) -> dict[str, Any]:
    values = run_config(cell, table, scale, keep=work / "pretraining")
    run = cells.run_product(cell, values, work)
    return {
        "delta": run.config.privacy.delta,
        **run.cost,
        "release_cpu_s": run.cpu_s,
        **release_figures(
            cells.store_of(work),
            real=cell.task.dataset,
            synthetic=cell.output,
            public=TASKS[cell.public[0]].dataset,
            maze=cell.task.maze,
        ),
    }


def trained(
    cell: Cell,
    scale: Scale,
    work: Path,
    *,
    agents: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
) -> list[dict[str, Any]]:
    """Return the trials of agents on a cell's rows, as `run_trials`; those that are kept stay.

    Args:
        cell: whose rows are there.
        scale: of everything.
        work: folder of datasets and agents.
        agents: settings of each trainer that differ from its defaults.
        seeds: of each.
    """
    store, dataset = cells.store_of(work), _rows_of(cell)
    content = content_of(store, dataset)
    specs = [
        TrialSpec(
            root=str(store.root.absolute()),
            dataset=dataset,
            content=content,
            environment=cell.task.environment,
            trainer=trainer,
            seed=seed,
            steps=scale.agent_steps,
            episodes=scale.episodes,
            options=options,
        )
        for trainer, options in agents.items()
        for seed in seeds
    ]
    return run_trials(
        specs,
        LocalExecutor(),
        parallel=1,
        progress=silent,
        kept=work / "agents" / cell.name,
    )


def _rows_of(cell: Cell) -> str:
    return cell.task.dataset if cell.variant == "real" else cell.output


def _agents(cell: Cell, scale: Scale, work: Path) -> dict[str, list[float]]:
    """Return the normalised figure of each seed of each trainer."""
    trials = trained(cell, scale, work, agents=scale.agents, seeds=range(scale.seeds))
    reference = cell.task.reference(cells.store_of(work))
    return {
        trainer: [
            normalised(learning_curve(trial).figure(), reference)
            for trial in trials
            if trial["trainer"] == trainer and "failed" not in trial
        ]
        for trainer in scale.agents
    }


def cells_of(options: argparse.Namespace, table: Table) -> Iterator[Cell]:
    """Yield the cells in the order in which they are worth most."""
    mazes = options.mazes or table.mazes
    if not options.no_real:
        yield from (Cell(maze=maze, variant="real", epsilon=None) for maze in mazes)
    for text in table.epsilons if options.epsilons is None else options.epsilons:
        for maze in mazes:
            yield Cell(maze=maze, variant="ours", epsilon=_epsilon(text))
    rows = table.rows if options.ablations is None else options.ablations
    for variant in [*rows, *(f"horizon {horizon}" for horizon in options.horizons)]:
        if variant not in table.variants:
            known = ", ".join(table.variants)
            raise SystemExit(f"{variant!r} is no row of this table: choose from {known}")
        for maze in options.ablation_mazes or mazes[:1]:
            for text in options.ablation_epsilons or [table.rows_epsilon]:
                yield Cell(maze=maze, variant=variant, epsilon=_epsilon(text))


def _epsilon(text: str) -> float | None:
    return None if text == "none" else float(text)


def run(command: str, tables: Mapping[str, Table], arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table.

    Args:
        command: module that was called.
        tables: by the ``--method`` that asks for them; the first is the default.
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {command}")
    parser.add_argument("--method", choices=tuple(tables), default=next(iter(tables)))
    parser.add_argument("--scale", default="cpu", help="cpu, quick, or paper (privorl_n)")
    parser.add_argument("--mazes", nargs="+", help="sensitive data; default: those of the table")
    parser.add_argument("--epsilons", nargs="*", help="default: those of the table")
    parser.add_argument("--ablations", nargs="*", metavar="ROW", help="further rows")
    parser.add_argument("--horizons", nargs="*", default=[], type=int, choices=HORIZONS)
    parser.add_argument(
        "--ablation-epsilons", nargs="+", metavar="EPSILON", help="of the further rows"
    )
    parser.add_argument(
        "--ablation-mazes",
        nargs="+",
        metavar="MAZE",
        help="of the further rows; default: the first",
    )
    parser.add_argument("--releases", action="store_true", help="make releases, train no agents")
    parser.add_argument("--no-real", action="store_true", help="leave out agents on real rows")
    parser.add_argument("--fresh", action="store_true", help="empty the work folder first")
    cells.add_arguments(parser, work=None)
    options = parser.parse_args(arguments)
    table = tables[options.method]
    if options.scale not in table.scales:
        parser.error(f"--scale {options.scale}: {table.name} has {', '.join(table.scales)}")
    work = options.work or Path(table.name)
    if options.fresh:
        shutil.rmtree(work, ignore_errors=True)
    scale = table.scales[options.scale].with_overrides(options.overrides)
    wanted = list(cells_of(options, table))
    everywhere = sorted({maze for cell in wanted for maze in (cell.maze, *cell.task.public)})
    collect_tasks(everywhere, scale, cells.store_of(work))
    cells.run_table(
        table.name,
        wanted,
        functools.partial(
            run_cell, table=table, scale=scale, work=work, releases_only=options.releases
        ),
        lambda rows: result_of(
            rows, table, scale, len(wanted), f"{command} --method {options.method}"
        ),
        options=options,
        about={"seed": harness.SEED},
    )
