"""Do verdicts of plans come true: what runs on generated tables keep, beside what was foretold.

A cell is a run of the product on a generated table, by one method, for one number of units, at one
epsilon. Every row is a unit. What the rows keep of columns and of the strongest pairs of columns is
measured against 20,000 fresh rows. The limits of the verdicts are judged, and for each table the
limits that the other tables would have chosen. Cells are kept as they end; the same command goes on
where it stopped.
"""

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from scipy import stats

from benchmarks import cells, harness
from benchmarks.table_methods import delta_of
from distributed_privrl.core.files import write_atomically
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRANSITION, Transitions
from distributed_privrl.experiments.registry import parse_config, plan_run

NAME = "verdicts"
FRESH = 20_000
STRONG = 0.5
"""Spearman's correlation from which a pair is among the strongest."""
KEPT = 0.5
"""Share of a strong pair's correlation that must come through for it to survive."""
USEFUL = 0.5
"""Share of the strong pairs that must survive for a run to be useful."""
NEAR = 0.15
"""Mean distance of columns (Kolmogorov and Smirnov) up to which they survive."""
RELEASE = 5000
UNITS = (100, 1_000, 10_000, 100_000, 1_000_000)
Generator = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Table:
    """A generated table.

    Args:
        observations: numbers of an observation.
        actions: choices.
        make: from a number of rows to states (N, O), actions (N,), rewards (N,) and what follows
            (N, O); all numbers lie between -4 and 4.
    """

    observations: int
    actions: int
    make: Callable[[int, Generator], tuple[NDArray[np.float64], ...]]


def _chain(rows: int, rng: Generator) -> tuple[NDArray[np.float64], ...]:
    """Return numbers that follow each other, as readings of one body do."""
    first = rng.normal(size=rows)
    second = 0.9 * first + 0.45 * rng.normal(size=rows)
    states = np.stack([first, second, rng.normal(size=rows)], axis=1)
    actions = np.digitize(second, [-0.5, 0.5])
    rewards = 0.7 * first - 0.5 * (actions - 1) + 0.3 * rng.normal(size=rows)
    return states, actions, rewards, 0.95 * states + 0.3 * rng.normal(size=states.shape)


def _groups(rows: int, rng: Generator) -> tuple[NDArray[np.float64], ...]:
    """Return people of four groups: numbers have several heaps, an action depends on the group."""
    group = rng.choice(4, size=rows, p=[0.45, 0.3, 0.2, 0.05])
    middle = np.array([[-2.0, -1.0], [0.0, 2.0], [2.0, 0.0], [3.0, 3.0]])[group]
    states = middle + 0.3 * rng.normal(size=(rows, 2))
    actions = np.where(rng.random(rows) < 0.85, group % 2, rng.integers(0, 2, rows))
    rewards = np.where(actions == 1, states[:, 1], -1.0) + 0.2 * rng.normal(size=rows)
    return states, actions, rewards, states + 0.2 * rng.normal(size=states.shape)


def _wide(rows: int, rng: Generator) -> tuple[NDArray[np.float64], ...]:
    """Return eight numbers, long tails among them, of which two causes explain most."""
    causes = rng.normal(size=(rows, 2))
    weights = np.array([[1, 0.8, 0.6, 0, 0, 0.5, 0, 0], [0, 0, 0.6, 1, 0.8, 0, 0.7, 0]])
    states = causes @ weights + 0.4 * rng.normal(size=(rows, 8))
    states[:, 7] = rng.exponential(size=rows) - 1
    actions = np.digitize(states[:, 0] + states[:, 3], [-1.0, 0.0, 1.0])
    rewards = 0.5 * causes[:, 0] + 0.5 * causes[:, 1] + 0.3 * rng.normal(size=rows)
    return states, actions, rewards, 0.8 * states + 0.4 * rng.normal(size=states.shape)


TABLES: Mapping[str, Table] = {
    "chain": Table(observations=3, actions=3, make=_chain),
    "groups": Table(observations=2, actions=2, make=_groups),
    "wide": Table(observations=8, actions=4, make=_wide),
}

METHODS: Mapping[str, Mapping[str, Any]] = {
    "marginals": {
        "model": {"bins": 24, "draws": 20_000, "model_cells": 60_000, "rows_per_unit": 1},
    },
    "privorl_ar": {
        "model": {"bins": 12, "hidden": [8], "column_frequencies": 2, "reward_levels": []},
        "training": {
            "rounds": 150,
            "optimiser": {"learning_rate": 1e-2},
            "pretraining": {"steps": 0},
        },
    },
}
_BATCH = 1000
_FIGURE = {"marginals": ("cells", 1.0), "privorl_ar": ("noise_of_a_round", -1.0)}
"""The figure of a verdict that says fine, and 1 where more of it is better."""


