"""From how many people on do private rounds add to what marginals keep?

Marginals, PrivORL-AR, and both (the hybrid) release rows of generated tables of 1,000 to 100,000
people at one epsilon. Fresh rows judge them. A small marginal holds all that there is in some
tables; in ``wide`` two hidden causes join twenty columns, and no few pairs do.

    python -m benchmarks.units_for_rounds [--work FOLDER] [--save]
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import cells
from benchmarks.harness import Result
from benchmarks.table_methods import METHODS, run_values
from benchmarks.tables.generated import GENERATED
from benchmarks.tables.rows import read_rows
from benchmarks.utility_cells import merged
from benchmarks.verdict_errors import measures
from benchmarks.verdict_tables import truth_of
from benchmarks.verdicts import columns_of, stored
from distributed_privrl.evaluation.two_sample import area
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.stages.round_verdict import round_noise

NAME = "units_for_rounds"
EPSILON = 1.0
UNITS = (1000, 10_000, 100_000)
TABLES = ("wide", "groups")
GENERATORS = ("marginals", "hybrid_80", "hybrid", "privorl_ar")
LARGEST_BATCH, RELEASE = 4096, 20_000
NETWORK: Mapping[str, Any] = {"bins": 24, "hidden": [32], "column_frequencies": 2}
ROUNDS = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell(cells.Cell):
    """One run.

    Args:
        table: a name of `GENERATED`.
        method: a name of `METHODS`.
        units: people, of one row each.
        epsilon: of the run.
        seed: of the rows and of public randomness.
    """

    table: str
    method: str
    units: int
    epsilon: float
    seed: int


def values_of(cell: Cell, work: Path) -> dict[str, Any]:
    """Return the configuration of a cell's run; its rows are written where they are missing."""
    store, table = (
        cells.store_of(work),
        GENERATED[cell.table].sized(cell.units, cell.seed, whole=False),
    )
    dataset = stored(table, f"table/{cell.table}-{cell.units}-{cell.seed}-v0", store)
    bounds = work / "bounds" / f"{cell.table}.yaml"
    table.write_bounds(bounds)
    values = run_values(
        cell.method,
        table,
        table.sizes,
        dataset=dataset,
        output=f"synthetic/{cell.name}-v0",
        epsilon=cell.epsilon,
        seed=cell.seed,
        bounds=bounds,
        quick=False,
    )
    values = merged(values, {"output": {"size": RELEASE}})
    if not METHODS[cell.method].rounds:
        return values
    rounds = {"rounds": ROUNDS, "expected_batch_size": min(LARGEST_BATCH, cell.units // 5)}
    return merged(values, {"model": NETWORK, "training": rounds})


def run_cell(cell: Cell, work: Path) -> dict[str, Any]:
    """Return a cell: what was kept of it, or what is made now."""
    return cells.kept(cells.file_of(cell, work), lambda: _made(cell, work))


def _made(cell: Cell, work: Path) -> dict[str, Any]:
    store, values = cells.store_of(work), values_of(cell, work)
    plan = plan_run(parse_config(values, source=cell.name), store)
    noise = None
    if isinstance(plan, RoundPlan):
        noise = round_noise(plan, int(plan.details["weights"]))
    cells.run_product(cell, values, work)
    table = GENERATED[cell.table].sized(cell.units, cell.seed, whole=False)
    fresh = stored(
        truth_of(cell.table, cell.seed, whole=False), f"fresh/{cell.table}-{cell.seed}-v0", store
    )
    released = values["output"]["dataset"]
    real, made = (
        columns_of(read_rows(store, one, table.naming).frame) for one in (fresh, released)
    )
    return {
        **dataclasses.asdict(cell),
        "noise of a round": noise,
        **measures(real, made),
        "correlation error": _correlation_error(real, made),
        "area": _area(real, made, cell.seed),
    }


def _correlation_error(real: pd.DataFrame, made: pd.DataFrame) -> float:
    """Return the mean difference of Spearman's correlation over all pairs of columns."""
    both = [frame.corr(method="spearman").fillna(0).to_numpy() for frame in (real, made)]
    upper = np.triu_indices(real.shape[1], 1)
    return float(np.abs(both[0] - both[1])[upper].mean())


def _area(real: pd.DataFrame, made: pd.DataFrame, seed: int) -> float:
    """Return the area of a classifier of real and released rows."""
    shuffled = [frame.sample(frac=1, random_state=seed) for frame in (real, made)]
    halves = [(one.iloc[: len(one) // 2], one.iloc[len(one) // 2 :]) for one in shuffled]
    (one, other), (first, second) = halves
    return area((one, first), (other, second), seed=seed)


def result_of(rows: Sequence[Mapping[str, Any]]) -> Result:
    """Return the table, and how far the hybrid's areas are from those of marginals."""
    shown = [
        {
            "table": row["table"],
            "people": row["units"],
            "method": row["method"],
            "seed": row["seed"],
            **{
                name: row[name]
                for name in ("noise of a round", "KS", "pairs kept", "correlation error", "area")
            },
        }
        for row in rows
    ]
    areas = {(row["table"], row["units"], row["method"], row["seed"]): row["area"] for row in rows}
    ratios = {}
    for (table, units, method, seed), found in areas.items():
        alone = areas.get((table, units, "marginals", seed))
        if method != "marginals" and alone is not None:
            ratios[f"{table}, {units}, {method}, seed {seed}: area beside marginals"] = (
                found - alone
            )
    return Result(
        cells=shown,
        ratios=ratios,
        notes=(
            f"Epsilon {EPSILON:g}; a row is a person. Fresh rows judge: KS of the columns, share of"
            " the strong pairs of which half came through, mean error of Spearman's correlation,"
            " area of a classifier (.5: nobody can tell).",
            f"Rounds: {ROUNDS}, of a fifth of the people, {LARGEST_BATCH} at most; networks"
            f" {dict(NETWORK)}. hybrid: half of epsilon for marginals; hybrid_80: four fifths.",
        ),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    parser = cells.seeded_parser(NAME)
    parser.set_defaults(parallel=1, seeds=1)
    options = parser.parse_args(arguments)
    units = UNITS[:1] if options.scale == "quick" else UNITS
    wanted = [
        Cell(table=table, method=method, units=count, epsilon=EPSILON, seed=seed)
        for seed in range(options.seeds)
        for table in TABLES
        for count in units
        for method in GENERATORS
    ]
    cells.run_table(
        NAME,
        wanted[:2] if options.scale == "quick" else wanted,
        functools.partial(run_cell, work=options.work),
        result_of,
        options=options,
        about={"seeds": options.seeds},
    )


if __name__ == "__main__":
    main()
