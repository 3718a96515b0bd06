"""What counts of columns say of steps: as much flows into each state as flows out of it.

Every row is the first of its trajectory, or the one before has led to it; and it is the last one,
or leads to another. So the rows in which a number has a value weigh as much as the steps that lead
to that value and the trajectories that begin there, and as much as the steps that leave it and the
trajectories that end there. Where a number is told as a change, the counts of the number, of its
changes and of ends leave one answer that assumes nothing else, the one of the largest entropy: how
changes and ends depend on the number. Without it, changes would be alike at all levels. Numbers
that come back to a level would spread until their bounds cut them, and trajectories would go on
after the last year of a study. No change leads out of the bounds, so that whoever can only rise is
not at the top.

The density of a step of a stationary Gaussian chain is a product of what depends on the number, on
what it becomes, and on their difference. So there the answer is exact, but for noise.

References: Deming and Stephan 1940 (iterative proportional fitting); Darroch and Ratcliff 1972
(generalised iterative scaling, for sums of which a cell has a part).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.bins import SHARED, Bins
from distributed_privrl.marginals.column import STAYS, Column
from distributed_privrl.marginals.drawing import NumberModel
from distributed_privrl.marginals.loss import Measured
from distributed_privrl.marginals.shapes import ColumnShape, drawn_numbers
from distributed_privrl.marginals.tables import Clique, Margin, ReleasedTable
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT

_SWEEPS = 300
_RANKS = 8
"""Places within a bin of a number, and of a change, from which it is told what it becomes."""
STUCK = 0.1
"""Part of all changes that must lead to somewhere within the bounds, or a step cannot be."""
SLACK = 1e-6
"""Part of a range by which a sum may be beyond it: steps such as .1 add up to a little more."""
_MOST_CELLS = 2_000_000
"""Of where steps lead to, by bins and changes; of columns with more nothing is told."""
_SURE = 0.02
"""Part of the mean cell that none is taken to hold less than, where what is told is weighed."""
_LEAST = 1e-3
"""Of a unit: cells that can hold anything have no less."""
_DOUBT = 0.03
"""Part of a unit's evidence that each unit is that all rows are alike, before anything is known."""
_FIRM = 2.0
"""How much more firmly first and last rows are taken to be like all others."""
_SEEN = 3.0
"""Deviations of chance by which ends must differ between bins to be told."""
_NEWTON = 4
_STEEPEST = 2.0
"""Logarithm of the largest correction of a sweep."""