@dataclass(frozen=True, kw_only=True)
class Cell(cells.Cell):
    """One run.

    Args:
        table: a name of `TABLES`.
        method: a name of `METHODS`.
        units: rows, each a unit.
        epsilon: of the run.
        seed: of public randomness, and of the rows.
    """

    table: str
    method: str
    units: int
    epsilon: float
    seed: int


def rows_of(table: str, count: int, rng: Generator) -> Transitions:
    """Return rows of a generated table, each of a unit of its own."""
    states, actions, rewards, following = TABLES[table].make(count, rng)
    states, rewards, following = (np.clip(one, -4, 4) for one in (states, rewards, following))
    return Transitions(
        observations=states,
        actions=actions.astype(np.int64),
        rewards=rewards,
        next_observations=following,
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        unit_ids=np.arange(count),
    )


def values_of(cell: Cell, bounds: Path) -> dict[str, Any]:
    """Return the configuration of a cell's run.

    Args:
        cell: the run.
        bounds: the file of the table's bounds, written here.
    """
    low, high = [-4.0] * TABLES[cell.table].observations, [4.0] * TABLES[cell.table].observations
    text = f"observation: {{low: {low}, high: {high}}}\nreward: [-4, 4]\n"
    bounds.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(bounds, text)
    values: dict[str, Any] = {
        "method": cell.method,
        "seed": cell.seed,
        "data": {
            "sensitive": f"table/{cell.name}-v0",
            "unit": TRANSITION,
            "units": cell.units,
            "bounds": str(bounds.absolute()),
        },
        "privacy": {"epsilon": cell.epsilon, "delta": delta_of(cell.units)},
        "output": {"dataset": f"synthetic/{cell.name}-v0", "size": RELEASE},
        "runtime": {"executor": "local", "workers": 1},
        **METHODS[cell.method],
    }
    if "training" in values:
        batch = min(_BATCH, max(1, cell.units // 4))
        values["training"] = {**values["training"], "expected_batch_size": batch}
    return values


def run_cell(cell: Cell, work: Path) -> dict[str, Any]:
    """Return a cell: what was kept of it, or what is made now."""
    return cells.kept(cells.file_of(cell, work), lambda: _made(cell, work))


def _made(cell: Cell, work: Path) -> dict[str, Any]:
    store, rng = cells.store_of(work), np.random.default_rng([cell.seed, cell.units])
    values = values_of(cell, work / "bounds" / f"{cell.name}.yaml")
    dataset = values["data"]["sensitive"]
    if not store.holds(dataset):
        table = TABLES[cell.table]
        store.write_transitions(
            dataset,
            rows_of(cell.table, cell.units, rng),
            layout="transitions",
            observation_space=Box(-4, 4, (table.observations,)),
            action_space=Discrete(table.actions),
            metadata={},
        )
    verdict = plan_run(parse_config(values, source=cell.name), store).verdict
    assert verdict is not None
    finished = cells.run_product(cell, values, work)
    fresh = rows_of(cell.table, FRESH, np.random.default_rng([cell.seed, 10**9]))
    found = measures(_columns(fresh), _columns(_read(store, values["output"]["dataset"])))
    return {
        **dataclasses.asdict(cell),
        "grade": str(verdict.grade),
        "figure": verdict.figures[_FIGURE[cell.method][0]],
        **found,
        "CPU s": finished.cpu_s,
    }


def _read(store: DatasetStore, dataset: str) -> Transitions:
    chunks = list(store.iter_transitions(dataset, unit=TRANSITION))
    return Transitions.concatenate(chunks)


def _columns(rows: Transitions) -> NDArray[np.float64]:
    """Return states, actions, rewards and what follows, side by side ``(N, D)``."""
    parts = (rows.observations, rows.actions, rows.rewards, rows.next_observations)
    return np.column_stack([np.asarray(part, float).reshape(len(rows), -1) for part in parts])


def measures(real: NDArray[np.float64], synthetic: NDArray[np.float64]) -> dict[str, float]:
    """Return how far columns are off, and what is kept of the strongest pairs.

    Args:
        real: fresh rows ``(N, D)``.
        synthetic: released rows ``(M, D)``.

    Returns:
        ``KS``: mean distance of the columns; ``pairs kept``: share of the pairs with a correlation
        of `STRONG` or more of which at least `KEPT` came through, in the same direction.
    """
    distances = [
        stats.ks_2samp(one, other).statistic for one, other in zip(real.T, synthetic.T, strict=True)
    ]
    truth, found = (np.nan_to_num(stats.spearmanr(rows).statistic) for rows in (real, synthetic))
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(real.shape[1]), 2)
        if abs(truth[i, j]) >= STRONG
    ]
    kept = [found[i, j] / truth[i, j] >= KEPT for i, j in pairs]
    return {"KS": float(np.mean(distances)), "pairs kept": float(np.mean(kept))}


