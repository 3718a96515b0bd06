"""How next observations go together where a model has no room to tell.

A model has each number with what it becomes, and what it becomes with others only as far as its
tables allow. What lies in one row needs no tables: each column is drawn anew given all others, and
the other columns again given that. So the rest is told by further potentials of next observations.
They are found on rows of the model as proportional fitting finds them: each is multiplied by how
much too seldom its cells were drawn, one after the other, each with the rows as those before it
have them. Columns by themselves, and what else was counted, keep what the model says of them.

References: Deming and Stephan 1940 (iterative proportional fitting); Geman and Geman 1984 (Gibbs
sampling).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.crowd import Crowd
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.model import Field
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


@dataclass(frozen=True, eq=False)
class Laterals:
    """Draws next observations of rows anew, given all else.

    Args:
        field: with the further potentials.
        places: of the columns that are drawn, hidden ones first.
    """

    field: Field
    places: tuple[int, ...]

    def sweep(self, rows: NDArray[np.int32], random: np.random.Generator) -> None:
        """Draw each column of rows ``(N, V)`` given all others, some times, in place."""
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            whole = np.zeros((len(part), len(self.field.sizes)), np.int32)
            whole[:, : part.shape[1]] = part
            for _ in range(_SWEEPS):
                for place in self.places:
                    whole[:, place] = self._drawn(place, whole, random)
            part[:] = whole[:, : part.shape[1]]

    def _drawn(
        self, place: int, rows: NDArray[np.int32], random: np.random.Generator
    ) -> NDArray[np.int64]:
        logs = np.zeros((len(rows), self.field.sizes[place]))
        for clique, values in self.field.potentials.items():
            if place in clique:
                others = tuple(rows[:, i] for i in clique if i != place)
                logs += np.moveaxis(values, clique.index(place), -1)[others]
        shares = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
        above = shares <= random.random((len(rows), 1)) * shares[:, -1:]
        return np.asarray(above.sum(axis=1))


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
    wanted = {
        clique: _fitted(shares, clique, rows, sizes, weights)
        for clique, shares in model.laterals.items()
    }
    wanted |= {
        clique: counts_of(rows, clique, sizes, weights)
        for clique in model.field.potentials
        if set(clique) & set(after) and max(clique) < len(columns)
    }
    extra = {clique: np.zeros(table.shape) for clique, table in wanted.items()}
    for turn in range(_TURNS):
        now, gain = weights, _FULL / max(_FULL, turn)
        for clique, table in wanted.items():  # what was counted comes last, and holds
            found = counts_of(rows, clique, sizes, now)
            ratio = np.log((table + _SHRUNK) / (found + _SHRUNK))
            ratio = gain * np.clip(ratio, -np.log(_MOST), np.log(_MOST))
            steepest = np.log(_STEEPEST if clique in model.laterals else _HELD)
            changed = np.clip(extra[clique] + ratio, -steepest, steepest)
            now = now * np.exp(changed - extra[clique])[tuple(rows[:, i] for i in clique)]
            now = now * (weights.sum() / now.sum())
            extra[clique] = changed
        found_now = Laterals(_with(model.field, extra), places)
        found_now.sweep(rows, random)
    return found_now


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
