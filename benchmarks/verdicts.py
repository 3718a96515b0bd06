"""Do verdicts of plans come true: what runs keep of tables, beside what was foretold.

A cell is a run of the product on a table, by one method, for one number of units, at one epsilon.
Some tables are generated, some are people of real ones. What the rows keep of columns and of the
strongest pairs of columns is measured against fresh rows, or against everybody. The limits of the
verdicts are judged, and for each table the limits that the other tables would have chosen. Cells
are kept as they end; the same command goes on where it stopped, and ``--kept`` makes none.
"""

import argparse
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import cells
from benchmarks.table_methods import METHODS, run_values
from benchmarks.tables.generated import GENERATED, STEPS, GeneratedTable
from benchmarks.tables.rows import read_rows
from benchmarks.tables.source import BenchmarkTable
from benchmarks.utility_cells import merged
from benchmarks.utility_tables import sizes_of
from benchmarks.verdict_errors import figures_of, measures, result_of
from benchmarks.verdict_tables import FRESH, REAL, TABLES, table_of, truth_of
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.stages.verdict import Verdict

NAME = "verdicts"
RELEASE = 5000
"""Rows that a run releases."""
_ROUNDS: Mapping[str, Any] = {
    "rounds": 150,
    "block_rounds": 50,
    "spare": 8,
    "optimiser": {"learning_rate": 1e-2},
}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "marginals": {"model": {"bins": 24, "draws": 20_000, "model_cells": 60_000}},
    "marginals_j": {"model": {"bins": 24, "draws": 20_000, "model_cells": 60_000}},
    "privorl_ar": {
        "model": {"bins": 12, "hidden": [8], "column_frequencies": 2},
        "training": _ROUNDS,
    },
    "privorl_ar_j": {
        "model": {"bins": 12, "hidden": [8], "column_frequencies": 2, "horizon": STEPS},
        "training": _ROUNDS,
    },
    "privorl_n": {
        "model": {"width": 32, "depth": 2, "time_width": 16},
        "training": _ROUNDS,
    },
}
"""What changes in the settings of `utility_tables`, but for counts of real tables."""


@dataclass(frozen=True, kw_only=True)
class Cell(cells.Cell):
    """One run.

    Args:
        table: a name of `TABLES`.
        method: a name of `SMALL`.
        units: people.
        epsilon: of the run; None: without privacy, to see what the method can at all.
        seed: of public randomness, and of the rows or people.
    """

    table: str
    method: str
    units: int
    epsilon: float | None
    seed: int

    @property
    def whole(self) -> bool:
        """Whether people have trajectories, where the table leaves that open."""
        return METHODS[self.method].trajectories

    @property
    def drawn(self) -> BenchmarkTable:
        """What is protected."""
        return table_of(self.table, self.units, self.seed, whole=self.whole)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells that belong together.

    Args:
        tables: names of them.
        methods: likewise.
        epsilons: by the number of units.
        seeds: from 0 on.
    """

    tables: Sequence[str]
    methods: Sequence[str]
    epsilons: Mapping[int, Sequence[float | None]]
    seeds: int = 1


_ROWS = ("marginals", "privorl_ar")
_COUNTS = ("marginals", "marginals_j")
_OTHERS = ("marginals_j", "privorl_ar_j", "privorl_n")
_ALL = tuple(GENERATED)
_FREE = (None,)
ABSENT = (
    "the eight numbers with 1,000,000 units",
    "privorl_j, privorl_j_unet and primorl, which have the limits of the other rounds",
    "runs with pre-training, which are limited at worst",
)
GRIDS: Sequence[Grid] = (
    Grid(tables=_ALL, methods=_ROWS, epsilons={1000: _FREE, 100_000: (0.003, 0.01, 0.1)}),
    Grid(tables=("chain", "groups"), methods=_ROWS, epsilons={1_000_000: (0.0003, 0.001, 0.01)}),
    Grid(
        tables=("chain", "groups"),
        methods=_OTHERS,
        epsilons={1000: (1, 4, None), 10_000: (0.03, 1)},
    ),
    Grid(tables=_ALL, methods=_ROWS, epsilons={10_000: (0.03, 0.3, 1)}, seeds=2),
    Grid(tables=("wide",), methods=_ROWS, epsilons={10_000: (0.5,)}, seeds=2),
    Grid(tables=_ALL, methods=_ROWS, epsilons={1000: (0.3, 1, 4)}, seeds=2),
    Grid(tables=_ALL, methods=("privorl_ar",), epsilons={1000: (30,)}),
    Grid(tables=_ALL, methods=_ROWS, epsilons={100: (4, 10, 50)}, seeds=3),
    Grid(tables=("respiratory",), methods=_ROWS, epsilons={111: (1, 4, 10, 50)}, seeds=3),
    Grid(tables=("respiratory",), methods=_ROWS, epsilons={111: _FREE}),
    Grid(tables=("wages",), methods=_COUNTS, epsilons={545: (0.3, 1, 4, 10, None)}),
    Grid(
        tables=("visits",),
        methods=("marginals",),
        epsilons={1000: (0.3, 4, None), 6127: (0.05, 0.3)},
    ),
    Grid(tables=("visits",), methods=("marginals_j",), epsilons={1000: _FREE, 6127: (0.05, 0.3)}),
    Grid(
        tables=("visits",),
        methods=("privorl_ar",),
        epsilons={1000: _FREE, 6127: (0.01, 0.1, 1, 4)},
    ),
    Grid(tables=("fleet",), methods=("marginals",), epsilons={1000: _FREE, 4043: (0.05, 0.3, 1)}),
    Grid(tables=("fleet",), methods=("privorl_ar",), epsilons={1000: _FREE, 4043: (1, 10)}),
)
"""In the order in which they are run, one seed after the other."""


def stored(table: BenchmarkTable, dataset: str, store: DatasetStore) -> str:
    """Return a table's dataset, which is written where it is missing."""
    if not store.holds(dataset):
        table.import_into(store, dataset)
    return dataset