@dataclass(frozen=True, eq=False)
class Flow:
    """How rows flow from each bin of an observation to the next, in units.

    Args:
        goes_on: ``(K, L)`` weights of the bins of the observation and of its changes, in rows that
            another one follows.
        ends: ``(K,)`` weights of rows that are the last of their trajectory.
        begins: ``(K,)`` weights of those that are the first.
    """

    goes_on: NDArray[np.float64]
    ends: NDArray[np.float64]
    begins: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Noisy:
    """Weights with noise, in units.

    Args:
        values: of any shape.
        deviations: of their noise, of the same shape, or one for all.
    """

    values: NDArray[np.float64]
    deviations: NDArray[np.float64] | float

    def correction(
        self, now: NDArray[np.float64], behind: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the logarithms by which weights come as near to these as noise makes it likely.

        What is likely: the squared miss in deviations, and how much the weights were raised in all,
        add up to the least.

        Args:
            now: the weights.
            behind: logarithms by which they were raised before; the correction is added.
        """
        spread = _DOUBT * np.square(self.deviations)
        found = np.zeros_like(behind)
        for _ in range(_NEWTON):
            raised = now * np.exp(found)
            missing = self.values - raised - spread * (behind + found)
            found = np.clip(found + missing / (raised + spread), -_STEEPEST, _STEEPEST)
        behind += found
        return found


def told_by_flow(bins: Bins, counted: Mapping[Clique, ReleasedTable]) -> dict[Clique, Measured]:
    """Return how changes and ends depend on a state, as counts of columns imply it.

    Args:
        bins: of the columns of a trajectory's steps.
        counted: joint counts; those of an observation with its change are brought to the flow.

    Returns:
        by the cliques of an observation with its change, where last rows are as if they went on,
        and of an observation with the end; empty where nothing is told as a change.

    Privacy: post-processing of released counts; no event.
    """
    columns, found = bins.columns, dict[Clique, Measured]()
    if not columns.of("time"):
        return found
    (end,) = columns.of("end")
    kinds = bins.own_margin(end).masses
    after = {columns[z].place: z for z in columns.of("next_observation")}
    for place in columns.of("observation"):
        change = after.get(columns[place].place)
        if change is None or not columns[change].difference:
            continue
        pair = place, change
        known = counted.get(pair)
        if bins.sizes[place] ** 2 * bins.sizes[change] > _MOST_CELLS:
            continue
        own, by = bins.own_margin(place), bins.own_margin(change)
        weight = bins.weight_of(pair) / UNIT_WEIGHT
        scale = weight / by.masses.sum()
        noisy = SHARED * max(bins.shapes[i].deviation for i in pair)
        flow = flowing(
            Noisy(own.masses / UNIT_WEIGHT, own.deviations / UNIT_WEIGHT),
            by.masses * scale,
            float(kinds[1:].sum()) / UNIT_WEIGHT,
            led_to([columns[i] for i in pair], [bins.shapes[i] for i in pair]),
            None if known is None or known.parts else _noisy(known),
        )
        if known is None or not known.parts:
            steps = _as_if_all_went_on(flow.goes_on, own.masses, by.masses)
            found[pair] = _told(pair, steps, noisy if known is None else known.deviation)
        unknown = (place, end) not in counted and not bins.panel  # where ends follow from time
        if unknown and _differ(flow.ends, own):
            each = np.outer(flow.ends, kinds[1:] / max(float(kinds[1:].sum()), _LEAST))
            ends = UNIT_WEIGHT * np.column_stack([flow.goes_on.sum(axis=1), each])
            found[place, end] = _told((place, end), ends, noisy)
    return found


def _told(clique: Clique, counts: NDArray[np.float64], deviation: float) -> Measured:
    """Return what is told, off by the more the more there is of it.

    Joint counts may have less of a state, and what is to become of it keeps its shares then. If
    all cells were off alike, the least squares of an estimate would take what is too much from
    what hardly any row does as well as from what most do, and so leave changes that nobody makes.
    """
    parts = np.maximum(counts / counts.mean(), _SURE)
    return Measured(clique, counts, deviation * np.sqrt(parts))


def _as_if_all_went_on(
    goes_on: NDArray[np.float64], masses: NDArray[np.float64], changes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how all rows would go on, ``(K, L)``; where none can, by changes as they usually are.

    Args:
        goes_on: ``(K, L)`` see `Flow`.
        masses: ``(K,)`` of the observation's bins, in all rows.
        changes: ``(L,)`` of the bins of its changes.
    """
    out = np.broadcast_to(goes_on.sum(axis=1, keepdims=True), goes_on.shape)
    usual = np.tile(changes / changes.sum(), (len(goes_on), 1))
    shares = np.divide(goes_on, out, out=usual, where=out > 0)
    return np.asarray(masses[:, None] * shares)


def _noisy(table: ReleasedTable) -> Noisy:
    return Noisy(table.noisy / UNIT_WEIGHT, table.deviation / UNIT_WEIGHT)


def _differ(some: NDArray[np.float64], masses: Margin) -> bool:
    """Say whether some rows, by bins, are unlike all rows by more than noise.

    Args:
        some: ``(K,)`` weights of them, in units.
        masses: of all rows.
    """
    usual = masses.masses * (some.sum() / masses.masses.sum())
    misses = UNIT_WEIGHT * (some - usual) / masses.deviations
    chance = len(usual)
    return float(np.square(misses).sum()) > chance + _SEEN * math.sqrt(2 * chance)


def flowing(
    masses: Noisy,
    changes: NDArray[np.float64],
    last: float,
    reached: NDArray[np.float64],
    counted: Noisy | None = None,
) -> Flow:
    """Return the flow nearest to one in which nothing depends on anything, as noise allows.

    Args:
        masses: ``(K,)`` weights of an observation's bins, in all rows.
        changes: ``(L,)`` weights of the bins of its changes, in rows that another one follows, from
            which noise is cleaned.
        last: weight of the rows that are the last of their trajectory; as much are the first.
        reached: ``(K, L, K)``, which part of the steps from a bin by a change leads to which bin;
            what is missing to one would leave the bounds.
        counted: ``(K, L)`` weights of both, if they were counted together; with all noise.
    """
    own, total = np.maximum(masses.values, _LEAST), float(masses.values.sum())
    last = float(np.clip(last, _LEAST, max(total - _LEAST, _LEAST)))
    inside = reached.sum(axis=2)
    if not inside.any():  # noise has made numbers and changes contradict each other
        inside = np.ones_like(inside)
    goes_on = np.outer(own / total, np.maximum(changes, _LEAST)) * inside
    goes_on = goes_on * ((total - last) / goes_on.sum())
    reached = reached / np.maximum(inside, 1e-9)[:, :, None]
    ends, begins = own * (last / total), own * (last / total)
    out, into = np.zeros(len(own)), np.zeros(len(own))
    by = np.maximum(changes, _LEAST)  # noise in numbers is not told by changes that nobody makes
    by = by * ((total - last) / by.sum())
    behind = np.zeros(goes_on.shape)
    for _ in range(_SWEEPS):
        found = masses.correction(goes_on.sum(axis=1) + ends, out)
        goes_on, ends = goes_on * np.exp(found)[:, None], ends * np.exp(found / _FIRM)
        if counted is not None:
            goes_on = goes_on * np.exp(counted.correction(goes_on, behind))
        ends = ends * (last / ends.sum())
        found = masses.correction(np.einsum("kl,klm->m", goes_on, reached) + begins, into)
        begins = begins * np.exp(found / _FIRM)
        begins = begins * (last / begins.sum())
        goes_on = goes_on * np.exp(reached @ found)
        if counted is None:
            goes_on = goes_on * (by / np.maximum(goes_on.sum(axis=0), 1e-300))
    return Flow(goes_on, ends, begins)


def led_to(columns: Sequence[Column], shapes: Sequence[ColumnShape]) -> NDArray[np.float64]:
    """Return which part of the steps from a bin leads to which bin, ``(K, L, K)``.

    Numbers lie evenly among the quantiles of their bins.

    Args:
        columns: of the observation and of its change.
        shapes: theirs.
    """
    before = columns[0]
    sizes = shapes[0].size, shapes[1].size
    found = np.zeros((*sizes, sizes[0]))
    if before.cells is None:
        become = np.tile(np.arange(sizes[1]) - 1, (sizes[0], 1))
        become[:, STAYS] = np.arange(sizes[0])
        np.put_along_axis(found, become[:, :, None], 1.0, axis=2)
        return found
    ranks = (np.arange(_RANKS) + 0.5) / _RANKS
    here, change = (
        drawn_numbers(one, shape, np.repeat(np.arange(size), _RANKS), np.tile(ranks, size))
        for one, shape, size in zip(columns, shapes, sizes, strict=True)
    )
    here = np.where(np.isnan(here), before.filler, here)
    there = here[:, None] + change
    slack = SLACK * (before.cells.high - before.cells.low)
    inside = (there >= before.cells.low - slack) & (there <= before.cells.high + slack)
    inside |= np.isnan(there)  # to a gap
    bins = shapes[0].bins[before.cells.cells_of(there.ravel())]
    froms = np.repeat(np.arange(sizes[0]), _RANKS)[:, None] * sizes[1]
    pairs = (froms + np.repeat(np.arange(sizes[1]), _RANKS)).ravel()
    np.add.at(found.reshape(-1, sizes[0]), (pairs, bins), inside.ravel() / _RANKS**2)
    return found


def stuck(model: NumberModel) -> dict[int, NDArray[np.bool_]]:
    """Return from which bins, ``(K,)``, of which observations hardly any change leads anywhere.

    Such as the last year of a study: whoever is there does not go on.
    """
    columns, found = model.columns, dict[int, NDArray[np.bool_]]()
    after = {columns[z].place: z for z in columns.of("next_observation") if columns[z].difference}
    for place in columns.of("observation"):
        change = after.get(columns[place].place)
        if change is None or columns[place].cells is None:
            continue
        pair = place, change
        inside = led_to([columns[i] for i in pair], [model.shapes[i] for i in pair]).sum(axis=2)
        masses = model.shapes[change].bin_masses
        found[place] = inside @ masses < STUCK * masses.sum()
    return {place: bins for place, bins in found.items() if bins.any()}
