"""Where sensitive observations lie: cells of a few columns, found with noise and charged.

A private model leaves a little probability where no record is, and a trajectory that strays there
goes on from there. Which cells enough units visit is a histogram, of which little epsilon buys a
sharp one; trajectories that leave those cells are drawn again, which is post-processing.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.privorl.sampling_config import NoisySupport
from distributed_privrl.models.row_bins import RowBins
from distributed_privrl.privacy.mechanisms import (
    DiscreteLaplaceRelease,
    integer_laplace_release,
)
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.bounding import weights_of_rows
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.first_releases import Question


@dataclass(frozen=True, kw_only=True)
class SupportGrid:
    """Cells of equal width over the public ranges of a few columns of encoded rows.

    Args:
        columns: of a row (B).
        low: (B,), where the first cell begins; smaller numbers lie in it.
        high: (B,), where the last one ends; larger numbers lie in that.
        cells: of each column (G).
    """

    columns: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    cells: int

    @property
    def size(self) -> int:
        """The number of cells, G^B."""
        return int(self.cells ** len(self.columns))

    def cells_of(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the cell of each row ``(N,)``, of finite rows ``(N, D)``."""
        low, high = np.array(self.low), np.array(self.high)
        shares = (rows[:, list(self.columns)].astype(np.float64) - low) / (high - low)
        places = np.clip(np.floor(shares * self.cells), 0, self.cells - 1).astype(np.int64)
        shape = (self.cells,) * len(self.columns)
        return np.asarray(np.ravel_multi_index(tuple(places.T), shape), np.int64)


@dataclass(frozen=True, kw_only=True)
class Support:
    """The cells that count as visited.

    Args:
        grid: of all cells.
        visited: those of them.
    """

    grid: SupportGrid
    visited: tuple[int, ...]

    @cached_property
    def _mask(self) -> NDArray[np.bool_]:
        mask = np.zeros(self.grid.size, bool)
        mask[list(self.visited)] = True
        return mask

    def contains(self, rows: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which rows ``(N, D)`` lie in visited cells ``(N,)``; all, where no cell is."""
        if not self.visited:
            return np.ones(len(rows), bool)
        inside: NDArray[np.bool_] = self._mask[self.grid.cells_of(rows)]
        return inside


@dataclass(frozen=True, kw_only=True)
class SupportRelease:
    """A histogram in which each unit weighs 1, whatever it holds.

    Args:
        grid: its cells.
        asked: what it costs, and which cells count.
        relation: of the run.

    Privacy:
        Unit: whoever owns the rows that weigh 1 together. Relation: ``relation``. Sensitivity: 1
        in L1, 2 if one unit is replaced by another, which is as many times `UNIT_WEIGHT` of the
        whole numbers that are summed. Event: ``discrete_laplace``, pure and exact.
    """

    grid: SupportGrid
    asked: NoisySupport
    relation: Relation

    @property
    def sensitivity(self) -> float:
        """How far one unit moves the histogram, in L1."""
        return float(self.relation.contributions)

    @property
    def threshold(self) -> float:
        """Noisy weight from which a cell counts as visited; see `NoisySupport.threshold`."""
        return self.asked.threshold(self.sensitivity)

    @property
    def mechanism(self) -> DiscreteLaplaceRelease:
        """The release of `cell_totals` with the least noise."""
        return integer_laplace_release(
            epsilon=self.asked.epsilon, sensitivity=self.relation.contributions * UNIT_WEIGHT
        )


def support_release(
    asked: NoisySupport, encoder: TransitionEncoder, bins: RowBins, relation: Relation
) -> SupportRelease:
    """Return the release that finds the support, over the public ranges of the model's bins.

    Raises:
        ConfigError: a column is no number of an observation.
    """
    block = encoder.layout.blocks["observation"]
    numbers = {
        one.start: one.marks
        for one in bins.variables
        if one.kind == "number" and block.start <= one.start < block.stop
    }
    columns = tuple(block.start + column for column in asked.columns)
    missing = [column - block.start for column in columns if column not in numbers]
    if missing:
        raise ConfigError(
            f"training.sampling.support.columns={list(asked.columns)}: observations have no number"
            f" {', '.join(map(str, missing))}; their numbers are"
            f" {', '.join(str(column - block.start) for column in sorted(numbers))}, by their place"
            " in an observation"
        )
    grid = SupportGrid(
        columns=columns,
        low=tuple(numbers[column][0] for column in columns),
        high=tuple(numbers[column][-1] for column in columns),
        cells=asked.cells,
    )
    return SupportRelease(grid=grid, asked=asked, relation=relation)


def support_question(
    release: SupportRelease, data: DataConfig, context: RunContext, *, encoder: TransitionEncoder
) -> Question[Support]:
    """Return the question for the cells that enough units visit.

    Args:
        release: the histogram, at its cost and under the run's relation.
        data: the sensitive dataset and its unit.
        context: store and noise of the run.
        encoder: of a step; public facts, or bounds that were paid.

    Privacy: unit ``data.unit``, relation that of ``release``. A unit's rows weigh alike and 1
    together; rows that the encoder cannot take are left out, silently. Sensitivity: that of
    `SupportRelease`. Event: ``discrete_laplace``. Exact weights stay in this process and are
    written nowhere; what is drawn within the support is post-processing.
    """
    mechanism = release.mechanism

    def draw() -> list[float]:
        totals = cell_totals(release.grid, data, context, encoder)
        noisy = mechanism.release(totals, context.noise_source())
        return [steps / UNIT_WEIGHT for steps in noisy.tolist()]

    def found(answer: list[float]) -> Support:
        visited = np.flatnonzero(np.array(answer, np.float64) >= release.threshold)
        return Support(grid=release.grid, visited=tuple(visited.tolist()))

    return Question(event=mechanism.event, facts=asdict(release.grid), draw=draw, found=found)


def cell_totals(
    grid: SupportGrid, data: DataConfig, context: RunContext, encoder: TransitionEncoder
) -> NDArray[np.int64]:
    """Return the units' weight in each cell ``(G^B,)``, in 1 / `UNIT_WEIGHT`.

    Private: for `SupportRelease` alone.
    """

    def chunks() -> Iterator[Transitions]:
        yield from context.store.iter_transitions(data.sensitive, unit=data.unit)

    totals = np.zeros(grid.size, np.int64)
    weigh = weights_of_rows(data.unit, chunks)
    for chunk in chunks():
        encoded = encoder.encode(chunk)
        cells = grid.cells_of(encoded.rows[encoded.valid])
        np.add.at(totals, cells, weigh(chunk.unit_ids)[encoded.valid])
    return totals
