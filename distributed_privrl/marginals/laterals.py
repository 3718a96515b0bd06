"""How next observations go together where a model has no room to tell.

A model has each number with what it becomes, and what it becomes with others only as far as its
tables allow, and not at all where it becomes a change. What lies in one row needs no tables: each
column is drawn anew given all others, and the other columns again given that. So the rest is told
by further potentials of the observations that a row leads to. They are found on rows of the model
as proportional fitting finds them: each is multiplied by how much too seldom its cells were drawn,
one after the other, each with the rows as those before it have them. Columns by themselves, and
what else was counted, keep what the model says of them.

References: Deming and Stephan 1940 (iterative proportional fitting); Geman and Geman 1984 (Gibbs
sampling).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.column import STAYS
from distributed_privrl.marginals.crowd import Crowd
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.shapes import drawn_numbers
from distributed_privrl.marginals.tables import Clique, counts_of

_TURNS, _FITS = 12, 20
_FULL = 2
"""Turns whose corrections count in full; later ones ever less, as chance is all that they see."""
_SWEEPS = 3
_SHRUNK = 3.0
"""Rows that are thought to lie in each cell as they should, beside those that were drawn."""
_MOST, _STEEPEST, _HELD = 3.0, 10.0, 1000.0
"""How much more or less likely a cell becomes at most: in a turn, in all, and where it is held."""
_AT_ONCE = 8192
_LEAST = 1e-300
_NONE: Mapping[int, NDArray[np.float64]] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Reach:
    """Which bin of an observation a step leads to.

    Args:
        before: place of the observation.
        after: place of what it becomes, as it is or as a change.
        bins: ``(K, L)``, for each bin of the observation and of what it becomes.
    """

    before: int
    after: int
    bins: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Laterals:
    """Draws next observations of rows anew, given all else.

    Args:
        field: of rows.
        places: of the columns that are drawn, hidden ones first.
        reached: of each observation that moves.
        potentials: of observations that are reached together, by places of observations.
    """

    field: Field
    places: tuple[int, ...]
    reached: tuple[Reach, ...] = ()
    potentials: Mapping[Clique, NDArray[np.float64]] = dataclass_field(default_factory=dict)

    def sweep(
        self,
        rows: NDArray[np.int32],
        random: np.random.Generator,
        likelier: Mapping[int, NDArray[np.float64]] = _NONE,
    ) -> None:
        """Draw each column given all others, some times, in place.

        Args:
            rows: ``(N, V)``.
            random: of the draws.
            likelier: how much likelier each bin of some columns is than the field has it,
                ``(N, K)`` by place.
        """
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            by_place = {
                place: np.log(np.maximum(one[start : start + _AT_ONCE], _LEAST))
                for place, one in likelier.items()
            }
            whole = np.zeros((len(part), len(self.field.sizes)), np.int32)
            whole[:, : part.shape[1]] = part
            there = self.led_to(whole)
            for _ in range(_SWEEPS):
                for place in self.places:
                    self._draw(place, whole, there, by_place.get(place), random)
            part[:] = whole[:, : part.shape[1]]

    def led_to(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return rows ``(N, V)`` whose observations are those that they lead to."""
        there = rows.copy()
        for one in self.reached:
            there[:, one.before] = one.bins[rows[:, one.before], rows[:, one.after]]
        return there

    def _draw(
        self,
        place: int,
        rows: NDArray[np.int32],
        there: NDArray[np.int32],
        likelier: NDArray[np.float64] | None,
        random: np.random.Generator,
    ) -> None:
        """Draw a column of rows anew, in place, and what they lead to by it."""
        logs = _logs(self.field, place, rows)
        if likelier is not None:
            logs += likelier
        for one in self.reached:
            if one.after != place:
                continue
            bins = one.bins[rows[:, one.before]]
            for clique, values in self.potentials.items():
                if one.before in clique:
                    given = _given(values, clique, one.before, there)
                    logs += np.take_along_axis(given, bins, axis=1)
        shares = _shares(logs).cumsum(axis=1)
        above = shares <= random.random((len(rows), 1)) * shares[:, -1:]
        rows[:, place] = above.sum(axis=1)
        for one in self.reached:
            if one.after == place:
                there[:, one.before] = one.bins[rows[:, one.before], rows[:, place]]


