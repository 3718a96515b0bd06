"""Rows in two dimensions, to look at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation.neighbours import standardised

EmbeddingMethod = Literal["pca", "tsne"]
_LEAST_ROWS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """Points in the plane.

    Args:
        points: (N, 2) of each dataset, by name.
        axes: what the two axes are, for the plot.
    """

    points: Mapping[str, NDArray[np.float64]]
    axes: tuple[str, str]


def embed(
    rows: Mapping[str, NDArray[np.floating]], *, method: EmbeddingMethod = "pca", seed: int = 0
) -> Embedding:
    """Return every dataset's rows in the plane.

    ``pca``: the two principal components of the first dataset's standardised rows; the others are
    projected onto them, so that they cannot turn the picture. ``tsne``: neighbours stay neighbours,
    distances and densities mean nothing; all datasets are embedded together.

    Args:
        rows: (N, D) of each dataset, by name; the first one sets the scale.
        method: how.
        seed: public seed of t-SNE.

    Raises:
        ConfigError: no dataset, fewer than three rows in all, fewer than two columns, or an
            unknown method.
    """
    if method not in ("pca", "tsne"):
        raise ConfigError(f"method must be pca or tsne, got {method!r}")
    if not rows:
        raise ConfigError("rows must hold at least one dataset, got none")
    reference = next(iter(rows.values()))
    tables = standardised(reference, *rows.values())
    joined = np.concatenate(tables)
    if len(joined) < _LEAST_ROWS or joined.shape[1] < 2:
        raise ConfigError(f"rows must be three or more of two columns or more, got {joined.shape}")
    if method == "tsne":
        points, axes = _tsne(joined, seed), ("t-SNE 1", "t-SNE 2")
    else:
        points, axes = _principal(tables[0], joined)
    ends = np.cumsum([len(table) for table in tables])[:-1]
    return Embedding(points=dict(zip(rows, np.split(points, ends), strict=True)), axes=axes)


def _principal(
    reference: NDArray[np.float64], rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], tuple[str, str]]:
    """Project onto the first two right singular vectors, their largest entry positive."""
    _, lengths, directions = np.linalg.svd(reference, full_matrices=False)
    if len(directions) < 2:
        _, lengths, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    first = directions[:2]
    largest = np.abs(first).argmax(axis=1)
    first = first * np.where(first[np.arange(2), largest] < 0, -1.0, 1.0)[:, None]
    shares = lengths[:2] ** 2 / max(float((lengths**2).sum()), np.finfo(np.float64).tiny)
    axes = [f"component {i + 1} ({share:.0%} of variance)" for i, share in enumerate(shares)]
    return rows @ first.T, (axes[0], axes[1])


def _tsne(rows: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(rows) - 1) / 3)
    fitted = TSNE(perplexity=perplexity, init="pca", random_state=seed % 2**32).fit_transform(rows)
    points: NDArray[np.float64] = fitted.astype(np.float64)
    return points
