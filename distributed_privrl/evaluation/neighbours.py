"""Nearest neighbours of synthetic rows: how much of the data they cover, and whether they copy it.

None of these is a private release: whatever is computed from sensitive rows belongs into
``private/``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial import cKDTree

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError

COVERAGE_NEIGHBOURS = 5
ALPHA = 0.01
"""Error probability at which the copying detector and the membership attack fire."""
_CLOSEST = 0.01
_TREE_COLUMNS = 64
_SPARE, _BLOCK = 4, 256


def standardised(
    reference: NDArray[np.floating], *tables: NDArray[np.floating]
) -> list[NDArray[np.float64]]:
    """Return each of ``tables`` in units of the columns' mean and deviation in ``reference``.

    A constant column of ``reference`` keeps its unit.

    Args:
        reference: (M, D).
        tables: (N, D) each.

    Raises:
        ConfigError: no rows, a value that is not finite, or different columns.

    Example:
        >>> rows = np.array([[0.0, 7.0], [2.0, 7.0]])
        >>> standardised(rows, rows)[0].tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    for table in (reference, *tables):
        if table.ndim != 2 or not len(table) or table.shape[1:] != reference.shape[1:]:
            raise ConfigError(
                f"rows must be (N, D) with one row or more and the columns of the reference"
                f" {reference.shape}, got {table.shape}"
            )
        if not np.isfinite(table).all():
            raise ConfigError("rows hold values that are not finite: remove those rows")
    wide = reference.astype(np.float64)
    scale = np.where(np.ptp(wide, axis=0) > 0, wide.std(axis=0), 1.0)
    return [(table - wide.mean(axis=0)) / scale for table in tables]


