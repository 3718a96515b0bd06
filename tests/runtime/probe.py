"""A worker that imports next to nothing, so that its processes start quickly."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distributed_privrl.core.errors import BudgetError, ConfigError

TIMELINE = "RAY_enable_timeline"


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

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def threads(self) -> str | None:
        return os.environ.get("OMP_NUM_THREADS")

    def timeline(self) -> str | None:
        return os.environ.get(TIMELINE)


class Broken:
    """A worker whose constructor fails as no check of ours foresees."""

    def __init__(self, shard: int) -> None:
        self._shard = 1 / shard


class Unbuildable:
    """A worker whose constructor refuses its shard."""

    def __init__(self, shard: object) -> None:
        raise ConfigError(f"heads={shard} must divide width=30")

    def work(self) -> None:
        """Never reached."""


@dataclass(frozen=True)
class Place:
    """Where a diarist stands, as a server of rounds says it."""

    round_index: int
    target: int
    reserved: int

    @property
    def finished(self) -> bool:
        return self.round_index >= self.target


class Diarist:
    """Writes down what it is asked, as a server of rounds is, and dies in its second advance.

    Args:
        diary: a file that outlives its process, with a line for each question.
    """

    def __init__(self, diary: Path) -> None:
        self._diary = diary

    def progress(self) -> Place:
        return self._answer("progress")

    def advance(self, rounds: int) -> Place:
        return self._answer("advance", dies=True)

    def _answer(self, question: str, *, dies: bool = False) -> Place:
        with self._diary.open("a") as diary:
            diary.write(f"{os.getpid()} {question}\n")
        asked = self._diary.read_text().split().count("advance")
        if dies and asked == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return Place(round_index=asked, target=4, reserved=asked)
