"""Sums over rows of products of features, each row rounded to a public lattice: exact integers.

A term is rounded for itself, before anything is added, so that a sum is the same whatever the order
and the number of workers, and one unit moves it by its own rounded terms and by nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear_sensitivity import triangle
from distributed_privrl.privacy.noise import LATTICE_SLACK, lattice_granularity

_CHUNK = 2**21
"""Numbers that are computed at once: 16 MiB."""


class Lattice(Protocol):
    """Rounds numbers to whole steps of a public spacing; picklable, public facts alone."""

    @property
    def lattice(self) -> float:
        """The spacing."""
        ...

    def to_steps(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return values, of any shape, in whole steps."""
        ...


@dataclass(frozen=True, kw_only=True)
class FineLattice:
    """The lattice of sums without privacy: 2^36 steps or more to the largest number.

    Args:
        bound: the largest number that a term may have.
    """

    bound: float

    @property
    def lattice(self) -> float:
        """The spacing."""
        return lattice_granularity(self.bound, 1) * LATTICE_SLACK * 16

    def to_steps(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return values, of any shape, in whole steps."""
        return np.rint(values / self.lattice).astype(np.int64)


def gram_steps(
    features: FeatureMap,
    counts: NDArray[np.int64],
    weights: NDArray[np.float64],
    lattice: Lattice,
) -> NDArray[np.int64]:
    """Return the sum of counts[s, a] [w phi phi^T], (B k (k + 1) / 2,).

    [ ] rounds the vector of a matrix (`vector_to_symmetric`) to whole steps, once for each
    pair: each of its rows adds the same integers.

    Args:
        features: the public feature map.
        counts: ``(S, A)`` rows of each pair.
        weights: ``(S, A)`` w, public.
        lattice: of the vector.
    """
    rows, columns, scale = triangle(features.width)
    total = np.zeros((features.blocks, len(rows)), np.int64)
    repeats, shrink = counts.reshape(-1), weights.reshape(-1)
    seen = np.flatnonzero(repeats)
    for block, part in _parts(features, seen, len(rows)):
        pairs = seen[part]
        phi = features.vectors(pairs)
        terms = phi[:, rows] * phi[:, columns] * scale * shrink[pairs, None]
        total[block] += repeats[pairs] @ lattice.to_steps(terms)
    return total.reshape(-1)


def row_steps(
    features: FeatureMap,
    pairs: NDArray[np.int64],
    values: NDArray[np.float64],
    lattice: Lattice,
) -> NDArray[np.int64]:
    """Return the sum over rows of [phi y], (B k,), [ ] rounding to whole steps.

    Args:
        features: the public feature map.
        pairs: ``(N,)`` state A + action of each row.
        values: ``(N,)`` y, weights included.
        lattice: of the vector.
    """
    total = np.zeros((features.blocks, features.width), np.int64)
    for block, part in _parts(features, pairs, features.width):
        terms = features.vectors(pairs[part]) * values[part, None]
        total[block] += lattice.to_steps(terms).sum(axis=0)
    return total.reshape(-1)


def _parts(
    features: FeatureMap, pairs: NDArray[np.int64], width: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield blocks and the places of some of their ``pairs``, so few that they fit into memory."""
    blocks, size = features.block_of(pairs), max(1, _CHUNK // width)
    for block in range(features.blocks):
        places = np.flatnonzero(blocks == block)
        for start in range(0, len(places), size):
            yield block, places[start : start + size]
