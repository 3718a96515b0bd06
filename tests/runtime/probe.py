"""A worker that imports next to nothing, so that its processes start quickly."""

import os
import signal
from pathlib import Path

import numpy as np

from distributed_privrl.core.errors import BudgetError


class Probe:
    """Says where it runs, and fails on demand."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.calls = 0

    def zeros(self, count: int) -> np.ndarray:
        """Return a large array."""
        return np.zeros(count)

    def pid(self) -> int:
        return os.getpid()

    def add(self, values: np.ndarray, offset: int) -> tuple[int, float]:
        self.calls += 1
        return self.calls, float(values.sum()) + offset + self.shard

    def write(self, values: np.ndarray) -> None:
        values[0] = 1

    def fail(self) -> None:
        raise BudgetError("no budget: set one")

    def die_once(self, marker: str) -> str:
        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    def threads(self) -> str | None:
        return os.environ.get("OMP_NUM_THREADS")
