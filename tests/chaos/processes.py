"""Kills a run's driver, one of its workers or its server at random times, under Ray."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import FOLDER_VARIABLE
from tests.chaos.operations import Bench
from tests.chaos.outcomes import BEFORE, BrokenError, Record, cell
from tests.chaos.scenarios import RUN, Scenario, check_run, prepare_run
from tests.worlds import mazes

KILLS_EACH = 5
MOST_SECONDS = 900.0
COMMAND = """
from tests.chaos.keyed import leave_out_pictures
from distributed_privrl.cli import main
leave_out_pictures()
main()
"""
TITLES = {"worker": "ray::LocalUpdateWorker", "server": "ray::ParameterServer"}
"""How Ray calls the processes of actors; the driver is the one that was started."""

SCENARIO = Scenario(
    name="ray",
    prepare=prepare_run(
        mazes.ar_values(
            privacy__accountant="rdp",
            training__rounds=60,
            training__spare=30,
            training__block_rounds=5,
            runtime={"workers": 2, "executor": "ray", "cpus_per_worker": 0.5},
        )
    ),
    command=RUN,
    check=check_run,
    resumes=True,
)


@dataclass
class Tree:
    """A command that was started, and the processes that came from it.

    Args:
        process: the command.
        seen: start times of all that came from it, by process id: an id alone may be another's.
    """

    process: subprocess.Popen[bytes]
    seen: dict[int, str] = field(default_factory=dict)

    def look(self) -> dict[int, str]:
        """Return the titles of the living by process id."""
        stats = {int(p.name): _stat(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
        known = {self.process.pid, *(pid for pid in self.seen if _is(stats, pid, self.seen[pid]))}
        grown = True
        while grown:
            fresh = {pid for pid, one in stats.items() if one and one[0] in known} - known
            known |= fresh
            grown = bool(fresh)
        self.seen |= {pid: one[1] for pid in known if (one := stats.get(pid))}
        return {pid: _title(pid) for pid in known}

    def end(self) -> None:
        """Kill whatever is left of it."""
        for pid in self.look():
            if pid != self.process.pid or self.process.poll() is None:
                _kill(pid)
        self.process.wait()


def _stat(path: Path) -> tuple[int, str] | None:
    """Return parent and start time of a process."""
    try:
        fields = (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[19]


def _is(stats: dict[int, tuple[int, str] | None], pid: int, started: str) -> bool:
    found = stats.get(pid)
    return found is not None and found[1] == started


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _started(here: Bench) -> Tree:
    """Start the run, or its resume, in a process of its own."""
    arguments = here.scenario.arguments(here.world)
    if (here.world / "run" / "config.yaml").exists():
        arguments.append("--resume")
    environment = os.environ | {
        FOLDER_VARIABLE: str(here.world / "datasets"),
        "PRIVRL_LEDGER": f"sqlite:///{here.world / 'ledger.sqlite'}",
    }
    with here.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments],
            env=environment,
            stdout=log,
            stderr=log,
        )
    return Tree(process)


def _wait(tree: Tree, here: Bench) -> int:
    """Wait for the command and return its exit code."""
    end = time.monotonic() + MOST_SECONDS
    while tree.process.poll() is None:
        if time.monotonic() > end:
            raise BrokenError(f"no end after {MOST_SECONDS:g} s: {_last_line(here)}")
        tree.look()
        time.sleep(0.5)
    return tree.process.returncode


def _last_line(here: Bench) -> str:
    return here.log.read_text(errors="replace").strip().rpartition("\n")[2]


def life(here: Bench) -> dict[str, float]:
    """Run undisturbed and return for how many seconds driver, workers and server live."""
    here.fresh()
    tree, begin = _started(here), time.monotonic()
    first: dict[str, float] = {"driver": begin}
    last: dict[str, float] = {}
    try:
        while tree.process.poll() is None:
            titles, now = tree.look().values(), time.monotonic()
            last["driver"] = now
            for who, title in TITLES.items():
                if any(one.startswith(title) for one in titles):
                    first.setdefault(who, now)
                    last[who] = now
            time.sleep(0.1)
        if tree.process.returncode:
            raise BrokenError(here.log.read_text())
    finally:
        tree.end()
    here.verify()
    return {who: last[who] - first[who] for who in first}


def _victim(tree: Tree, who: str, generator: np.random.Generator) -> int | None:
    """Return a process of that kind, once there is one; None if the run ends before."""
    if who == "driver":
        return tree.process.pid
    while tree.process.poll() is None:
        found = [pid for pid, title in tree.look().items() if title.startswith(TITLES[who])]
        if found:
            return int(generator.choice(sorted(found)))
        time.sleep(0.05)
    return None


def kill(here: Bench, who: str, seconds: float, generator: np.random.Generator) -> dict[str, Any]:
    """Kill a process after some seconds of its life, then go on until the run has ended.

    Returns:
        where the run was, how it ended and in how many further calls.

    Raises:
        BrokenError: it did not end, or what it left does not hold.
    """
    here.fresh()
    trees = [_started(here)]
    try:
        victim = _victim(trees[0], who, generator)
        time.sleep(seconds)
        trees[0].look()
        at = _last_line(here)
        hit = victim is not None and trees[0].process.poll() is None and _kill(victim)
        code, calls = _wait(trees[0], here), 0
        while code and calls < 4:
            trees.append(_started(here))  # at once: what the killed one left may still be there
            code, calls = _wait(trees[-1], here), calls + 1
        if code:
            raise BrokenError(f"exit {code}: {_last_line(here)}")
        here.verify()
    finally:
        for tree in trees:
            tree.end()
    ended = "--resume" if calls else "by itself" if hit else BEFORE
    certificate = json.loads((here.world / "run" / "certificate.json").read_text())
    rounds = sum(one["count"] for stage in certificate["stages"] for one in stage["events"])
    return {"seconds": seconds, "at": at, "ended": ended, "calls": calls, "rounds": rounds}


def process_cells(work: Path, *, seed: int, until: float) -> list[dict[str, Any]]:
    """Kill driver, workers and server at random times, five times each.

    Args:
        work: folder of worlds and the record.
        seed: of the times.
        until: of the monotonic clock; later nothing is killed any more.
    """
    here = Bench(scenario=SCENARIO, work=work)
    streams, record = Streams(seed), Record(work / "outcomes.jsonl", "who", "number")
    lives: dict[str, float] = {}

    def happens(who: str, share: float, generator: np.random.Generator) -> dict[str, Any]:
        if not lives:
            lives.update(life(here))
        return kill(here, who, share * lives[who], generator)

    cells = []
    for number in range(KILLS_EACH):
        for who in ("driver", *TITLES):
            generator = streams.numpy(f"{who} {number}")
            share = float(generator.uniform(0.02, 0.98))
            row = record.once(
                {"who": who, "number": number, "share": share, "seconds": 0.0, "at": ""},
                partial(happens, who, share, generator),
                until=until,
            )
            if row is not None:
                print(row, flush=True)
                killed = f"{who} after {row['seconds']:.1f} s ({row['at']})"
                cells.append(cell(killed, [row], planned=1))
    return sorted(cells, key=lambda one: str(one["killed"]).split()[0])
