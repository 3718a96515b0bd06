"""Rows built so that float32 sums round as badly as they can."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

_GROUP = 1024


@cache
def _group(count: int) -> NDArray[np.float32]:
    """Return vectors of norm <= 1, the first of norm 1, which a running float32 sum remembers.

    With the first one the sum stays just above a power of two, without it just below, where floats
    are twice as fine; each further value is the one that drives the two sums apart the most.
    """
    top = np.float32(2 ** (int(np.log2(count)) - 1))
    ulp = float(top) * 2.0**-23
    steps = [
        sign * (size + k * ulp / 8)
        for size in (0.25, 0.5)
        for sign in (1, -1)
        for k in range(-8, 9)
    ]
    candidates = np.array(steps, np.float32)
    one = np.float32(1)
    values, sums = [one], np.array([1, 0], np.float32)
    while len(values) < count:
        if sums[0] + one < top + 0.25:
            value = np.float32(0.99)
        elif sums[0] < top:
            value = np.float32(top + np.float32(0.3)) - sums[0]
        else:
            after = sums + candidates[:, None]
            stay = (after[:, 0] >= top) & (after[:, 0] < top + 0.95) & (after[:, 1] < top - 0.04)
            apart = np.where(stay, after[:, 0].astype(float) - after[:, 1], -np.inf)
            value = candidates[apart.argmax()]
        values.append(value)
        sums = sums + value
    return np.array(values, np.float32)


def built_to_round_badly(count: int) -> NDArray[np.float32]:
    """Return ``count`` vectors of one number, of norm <= 1; the first one has norm 1."""
    first = _group(min(count, _GROUP))
    return np.resize(first, count).astype(np.float32)
