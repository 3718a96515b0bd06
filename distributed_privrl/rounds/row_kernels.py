"""Row-wise kernels in float64: squared norms, and scaling that measures what it wrote.

A float32 norm over millions of numbers under-reads, so products are accumulated in float64. On the
CPU this is one pass over the cache line (numba); on other devices torch does it in double.
"""

import numba
import numpy as np
import torch
from torch import Tensor

_BLOCK = 2048  # float64 sums that stay in the first cache


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _add_squared_norms(rows, out):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        total = 0.0
        for j in range(rows.shape[1]):
            value = np.float64(rows[i, j])
            total += value * value
        out[i] += total


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _scale_and_measure(rows, factors, out):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        factor = factors[i]
        total = 0.0
        for j in range(rows.shape[1]):
            scaled = rows[i, j] * factor
            rows[i, j] = scaled
            value = np.float64(scaled)
            total += value * value
        out[i] += total


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _add_row(total, row):  # type: ignore[no-untyped-def]
    for j in range(total.shape[0]):
        total[j] += np.float64(row[j])


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _add_rows(rows, first, out):  # type: ignore[no-untyped-def]
    block = np.empty(_BLOCK)
    for start in range(0, out.shape[0], _BLOCK):
        own = out[start : start + _BLOCK]
        total = block[: own.shape[0]]
        total[:] = 0.0
        column = first + start
        for i in range(rows.shape[0]):
            _add_row(total, rows[i, column : column + own.shape[0]])
        for j in range(own.shape[0]):
            own[j] += total[j]


def squared_norms(rows: Tensor) -> Tensor:
    """Return the squared L2 norm of each row ``(M, D) -> (M,)`` in float64."""
    if rows.device.type != "cpu" or not rows.is_contiguous():
        return rows.double().square().sum(dim=1)
    out = torch.zeros(rows.shape[0], dtype=torch.float64)
    if rows.shape[1]:
        _add_squared_norms(rows.detach().numpy(), out.numpy())
    return out


def scale_rows_(rows: Tensor, factors: Tensor) -> Tensor:
    """Multiply each row by its factor in place; return the squared norms of what was written.

    Args:
        rows: ``(M, D)``, contiguous.
        factors: ``(M,)``, same dtype as ``rows``.

    Returns:
        squared L2 norms ``(M,)``, float64, measured after rounding.
    """
    if rows.device.type != "cpu":
        rows.mul_(factors[:, None])
        return rows.double().square().sum(dim=1)
    out = torch.zeros(rows.shape[0], dtype=torch.float64)
    if rows.shape[1]:
        _scale_and_measure(rows.detach().numpy(), factors.numpy(), out.numpy())
    return out


def add_rows_(out: Tensor, rows: Tensor, first: int) -> None:
    """Add the sum of all rows, formed in float64 and rounded once, to ``out`` in place.

    Args:
        out: ``(M,)``, contiguous.
        rows: ``(U, Q)``, contiguous; columns ``first`` to ``first + M`` are added.
        first: column of the first number.
    """
    if rows.device.type != "cpu":
        out.add_(rows[:, first : first + len(out)].sum(dim=0, dtype=torch.float64))
        return
    _add_rows(rows.detach().numpy(), first, out.detach().numpy())