def values_of(cell: Cell, work: Path) -> dict[str, Any]:
    """Return the configuration of a cell's run; its rows are written where they are missing."""
    store, table = cells.store_of(work), cell.drawn
    kind = "steps" if cell.whole else "rows"
    dataset = stored(table, f"table/{cell.table}-{kind}-{cell.units}-{cell.seed}-v0", store)
    bounds = work / "bounds" / f"{cell.table}.yaml"
    table.write_bounds(bounds)
    sizes = (
        table.sizes if isinstance(table, GeneratedTable) else sizes_of(store, dataset, table.unit)
    )
    values = run_values(
        cell.method,
        table,
        sizes,
        dataset=dataset,
        output=f"synthetic/{cell.name}-v0",
        epsilon=cell.epsilon,
        seed=cell.seed,
        bounds=bounds,
        quick=False,
    )
    share = sizes.trajectories / sizes.rows if cell.whole else 1.0
    values = merged(values, {"output": {"size": max(1, round(RELEASE * share))}})
    counted = not METHODS[cell.method].rounds
    return values if counted and cell.table in REAL else merged(values, SMALL[cell.method])


def planned(cell: Cell, work: Path) -> Verdict | None:
    """Return the verdict of a cell's plan; None without privacy."""
    config = parse_config(values_of(cell, work), source=cell.name)
    return plan_run(config, cells.store_of(work)).verdict


def run_cell(cell: Cell, work: Path) -> dict[str, Any]:
    """Return a cell: what was kept of it, or what is made now.

    Privacy: the budget is the cell's, its ledger in the work folder; tables are public.
    """
    return cells.kept(cells.file_of(cell, work), lambda: _made(cell, work))


def _made(cell: Cell, work: Path) -> dict[str, Any]:
    store, verdict, values = cells.store_of(work), planned(cell, work), values_of(cell, work)
    cells.run_product(cell, values, work)
    naming = cell.drawn.naming
    kind = f"{'steps' if cell.whole else 'rows'}-{cell.seed if cell.table in GENERATED else 0}"
    fresh = stored(
        truth_of(cell.table, cell.seed, whole=cell.whole),
        f"fresh/{cell.table}-{kind}-v0",
        store,
    )
    released = values["output"]["dataset"]
    real, synthetic = (columns_of(read_rows(store, one, naming).frame) for one in (fresh, released))
    return {
        **dataclasses.asdict(cell),
        "grade": None if verdict is None else str(verdict.grade),
        **figures_of(verdict),
        **measures(real, synthetic),
    }


def columns_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return up to `FRESH` rows of a table as numbers: categories by their codes, no ends."""
    rows = frame.drop(columns="terminated").astype(np.float64)
    return rows.sample(FRESH, random_state=0) if len(rows) > FRESH else rows


def planned_cells(seeds: int) -> list[Cell]:
    """Return all cells: grid after grid, and one seed after the other."""
    every = {
        Cell(table=table, method=method, units=units, epsilon=epsilon, seed=seed): place
        for place, grid in enumerate(GRIDS)
        for table in grid.tables
        for method in grid.methods
        for units, epsilons in grid.epsilons.items()
        for epsilon in epsilons
        for seed in range(min(grid.seeds, seeds))
    }
    return sorted(every, key=lambda cell: (cell.seed, every[cell]))


def wanted(options: argparse.Namespace) -> tuple[list[Cell], list[str]]:
    """Return the cells that a command asks for, and in words what is not there then."""
    every = planned_cells(options.seeds)
    chosen = [
        cell
        for cell in every
        if cell.table in options.tables
        and cell.method in options.methods
        and cell.units <= options.most
        and (not options.kept or cells.file_of(cell, options.work).exists())
    ]
    left = len(every) - len(chosen)
    return chosen, [*([f"{left} of {len(every)} planned cells"] if left else []), *ABSENT]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    methods = tuple(SMALL)
    parser = cells.seeded_parser(NAME)
    parser.set_defaults(parallel=1)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=tuple(TABLES))
    parser.add_argument("--methods", nargs="+", default=list(methods), choices=methods)
    parser.add_argument("--most", type=int, default=10**6, help="units")
    parser.add_argument("--kept", action="store_true", help="print finished cells, make none")
    options = parser.parse_args(arguments)
    chosen, absent = wanted(options)
    cells.run_table(
        NAME,
        chosen[:2] if options.scale == "quick" else chosen,
        functools.partial(run_cell, work=options.work),
        functools.partial(result_of, absent=absent),
        options=options,
        about={"seeds": options.seeds},
    )


if __name__ == "__main__":
    main()
