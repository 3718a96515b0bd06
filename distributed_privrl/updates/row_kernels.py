"""Row-wise kernels in float64: squared norms, scaling that measures what it wrote, exact sums.

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


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _add_rounded(total, values, inverse, granularity, begin):  # type: ignore[no-untyped-def]
    if begin:
        for j in range(total.shape[0]):  # + 0.0: a negative zero is the same bits as in a sum
            total[j] = np.rint(np.float64(values[j]) * inverse) * granularity + 0.0
    else:
        for j in range(total.shape[0]):
            total[j] += np.rint(np.float64(values[j]) * inverse) * granularity


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _add_rounded_rows(total, rows, first, inverse, granularity, begin):  # type: ignore[no-untyped-def]
    for start in range(0, total.shape[0], _BLOCK):
        own = total[start : start + _BLOCK]
        column = first + start
        if begin:
            own[:] = 0.0
        for i in range(rows.shape[0]):
            _add_rounded(own, rows[i, column : column + own.shape[0]], inverse, granularity, False)


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


def add_rounded_(
    total: Tensor, values: Tensor, granularity: float | None, *, begin: bool = False
) -> None:
    """Add ``values``, rounded to multiples of ``granularity``, to ``total`` in place.

    Args:
        total: ``(M,)`` float64, contiguous; multiples of ``granularity`` below 2^53 of them.
        values: ``(M,)``, contiguous.
        granularity: a power of two; None adds the values as they are.
        begin: overwrite ``total``: the sum begins with these values.
    """
    if granularity is not None and total.device.type == "cpu":
        _add_rounded(total.numpy(), values.detach().numpy(), 1 / granularity, granularity, begin)
        return
    if begin:
        total.zero_()
    if granularity is None:
        total.add_(values)
    else:
        total.add_(values.double().mul_(1 / granularity).round_(), alpha=granularity)


def add_rounded_rows_(
    total: Tensor, rows: Tensor, first: int, granularity: float | None, *, begin: bool = False
) -> None:
    """Add all ``rows``, each rounded by itself, to ``total`` in place; see `add_rounded_`.

    Args:
        total: ``(M,)`` float64, contiguous.
        rows: ``(U, Q)``, contiguous; columns ``first`` to ``first + M`` are added.
        first: column of the first number.
        granularity: a power of two; None adds the values as they are.
        begin: overwrite ``total``: the sum begins with these rows.
    """
    if granularity is not None and total.device.type == "cpu":
        numbers = rows.detach().numpy()
        _add_rounded_rows(total.numpy(), numbers, first, 1 / granularity, granularity, begin)
        return
    if begin:
        total.zero_()
    if granularity is None:
        total.add_(rows[:, first : first + len(total)].sum(dim=0, dtype=torch.float64))
    else:
        for row in rows:
            add_rounded_(total, row[first : first + len(total)], granularity)
