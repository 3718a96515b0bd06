"""Feed every door with changed bytes, into ``benchmarks/results/fuzz.md``: ``make fuzz``.

For half of a door's time inputs are seeds with random changes. For the other half atheris chooses
them by coverage. A process that dies is a finding, and another one goes on. The row of a door where
nothing was found is kept in the work folder, and the door is not fed again.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.cells import kept
from benchmarks.harness import RESULTS, Result, commit, machine, publish
from tests.fuzz.process import FOUND, INPUT
from tests.fuzz.targets import ACCEPTED, TARGETS

_COLUMNS = (
    *("seconds", "inputs", "accepted", "refused in one line", "defects", "processes that died"),
    "slowest input, s",
    "commit",
)

ROW = "row.json"


def fed(name: str, work: Path, *, seconds: float, seed: int, coverage: bool) -> dict[str, Any]:
    """Return what feeding a door gave, all processes together."""
    outcomes: Counter[str] = Counter()
    dead: list[str] = []
    defects: dict[str, str] = {}
    slowest, until = 0.0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 1:
        (work / FOUND).unlink(missing_ok=True)
        words = [name, "--folder", str(work), "--seconds", f"{left:.0f}", "--seed", str(seed)]
        words += ["--coverage"] if coverage else []
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.process", *words], capture_output=True, check=False
        )
        if (work / FOUND).exists():
            found = json.loads((work / FOUND).read_text())
            outcomes.update(found["outcomes"])
            defects |= found["defects"]
            slowest = max(slowest, found["slowest"])
        if done.returncode:
            kept = work / f"dead-{len(dead)}-{seed}"
            if (work / INPUT).exists():
                kept.write_bytes((work / INPUT).read_bytes())
            dead.append(f"{done.returncode}: {done.stderr.decode()[-300:]}")
            seed += 1000
    return {"outcomes": outcomes, "dead": dead, "defects": defects, "slowest": slowest}


def cell(name: str, work: Path, *, seconds: float, seed: int) -> dict[str, Any]:
    """Return a row of the table."""
    work.mkdir(parents=True, exist_ok=True)
    halves = [
        fed(name, work, seconds=seconds / 2, seed=seed, coverage=coverage)
        for coverage in (False, True)
    ]
    outcomes: Counter[str] = sum((half["outcomes"] for half in halves), Counter())
    defects = {**halves[0]["defects"], **halves[1]["defects"]}
    (work / "defects.json").write_text(
        json.dumps({"defects": defects, "dead": [half["dead"] for half in halves]}, indent=1)
    )
    inputs = sum(outcomes.values())
    refused = inputs - outcomes[ACCEPTED] - outcomes["defect"]
    died = sum(len(half["dead"]) for half in halves)
    slowest = round(max(half["slowest"] for half in halves), 2)
    figures = (
        *(round(seconds), inputs, outcomes[ACCEPTED], refused, len(defects), died, slowest),
        commit(),
    )
    return {"door": name, **dict(zip(_COLUMNS, figures, strict=True))}


def main() -> None:
    """Feed all doors, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for each door")
    parser.add_argument("--only", default="", help="doors whose name has this in it")
    parser.add_argument("--work", type=Path, default=Path("runs/fuzz"), help="inputs that matter")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-save", action="store_true", help="print only")
    given = parser.parse_args()
    about = {"scale": "full", "seed": given.seed, **machine()}
    cells = {name: _empty(name) for name in TARGETS if given.only in name}
    for name in cells:
        work = given.work.absolute() / name.replace(" ", "-")
        row = work / ROW
        cells[name] = kept(
            row,
            lambda name=name, work=work: cell(name, work, seconds=given.seconds, seed=given.seed),
        )
        if _broken(cells[name]):
            row.unlink()
        broken = sum(map(_broken, cells.values()))
        result = Result(cells=list(cells.values()), ratios={"broken": float(broken)})
        publish("fuzz", result, about, folder=None if given.no_save else RESULTS)
    sys.exit(bool(broken))


def _broken(row: dict[str, Any]) -> int:
    """Return how much was found at a door; nothing at one that was not fed yet."""
    return int((row["defects"] or 0) + (row["processes that died"] or 0))


def _empty(name: str) -> dict[str, Any]:
    """Return the row of a door that was not fed yet."""
    return {"door": name, **dict.fromkeys(_COLUMNS, "")}


if __name__ == "__main__":
    main()
