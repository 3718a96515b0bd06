"""What synthetic tables keep of real ones: columns, pairs, relations, rare events, policies.

A cell is a run of the product on one table, by one method, at one epsilon, from one generator seed,
and every measure of what it released. Beside them stand the real rows and, as the floor of every
measure, a fresh real sample: a random half of the real units judged against the other half. Cells
are kept as they end; the same command goes on where it stopped.
"""

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cells, processes
from benchmarks.harness import Result, commit
from benchmarks.protocol.grid_judge import GridSettings
from benchmarks.table_attacks import attacked
from benchmarks.table_figures import (
    FRESH,
    REAL,
    along_figures,
    figures_of,
    plain,
    real_figures,
    result_of,
)
from benchmarks.table_judges import JudgeScale, judged, solved
from benchmarks.table_methods import (
    LARGEST_RELEASE,
    METHODS,
    Sizes,
    check_available,
    run_values,
)
from benchmarks.tables.catalogue import DEFAULT, TABLES
from benchmarks.tables.rows import read_rows
from benchmarks.tables.source import BenchmarkTable, RecordedTable
from benchmarks.utility_scales import FAST_IQL
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRANSITION, Trajectories, Transitions
from distributed_privrl.environments import register

NAME = "utility_tables"
FULL = JudgeScale(agent=FAST_IQL, agent_steps=10_000, episodes=20, agents=1)
QUICK = JudgeScale(
    agent=FAST_IQL,
    agent_steps=20,
    episodes=2,
    agents=1,
    grid=GridSettings(sweeps=20, shifts=(0.0,)),
)
NOTES = (
    "Median of the generators, and their range. Fresh real: half of the real units, drawn anew for"
    " each seed, against the other half: the floor of every measure.",
    "marginal: 1 - KS of a number, 1 - total variation of a category, mean of the columns."
    " association gap: difference of Spearman's correlation of two numbers, of the correlation"
    " ratio of a number and a category, of Cramer's V of two categories, mean of the pairs."
    " Pearson's correlation, which a few rows far out decide, is beside. Rare cells have"
    " less than 1 % of the real rows.",
    "area: under the curve of gradient-boosted trees that tell real from synthetic rows, trained on"
    " half of the units and tested on the others; 0.5: nobody can tell. A group of columns has"
    " those of the groups before it, too.",
    "action, state: marginal of these columns at stretches of whole trajectories, where a method"
    " draws such and both tables have a hundred rows of a stretch.",
    "Flags, one-hot categories and whole numbers are rounded after the export, as a user would."
    " cpu s: of the run, from the configuration to its reports; memory: the largest of it.",
    "Nobody here has public rows: bounds are common knowledge, pre-training has no steps,"
    " or learns rows of marginals that the run releases first (the hybrid). pre_pate_gan and"
    " privorl_ar_public alone have some: of the two other mazes.",
)


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a command of tables has where nothing else is asked for, and what it shows.

    Args:
        name: of its results, its work folder and its module.
        tables: names of tables.
        methods: names of `table_methods.METHODS`.
        epsilons: budgets, as they are typed.
        generators: seeds of each cell.
        agents: that learn from each cell of a maze.
        result: makes what is shown of the wanted cells and the rows of those that are there.
    """

    name: str
    tables: Sequence[str]
    methods: Sequence[str]
    epsilons: Sequence[str]
    generators: int
    agents: int
    result: Callable[[Sequence["Cell"], Sequence[dict[str, Any]]], Result]


SHEETS = Command(
    name=NAME,
    tables=DEFAULT,
    methods=("privorl_ar", "privorl_n"),
    epsilons=("0.5", "1", "4", "10"),
    generators=3,
    agents=1,
    result=lambda wanted, rows: result_of(rows, NOTES),
)


@dataclass(frozen=True, kw_only=True)
class Cell(cells.Cell):
    """One generator, or one look at real rows.

    Args:
        table: name of the table.
        method: name of its settings in `table_methods.METHODS`, ``real`` or ``fresh real``.
        epsilon: None: without privacy.
        seed: of the generator's public randomness, of the halves and of the measures.
    """

    table: str
    method: str
    epsilon: float | None
    seed: int

    @property
    def output(self) -> str:
        """Id of the synthetic dataset."""
        return f"synthetic/{self.name}-v0"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cells of a command share."""

    work: Path
    quick: bool
    agents: int
    attacks: bool

    @property
    def store(self) -> DatasetStore:
        """The datasets."""
        return cells.store_of(self.work)

    @property
    def judges(self) -> JudgeScale:
        """How much the judges do."""
        return dataclasses.replace(QUICK if self.quick else FULL, agents=self.agents)