def _nearest(
    rows: NDArray[np.float64], others: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """Return the distances of each of ``rows`` to its nearest ``count`` of ``others``, rising.

    A tree helps among few columns. Among hundreds it looks at every pair, one after the other:
    there candidates are found by matrix products, and their distances computed anew, because a
    product loses the digits of small ones.
    """
    if rows.shape[1] <= _TREE_COLUMNS:
        return np.asarray(cKDTree(others).query(rows, k=range(1, count + 1))[0])
    kept = min(len(others), count + _SPARE)
    lengths = np.einsum("ij,ij->i", others, others)
    found = np.empty((len(rows), count))
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        near = np.argpartition(lengths - 2 * block @ others.T, kept - 1, axis=1)[:, :kept]
        exact = np.linalg.norm(block[:, None] - others[near], axis=2)
        found[start : start + _BLOCK] = np.sort(exact, axis=1)[:, :count]
    return found


def nearest_distances(
    rows: NDArray[np.float64], others: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the Euclidean distance of each of ``rows`` (N, D) to the nearest of ``others``, (N,).

    Example:
        >>> nearest_distances(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0], [6.0, 8.0]])).tolist()
        [5.0]
    """
    return _nearest(rows, others, 1)[:, 0]


def distances_within(rows: NDArray[np.float64], neighbour: int = 1) -> NDArray[np.float64]:
    """Return the distance of each of ``rows`` (N, D) to its ``neighbour``-th nearest other row.

    Raises:
        ConfigError: there are not that many other rows.
    """
    if not 1 <= neighbour < len(rows):
        raise ConfigError(f"neighbour must lie in 1 .. {len(rows) - 1}, got {neighbour}")
    return _nearest(rows, rows, neighbour + 1)[:, neighbour]


def coverage(
    reference: NDArray[np.float64],
    synthetic: NDArray[np.float64],
    *,
    neighbours: int = COVERAGE_NEIGHBOURS,
) -> float:
    """Return the share of reference rows with a synthetic row among their nearest.

    A reference row is covered if a synthetic row is at least as near as its ``neighbours``-th
    nearest other reference row.

    Args:
        reference: (M, D), standardised.
        synthetic: (N, D), standardised alike.
        neighbours: k.

    Raises:
        ConfigError: fewer than ``neighbours + 1`` reference rows.

    Reference: Naeem et al., "Reliable fidelity and diversity metrics for generative models" (2020),
    equation 5.
    """
    radii = distances_within(reference, neighbours)
    return float((nearest_distances(reference, synthetic) <= radii).mean())


def expected_coverage(
    reference: int, synthetic: int, *, neighbours: int = COVERAGE_NEIGHBOURS
) -> float:
    """Return the expected `coverage` of a sample of the reference's own distribution.

    Args:
        reference: number of reference rows (M).
        synthetic: number of synthetic rows (N).
        neighbours: k.

    Reference: Naeem et al. (2020), equation 9.

    Example:
        >>> expected_coverage(2, 1, neighbours=1)
        0.5
    """
    check_positive("synthetic", synthetic)
    steps = np.arange(1, neighbours + 1)
    return float(1 - np.prod((reference - steps) / (reference + synthetic - steps)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Copying:
    """Whether synthetic rows are copies of the training rows; see `copying`.

    Args:
        to_training: (N,) distance of each synthetic row to the nearest training row.
        to_held_out: (N,) to the nearest row held out.
        held_out_to_training: (M,) distance of each row held out to the nearest training row.
        training_share: share of the synthetic rows whose nearest real row is a training row.
        expected_share: what ``training_share`` is on average for a model that copies nothing.
        p_value: of ``training_share``, one-sided.
        groups: groups of real rows that were permuted.
        nearer_share: probability that a synthetic row is nearer to the training rows than a row
            held out is, ties counted half.
        nearer_p_value: of ``nearer_share``, one-sided.
    """

    to_training: NDArray[np.float64]
    to_held_out: NDArray[np.float64]
    held_out_to_training: NDArray[np.float64]
    training_share: float
    expected_share: float
    p_value: float
    groups: int
    nearer_share: float
    nearer_p_value: float

    @property
    def near_copies(self) -> float:
        """Share of the synthetic rows nearer to training than the nearest 1 % of those held out."""
        limit = np.quantile(self.held_out_to_training, _CLOSEST, method="lower")
        return float((self.to_training < limit).mean())

    @property
    def shared(self) -> float:
        """Share of the rows held out that are training rows too, value by value."""
        return float((self.held_out_to_training == 0).mean())

    def fires(self, alpha: float = ALPHA) -> bool:
        """Say whether the synthetic rows prefer the training rows by more than chance explains."""
        return self.p_value <= alpha


def copying(
    training: NDArray[np.float64],
    held_out: NDArray[np.float64],
    synthetic: NDArray[np.float64],
    *,
    generator: np.random.Generator,
    training_groups: NDArray[np.integer] | None = None,
    held_out_groups: NDArray[np.integer] | None = None,
    permutations: int = 1999,
) -> Copying:
    """Return what tells a model that copies its training rows from one that learned from them.

    Two tests. *Nearest real row*: rows held out come from the same source, so to a model that
    copies nothing training rows and rows held out are alike, however good or bad the model is. The
    share of synthetic rows whose nearest real row is a training row is compared with what it is
    after the names "training" and "held out" were permuted over groups (trajectories or persons,
    whose rows belong together). It is exact, and it is the one that the detector fires on.
    *Rank* (Mann-Whitney): distances to the training rows, of synthetic rows against rows held out.
    It takes rows for independent, and a model that draws from the middle of the data alone is
    nearer too: it informs.

    Args:
        training: (T, D), standardised.
        held_out: (M, D), standardised alike.
        synthetic: (N, D), standardised alike.
        generator: source of the permutations.
        training_groups: (T,) which rows belong together; None: each row is a group of its own.
        held_out_groups: (M,).
        permutations: how many.

    Reference: Meehan, Chaudhuri, Dasgupta, "A non-parametric test to detect data-copying in
    generative models" (2020), section 3 (the rank test).
    """
    check_positive("permutations", permutations)
    to_training = nearest_distances(synthetic, training)
    held_out_to_training = nearest_distances(held_out, training)
    rank = stats.mannwhitneyu(to_training, held_out_to_training, alternative="less")
    pairs = len(to_training) * len(held_out_to_training)
    weights, training_count = _nearest_by_group(
        (training, training_groups), (held_out, held_out_groups), synthetic, generator
    )
    observed = weights[:training_count].sum()
    permuted = np.array(
        [weights[generator.permutation(len(weights))[:training_count]].sum() for _ in
         range(permutations)]
    )  # fmt: skip
    return Copying(
        to_training=to_training,
        to_held_out=nearest_distances(synthetic, held_out),
        held_out_to_training=held_out_to_training,
        training_share=float(observed / len(synthetic)),
        expected_share=training_count / len(weights),
        p_value=float((1 + (permuted >= observed).sum()) / (1 + permutations)),
        groups=len(weights),
        nearer_share=float(1 - rank.statistic / pairs),
        nearer_p_value=float(rank.pvalue),
    )


_Table = tuple[NDArray[np.float64], NDArray[np.integer] | None]


def _nearest_by_group(
    training: _Table,
    held_out: _Table,
    synthetic: NDArray[np.float64],
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], int]:
    """Return how many synthetic rows are nearest to each group, training's first, and how many.

    The pool is shuffled, so that of several rows at the same distance the choice is nobody's.
    """
    tables = [
        (rows, np.arange(len(rows)) if groups is None else groups)
        for rows, groups in (training, held_out)
    ]
    numbered = [np.unique(groups, return_inverse=True) for _, groups in tables]
    count = len(numbered[0][0])
    group_of = np.concatenate([numbered[0][1], numbered[1][1] + count])
    pool = np.concatenate([rows for rows, _ in tables])
    order = generator.permutation(len(pool))
    nearest = order[cKDTree(pool[order]).query(synthetic)[1]]
    total = count + len(numbered[1][0])
    return np.bincount(group_of[nearest], minlength=total).astype(np.int64), count
