"""Kills a command before each of its file operations, and goes on until it has ended."""

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from distributed_privrl.core.random import Streams
from tests.chaos.keyed import leave_out_pictures, leave_out_reports
from tests.chaos.outcomes import BEFORE, BrokenError, Record, cell
from tests.chaos.points import Operations, in_child
from tests.chaos.scenarios import (
    SCENARIOS,
    Scenario,
    check_nothing_is_left,
    check_secret,
    privrl,
)

MOST_CALLS = 4
SHORT = 1
ASIDE = "os.rename datasets/test/private-v0 "
"""How a resume begins to remove the dataset that no certificate names yet."""
KILLED = -9


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A place where a scenario is played again and again, always under the same path.

    Args:
        scenario: what is killed.
        work: a folder of its own.
    """

    scenario: Scenario
    work: Path

    @property
    def world(self) -> Path:
        """The world that is killed in."""
        return self.work / "world"

    @property
    def log(self) -> Path:
        """What the last point's commands printed."""
        return self.work / "log.txt"

    def fresh(self) -> None:
        """Bring the world back to what it was before the command."""
        template = self.work / "template"
        if not template.exists():
            shutil.rmtree(self.world, ignore_errors=True)
            self.world.mkdir(parents=True)
            if in_child(lambda: self.scenario.prepare(self.world), log=self.work / "prepared.txt"):
                raise BrokenError(f"no world: {(self.work / 'prepared.txt').read_text()}")
            self.world.rename(template)
        shutil.rmtree(self.world, ignore_errors=True)
        shutil.copytree(template, self.world)
        self.log.unlink(missing_ok=True)

    def warm(self) -> None:
        """Run the command once in this process, so that forks find modules and epsilons there."""
        self.fresh()
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self.log.open("w"))
            stack.enter_context(contextlib.redirect_stdout(file))
            stack.enter_context(contextlib.redirect_stderr(file))
            stack.enter_context(contextlib.suppress(SystemExit))
            privrl(self.world, *self.scenario.arguments(self.world))

    def call(self, *, kill_before: int | None = None, trace: Path | None = None) -> int:
        """Call the command, or go on with it, and return its exit code."""
        arguments = self.scenario.arguments(self.world)
        if self.scenario.resumes and (self.world / "run" / "config.yaml").exists():
            arguments.append("--resume")

        def work() -> None:
            seen = Operations(self.world, kill_before)
            try:
                privrl(self.world, *arguments)
            finally:
                if trace is not None:
                    trace.write_text(json.dumps(seen.seen))

        return in_child(work, log=self.log)

    def operations(self, first: Sequence[int] = ()) -> list[str]:
        """Return the operations of the call that ends, after kills before those of ``first``."""
        self.fresh()
        for kill_before in first:
            if self.call(kill_before=kill_before) != KILLED:
                raise BrokenError(f"operation {kill_before} of {first} was not reached")
        trace = self.work / "trace.json"
        if code := self.call(trace=trace):
            raise BrokenError(f"exit {code}: {self.log.read_text()}")
        self.verify()
        found: list[str] = json.loads(trace.read_text())
        return found

    def kill(self, points: Sequence[int]) -> dict[str, Any]:
        """Kill one call after another before the given operations, then let it end.

        Returns:
            which way it ended and in how many further calls.

        Raises:
            BrokenError: it did not, or what it left does not hold.
        """
        self.fresh()
        for kill_before in points:
            code = self.call(kill_before=kill_before)
            if self.scenario.secret:
                self._in_child(lambda: check_secret(self.world))
            if code == 0:
                self.verify()
                return {"ended": BEFORE, "calls": 0}
            if code != KILLED:
                raise BrokenError(f"exit {code}: {self.log.read_text()}")
        begun = (self.world / "run" / "config.yaml").exists()
        for calls in range(1, MOST_CALLS + 1):
            self.log.unlink(missing_ok=True)
            code = self.call()
            ended_before = not self.scenario.resumes and "exists already" in self.log.read_text()
            if code == 0 or ended_before:
                self.verify()
                how = "--resume" if self.scenario.resumes and begun else "called again"
                return {"ended": BEFORE if ended_before else how, "calls": calls}
        raise BrokenError(f"exit {code}: {self.log.read_text().strip()}")

    def verify(self) -> None:
        """Check what the command left.

        Raises:
            BrokenError: something does not hold.
        """
        self._in_child(lambda: self.scenario.check(self.world))
        self._in_child(lambda: check_nothing_is_left(self.world))

    def _in_child(self, work: Callable[[], None]) -> None:
        log = self.work / "check.txt"
        log.unlink(missing_ok=True)
        if in_child(work, log=log):
            raise BrokenError(log.read_text().strip())