def dataset_of(table: BenchmarkTable) -> str:
    """Return the id under which a work folder keeps a table."""
    return f"table/{table.name}-v0"


def run_cell(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Return a cell: what was kept of it, or what is made now.

    Privacy: the budget is the cell's, its unit the table's, its ledger in the work folder. Tables
    are public, so that measures against the real rows may be shown.
    """
    path = cells.file_of(cell, setting.work)
    row = cells.kept(path, lambda: _made(cell, setting))
    table, run = TABLES[cell.table], setting.work / "runs" / cell.name
    attack = setting.work / "attacks" / path.name
    wanted = setting.attacks and run.exists()
    if not isinstance(table, RecordedTable) or not (wanted or attack.exists()):
        return row
    found = cells.kept(
        attack,
        lambda: attacked(
            table,
            run,
            setting.work,
            out=setting.work / "audits" / cell.name,
            quick=setting.quick,
        ),
    )
    return row | {"figures": row["figures"] | found}


def _made(cell: Cell, setting: Setting) -> dict[str, Any]:
    table, store = TABLES[cell.table], setting.store
    rng = np.random.default_rng([cell.seed, *cell.table.encode()])
    real = read_rows(store, dataset_of(table), table.naming)
    row: dict[str, Any] = {**dataclasses.asdict(cell), "cell": cell.name, "commit": commit()}
    if cell.method == FRESH:
        halves = real.halves(rng)
        figures = figures_of(*halves, table, rng) | along_figures(*halves)
        figures |= solved(table, _as_many_as_released(table, store, rng), setting.judges)
        return row | {"figures": plain(figures)}
    if cell.method == REAL:
        dataset, figures = dataset_of(table), real_figures(real, table)
    else:
        dataset = cell.output
        row |= _release(cell, setting)
        synthetic = read_rows(store, dataset, table.naming)
        figures = figures_of(real, synthetic, table, rng)
        if METHODS[cell.method].trajectories:
            figures |= along_figures(real, synthetic)
    figures |= judged(table, dataset, setting.work, setting.judges, name=cell.name)
    return row | {"figures": plain(figures)}


def _as_many_as_released(
    table: BenchmarkTable, store: DatasetStore, rng: np.random.Generator
) -> Transitions:
    """Return the real rows of random units, about as many as a release has."""
    rows = store.read_transitions(dataset_of(table), unit=table.unit)
    units, lengths = np.unique(rows.unit_ids, return_counts=True)
    order = rng.permutation(len(units))
    taken = np.searchsorted(np.cumsum(lengths[order]), LARGEST_RELEASE) + 1
    return rows.select(np.isin(rows.unit_ids, units[order[:taken]]))


def _release(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Run the product and return what it cost."""
    table = TABLES[cell.table]
    bounds = setting.work / "bounds" / f"{cell.name}.yaml"
    table.write_bounds(bounds)
    values = run_values(
        cell.method,
        table,
        sizes_of(setting.store, dataset_of(table), table.unit),
        dataset=dataset_of(table),
        output=cell.output,
        public=[dataset_of(TABLES[name]) for name in table.public],
        epsilon=cell.epsilon,
        seed=cell.seed,
        bounds=bounds,
        quick=setting.quick,
    )
    processes.forget_peak()
    clock = time.process_time()
    finished = cells.run_product(cell, values, setting.work)
    return {
        "cpu s": round(time.process_time() - clock, 1),
        "memory MB": processes.peak_megabytes(),
        "delta": finished.config.privacy.delta,
        "certified epsilon": finished.cost["certified_epsilon"],
        "settings": {name: values.get(name, {}) for name in ("model", "training")},
    }


def sizes_of(store: DatasetStore, dataset: str, unit: str) -> Sizes:
    """Return how large a public table is, whose unit is ``unit``."""
    read: Trajectories = store.read_trajectories(dataset)
    rows = len(read.rewards)
    units = rows if unit == TRANSITION else len(np.unique(read.unit_ids))
    return Sizes(units=units, rows=rows, trajectories=len(read))


def cells_of(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells: real rows, fresh samples, then each method from the largest epsilon on."""
    seeds = range(options.generators)
    for table in options.tables:
        yield Cell(table=table, method=REAL, epsilon=None, seed=0)
        for seed in seeds:
            yield Cell(table=table, method=FRESH, epsilon=None, seed=seed)
    budgets = [None if text == "none" else float(text) for text in options.epsilons]
    budgets.sort(key=lambda value: (value is not None, -(value or 0)))
    for table in options.tables:
        for method in options.methods:
            if METHODS[method].public and not TABLES[table].public:
                continue
            for epsilon in budgets:
                for seed in seeds:
                    yield Cell(table=table, method=method, epsilon=epsilon, seed=seed)


def _parsed(command: Command, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{command.name}")
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=list(command.tables))
    parser.add_argument("--methods", nargs="*", choices=tuple(METHODS), default=command.methods)
    parser.add_argument(
        "--epsilons", nargs="+", default=command.epsilons, help="none: without privacy"
    )
    parser.add_argument(
        "--generators", type=int, default=command.generators, help="seeds of each cell"
    )
    parser.add_argument(
        "--agents", type=int, default=command.agents, help="IQL's seeds in each cell of a maze"
    )
    parser.add_argument(
        "--attacks", action="store_true", help="attack members of the cells that are asked for"
    )
    parser.add_argument("--kept", action="store_true", help="print finished cells, make none")
    parser.add_argument("--quick", action="store_true", help="small parts, a handful of rounds")
    parser.add_argument("--work", type=Path, default=Path(command.name), help="kept for next time")
    parser.add_argument("--parallel", type=int, default=2, help="1: in this process")
    parser.add_argument("--out", type=Path, help=f"folder for {command.name}.md and .json")
    parser.add_argument("--save", action="store_true", help="the same, in benchmarks/results")
    options = parser.parse_args(arguments)
    options.scale = "quick" if options.quick else "full"
    if options.kept:  # a process a cell takes seconds to begin, and reads a file
        options.parallel = 1
    for method in options.methods:
        try:
            check_available(method)
        except ConfigError as error:
            parser.error(str(error))
    return options


def run(command: Command, arguments: Sequence[str] | None = None) -> None:
    """Import the tables that are missing, run the cells that are missing, print what they say.

    With ``--kept`` nothing is made: the table has the cells that are there.
    """
    options = _parsed(command, arguments)
    work = options.work / options.scale
    setting = Setting(
        work=work,
        quick=options.quick,
        agents=options.agents,
        attacks=options.attacks and not options.kept,
    )
    register()
    wanted = list(cells_of(options))
    there = [cell for cell in wanted if not options.kept or cells.file_of(cell, work).exists()]
    for name in () if options.kept else _needed(wanted):
        if dataset_of(TABLES[name]) not in setting.store.ids():
            TABLES[name].import_into(setting.store, dataset_of(TABLES[name]), quick=options.quick)
    cells.run_table(
        command.name,
        there,
        functools.partial(run_cell, setting=setting),
        functools.partial(command.result, wanted),
        options=options,
        about={"generators": options.generators, "agents": options.agents},
    )


def _needed(wanted: Sequence[Cell]) -> list[str]:
    """Return the tables of cells, and those that are public in one of them, each once."""
    names = (
        name
        for cell in wanted
        for name in (
            cell.table,
            *(
                TABLES[cell.table].public
                if cell.method in METHODS and METHODS[cell.method].public
                else ()
            ),
        )
    )
    return list(dict.fromkeys(names))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a sheet a table; see `run`."""
    run(SHEETS, arguments)


if __name__ == "__main__":
    main()
