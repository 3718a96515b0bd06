"""GUM, the gradually updating method: rows that are changed until they have given marginals.

All of it is post-processing of released counts.

Reference: PrivSyn, section 5.2 and algorithm 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.marginals.tables import Clique

Bins = NDArray[np.signedinteger]
"""Rows of bins, column by column ``(V, N)``; in 16 bits where they fit."""
ADJUSTING = "adjusting rows"
"""What the progress bar is called."""
_DECAY, _EVERY = 0.84, 20
"""How much less rows change after so many iterations."""
_DUPLICATES = 0.5
"""Share of new rows of a cell that copy a whole row of it; others change two columns."""
_PATIENCE, _BETTER = 10, 1e-4
"""Iterations without a mean error that is so much better, after which rows stay as they are."""


@dataclass(frozen=True, eq=False)
class Target:
    """A marginal that rows are to have.

    Args:
        clique: one column, or two.
        shares: of its cells, of the shape of the columns' sizes; they add up to 1.
    """

    clique: Clique
    shares: NDArray[np.float64]


def started(
    singles: Sequence[NDArray[np.float64]], count: int, random: np.random.Generator
) -> Bins:
    """Return rows ``(V, N)`` of unrelated columns, each as often in a bin as it should be.

    Args:
        singles: weight of each bin ``(K,)`` of each column.
        count: of rows (N).
        random: of their order.
    """
    columns = [
        random.permutation(np.repeat(np.arange(len(one)), whole(one / one.sum(), count)))
        for one in singles
    ]
    small = max(len(one) for one in singles) < 2**15
    return np.stack(columns).astype(np.int16 if small else np.int32)


def adjusted(
    rows: Bins,
    targets: Sequence[Target],
    *,
    iterations: int,
    random: np.random.Generator,
    progress: Progress = silent,
) -> Bins:
    """Change rows ``(V, N)`` in place, target after target, until they hardly change any more.

    Args:
        rows: bins.
        targets: what they are to have.
        iterations: at most.
        random: of which rows change.
        progress: told how many iterations are behind.
    """
    best, since = np.inf, 0
    for iteration in range(iterations if targets else 0):
        progress(ADJUSTING, iteration, iterations)
        step = _DECAY ** (iteration // _EVERY)
        order = random.permutation(len(targets))
        error = float(np.mean([update(rows, targets[i], step, random) for i in order]))
        best, since = (error, 0) if error < best - _BETTER else (best, since + 1)
        if since >= _PATIENCE:
            break
    progress(ADJUSTING, iterations, iterations)
    return rows


def update(rows: Bins, target: Target, step: float, random: np.random.Generator) -> float:
    """Move rows ``(V, N)`` in place from cells that have too many to those that have too few.

    A cell grows by at most its rows times ``step``, so that relations with other columns survive;
    an empty one, which none could be copied in, by that part of its target.

    Args:
        rows: bins.
        target: what they are to have.
        step: at most 1.
        random: of which rows change.

    Returns:
        how much was off before: total variation.
    """
    count = int(rows.shape[1])
    size, cells = target.shares.shape[-1], target.shares.size
    places = _places(rows, target.clique, size, cells)
    now = np.asarray(np.bincount(places, minlength=cells), np.int64)
    aim = count * target.shares.ravel()
    lacking = np.maximum(aim - now, 0.0)
    off: float = float(lacking.sum()) / count
    added = _drawn(np.minimum(lacking, step * np.where(now > 0, now, aim)), random)
    excess = np.maximum(now - aim, 0.0)
    total = int(added.sum())
    if not total or excess.sum() <= 0:
        return off
    removed = np.minimum(_drawn(excess * min(total / excess.sum(), 1.0), random), now)
    order = random.permutation(count)
    order = order[np.argsort(places[order], kind="stable")]
    starts = np.cumsum(now) - now
    slots = random.permutation(order[_runs(starts, removed)])
    grown = random.permutation(np.repeat(np.arange(cells), added))
    moved = min(len(slots), len(grown))
    slots, grown = slots[:moved], grown[:moved]
    copied = (now[grown] > 0) & (random.random(moved) < _DUPLICATES)
    donors = grown[copied]
    own = starts[donors] + (random.random(len(donors)) * now[donors]).astype(np.int64)
    rows[:, slots[copied]] = rows[:, order[own]]
    changed, into = slots[~copied], grown[~copied]
    if len(target.clique) == 2:
        rows[target.clique[0], changed] = into // size
    rows[target.clique[-1], changed] = into % size
    return off


def whole(shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return whole numbers nearest to ``count`` times shares ``(K,)`` that add up to ``count``.

    Example:
        >>> whole(np.array([0.5, 0.3, 0.2]), 4).tolist()
        [2, 1, 1]
    """
    exact = count * shares
    found = np.floor(exact).astype(np.int64)
    rest = np.argsort(found - exact, kind="stable")[: count - int(found.sum())]
    found[rest] += 1
    return found


def _places(rows: Bins, clique: Clique, size: int, cells: int) -> NDArray[np.integer]:
    """Return the cell of each row, ``(N,)``; in 16 bits where they do, which sort fast."""
    kind = np.uint16 if cells <= 2**16 else np.uint32
    places: NDArray[np.integer] = rows[clique[-1]].astype(kind)
    if len(clique) == 2:
        places = places + rows[clique[0]].astype(kind) * kind(size)
    return places


def _drawn(numbers: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.int64]:
    """Return numbers rounded up or down, at random, so that they stay as they are on average."""
    return np.floor(numbers + random.random(len(numbers))).astype(np.int64)


def _runs(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of runs, one after the other: ``lengths`` of them from each start on."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
