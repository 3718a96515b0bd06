"""The whole chaos harness, into ``benchmarks/results/chaos.md``: ``make chaos``.

What is recorded in the work folder is not repeated, so that a long run can be taken up again.
"""

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, Result, machine, publish
from tests.chaos.disturbed import disturbances, fault_cells
from tests.chaos.methods import WORLDS
from tests.chaos.on_ray import ray_cells
from tests.chaos.operations import operation_cells, short_rows
from tests.chaos.processes import process_cells

PARTS = ("operations", "processes", "faults", "ray")
SHORT: dict[str, Any] = {
    "methods": ("marginals",),
    "named": ("SIGKILL", "SIGHUP", "replies late and doubled", "ledger deleted"),
}
"""Faults of ``--short``, of the method whose runs are the shortest."""


def main() -> None:
    """Kill processes and operations, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/chaos"), help="records and worlds")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="kill no longer than that")
    parser.add_argument(
        "--scenario", default="", help="of the operations: those whose name has this in it"
    )
    parser.add_argument(
        "--methods", nargs="*", choices=WORLDS, default=tuple(WORLDS), help="of faults and Ray"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the points in time")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--short", action="store_true", help="a few operations, a line each")
    given = parser.parse_args()
    work = given.work.absolute()
    print(f"seed {given.seed}: {' '.join(given.methods)}", file=sys.stderr, flush=True)
    if given.short:
        rows = disturbances(work / "faults", seed=given.seed, until=math.inf, **SHORT)
        for row in itertools.chain(short_rows(work / "short", seed=given.seed), rows):
            print(json.dumps(row), flush=True)
        return
    until = time.monotonic() + 60 * given.minutes
    cells = []
    parts = (given.only,) if given.only else PARTS
    if "operations" in parts:
        cells += operation_cells(work / "operations", scenario=given.scenario, until=until)
    if "processes" in parts:
        cells += process_cells(work / "processes", seed=given.seed, until=until)
    if "faults" in parts:
        cells += fault_cells(work / "faults", seed=given.seed, until=until, methods=given.methods)
    if "ray" in parts:
        cells += ray_cells(work / "ray", seed=given.seed, until=until, methods=given.methods)
    broken = sum(cell["broken"] for cell in cells)
    result = Result(
        cells=cells,
        ratios={"broken": float(broken)},
        notes=(f"{sum(cell['kills'] for cell in cells)} kills, {broken} broken.",),
    )
    about = {"scale": "full", "seed": given.seed, "methods": " ".join(given.methods), **machine()}
    name = f"chaos_{given.only}" if given.only else "chaos"
    publish(name, result, about, folder=None if given.no_save else RESULTS)


if __name__ == "__main__":
    main()
