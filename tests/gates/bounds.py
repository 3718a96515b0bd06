"""Two-sided statistical checks at a false alarm rate of one in a million."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

ALPHA = 1e-6
LEAST_COORDINATES = 640  # with fewer a standard deviation 20 % too small may pass
LATTICE_STEPS = 2**22
"""How many values of noise lie within a standard deviation, at least."""
LARGEST_Z = float(stats.norm.isf(ALPHA / 2))


def assert_z(score: float, what: str, *, tests: int = 1) -> None:
    """Fail if a standard normal score, the largest of ``tests``, is too far from zero."""
    limit = float(stats.norm.isf(ALPHA / 2 / tests))
    assert abs(score) <= limit, f"{what}: {score:.1f} standard errors off (at most {limit:.1f})"


def assert_dispersion(squares: float, degrees: int, what: str, *, spare: float = 0.0) -> None:
    """Fail if a chi-square statistic is too small or too large.

    ``spare``: by how much a scale may be above what is stated, as where noise covers rounding, too.
    """
    low, high = stats.chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], degrees)
    high *= (1 + spare) ** 2
    assert low <= squares <= high, (
        f"{what}: {squares / degrees:.3f} times what it must be"
        f" ({low / degrees:.3f} .. {high / degrees:.3f})"
    )


def assert_unit_variance(values: NDArray[np.float64], what: str, *, spare: float = 0.0) -> None:
    """Fail if independent normal values have too small or too large a scale; see above."""
    assert values.size >= LEAST_COORDINATES
    squares = float(values.ravel() @ values.ravel())
    assert_dispersion(squares, values.size, f"{what}: variance", spare=spare)


def assert_normal_shape(values: NDArray[np.float64], what: str) -> None:
    """Fail if independent values of variance 1 are not normal."""
    shape = stats.kstest(values.ravel(), "norm")
    assert shape.pvalue > ALPHA, f"{what}: not normal, KS p={shape.pvalue:.1e}"


def assert_few_alike(values: NDArray[np.float64], what: str) -> None:
    """Fail if numbers are each other's, or each other's negative, more often than by rounding.

    Two sizes of independent normals agree with probability 1 / sqrt(pi) / `LATTICE_STEPS`.
    """
    alike = values.size - len(np.unique(np.abs(values)))
    pairs = values.size * (values.size - 1) / 2 / math.sqrt(math.pi) / LATTICE_STEPS
    most = int(stats.poisson.isf(ALPHA, pairs))
    assert alike <= most, f"{what}: {alike} numbers of {values.size} repeat another's size"


def assert_uncorrelated(rows: NDArray[np.float64], what: str) -> None:
    """Fail if two rows ``(R, N)`` are correlated."""
    length = rows.shape[1]
    scores = np.corrcoef(rows)[np.triu_indices(len(rows), 1)] * np.sqrt(length)
    assert_z(float(scores[np.abs(scores).argmax()]), what, tests=len(scores))
