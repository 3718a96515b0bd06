"""How near noisy counts come to three columns of the fleet: hour, distance and route.

Joint counts of the real flights get the noise of epsilon 4, negative ones go, and rows are drawn
from what is left, without any other step of a method. The classifier of `utility_tables` judges
them. Counts have all of epsilon (nothing else is released), or what a joint count of `marginals`
has of it; a count may also know which of its cells hold flights at all, which no method knows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import SEED, Result
from benchmarks.table_methods import Sizes, delta_of, run_values
from benchmarks.tables import fleet
from benchmarks.tables.fleet import FLEET, ROWS_PER_UNIT
from distributed_privrl.core.random import Streams
from distributed_privrl.data.named_rows import CATEGORY
from distributed_privrl.evaluation.two_sample import AREA_ROWS, area
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.marginals.cleaning import norm_sub
from distributed_privrl.privacy.calibration import gaussian_multiplier
from distributed_privrl.privacy.units import PrivacyBudget, Relation

COLUMNS = ("hour", "distance", "route")
NOISES = ("none", "all of epsilon", "marginals")
EPSILON = 4.0
Counted = Sequence[tuple[int, ...]]
STRUCTURES: Mapping[str, Counted] = {
    "route and hour, route and distance": ((0, 2), (1, 2)),
    "all three pairs": ((0, 2), (1, 2), (0, 1)),
    "all three together": ((0, 1, 2),),
}
"""What is counted together, by places in `COLUMNS`."""
_FITTINGS = 60
_FLOOR = 1e-6
"""Units that a cell has at least, so that counts that contradict each other have a table."""
_DRAWS = 3
_QUICK_ROWS = 400


@dataclass(frozen=True, kw_only=True)
class Flights:
    """The real flights as cells.

    Args:
        values: of each column, in order.
        codes: (N, 3) places in them.
        units: (N,) whose a flight is.
        total: weight of all flights, units of one each at most.
    """

    values: Sequence[NDArray[np.int64]]
    codes: NDArray[np.int64]
    units: NDArray[np.int64]
    total: float

    @property
    def table(self) -> NDArray[np.float64]:
        """The joint table of all three, in which all flights weigh alike."""
        found = np.zeros([len(one) for one in self.values])
        np.add.at(found, tuple(self.codes.T), self.total / len(self.codes))
        return found

    def frame(self, codes: NDArray[np.int64]) -> pd.DataFrame:
        """Return cells as rows."""
        columns = {
            name: self.values[place][codes[:, place]].astype(np.float64)
            for place, name in enumerate(COLUMNS)
        }
        return pd.DataFrame(columns).astype({"route": CATEGORY})


def flights(quick: bool) -> Flights:
    """Return the flights of all planes, or of 150."""
    rows = fleet.table(quick)
    found = [np.unique(rows[name].astype(np.int64), return_inverse=True) for name in COLUMNS]
    units, counts = np.unique(rows["tailnum"], return_inverse=True, return_counts=True)[1:]
    return Flights(
        values=[values for values, _ in found],
        codes=np.stack([codes for _, codes in found], axis=1),
        units=units,
        total=float(np.minimum(counts, ROWS_PER_UNIT).sum() / ROWS_PER_UNIT),
    )


def counted(
    table: NDArray[np.float64],
    structure: Counted,
    deviation: float,
    random: np.random.Generator,
    *,
    known: bool,
) -> NDArray[np.float64]:
    """Return the table of the largest entropy that has the noisy counts.

    Args:
        table: real weights.
        structure: what is counted together.
        deviation: of the noise of a cell.
        random: of the noise.
        known: whether the cells that hold something are known.
    """
    found = np.ones(table.shape)
    noisy = []
    for clique in structure:
        others = tuple(set(range(table.ndim)) - set(clique))
        exact = table.sum(axis=others, keepdims=True)
        cells = exact > 0 if known else np.ones(exact.shape, np.bool_)
        kept = exact.copy()
        if deviation:
            kept[cells] += random.normal(0, deviation, int(cells.sum()))
            kept[cells] = norm_sub(kept[cells], float(table.sum())) + _FLOOR
        noisy.append((others, kept))
    for _ in range(_FITTINGS if len(structure) > 1 else 1):
        for others, kept in noisy:
            have = found.sum(axis=others, keepdims=True)
            found *= np.divide(kept, have, out=np.zeros_like(kept), where=have > 0)
    return found


def judged(
    real: Flights, model: NDArray[np.float64], random: np.random.Generator, rows: int
) -> float:
    """Return the area of a classifier that tells real flights from rows of a model's table."""
    planes = np.unique(real.units)
    mine = np.isin(real.units, random.permutation(planes)[: len(planes) // 2])
    shares = (model / model.sum()).ravel()

    def side(half: NDArray[np.bool_]) -> tuple[pd.DataFrame, pd.DataFrame]:
        some = random.choice(np.flatnonzero(half), min(rows, int(half.sum())), replace=False)
        drawn = np.unravel_index(random.choice(len(shares), rows, p=shares), model.shape)
        return real.frame(real.codes[some]), real.frame(np.stack(drawn, axis=1))

    (real_here, made_here), (real_there, made_there) = side(mine), side(~mine)
    return area((real_here, made_here), (real_there, made_there), seed=SEED)


def noises() -> tuple[float, float]:
    """Return the deviation of one count that has all of epsilon, and of one of `marginals`."""
    sizes = Sizes(units=4043, rows=334_264, trajectories=37_976)
    budget = PrivacyBudget(
        epsilon=EPSILON,
        delta=delta_of(sizes.units),
        unit=FLEET.unit,
        relation=Relation.REPLACE_WITH_NULL,
    )
    values = run_values(
        "marginals",
        FLEET,
        sizes,
        dataset="table/fleet-v0",
        output="synthetic/fleet-v0",
        epsilon=EPSILON,
        seed=SEED,
        bounds=Path(__file__).parent.parent / "tune_configs" / "bounds" / "fleet.yaml",
        quick=False,
    )
    plan: Any = plan_run(parse_config(values, source="fleet_area"))
    return gaussian_multiplier(budget), float(plan.details["joint_noise_units"])


def _cells(real: Flights, rows: int) -> Iterator[dict[str, Any]]:
    alone, among = noises()
    for name, structure in STRUCTURES.items():
        deviations = (0.0, alone * len(structure) ** 0.5, among)
        for noise, deviation in zip(NOISES, deviations, strict=True):
            for known in (False, True) if deviation else (False,):
                areas = []
                for draw in range(_DRAWS):
                    random = Streams(SEED).numpy(f"fleet area/{name}/{noise}/{known}/{draw}")
                    model = counted(real.table, structure, deviation, random, known=known)
                    areas.append(judged(real, model, random, rows))
                yield {
                    "counted": name,
                    "noise": noise,
                    "of a cell": deviation,
                    "cells with flights": "known" if known else "-",
                    "area": median(areas),
                    "lowest": min(areas),
                    "highest": max(areas),
                }


def run(quick: bool) -> Result:
    """Measure all structures and noises."""
    real = flights(quick)
    cells = list(_cells(real, _QUICK_ROWS if quick else AREA_ROWS // 2))
    ratios: dict[str, float] = {}
    for cell in cells:
        known = ", cells known" if cell["cells with flights"] == "known" else ""
        name = f"lowest area, noise: {cell['noise']}{known}"
        ratios[name] = min(ratios.get(name, 1.0), cell["area"])
    return Result(
        cells=cells,
        ratios=ratios,
        notes=(
            f"Epsilon {EPSILON:g}, delta 1e-5, a plane the unit, whose flights weigh one in all"
            f" ({real.total:,.0f} in the table). Noise in units; median of {_DRAWS} draws. The"
            " classifier sees hour, distance and route alone.",
        ),
    )


if __name__ == "__main__":
    harness.main("fleet_area", run)
