"""The model of a table as released counts have it, and rows drawn from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.correlations import Correlations
from distributed_privrl.marginals.coupling import Couplings
from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.shapes import ColumnShape, drawn_numbers
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.marginals.tilting import (
    Tilt,
    Traits,
    block_sizes,
    fitted_tilt,
    traits_of,
)

_ON_TRIAL = 50_000
"""Rows by which it is found how others are chosen."""
_BLOCK = 8_192
"""Rows that are chosen at once."""


@dataclass(frozen=True, eq=False)
class NumberModel:
    """Which numbers lie in the bins of a table's rows; all of it released or public.

    Args:
        columns: of the table.
        shapes: of each column; those of columns that share one are the same.
        couplings: of numbers that were counted together.
    """

    columns: TableColumns
    shapes: tuple[ColumnShape, ...]
    couplings: Couplings

    def numbers(
        self,
        bins: NDArray[np.int32],
        random: np.random.Generator,
        *,
        places: Sequence[int] | None = None,
        scores: NDArray[np.float64] | None = None,
    ) -> list[NDArray[np.float64]]:
        """Return numbers, or categories from 0, of each column ``(N,)``.

        Args:
            bins: ``(N, V)``.
            random: of the draws.
            places: columns that are asked for; others are empty. None: all.
            scores: ``(N, V)`` normal scores of where numbers lie in their bins, written for those
                that are asked for, read for others. None: nothing is known.
        """
        asked = range(len(self.columns)) if places is None else places
        if scores is None:
            scores = np.zeros(bins.shape)
        numbers = [np.empty(0)] * len(self.columns)
        order = self.couplings.in_order(asked)
        for place in order:
            column = self.columns[place]
            if column.cells is not None:
                self.couplings.score(place, order, bins, scores, random)
            numbers[place] = drawn_numbers(
                column, self.shapes[place], bins[:, place], ndtr(scores[:, place])
            )
        return numbers

    def unit_shares(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how often rows of units of each class are drawn: as often as there are such rows.

        Args:
            weights: ``(K,)`` of all rows of each class, as they are counted.
        """
        sizes = self.columns.unit_sizes
        assert sizes is not None
        shares = weights * sizes.rows
        return np.asarray(shares / shares.sum())


@dataclass(frozen=True, eq=False)
class TableModel(NumberModel):
    """A distribution over rows of a table; all of it released or public.

    Args:
        field: over bins.
        lengths: weight of trajectories by the group of their last step; empty: nobody counted.
        laterals: shares of the cells of observations that go together after a step, too, and of
            which the field does not tell it; see `laterals`.
        correlations: of the columns of a row, that were released; None: none were.
    """

    field: Field
    lengths: NDArray[np.float64]
    laterals: Mapping[Clique, NDArray[np.float64]] = dataclass_field(default_factory=dict)
    correlations: Correlations | None = None

    def transitions(self, count: int, random: np.random.Generator) -> Transitions:
        """Return ``count`` independent transitions."""
        if self.tilted is None:
            rows = self._drawn(count, random)
        else:
            blocks = [self._tilted(size, random) for size in block_sizes(count, _BLOCK)]
            rows = np.concatenate(blocks)
        return self.columns.transitions(self.numbers(rows, random))

    def _drawn(self, count: int, random: np.random.Generator) -> NDArray[np.int32]:
        """Return bins ``(N, V)`` of independent rows of the model."""
        rows = np.zeros((count, len(self.columns)), np.int32)
        for place in self.columns.of("unit"):
            self.draw_units(rows, self.shapes[place].bin_masses, random)
        Drawer(self.field, self.columns.of("unit")).fill(rows, random)
        return rows

    @cached_property
    def traits(self) -> Traits | None:
        """What draws are chosen by; None: they are taken as they come."""
        if self.correlations is None:
            return None
        return traits_of(self.columns, self.shapes, self.correlations)

    @cached_property
    def tilted(self) -> Tilt | None:
        """How rows are chosen that go together as correlations say; None: as they come."""
        if self.traits is None:
            return None
        rows = self._drawn(_ON_TRIAL, np.random.default_rng(0))
        return fitted_tilt(self.traits, self.traits.of(rows))

    def _tilted(self, count: int, random: np.random.Generator) -> NDArray[np.int32]:
        tilt, traits = self.tilted, self.traits
        assert tilt is not None
        assert traits is not None
        rows = self._drawn(tilt.times * count, random)
        return rows[tilt.chosen(traits.of(rows), count, random)]

    def draw_units(
        self, rows: NDArray[np.int32], weights: NDArray[np.float64], random: np.random.Generator
    ) -> None:
        """Draw how large the unit of each row is, as often as rows are of such units, in place.

        Args:
            rows: ``(N, V)``.
            weights: ``(K,)`` of all rows of each class, as they are counted.
            random: of the draws.
        """
        (place,) = self.columns.of("unit")
        shares = self.unit_shares(weights)
        rows[:, place] = random.choice(len(shares), len(rows), p=shares)
