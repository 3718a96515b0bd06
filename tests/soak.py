"""Long work, and what grows with it, into ``benchmarks/results/soak.md``: ``make soak``.

Memory, file descriptors and the ledger's size are looked at while 10,000 blocks of rounds are
reserved and committed, while PrivORL-AR runs 10,000 private rounds, and while PriMORL takes a
million trajectories from the disk, a thousand a round. All of it lies in a folder, and goes on
there when it is called again. What grows is told per step, by lines of one slope through the second
half of the looks of each process: caches fill in the first one.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from benchmarks.harness import RESULTS, Result, machine, publish
from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.privacy.ledger import Ledger
from tests.worlds import mazes, swings
from tests.worlds.ledgers import open_run, set_budget, url_of
from tests.worlds.overrides import parsed
from tests.worlds.world import World

LOOKS, FEWEST_LOOKS = 200, 10
"""At a whole work; and those that a slope rests on."""
BATCH, LENGTH = 1000, 2
"""Trajectories of a round of PriMORL, and their steps."""
SPACES: dict[str, Any] = {
    "observation_space": Box(np.array([-1, -1, -8]), np.array([1, 1, 8]), dtype=np.float32),
    "action_space": Box(-2, 2, (1,)),
}
MOST_MEMORY, MOST_LEDGER, MOST_DESCRIPTORS = 1000.0, 1000.0, 1e-3
"""Bytes, bytes and descriptors that a step may leave behind."""


@dataclass
class Watch:
    """Looks at this process and its ledger from time to time, and keeps what was seen.

    Args:
        folder: of the work; what earlier processes saw lies there, too.
        until: when work is to stop, by the monotonic clock.
    """

    folder: Path
    until: float
    looks: list[tuple[int, int, float, int, int, int]] = field(init=False)
    """Process, step, seconds since it began, bytes of memory, descriptors, bytes of the ledger."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path, self._begun = self.folder / "looks.jsonl", time.monotonic()
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.looks = [tuple(json.loads(line)) for line in lines]
        self._process = self.looks[-1][0] + 1 if self.looks else 0

    @property
    def done(self) -> int:
        """Steps so far, those of earlier processes too."""
        return self.looks[-1][1] if self.looks else 0

    @property
    def seconds(self) -> float:
        """How long all processes worked."""
        return sum({process: second for process, _, second, *_ in self.looks}.values())

    def look(self, step: int) -> None:
        """Note memory, descriptors and the ledger's size after ``step`` steps."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
        size = sum(one.stat().st_size for one in self.folder.glob("ledger.sqlite*"))
        seconds, memory = time.monotonic() - self._begun, pages * os.sysconf("SC_PAGESIZE")
        self.looks.append((self._process, step, round(seconds, 1), memory, descriptors, size))
        with self._path.open("a") as file:
            file.write(json.dumps(self.looks[-1]) + "\n")

    def slopes(self) -> tuple[float, float, float] | None:
        """Return what a step adds to memory, descriptors and the ledger; None: too few looks."""
        table = np.array(self.looks, np.float64).reshape(-1, 6)
        parts = []
        for process in np.unique(table[:, 0]):
            own = table[table[:, 0] == process][:, [1, 3, 4, 5]]
            late = own[len(own) // 2 :]
            parts.append(late - late.mean(axis=0))
        rows = np.concatenate(parts) if parts else np.empty((0, 4))
        if len(rows) < FEWEST_LOOKS or not rows[:, 0].any():
            return None
        memory, descriptors, ledger = rows[:, 0] @ rows[:, 1:] / (rows[:, 0] @ rows[:, 0])
        return float(memory), float(descriptors), float(ledger)


class _OverError(KeyboardInterrupt):
    """The time is over: a run ends as by Ctrl-C, and loses no round."""


def reservations(folder: Path, steps: int, watch: Watch) -> None:
    """Reserve and commit one block after the other."""
    with closing(Ledger(url_of(folder))) as ledger:
        if ledger.reserved("run") is None:
            set_budget(ledger)
            open_run(ledger, max_rounds=steps)
        entry = ledger.reserved("run")
        assert entry is not None
        for step in range(entry.committed_rounds + 1, steps + 1):
            ledger.reserve_rounds("run", rounds=1, nonce=f"block-{step}")
            ledger.commit_rounds(f"block-{step}", drawn=1)
            if step % max(1, steps // LOOKS) == 0:
                watch.look(step)
            if time.monotonic() > watch.until:
                return


def private_rounds(folder: Path, steps: int, watch: Watch) -> None:
    """Run PrivORL-AR on a small maze."""
    if not (folder / "datasets").exists():
        mazes.maze_store(folder / "datasets")
    world, spare = World(folder), max(100, steps // 20)
    rounds = {"training__rounds": steps, "training__block_rounds": 50, "training__spare": spare}
    _run(world, mazes.ar_config(**rounds), steps, watch)


def trajectories(folder: Path, steps: int, watch: Watch) -> None:
    """Run PriMORL on so many short trajectories that each takes part once on average."""
    units, bounds = BATCH * steps, folder / "bounds.yaml"
    bounds.write_text(swings.BOUNDS)
    world = World(folder)
    if swings.DATASET not in DatasetStore(folder / "datasets").ids():
        chunks = (_short(first, BATCH) for first in range(0, units, BATCH))
        world.store.write_trajectories(
            swings.DATASET, chunks, layout="packed", environment="Pendulum-v1", **SPACES
        )
    config = swings.config_values(
        data__units=units,
        data__max_length=LENGTH,
        data__bounds=str(bounds),
        privacy__delta=1e-3 / units,
        model__hidden=[8],
        training__rounds=steps,
        training__block_rounds=min(50, steps),
        training__spare=max(100, steps // 20),
        training__expected_batch_size=BATCH,
    )
    _run(world, parsed(config, PrimorlConfig), steps, watch)


def _short(first: int, count: int) -> Trajectories:
    """Return ``count`` trajectories, which follow from the number of the first one."""
    source = np.random.default_rng(first)
    ends = np.arange(count * LENGTH) % LENGTH == LENGTH - 1
    return Trajectories(
        observations=source.uniform(-1, 1, (count * (LENGTH + 1), 3)),
        actions=source.uniform(-2, 2, (count * LENGTH, 1)),
        rewards=source.uniform(-16, 0, count * LENGTH).astype(np.float32),
        terminated=np.zeros(count * LENGTH, bool),
        truncated=ends,
        offsets=np.arange(count + 1) * LENGTH,
        unit_ids=np.arange(first, first + count, dtype=np.uint64),
    )


def _run(world: World, config: RunConfig, steps: int, watch: Watch) -> None:
    """Run, or go on."""
    resume = (world.folder / "run" / "config.yaml").exists()

    def progress(stage: str, done: int, *_: Any) -> None:
        if stage == "private rounds" and done:
            if done >= watch.done + max(1, steps // LOOKS) or done == steps:
                watch.look(done)
            if time.monotonic() > watch.until:
                raise _OverError

    if not resume:
        world.afford(config)
    world.start(config, progress=progress, resume=resume, reports=False)


WORK: dict[str, tuple[Callable[[Path, int, Watch], None], int]] = {
    "blocks reserved and committed": (reservations, 10_000),
    "private rounds of privorl_ar": (private_rounds, 10_000),
    f"rounds of primorl over {BATCH} trajectories of the disk each": (trajectories, 1000),
}
"""What is done, and in how many steps."""


def cell(name: str, folder: Path, *, steps: int, seconds: float) -> dict[str, Any]:
    """Work, or go on; return a row of the table, whose figures are empty where no slope is known.

    Args:
        name: of the work.
        folder: of its own.
        steps: in all; 0: as many as are asked of this work.
        seconds: it may take now; 0: what is known is told.
    """
    work, asked = WORK[name]
    asked = steps or asked
    watch = Watch(folder, time.monotonic() + seconds)
    if seconds and watch.done < asked:
        with suppress(_OverError):
            work(folder, asked, watch)
    figures = tuple(round(value, 5) for value in watch.slopes() or ())
    names = ("memory, bytes a step", "descriptors a step", "ledger, bytes a step")
    return {
        "work": name,
        "asked": asked,
        "done": watch.done or "",
        "seconds": round(watch.seconds) or "",
        **dict(zip(names, figures or ("", "", ""), strict=True)),
    }


def grows(row: dict[str, Any]) -> bool:
    """Say whether a row's work is done and leaves more behind than it may."""
    memory, descriptors, ledger = list(row.values())[-3:]
    if memory == "" or row["done"] != row["asked"]:
        return False
    return bool(memory > MOST_MEMORY or descriptors > MOST_DESCRIPTORS or ledger > MOST_LEDGER)


def main() -> None:
    """Work, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/soak"), help="goes on there")
    parser.add_argument("--steps", type=int, default=0, help="of each kind of work")
    parser.add_argument("--seconds", type=float, default=7200, help="for each kind of work")
    parser.add_argument("--only", default="", help="work whose name has this in it")
    parser.add_argument("--no-save", action="store_true", help="print only")
    given = parser.parse_args()
    folder = given.work.absolute()
    cells = [
        cell(
            name,
            folder / str(number),
            steps=given.steps,
            seconds=given.seconds if given.only in name else 0,
        )
        for number, name in enumerate(WORK)
    ]
    too_much = [row["work"] for row in cells if grows(row)]
    result = Result(
        cells=cells,
        ratios={"grows": float(len(too_much))},
        notes=(
            f"A step may leave {MOST_MEMORY:g} bytes of memory, {MOST_DESCRIPTORS:g} descriptors"
            f" and {MOST_LEDGER:g} bytes of the ledger. Work that is not done has the slopes of"
            " what is, and is not judged.",
        ),
    )
    about = {"scale": "full", "seed": 0, **machine()}
    publish("soak", result, about, folder=None if given.no_save else RESULTS)
    sys.exit(bool(too_much))


if __name__ == "__main__":
    main()