def outcomes(
    bench: Bench, points: Iterable[Sequence[int]], *, until: float = math.inf
) -> Iterator[dict[str, Any]]:
    """Yield what came of each point; points that are in the work folder's record are not repeated.

    Args:
        bench: the place.
        points: before which operations of one call after another the process dies.
        until: of the monotonic clock; later nothing is killed any more.
    """
    record = Record(bench.work / "outcomes.jsonl", "point")
    for point in points:
        row = record.once({"point": list(point)}, partial(bench.kill, point), until=until)
        if row is not None:
            yield row


def bench(scenario: Scenario, work: Path) -> Bench:
    """Return a place for a scenario, warm, its work folder made."""
    found = Bench(scenario=scenario, work=work / scenario.name.replace(", ", "-").replace(" ", "-"))
    found.work.mkdir(parents=True, exist_ok=True)
    found.warm()
    return found


def operation_cells(work: Path, *, scenario: str, until: float) -> list[dict[str, Any]]:
    """Kill each scenario before each of its operations, and a resume before each of its own.

    Args:
        work: folder of worlds and records.
        scenario: those whose name has this in it.
        until: of the monotonic clock; later nothing is killed any more.
    """
    leave_out_pictures()
    cells = []
    for one in SCENARIOS:
        if scenario not in one.name:
            continue
        here = bench(one, work)
        seen = here.operations()
        points: list[Sequence[int]] = [(number + 1,) for number in range(len(seen))]
        cells.append(_told(f"{one.name}: before each operation", here, points, until))
        if one.resumes:
            first = certified_at(seen)
            again = here.operations([first])
            points = [(first, number + 1) for number in range(len(again))]
            cells.append(_told(f"{one.name}: its resume, too", here, points, until))
    return cells


def certified_at(seen: Sequence[str]) -> int:
    """Return the number of the operation that puts the run's certificate into its place."""
    return _at(seen, "os.rename", " run/certificate.json")


def _at(seen: Sequence[str], event: str, end: str) -> int:
    found = [1 + n for n, what in enumerate(seen) if what.startswith(event) and what.endswith(end)]
    return found[-1]


def short_rows(work: Path, *, seed: int) -> Iterator[dict[str, Any]]:
    """Yield what came of the kills that once ended a paid run, and of a few others.

    Args:
        work: folder of worlds and records.
        seed: of the others.
    """
    leave_out_reports()
    generator = Streams(seed).numpy("chaos")
    for one in SCENARIOS:
        if one.name == "run, policy and dataset":
            continue
        here = bench(one, work)
        seen = here.operations()
        if one.resumes:
            certified = certified_at(seen)
            again = here.operations([certified])
            aside = next(n for n, what in enumerate(again) if what.startswith(ASIDE))
            points: dict[str, Sequence[int]] = {
                "between run.json and config.yaml": [_at(seen, "os.rename", " run/config.yaml")],
                "while the certificate is attached": [_at(seen, "os.rename", "/metadata.json")],
                "a resume that removes the dataset": [certified, aside + 3],
            }
        else:
            chosen = generator.choice(len(seen), size=min(SHORT, len(seen)), replace=False)
            points = {f"before {seen[n]}": [int(n) + 1] for n in chosen}
        for what, row in zip(points, outcomes(here, points.values()), strict=True):
            yield {"scenario": one.name, "what": what, **row}


def _told(
    killed: str, here: Bench, points: Sequence[Sequence[int]], until: float
) -> dict[str, Any]:
    rows = []
    for row in outcomes(here, points, until=until):
        rows.append(row)
        if row["error"]:
            print(f"{killed} {row['point']}: {row['error']}", flush=True)
        if len(rows) % 20 == 0:
            print(f"{killed}: {len(rows)} of {len(points)}", flush=True)
    found = cell(killed, rows, planned=len(points))
    print(found, flush=True)
    return found