def is_useful(row: Mapping[str, Any]) -> bool:
    """Say whether half of the strongest pairs survived."""
    return bool(row["pairs kept"] >= USEFUL)


def survives(row: Mapping[str, Any]) -> bool:
    """Say whether columns survived, or half of the strongest pairs did."""
    return bool(row["KS"] <= NEAR) or is_useful(row)


def best_limit(
    rows: Sequence[Mapping[str, Any]], good: Callable[[Any], bool], sign: float
) -> float:
    """Return the limit of the figure that sets good runs apart with the fewest errors.

    Args:
        rows: cells of one method.
        good: whether a run is on the good side.
        sign: 1 where more of the figure is better, -1 where less is.
    """
    figures = sorted({row["figure"] for row in rows})
    between = [float(np.sqrt(a * b)) for a, b in itertools.pairwise(figures)]
    limits = [figures[0] / 2, *between, figures[-1] * 2]

    def errors(limit: float) -> int:
        return sum((sign * row["figure"] >= sign * limit) != good(row) for row in rows)

    return min(limits, key=errors)


def result_of(rows: Sequence[Mapping[str, Any]]) -> harness.Result:
    """Return the table of all cells, and how often verdicts were wrong."""
    facts: dict[str, Any] = {}
    ratios: dict[str, float | None] = {}
    notes = [
        f"KS: mean distance of the columns from {FRESH:,} fresh rows. Pairs kept: share of the"
        f" pairs with a correlation of {STRONG:g} or more of which half came through. A run is"
        f" useful if half of these pairs are kept; its columns survive if KS is at most {NEAR:g}.",
        "Figure: cells of a joint count that stand out (marginals), noise of a round in clip norms"
        " (privorl_ar).",
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        sign = _FIGURE[method][1]
        fine = [row for row in own if row["grade"] == "fine"]
        refused = [row for row in own if row["grade"] == "hopeless"]
        useless = sum(not is_useful(row) for row in fine)
        wasted = sum(survives(row) for row in refused)
        notes.append(
            f"{method}: {useless} of {len(fine)} called fine were not useful; of {len(refused)}"
            f" refused, columns of {wasted} would have survived."
        )
        ratios[f"{method}: fine and not useful"] = useless / len(fine) if fine else None
        ratios[f"{method}: refused and surviving"] = wasted / len(refused) if refused else None
        for name, good in (("fine", is_useful), ("hopeless", survives)):
            wrong, limits = 0, {}
            for table in dict.fromkeys(row["table"] for row in own):
                rest = [row for row in own if row["table"] != table]
                if not rest:
                    continue
                limits[table] = best_limit(rest, good, sign)
                wrong += sum(
                    (sign * row["figure"] >= sign * limits[table]) != good(row)
                    for row in own
                    if row["table"] == table
                )
            if limits:
                found = ", ".join(f"{limit:.3g} without {one}" for one, limit in limits.items())
                notes.append(
                    f"{method}, limit of {name} by the other tables: {found}; wrong for {wrong} of"
                    f" {len(own)} cells of the table left out."
                )
                ratios[f"{method}: wrong, limit of {name} from other tables"] = wrong / len(own)
    return harness.Result(cells=list(rows), ratios=ratios, notes=notes, facts=facts)


def wanted(options: argparse.Namespace) -> list[Cell]:
    """Return the cells that a command asks for, small ones first."""
    every = itertools.product(
        sorted(options.units), options.epsilons, options.tables, options.methods
    )
    return [
        Cell(table=table, method=method, units=units, epsilon=epsilon, seed=seed)
        for units, epsilon, table, method in every
        for seed in range(options.seeds)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cells that are missing and print the table."""
    parser = cells.seeded_parser(NAME)
    parser.set_defaults(seeds=1, parallel=1)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=tuple(TABLES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=tuple(METHODS))
    parser.add_argument("--units", nargs="+", type=int, default=UNITS[:-1])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.3, 1.0, 4.0])
    options = parser.parse_args(arguments)
    work = options.work
    cells_wanted = wanted(options)
    if options.scale == "quick":
        cells_wanted = cells_wanted[:2]
    cells.run_table(
        NAME,
        cells_wanted,
        functools.partial(run_cell, work=work),
        result_of,
        options=options,
        about={"seeds": options.seeds},
    )


if __name__ == "__main__":
    main()
