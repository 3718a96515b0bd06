"""How far a Markov random field is from noisy sums over the cells of its cliques."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.junction_tree import JunctionTree
from distributed_privrl.marginals.tables import Clique, maximal


@dataclass(frozen=True, eq=False)
class Measured:
    """Noisy sums over cells of one clique.

    Args:
        clique: its columns.
        counts: of its cells, of the shape of the clique's sizes.
        deviations: of their noise, of the same shape, or one for all.
        lines: how much of each bin of each column is in each part, ``(K, P)``, where parts were
            counted; ``deviations`` are those of parts then.
    """

    clique: Clique
    counts: NDArray[np.float64]
    deviations: NDArray[np.float64] | float
    lines: tuple[NDArray[np.float64], ...] = ()


@dataclass(frozen=True, eq=False)
class _Parts:
    """Sums over parts, of which each bin has a share.

    What is found to be off in a part moves its bins by their shares, and so along straight lines;
    see `spreading`.

    Args:
        span: of the clique's cells, of all cells.
        extents: of the clique.
        lines: ``(K, P)`` of each column.
        counts: of parts.
        deviation: of each.
    """

    span: slice
    extents: tuple[int, ...]
    lines: tuple[NDArray[np.float64], ...]
    counts: NDArray[np.float64]
    deviation: float

    def misses(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return by how many deviations the cells of all cliques ``(T,)`` miss the counts."""
        found = _along(sums[self.span].reshape(self.extents), self.lines)
        return (found - self.counts) / self.deviation

    def slopes(self, misses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the slopes of half the squared misses, by the clique's cells, flat."""
        return _along(misses / self.deviation, [line.T for line in self.lines]).ravel()


def _along(table: NDArray[np.float64], lines: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return a table with each axis multiplied by its matrix."""
    for line in lines:  # the first axis goes, and comes back as the last one
        table = (table.reshape(len(line), -1).T @ line).reshape(*table.shape[1:], -1)
    return table


@dataclass(frozen=True, eq=False)
class Point:
    """Where an estimate stands.

    Args:
        potentials: of all cliques' cells, ``(T,)``.
        sums: what they put into these cells, ``(T,)``.
        loss: half the squared misses of the measurements, in deviations.
        slopes: of the loss in the sums, ``(T,)``.
    """

    potentials: NDArray[np.float64]
    sums: NDArray[np.float64]
    loss: float
    slopes: NDArray[np.float64]


class Loss:
    """Half the squared misses of measurements in deviations, by the potentials of their cliques.

    Args:
        sizes: bins of each column.
        measured: noisy sums; each column has one at least.
        total: weight of all rows.
    """

    def __init__(self, sizes: Sequence[int], measured: Sequence[Measured], total: float) -> None:
        self._tree = JunctionTree(sizes, [one.clique for one in measured], total)
        self.spans, self._total = self._tree.spans, total
        self._counts = np.concatenate([one.counts.ravel() for one in measured])
        self._precisions = np.zeros_like(self._counts)
        self._parts: list[_Parts] = []
        norms = []
        for one, span in zip(measured, self.spans, strict=True):
            if one.lines:
                counts, deviation = _along(one.counts, one.lines), float(np.max(one.deviations))
                parts = _Parts(span, one.counts.shape, one.lines, counts, deviation)
                self._parts.append(parts)
                longest = math.prod(np.linalg.norm(line, 2) ** 2 for line in one.lines)
                norms.append(float(longest) / deviation**2)
            else:
                deviations = np.broadcast_to(one.deviations, one.counts.shape)
                self._precisions[span] = 1 / deviations.ravel()
                norms.append(1 / float(np.min(one.deviations)) ** 2)
        self._steepest = _steepest(sizes, [one.clique for one in measured], norms)

    @property
    def first_step(self) -> float:
        """A step of potentials along slopes that is never too long."""
        return 2 / (self._steepest * self._total)

    def at(self, potentials: NDArray[np.float64]) -> Point:
        """Evaluate potentials ``(T,)``."""
        sums = self._tree.sums(potentials)
        misses = (sums - self._counts) * self._precisions
        loss, slopes = 0.5 * float(misses @ misses), misses * self._precisions
        for parts in self._parts:
            misses = parts.misses(sums)
            loss += 0.5 * float(np.vdot(misses, misses))
            slopes[parts.span] = parts.slopes(misses)
        return Point(potentials, sums, loss, slopes)


def _steepest(sizes: Sequence[int], cliques: Sequence[Clique], norms: Sequence[float]) -> float:
    """Return how fast slopes change at most, in the sums of cliques that lie in no other.

    What lies in a clique is summed from so many of its cells, and has that much of a norm.
    """
    found: dict[Clique, float] = {}
    largest = maximal(cliques)
    for clique, norm in zip(cliques, norms, strict=True):
        home = next(one for one in largest if set(clique) <= set(one))
        cells = math.prod(sizes[i] for i in home if i not in clique)
        found[home] = found.get(home, 0.0) + norm * cells
    return max(found.values())
