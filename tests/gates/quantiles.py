"""Gates on private quantiles: what one unit can change of an outcome's odds, by enumeration.

Every dataset of a few units on a grid of a few cells, every neighbour of it, every outcome.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, permutations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from distributed_privrl.privacy.choosing import SecureChooser
from distributed_privrl.privacy.quantiles import (
    CellWeights,
    ColumnGrid,
    QuantileRelease,
    bounds_between,
)
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages import bounding
from tests.gates.bounds import ALPHA
from tests.gates.system import System

EPSILON = 1.0
CELLS = 3
OTHERS = 4
GRID = ColumnGrid(lower=np.zeros(1), upper=np.full(1, float(CELLS)), cells=CELLS)
VALUES = (0.5, 1.5, 2.5)
Unit = tuple[float, ...]
ABSENT: Unit = ()
UNITS: tuple[Unit, ...] = (
    *((value,) for value in (-9.0, 1.5, 9.0, np.nan)),
    (0.5, 2.5),
    (0.5, np.nan),
    (0.5,) * 5,
    (2.5,) * 5,
)


def law(distances: Sequence[int], scale: float) -> list[float]:
    """Return the probability of each candidate: random order, coins of exp(-excess / scale)."""
    smallest, total = min(distances), [0.0] * len(distances)
    coins = [math.exp((smallest - distance) / scale) for distance in distances]
    for order in permutations(range(len(distances))):
        left = 1 / math.factorial(len(distances))
        for candidate in order:
            total[candidate] += left * coins[candidate]
            left *= 1 - coins[candidate]
    return total


@dataclass
class Spy:
    """Takes the first candidate, and remembers the odds of all.

    Args:
        laws: of each choice so far.
    """

    laws: list[list[float]] = field(default_factory=list)

    def choose(self, distances: Sequence[int], *, scale: float, tag: int = 0) -> int:
        self.laws.append(law(distances, scale))
        return 0


def noisy_bounds(
    values: NDArray[np.floating],
    unit_ids: NDArray[np.uint64],
    *,
    grid: ColumnGrid,
    release: QuantileRelease,
    chooser: Any,
) -> NDArray[np.float64]:
    """Return bounds (B, 2) of the columns of a table (N, B), found as `bounds_question` does."""
    table: Any = SimpleNamespace(unit_ids=unit_ids)
    weigh = bounding.weights_of_rows("patient", lambda: iter([table]))
    cells = CellWeights(grid)
    cells.add(values, weigh(unit_ids))
    return bounds_between(grid, release.release(cells, chooser))


def outcome_logs(units: Sequence[Unit], release: QuantileRelease) -> NDArray[np.float64]:
    """Return the logarithm of the probability of every outcome of a dataset."""
    values = np.array([value for unit in units for value in unit]).reshape(-1, 1)
    owners = np.repeat(np.arange(len(units), dtype=np.uint64), [len(unit) for unit in units])
    spy = Spy()
    noisy_bounds(values, owners, grid=GRID, release=release, chooser=spy)
    return np.log([math.prod(chances) for chances in product(*spy.laws)])


def neighbours(relation: Relation) -> Iterator[tuple[Unit, Unit]]:
    """Yield what one unit may hold in the one dataset and in the other."""
    if relation is Relation.REPLACE_ONE:
        yield from ((mine, other) for mine in UNITS for other in UNITS)
        return
    yield from ((mine, ABSENT) for mine in UNITS)


def largest_loss(release: QuantileRelease) -> float:
    """Return the largest privacy loss between two neighbours, whatever the others hold."""
    losses = [0.0]
    for count in range(OTHERS + 1):
        for others in combinations_with_replacement(VALUES, count):
            rest = [(value,) for value in others]
            logs = {unit: outcome_logs([*rest, unit], release) for unit in (*UNITS, ABSENT)}
            losses += [
                float(np.abs(logs[mine] - logs[other]).max())
                for mine, other in neighbours(release.relation)
            ]
    return max(losses)


def gate_quantiles(system: System) -> None:
    """Nothing that a unit holds changes an outcome's odds by more than what is charged."""
    for relation in (Relation.REPLACE_WITH_NULL, Relation.ADD_OR_REMOVE, Relation.REPLACE_ONE):
        for quantiles in ((0.1,), (0.5,), (0.25, 0.75)):
            release = QuantileRelease(
                epsilon=EPSILON, quantiles=quantiles, columns=1, relation=relation
            )
            charged = release.event.epsilon * release.event.count
            what = f"quantiles {quantiles} under {relation}"
            assert charged <= EPSILON, f"{what} are charged {charged}"
            loss = largest_loss(release)
            assert loss <= charged * (1 + 1e-9), f"{what} lose {loss:.3f}, charged {charged:g}"
            assert loss > charged / 2, f"{what} lose {loss:.3f} alone, charged {charged:g}"


def gate_choices(system: System) -> None:
    """Choices follow the law that the enumeration of quantiles assumes."""
    distances, scale, draws = (0, 1, 2, 3), 1.0, 4_000
    chooser = SecureChooser()
    seen = Counter(chooser.choose(distances, scale=scale) for _ in range(draws))
    expected = np.array(law(distances, scale)) * draws
    observed = np.array([seen[position] for position in range(len(distances))])
    fit = stats.chisquare(observed, expected)
    assert fit.pvalue > ALPHA, f"choices are not of the stated law, p={fit.pvalue:.1e}"