def given_all(field: Field, place: int, rows: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return how likely each bin of a column is given all others of a row, ``(N, K)``.

    Args:
        field: of rows.
        place: of the column.
        rows: bins ``(N, V)``.
    """
    found = _shares(_logs(field, place, rows))
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _logs(field: Field, place: int, rows: NDArray[np.int32]) -> NDArray[np.float64]:
    logs = np.zeros((len(rows), field.sizes[place]))
    for clique, values in field.potentials.items():
        if place in clique:
            logs += _given(values, clique, place, rows)
    return logs


def _shares(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.exp(logs - logs.max(axis=1, keepdims=True)))


def _given(
    values: NDArray[np.float64], clique: Clique, place: int, rows: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return the values of each bin of a column, ``(N, K)``, given the others of a clique."""
    others = tuple(rows[:, i] for i in clique if i != place)
    return np.asarray(np.moveaxis(values, clique.index(place), -1)[others])


def laterals_of(model: TableModel) -> Laterals | None:
    """Return what draws next observations as counts have them together; None: the model does.

    Privacy: post-processing of the model; no event.
    """
    if not model.laterals:
        return None
    crowd, columns, sizes = Crowd(model), model.columns, model.field.sizes
    after, random = columns.of("next_observation"), np.random.default_rng(0)
    places = (*range(len(columns), len(sizes)), *after)
    rows = crowd.rows.copy()
    weights = crowd.class_weights[crowd.units_of(rows)] * columns.followed(rows)
    weights = weights * ((weights > 0).sum() / max(float(weights.sum()), 1e-300))
    plain = Laterals(model.field, places, reached_by(model))
    there = plain.led_to(rows)
    told = {
        clique: _fitted(shares, clique, there, sizes, weights)
        for clique, shares in model.laterals.items()
    }
    held = {
        clique: counts_of(rows, clique, sizes, weights)
        for clique in model.field.potentials
        if set(clique) & set(after) and max(clique) < len(columns)
    }
    extra = {clique: np.zeros(table.shape) for clique, table in held.items()}
    lateral = {clique: np.zeros(table.shape) for clique, table in told.items()}
    found = plain
    for turn in range(_TURNS):
        now, gain = weights, _FULL / max(_FULL, turn)
        for wanted, logs, where, most in (
            (told, lateral, there, _STEEPEST),
            (held, extra, rows, _HELD),  # what was counted comes last, and holds
        ):
            for clique, table in wanted.items():
                drawn = counts_of(where, clique, sizes, now)
                ratio = np.log((table + _SHRUNK) / (drawn + _SHRUNK))
                ratio = gain * np.clip(ratio, -np.log(_MOST), np.log(_MOST))
                changed = np.clip(logs[clique] + ratio, -np.log(most), np.log(most))
                now = now * np.exp(changed - logs[clique])[tuple(where[:, i] for i in clique)]
                now = now * (weights.sum() / now.sum())
                logs[clique] = changed
        found = replace(plain, field=_with(model.field, extra), potentials=dict(lateral))
        found.sweep(rows, random)
        there = plain.led_to(rows)
    return found


def reached_by(model: TableModel) -> tuple[Reach, ...]:
    """Return which bin of each observation a step leads to; of changes of numbers, about."""
    columns, found = model.columns, list[Reach]()
    after = {columns[z].place: z for z in columns.of("next_observation")}
    for place in columns.of("observation"):
        column = columns[place]
        if column.place not in after:
            continue
        z = after[column.place]
        sizes = model.field.sizes[place], model.field.sizes[z]
        if not columns[z].difference:
            bins = np.broadcast_to(np.arange(sizes[1]), sizes)
        elif column.cells is None:
            become = np.arange(sizes[1]) - 1
            bins = np.where(become == STAYS - 1, np.arange(sizes[0])[:, None], become)
        else:
            here, change = (
                drawn_numbers(columns[i], model.shapes[i], np.arange(size), np.full(size, 0.5))
                for i, size in zip((place, z), sizes, strict=True)
            )
            here = np.where(np.isnan(here), column.filler, here)
            reached = np.clip(here[:, None] + change, column.cells.low, column.cells.high)
            bins = model.shapes[place].bins[column.cells.cells_of(reached.ravel())].reshape(sizes)
        found.append(Reach(place, z, np.asarray(bins, np.int64)))
    return tuple(found)


def _with(field: Field, extra: Mapping[Clique, NDArray[np.float64]]) -> Field:
    potentials = dict(field.potentials)
    for clique, values in extra.items():
        potentials[clique] = potentials.get(clique, 0.0) + values
    return replace(field, potentials=potentials)


def _fitted(
    shares: NDArray[np.float64],
    clique: Clique,
    rows: NDArray[np.int32],
    sizes: Sequence[int],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return a table that has each column as rows have it, and goes together as shares do."""
    columns = [counts_of(rows, (i,), sizes, weights) for i in clique]
    found = shares + 1e-9
    for _ in range(_FITS):
        for axis, own in enumerate(columns):
            others = tuple(i for i in range(found.ndim) if i != axis)
            now = found.sum(axis=others)
            ratio = np.divide(own, now, out=np.zeros_like(own), where=now > 0)
            found = found * np.expand_dims(ratio, others)
    return found
