"""How near synthetic texts are to real ones, by their embeddings.

Privacy:
    Exact figures of real texts, without noise: for what lies in ``private/`` alone.

Reference: DP-RFT, section 4.1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError

_BLOCK = 4096


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Cosines between synthetic and real texts.

    Args:
        mean: over all pairs.
        maximum: mean over synthetic texts of the cosine with the nearest real one.
    """

    mean: float
    maximum: float


def similarity(
    synthetic: NDArray[np.floating], real: NDArray[np.floating], *, itself: bool = False
) -> Similarity:
    """Return mean and maximum similarity; zero vectors are similar to nothing.

    Args:
        synthetic: (M, D).
        real: (N, D).
        itself: both are the same texts in the same order, and none is compared with itself.

    Raises:
        ConfigError: there are no rows, or the widths differ.
    """
    left, right = _normed("synthetic", synthetic), _normed("real", real)
    if left.shape[1] != right.shape[1]:
        raise ConfigError(
            f"embeddings have {left.shape[1]} and {right.shape[1]} columns: use one encoder"
        )
    if itself and (len(left) != len(right) or len(left) < 2):
        raise ConfigError(f"{len(left)} and {len(right)} rows are not the same two texts or more")
    total, highest = 0.0, list[NDArray[np.float64]]()
    for start in range(0, len(left), _BLOCK):
        cosines = left[start : start + _BLOCK] @ right.T
        rows = np.arange(len(cosines))
        total += float(cosines.sum())
        if itself:
            total -= float(cosines[rows, start + rows].sum())
            cosines[rows, start + rows] = -np.inf
        highest.append(cosines.max(axis=1))
    pairs = len(left) * (len(right) - itself)
    return Similarity(mean=total / pairs, maximum=float(np.concatenate(highest).mean()))


def frechet_distance(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Return the squared Frechet distance of normal distributions fitted to two sets of rows.

    ``|m1 - m2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2)``.

    Args:
        first: (M, D), two rows or more.
        second: (N, D), two rows or more.

    Raises:
        ConfigError: a set has fewer than two rows, or the widths differ.

    Reference: Heusel et al., "GANs trained by a two time-scale update rule converge to a local Nash
    equilibrium" (2017), equation 6.
    """
    if min(len(first), len(second)) < 2 or first.shape[1] != second.shape[1]:
        raise ConfigError(
            f"embeddings of shapes {first.shape} and {second.shape}: two rows or more of one width"
        )
    one, other = first.astype(np.float64), second.astype(np.float64)
    left, right = _factor(one), _factor(other)
    apart = float(((one.mean(axis=0) - other.mean(axis=0)) ** 2).sum())
    common = np.linalg.svd(left @ right.T, compute_uv=False).sum()
    return max(0.0, apart + float((left**2).sum() + (right**2).sum() - 2 * common))


def _factor(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return F (at most D, D) with the rows' covariance ``F' F``.

    Roots of the eigenvalues of ``F' F G' G``, whose sum is the trace of that root, are the singular
    values of ``F G'``.
    """
    centred = (rows - rows.mean(axis=0)) / np.sqrt(len(rows) - 1)
    factor = centred if len(rows) <= rows.shape[1] else np.linalg.qr(centred, mode="r")
    return np.asarray(factor, dtype=np.float64)


def _normed(name: str, rows: NDArray[np.floating]) -> NDArray[np.float64]:
    if rows.ndim != 2 or not len(rows):
        raise ConfigError(f"{name} embeddings must be one row or more, got shape {rows.shape}")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float64)
