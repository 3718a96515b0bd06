"""Marginal and correlation fidelity of synthetic rows.

None of these is a private release. Against public rows they may be published; against sensitive
rows they belong into ``private/``.

Reference: PrivORL, section VIII-C and appendix H-C.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.layout import grouped_columns


@dataclass(frozen=True, kw_only=True, eq=False)
class Fidelity:
    """How close synthetic rows are to reference rows; 1 is the best, 0 the worst.

    Args:
        marginal_by_column: (C,) see `marginal_by_column`.
        correlation_by_pair: (C, C) see `correlation_by_pair`.
    """

    marginal_by_column: NDArray[np.float64]
    correlation_by_pair: NDArray[np.float64]

    @property
    def marginal(self) -> float:
        """Mean over columns."""
        return float(self.marginal_by_column.mean())

    @property
    def correlation(self) -> float:
        """Mean over pairs of different columns."""
        upper = np.triu_indices(len(self.correlation_by_pair), k=1)
        return float(self.correlation_by_pair[upper].mean())


def fidelity(
    reference: NDArray[Any], synthetic: NDArray[Any], names: Sequence[str] | None = None
) -> Fidelity:
    """Return marginal and correlation fidelity.

    Args:
        reference: (M, D) real or public rows.
        synthetic: (N, D).
        names: (D,) of the columns. Those that are the one-hot columns of a category are left out:
            most pairs of them are hardly correlated, and would hide the others. None: all columns
            count.

    Raises:
        ConfigError: different columns, fewer than two of them, no rows, or a value not finite.

    Example:
        >>> rows = np.array([[0.0, 1.0], [1.0, 3.0]])
        >>> fidelity(rows, rows).marginal
        1.0
    """
    if names is not None:
        groups = [columns for _, columns in grouped_columns(names)]
        alone = [columns.start for columns in groups if columns.stop - columns.start == 1]
        reference, synthetic = reference[:, alone], synthetic[:, alone]
    return Fidelity(
        marginal_by_column=marginal_by_column(reference, synthetic),
        correlation_by_pair=correlation_by_pair(reference, synthetic),
    )


def marginal_by_column(reference: NDArray[Any], synthetic: NDArray[Any]) -> NDArray[np.float64]:
    """Return 1 - the Kolmogorov-Smirnov statistic of each column ``(D,)``.

    Args:
        reference: (M, D).
        synthetic: (N, D).

    Raises:
        ConfigError: see `fidelity`.
    """
    _check_rows(reference, synthetic)
    columns = zip(reference.T, synthetic.T, strict=True)
    statistics = [stats.ks_2samp(one, other, method="asymp").statistic for one, other in columns]
    return 1 - np.asarray(statistics, dtype=np.float64)


def correlation_by_pair(reference: NDArray[Any], synthetic: NDArray[Any]) -> NDArray[np.float64]:
    """Return 1 - |r_reference - r_synthetic| / 2 for each pair of columns ``(D, D)``.

    The Pearson correlation r of a constant column with any other is undefined; it counts as 0
    (a constant says nothing about the other column).

    Args:
        reference: (M, D).
        synthetic: (N, D).

    Raises:
        ConfigError: see `fidelity`.
    """
    _check_rows(reference, synthetic)
    return 1 - np.abs(correlations(reference) - correlations(synthetic)) / 2


def correlations(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the Pearson correlations ``(D, D)`` of ``rows`` ``(N, D)``; 0 at constant columns."""
    wide = np.asarray(rows, dtype=np.float64)
    centred = wide - wide.mean(axis=0)
    # A constant column need not be exactly its mean in floating point: zero it by its range.
    centred[:, np.ptp(wide, axis=0) == 0] = 0
    lengths = np.linalg.norm(centred, axis=0)
    unit = centred / np.where(lengths > 0, lengths, 1)
    result: NDArray[np.float64] = np.clip(unit.T @ unit, -1, 1)
    return result


def _check_rows(reference: NDArray[Any], synthetic: NDArray[Any]) -> None:
    for name, rows in (("reference", reference), ("synthetic", synthetic)):
        if rows.ndim != 2 or not len(rows) or rows.shape[1] < 2:
            raise ConfigError(
                f"{name} must be (rows, columns) with a row and two columns or more,"
                f" got {rows.shape}"
            )
        if not np.isfinite(rows).all():
            raise ConfigError(f"{name} holds values that are not finite: remove those rows")
    if reference.shape[1] != synthetic.shape[1]:
        raise ConfigError(
            f"reference has {reference.shape[1]} columns, synthetic {synthetic.shape[1]}:"
            " compare rows of the same encoding"
        )
