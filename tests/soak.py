"""Long work, and what grows with it, into ``benchmarks/results/soak.md``: ``make soak``.

Memory, file descriptors and the ledger's size are looked at while 10,000 blocks of rounds are
reserved and committed, and while PrivORL-AR runs 10,000 private rounds in one process. What grows
is told per step, by a line through the second half of the looks: caches fill in the first one.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, Result, machine, publish
from distributed_privrl.privacy.ledger import Ledger
from tests.worlds import mazes
from tests.worlds.ledgers import open_run, set_budget, url_of
from tests.worlds.world import World

STEPS = 10_000
LOOKS = 200
MOST_MEMORY, MOST_LEDGER, MOST_DESCRIPTORS = 1000.0, 1000.0, 1e-3
"""Bytes, bytes and descriptors that a step may leave behind."""


@dataclass
class Watch:
    """Looks at this process and its ledger from time to time.

    Args:
        ledger: file of the ledger.
        until: when work is to stop.
    """

    ledger: Path
    until: float
    looks: list[tuple[int, int, int, int]] = field(default_factory=list)

    def look(self, step: int) -> None:
        """Note memory, descriptors and the ledger's size after ``step`` steps."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
        size = sum(one.stat().st_size for one in self.ledger.parent.glob(f"{self.ledger.name}*"))
        self.looks.append((step, pages * os.sysconf("SC_PAGESIZE"), descriptors, size))

    def slopes(self) -> tuple[float, float, float]:
        """Return what a step adds to memory, descriptors and the ledger."""
        table = np.array(self.looks[len(self.looks) // 2 :], np.float64)
        memory, descriptors, ledger = np.polyfit(table[:, 0], table[:, 1:], 1)[0]
        return float(memory), float(descriptors), float(ledger)


class _OverError(Exception):
    """The time is over."""


def reservations(folder: Path, steps: int, watch: Watch) -> None:
    """Reserve and commit one block after the other."""
    with closing(Ledger(url_of(folder))) as ledger:
        set_budget(ledger)
        open_run(ledger, max_rounds=steps)
        for step in range(1, steps + 1):
            ledger.reserve_rounds("run", rounds=1, nonce=f"block-{step}")
            ledger.commit_rounds(f"block-{step}", drawn=1)
            if step % max(1, steps // LOOKS) == 0:
                watch.look(step)
            if time.monotonic() > watch.until:
                return


def private_rounds(folder: Path, steps: int, watch: Watch) -> None:
    """Run PrivORL-AR on a small maze."""
    mazes.maze_store(folder / "datasets")
    world = World(folder)
    config = mazes.ar_config(training__rounds=steps, training__block_rounds=50)

    def progress(stage: str, done: int, *_: Any) -> None:
        if stage == "private rounds" and done:
            watch.look(done)
            if time.monotonic() > watch.until:
                raise _OverError

    world.afford(config).start(config, progress=progress)


WORK: dict[str, Callable[[Path, int, Watch], None]] = {
    "blocks reserved and committed": reservations,
    "private rounds of privorl_ar": private_rounds,
}


def cell(name: str, *, steps: int, seconds: float) -> dict[str, Any]:
    """Return a row of the table; figures are empty where the work did not end."""
    with tempfile.TemporaryDirectory() as work:
        watch = Watch(Path(work) / "ledger.sqlite", time.monotonic() + seconds)
        begun = time.monotonic()
        with suppress(_OverError):
            WORK[name](Path(work), steps, watch)
        took = time.monotonic() - begun
    row: dict[str, Any] = {"work": name, "asked": steps, "done": "", "seconds": round(took)}
    names = ("memory, bytes a step", "descriptors a step", "ledger, bytes a step")
    figures: tuple[Any, ...] = ("", "", "")
    if watch.looks:
        row["done"] = watch.looks[-1][0]
    if row["done"] == steps:
        figures = tuple(round(value, 5) for value in watch.slopes())
    return row | dict(zip(names, figures, strict=True))


def grows(row: dict[str, Any]) -> bool:
    """Say whether a row's work leaves more behind than it may."""
    memory, descriptors, ledger = list(row.values())[-3:]
    if memory == "":
        return False
    return bool(memory > MOST_MEMORY or descriptors > MOST_DESCRIPTORS or ledger > MOST_LEDGER)


def main() -> None:
    """Work, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=7200, help="for each kind of work")
    parser.add_argument("--only", default="", help="work whose name has this in it")
    parser.add_argument("--no-save", action="store_true", help="print only")
    given = parser.parse_args()
    cells = [
        cell(name, steps=given.steps, seconds=given.seconds) for name in WORK if given.only in name
    ]
    too_much = [row["work"] for row in cells if grows(row)]
    result = Result(
        cells=cells,
        ratios={"grows": float(len(too_much))},
        notes=(
            f"A step may leave {MOST_MEMORY:g} bytes of memory, {MOST_DESCRIPTORS:g} descriptors"
            f" and {MOST_LEDGER:g} bytes of the ledger.",
        ),
    )
    about = {"scale": "full", "seed": 0, **machine()}
    publish("soak", result, about, folder=None if given.no_save else RESULTS)
    sys.exit(bool(too_much))


if __name__ == "__main__":
    main()
