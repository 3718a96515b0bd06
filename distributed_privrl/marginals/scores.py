"""Scores of joint counts that may be released next, for the exponential mechanism."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.marginals.tables import block_maps, blocks
from distributed_privrl.marginals.workload import LARGEST_WEIGHT


def score(
    counts: NDArray[np.int64],
    expected: NDArray[np.int64],
    *,
    noise: int,
    weight: int,
    ordered: Sequence[bool],
) -> int:
    """Return how much a joint count would teach: its distance from the model less what noise hides.

    The best of single cells and of ever wider blocks of neighbours: `cleaning.cleaned` finds in
    blocks what no cell shows.

    Args:
        counts: exact, of a candidate's cells: raw private data.
        expected: what the model expects of them, of the same shape; public.
        noise: of a cell, in whole steps: one that counts less is lost in it.
        weight: of the candidate, 1 to `LARGEST_WEIGHT`.
        ordered: of each axis, whether neighbours belong together.

    Raises:
        UnsafeError: the weight is another one: the score would move by more than is charged.

    Privacy: a cell's or block's part, ``|x - m| - min(x, noise)``, has slopes between -2 and 1; a
    unit that adds `UNIT_WEIGHT` to cells in all moves each sum, and so the largest of them, by -2
    to 1 times ``weight`` `UNIT_WEIGHT`. A choice is charged for the width of that interval, 3.
    """
    if not 1 <= weight <= LARGEST_WEIGHT:
        raise UnsafeError(f"weights of joint counts are 1 to {LARGEST_WEIGHT}, got {weight}")
    return weight * max(
        _teaches(blocks(counts, maps), blocks(expected, maps), _noise_of(noise, maps))
        for maps in block_maps(counts.shape, ordered)
    )


def _noise_of(noise: int, maps: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the noise of each block: that of the sum of its cells."""
    cells = blocks(np.ones([len(one) for one in maps]), maps)
    return np.asarray(np.rint(noise * np.sqrt(cells)), np.int64)


def _teaches(
    counts: NDArray[np.int64], expected: NDArray[np.int64], noise: NDArray[np.int64]
) -> int:
    error = int(np.abs(counts - expected).sum())
    return error - int(np.minimum(counts, noise).sum()) - int((noise // 16).sum())
