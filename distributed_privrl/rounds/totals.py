"""Sums of sums. Imports numpy alone, for actors that hold workers of any kind."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def total_of(
    sums: Sequence[NDArray[np.floating]], *, out: NDArray[np.float64]
) -> NDArray[np.floating]:
    """Add sums, multiples of one lattice: exact; a single one is returned as it is."""
    if len(sums) == 1:
        return sums[0]
    np.copyto(out, sums[0])
    for one in sums[1:]:
        out += one
    return out
