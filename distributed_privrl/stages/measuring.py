"""Noisy histograms of the sensitive rows, which a public report holds the release against.

They are declared before the run, reserved with it and drawn once; none is chosen by what the rows,
or the release, look like.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.config import (
    DataConfig,
    EventConfig,
    MeasuresConfig,
    RunConfig,
)
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.histograms import ColumnCells, Histogram, column_cells, counted
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.named_rows import named_rows
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.privacy.mechanisms import DiscreteLaplaceRelease, integer_laplace_release
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.bounding import weights_of_rows
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.encoders import bounds_of, search_ranges
from distributed_privrl.stages.first_releases import MEASURES_KEY as KEY
from distributed_privrl.stages.first_releases import Question


@dataclass(frozen=True)
class Measures:
    """What is counted of a dataset's rows; all of it public.

    Args:
        asked: by the configuration.
        cells: of each column, by name.
    """

    asked: MeasuresConfig
    cells: dict[str, ColumnCells]

    @cached_property
    def pairs(self) -> tuple[Histogram, ...]:
        """The histograms of pairs.

        Raises:
            ConfigError: no column is called so.
        """
        return tuple(
            Histogram((self._column(one), self._column(other))) for one, other in self.asked.pairs
        )

    @cached_property
    def events(self) -> tuple[Histogram, ...]:
        """The histograms of events; `event_cells` are those in which one happened.

        Raises:
            ConfigError: no column is called so, or it cannot hold that.
        """
        return tuple(Histogram((self._of_event(one),)) for one in self.asked.events)

    @property
    def histograms(self) -> tuple[Histogram, ...]:
        """All of them, pairs first."""
        return (*self.pairs, *self.events)

    def event_cell(self, place: int) -> int:
        """Return the cell of an event's histogram that counts it."""
        event, (column,) = self.asked.events[place], self.events[place].columns
        if event.value is not None:
            return column.values.index(str(_text(event.value)))
        return 0 if event.at_least is None else 1

    def release(self, relation: Relation) -> DiscreteLaplaceRelease:
        """Return what draws the noise: one vector of all histograms.

        Privacy: one unit's rows weigh `UNIT_WEIGHT` together at most, and each row is in one cell
        of each of K histograms: a unit that comes or goes moves the vector by K `UNIT_WEIGHT` at
        most in L1, one that becomes another one by twice as much. Event ``discrete_laplace``.
        """
        sensitivity = len(self.histograms) * UNIT_WEIGHT * relation.contributions
        return integer_laplace_release(epsilon=self.asked.epsilon, sensitivity=sensitivity)

    def facts(self) -> dict[str, Any]:
        """Return what says what is counted, of JSON values."""
        return {
            "histograms": [
                [[one.name, list(one.edges), list(one.values)] for one in histogram.columns]
                for histogram in self.histograms
            ]
        }

    def parts(self, counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the counts of each histogram, of its shape."""
        ends = np.cumsum([one.size for one in self.histograms])[:-1]
        return [
            part.reshape(one.shape)
            for part, one in zip(np.split(counts, ends), self.histograms, strict=True)
        ]

    def _column(self, name: str) -> ColumnCells:
        """Return a column by its name; ``sex`` is a name of the flag ``sex: male``, too."""
        if name in self.cells:
            return self.cells[name]
        flags = [one for one in self.cells if one.startswith(f"{name}: ")]
        if len(flags) != 1:
            known = ", ".join(self.cells)
            raise ConfigError(f"{KEY}: no column is called {name!r}: there are {known}")
        return self.cells[flags[0]]

    def _of_event(self, event: EventConfig) -> ColumnCells:
        column = self._column(event.column)
        if event.value is None:
            if column.values:
                raise ConfigError(f"{KEY}: {event.column} is a category: name an event's value")
            edges = [edge for edge in (event.at_least, event.below) if edge is not None]
            return ColumnCells(column.name, edges=tuple(edges))
        if not column.values:
            raise ConfigError(f"{KEY}: {event.column} is a number: name at_least or below")
        if _text(event.value) not in column.values:
            raise ConfigError(
                f"{KEY}: {event.column} cannot be {event.value!r}: {', '.join(column.values)}"
            )
        return column


def _text(value: object) -> str:
    """Return a category's value as reports have it; flags are yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def measures_of(
    config: RunConfig, store: DatasetStore, info: DatasetInfo | None = None
) -> Measures | None:
    """Return what a run's report measures with noise; None: nothing.

    Args:
        config: of the run.
        store: of its datasets, whose declared spaces and columns are read.
        info: of the dataset; None: the sensitive one's.

    Raises:
        ConfigError: no column is called so, or one has no such value.
    """
    asked = config.evaluation.measures
    if asked is None:
        return None
    info = store.info(config.data.sensitive) if info is None else info
    relation = Relation(config.privacy.relation)
    ranges = search_ranges(config.data, store, relation=relation)
    bounds = bounds_of(config.data, store) if ranges is None else ranges
    found = Measures(asked, column_cells(info, bounds, bins=asked.bins, edges=asked.edges))
    for place in range(len(found.events)):
        found.event_cell(place)
    found.release(relation)
    return found


def measures_question(
    measures: Measures, config: RunConfig, context: RunContext
) -> Question[NDArray[np.int64]]:
    """Return the question for the noisy counts of all histograms.

    Args:
        measures: what is counted.
        config: of the run.
        context: store and noise of the run.

    Privacy: unit ``data.unit``, relation of the run; sensitivity and event as `Measures.release`.
        Exact counts stay in this process and are written nowhere.
    """
    release = measures.release(Relation(config.privacy.relation))

    def draw() -> list[int]:
        exact = unit_weighted_counts(measures, config.data, context.store)
        noisy: list[int] = release.release(exact, context.noise_source()).tolist()
        return noisy

    return Question(
        event=release.event,
        facts=measures.facts(),
        draw=draw,
        found=lambda answer: np.array(answer, np.int64),
    )


def unit_weighted_counts(
    measures: Measures, data: DataConfig, store: DatasetStore
) -> NDArray[np.int64]:
    """Return the exact counts of the sensitive rows, each unit's weighing one together.

    Privacy: private; for `Measures.release` alone.
    """

    def chunks() -> Iterator[Transitions]:
        yield from store.iter_transitions(data.sensitive, unit=data.unit)

    weigh = weights_of_rows(data.unit, chunks)
    return weighted_counts(measures, store.info(data.sensitive), chunks(), weigh)


def weighted_counts(
    measures: Measures,
    info: DatasetInfo,
    chunks: Iterator[Transitions],
    weigh: Callable[[NDArray[np.uint64]], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """Return the weight of rows in each cell.

    Args:
        measures: what is counted.
        info: of the dataset.
        chunks: of its rows.
        weigh: gives the weight of rows by their unit.
    """
    total = np.zeros(sum(one.size for one in measures.histograms), np.int64)
    for chunk in chunks:
        rows = named_rows(chunk, np.ones(len(chunk), np.bool_), info)
        total += counted(measures.histograms, rows, weigh(chunk.unit_ids))
    return total
