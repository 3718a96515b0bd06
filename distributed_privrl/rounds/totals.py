"""Sums of sums, and the actors that add them up, which import neither torch nor a dataset."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.executor import WorkerGroup


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


class PartialSums:
    """Adds up the clipped sums of some workers, so that the server receives fewer vectors.

    Args:
        workers: of which it is one part.

    Privacy: a part of the server that stands elsewhere. What it receives and returns are sums
    before noise, in memory alone. It draws and charges nothing, so its call may be repeated: its
    workers' coins follow from the nonce. Sums are multiples of one lattice, so that any grouping
    gives the same bits.
    """

    spread = True

    def __init__(self, workers: WorkerGroup) -> None:
        self._workers = workers
        self._total: NDArray[np.float64] | None = None

    def clipped_sum(self, parameters: NDArray[np.floating], nonce: str) -> NDArray[np.floating]:
        """Return the sum ``(P,)`` of the workers' clipped sums.

        Args:
            parameters: see `LocalUpdateWorker.clipped_sum`.
            nonce: likewise.

        The array may be overwritten by the next call.
        """
        sums = self._workers.call("clipped_sum", {"parameters": parameters, "nonce": nonce})
        if self._total is None:
            self._total = np.empty(len(sums[0]))
        return total_of(sums, out=self._total)
