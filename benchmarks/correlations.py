"""How many relations of a wide table a release keeps: `marginals_j` with all pairs, and without.

People are generated. Ten numbers and two flags have three hidden causes in common, most of them
little: of 66 pairs of columns most go together by .1 to .3. A run of the product measures how every
two of them go together, by a part of its budget, or spends all of it on joint counts; the bound is
another sample of real people. Relations are rank correlations of two columns of a row, and of a
column with another one a row later.
"""

from itertools import combinations, product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import SEED, Result
from benchmarks.trajectory_models import columns_kept, drawn_panel
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories

NUMBERS = tuple(f"number_{i}" for i in range(10))
FLAGS = ("flag_0", "flag_1")
COLUMNS = (*NUMBERS, *FLAGS)
ROWS, HIGH, CAUSES = 5, 60.0, 3
WEAK, MIDDLING = 0.1, 0.2
SHARES = (0.0, 0.15)
SCALES = {
    "quick": (((300, 10.0),), 1, 300),
    "full": (((500, 4.0), (5000, 4.0), (5000, 1.0)), 3, 5000),
}
"""People of a run and its epsilon, draws of the noise, and trajectories that are drawn."""
SCHEMA = {
    "columns": {
        "observation": list(COLUMNS),
        "action": "none",
        "reward": "none",
        "trajectory": "person",
        "order": "row",
        "terminated": "last",
        "unit": "person",
    },
    "kinds": {name: {"type": "flag"} for name in FLAGS},
    "spaces": {"observation": {"type": "box"}},
    "layout": "packed",
}
BOUNDS = "observation: {low: 0, high: 60, step: 1}\n"


def people(count: int, stream: str) -> pd.DataFrame:
    """Return so many people with five rows each."""
    source = Streams(SEED).numpy(f"correlations/{stream}")
    how = Streams(SEED).numpy("correlations/causes")
    causes = source.normal(size=(count, 1, CAUSES))
    loads = how.uniform(-0.55, 0.55, (CAUSES, len(COLUMNS)))
    own = np.sqrt(1 - (loads**2).sum(axis=0))
    lasting = 0.6 * source.normal(size=(count, 1, len(COLUMNS)))
    passing = 0.8 * source.normal(size=(count, ROWS, len(COLUMNS)))
    scores = (causes @ loads + own * (lasting + passing)).reshape(-1, len(COLUMNS))
    found: dict[str, NDArray[np.float64]] = {}
    for place, name in enumerate(COLUMNS):
        wide = np.round(np.clip(30 + 9 * scores[:, place], 0, HIGH))
        found[name] = wide if name in NUMBERS else (scores[:, place] > 0.5).astype(np.float64)
    person, row = np.repeat(np.arange(count), ROWS), np.tile(np.arange(ROWS), count)
    return pd.DataFrame({"person": person, "row": row, **found})


def relations(frame: pd.DataFrame) -> dict[str, float]:
    """Return rank correlations of all pairs of columns in a row, and with others a row later."""
    later = frame.groupby("person")[list(COLUMNS)].shift(-1).add_prefix("next ")
    both = pd.concat([frame[list(COLUMNS)], later], axis=1).corr("spearman").fillna(0.0)
    within = {f"{a}, {b}": float(both.loc[a, b]) for a, b in combinations(COLUMNS, 2)}
    steps = {
        f"{a}, next {b}": float(both.loc[a, f"next {b}"])
        for a, b in product(COLUMNS, COLUMNS)
        if a != b
    }
    return within | steps


def kept(found: dict[str, float], real: dict[str, float]) -> dict[str, float]:
    """Return the mean miss of relations, and which shares of them are at least half there."""

    def share(low: float, high: float, *, later: bool) -> float:
        names = [
            name for name, value in real.items()
            if low <= abs(value) < high and ("next" in name) == later
        ]  # fmt: skip
        return float(np.mean([found[one] * np.sign(real[one]) >= abs(real[one]) / 2
                              for one in names]))  # fmt: skip

    return {
        "miss": float(np.mean([abs(found[one] - real[one]) for one in real])),
        "weak kept": share(WEAK, MIDDLING, later=False),
        "others kept": share(MIDDLING, 1.0, later=False),
        "weak kept a row later": share(WEAK, MIDDLING, later=True),
    }


def as_frame(made: Trajectories) -> pd.DataFrame:
    """Return drawn trajectories as such a table."""
    rows = made.transitions("trajectory").observations
    columns = {name: rows[:, place] for place, name in enumerate(COLUMNS)}
    return pd.DataFrame({"person": np.repeat(np.arange(len(made)), made.lengths), **columns})


def run(quick: bool) -> Result:
    """Measure all sizes and epsilons, with correlations of all pairs and without."""
    sizes, draws, drawn = SCALES["quick" if quick else "full"]
    real, other = people(drawn, "real"), people(drawn, "another sample")
    wanted = relations(real)
    cells = [
        {
            **{"people": "", "epsilon": "", "correlations_share": "real rows of others"},
            **{"draw": "", **kept(relations(other), wanted)},
            "columns": columns_kept(other, real, COLUMNS, high=HIGH),
        }
    ]
    misses: dict[tuple[int, float, float], list[float]] = {}
    for (units, epsilon), draw, share in product(sizes, range(draws), SHARES):
        trajectories = drawn_panel(
            people(units, f"sensitive/{units}"),
            SCHEMA,
            bounds=BOUNDS,
            rows=ROWS,
            epsilon=epsilon,
            model={},
            training={"correlations_share": share},
            draw=draw,
            count=drawn,
        )
        made = as_frame(trajectories)
        found = kept(relations(made), wanted)
        cells.append(
            {
                **{"people": units, "epsilon": epsilon, "correlations_share": share, "draw": draw},
                **found,
                "columns": columns_kept(made, real, COLUMNS, high=HIGH),
            }
        )
        misses.setdefault((units, epsilon, share), []).append(found["miss"])
    ratios = {
        f"missed_{units}_{epsilon:g}": float(
            np.mean(misses[units, epsilon, SHARES[1]]) / np.mean(misses[units, epsilon, SHARES[0]])
        )
        for units, epsilon in sizes
    }
    return Result(
        cells=cells,
        ratios=ratios,
        notes=(
            f"{ROWS} rows a person, delta 1e-6, {drawn:,} drawn trajectories a cell, noise of seeds"
            f" {SEED} to {SEED + draws - 1}. Rank correlations of two columns of a row and of one"
            f" with another a row later; miss: mean difference to the real ones. Kept: shares of"
            f" those of {WEAK} to {MIDDLING} (weak) and above that are at least half there, with"
            " their sign. columns: mean of 1 less the Kolmogorov-Smirnov statistic. Ratios: mean"
            " miss with all pairs over that without.",
        ),
    )


if __name__ == "__main__":
    harness.main("correlations", run)
