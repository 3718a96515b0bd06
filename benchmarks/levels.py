"""What people keep of numbers over many rows: `marginals_j` with levels so far, and without.

People are generated. Two numbers have a level of a person's own, and as much again that comes and
goes; one of them is missing in four of ten rows. A third wanders, and a fourth belongs to nobody.
A run of the product knows the levels of the first two, or of none; the bound is another sample of
real people. Correlations are of a number with itself some rows later, where both rows have it.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd

from benchmarks import harness
from benchmarks.harness import SEED, Result
from benchmarks.trajectory_models import columns_kept, drawn_panel
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories

NUMBERS = ("steady", "tested", "wandering", "nobody's")
ROWS, LAGS, HIGH = 10, (1, 3, 6), 100.0
LEVELS = ("steady", "tested")
SCALES = {
    "quick": ((300,), (10.0,), 1, 300),
    "full": ((500, 5000), (4.0, 1.0), 3, 5000),
}
"""People of a run, epsilons, draws of the noise, and trajectories that are drawn."""
SCHEMA = {
    "columns": {
        "observation": list(NUMBERS),
        "action": "none",
        "reward": "none",
        "trajectory": "person",
        "order": "row",
        "terminated": "last",
        "unit": "person",
    },
    "kinds": {"tested": {"type": "number", "missing": "indicator"}},
    "spaces": {"observation": {"type": "box", "low": [0.0] * 4, "high": [HIGH] * 4}},
    "layout": "packed",
}
BOUNDS = "observation: {low: 0, high: 100, step: 1}\n"


def people(count: int, stream: str) -> pd.DataFrame:
    """Return so many people with ten rows each."""
    source = Streams(SEED).numpy(f"levels/{stream}")
    shape = count, ROWS
    steady, tested = (
        source.normal(50, 10, (count, 1)) + source.normal(0, 10, shape) for _ in LEVELS
    )
    wandering = 50 + np.cumsum(source.normal(0, 5, shape), axis=1)
    found = {
        "person": np.repeat(np.arange(count), ROWS),
        "row": np.tile(np.arange(ROWS), count),
        "steady": steady,
        "tested": np.where(source.random(shape) < 0.4, np.nan, tested),
        "wandering": wandering,
        "nobody's": source.normal(50, 14, shape),
    }
    return pd.DataFrame(
        {
            name: np.round(np.clip(one.ravel(), 0, HIGH)) if name in NUMBERS else one
            for name, one in found.items()
        }
    )


def kept(frame: pd.DataFrame) -> dict[str, float]:
    """Return how each number goes together with itself some rows later."""
    found = {}
    for name, lag in product(NUMBERS, LAGS):
        later = frame.groupby("person")[name].shift(-lag)
        found[f"{name}, {lag} later"] = float(frame[name].corr(later))
    return found


def as_frame(made: Trajectories) -> pd.DataFrame:
    """Return drawn trajectories as such a table: a number, then its indicator where it has one."""
    rows = made.transitions("trajectory").observations
    columns = {
        "steady": rows[:, 0],
        "tested": np.where(rows[:, 2] == 1, np.nan, rows[:, 1]),
        "wandering": rows[:, 3],
        "nobody's": rows[:, 4],
    }
    return pd.DataFrame({"person": np.repeat(np.arange(len(made)), made.lengths), **columns})


def run(quick: bool) -> Result:
    """Measure all sizes and epsilons, with levels and without."""
    sizes, epsilons, draws, drawn = SCALES["quick" if quick else "full"]
    real, other = people(drawn, "real"), people(drawn, "another sample")
    cells = [
        {
            **{"people": "", "epsilon": "", "levels": "real rows", "draw": ""},
            **{**kept(real), "columns": ""},
        },
        {
            **{"people": "", "epsilon": "", "levels": "real rows of others", "draw": ""},
            **{**kept(other), "columns": columns_kept(other, real, NUMBERS, high=HIGH)},
        },
    ]
    errors: dict[str, list[float]] = {}
    for units, epsilon, draw, (name, memory) in product(
        sizes, epsilons, range(draws), (("of two", LEVELS), ("none", ()))
    ):
        trajectories = drawn_panel(
            people(units, f"sensitive/{units}"),
            SCHEMA,
            bounds=BOUNDS,
            rows=ROWS,
            epsilon=epsilon,
            model={"memory": memory},
            training={},
            draw=draw,
            count=drawn,
        )
        made = as_frame(trajectories)
        found = kept(made)
        cells.append(
            {
                **{"people": units, "epsilon": epsilon, "levels": name, "draw": draw},
                **{**found, "columns": columns_kept(made, real, NUMBERS, high=HIGH)},
            }
        )
        errors.setdefault(f"{units}_{epsilon:g}_{name}", []).extend(_missed(found, kept(real)))
    ratios = {
        f"missed_{units}_{epsilon:g}": float(
            np.mean(errors[f"{units}_{epsilon:g}_of two"])
            / max(np.mean(errors[f"{units}_{epsilon:g}_none"]), 1e-9)
        )
        for units, epsilon in product(sizes, epsilons)
    }
    return Result(
        cells=cells,
        ratios=ratios,
        notes=(
            f"{ROWS} rows a person, delta 1e-6, {drawn:,} drawn trajectories a cell, noise of seeds"
            f" {SEED} to {SEED + draws - 1}. Correlations with the same number some rows later;"
            " columns: mean of 1 less the Kolmogorov-Smirnov statistic. Ratios: mean miss of the"
            " six correlations of the two numbers that have a level, with levels over without.",
        ),
    )


def _missed(found: dict[str, float], real: dict[str, float]) -> Iterator[float]:
    """Yield by how much correlations of numbers that have a level are missed."""
    for name, value in found.items():
        if name.split(",")[0] in LEVELS:
            yield abs((value if np.isfinite(value) else 0.0) - real[name])


if __name__ == "__main__":
    harness.main("levels", run)
