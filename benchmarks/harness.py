"""What the benchmarks share: interleaved timing, the table, the machine, the last line.

Times are CPU time of the process, so that a busy machine disturbs them little; alternatives take
turns, so that what disturbance there is hits all of them; medians are compared.
"""

import argparse
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

SEED = 0
RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("torch", "numpy", "numba", "opacus", "dp-accounting", "ray", "cryptography")


class Named(Protocol):
    """A cell of a table."""

    @property
    def name(self) -> str:
        """What its files and its line are called."""
        ...


Cell = TypeVar("Cell", bound=Named)


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One way of doing the work that is compared.

    Args:
        run: does the work once.
        settle: waits for what ``run`` left to other threads; its CPU time counts, the wall time
            does not.
        cpu_clock: CPU seconds so far of the processes that do the work.
    """

    run: Callable[[], object]
    settle: Callable[[], object] = lambda: None
    cpu_clock: Callable[[], float] = time.process_time


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of each turn of one alternative.

    Args:
        cpu: CPU seconds, all threads, for one run.
        wall: seconds on the clock for one run.
    """

    cpu: tuple[float, ...]
    wall: tuple[float, ...]

    @property
    def cpu_median(self) -> float:
        """Median CPU seconds."""
        return statistics.median(self.cpu)

    @property
    def wall_median(self) -> float:
        """Median seconds on the clock."""
        return statistics.median(self.wall)


def interleave(
    alternatives: Mapping[str, Alternative], *, turns: int, runs_a_turn: int = 1
) -> dict[str, Timing]:
    """Let the alternatives take turns and return the timing of each.

    Args:
        alternatives: by name; each gets one untimed run first.
        turns: timed turns of each; whoever goes first moves on each time.
        runs_a_turn: runs timed together, where one is short.
    """
    names = list(alternatives)
    for name in names:
        alternatives[name].run()
        alternatives[name].settle()
    cpu: dict[str, list[float]] = {name: [] for name in names}
    wall: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            alternative = alternatives[name]
            cpu_start, wall_start = alternative.cpu_clock(), time.perf_counter()
            for _ in range(runs_a_turn):
                alternative.run()
            wall[name].append((time.perf_counter() - wall_start) / runs_a_turn)
            alternative.settle()
            cpu[name].append((alternative.cpu_clock() - cpu_start) / runs_a_turn)
    return {name: Timing(cpu=tuple(cpu[name]), wall=tuple(wall[name])) for name in names}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a benchmark found.

    Args:
        cells: rows of the table, all with the same keys.
        ratios: what is compared with the targets; None where this machine cannot say.
        notes: lines to read with the table.
        facts: what else belongs into the last line.
        figures: files saved beside the table, by their suffix.
    """

    cells: Sequence[Mapping[str, Any]]
    ratios: Mapping[str, float | None]
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, bytes] = field(default_factory=dict)


def main(
    name: str, run: Callable[[bool], Result], arguments: Sequence[str] | None = None
) -> Result:
    """Run a benchmark from the command line: print, and save where asked.

    Args:
        name: of the benchmark.
        run: makes the result; its argument asks for the quick scale.
        arguments: of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--scale", choices=("quick", "full"), default="full")
    parser.add_argument("--out", type=Path, help="folder for NAME.md and NAME.json")
    parser.add_argument("--save", action="store_true", help="the same, in benchmarks/results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # By default it is 15, and others' work beside them would leave Ray's actors no core.
    os.environ.setdefault("RAY_worker_niceness", "0")
    about = {"scale": options.scale, "seed": SEED, **machine()}
    result = run(options.scale == "quick")
    publish(name, result, about, folder=options.out or (RESULTS if options.save else None))
    return result


def publish(name: str, result: Result, about: Mapping[str, Any], *, folder: Path | None) -> None:
    """Print a result, its JSON line last, and save it where there is a folder."""
    line = json.dumps({"benchmark": name, **result.facts, "ratios": _rounded(result.ratios)})
    text = "\n".join([table(result.cells), "", *result.notes])
    if folder is not None:
        _save(folder, name, text, result, about)
    print(text)
    print(line)


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return ``cells`` as a Markdown table, without what is stored beside (mappings: the runs)."""
    header = [name for name, value in cells[0].items() if not isinstance(value, Mapping)]
    rows = [header, *([_shown(cell[key]) for key in header] for cell in cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def run_cells(
    cells: Sequence[Cell], run: Callable[[Cell], dict[str, Any]], *, parallel: int
) -> Iterator[dict[str, Any]]:
    """Yield what ``run`` makes of each cell, in order, and print it as it ends.

    Args:
        cells: each has a ``name``.
        run: picklable unless ``parallel`` is 1.
        parallel: processes, one thread each; 1: this one.
    """
    if parallel == 1:
        rows: Iterator[dict[str, Any]] = map(run, cells)
        yield from (_told(cell, row) for cell, row in zip(cells, rows, strict=True))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("spawn")
    with context.Pool(parallel, maxtasksperchild=1) as pool:
        rows = pool.imap(run, cells)
        yield from (_told(cell, row) for cell, row in zip(cells, rows, strict=True))


def _told(cell: Cell, row: dict[str, Any]) -> dict[str, Any]:
    print(f"{cell.name}: {json.dumps(row)}", flush=True)
    return row


def heartbeat(path: Path) -> Callable[..., None]:
    """Return a progress that keeps the last line in ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def show(stage: str, done: int, total: int, note: str = "") -> None:
        path.write_text(f"{stage} {done}/{total} {note}\n")

    return show


def machine() -> dict[str, Any]:
    """Return processor, versions and commit: what figures depend on, no names or paths."""
    flags = _processor("flags").split()
    return {
        "processor": _processor("model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "amx": torch.cpu._is_amx_tile_supported(),
        "avx512": "avx512f" in flags,
        "avx512_bf16": "avx512_bf16" in flags,
        "torch_threads": torch.get_num_threads(),
        "load_at_start": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _processor(key: str) -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def commit() -> str:
    """Return the version that runs, ``-dirty`` where files were changed; unknown without git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip()


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(f"{one:.4g}" for one in value) or "-"
    return str(value)


def _rounded(ratios: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 4) for name, value in ratios.items()}


def _save(folder: Path, name: str, text: str, result: Result, about: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ratios = _rounded(result.ratios)
    content = {"benchmark": name, **result.facts, "ratios": ratios, **about}
    content["cells"] = [dict(cell) for cell in result.cells]
    (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    versions = ", ".join(f"{key} {value}" for key, value in about["versions"].items())
    facts = [f"* {key}: {value}" for key, value in about.items() if key != "versions"]
    found = [f"* {key}: {'-' if value is None else value}" for key, value in ratios.items()]
    lines = [f"# {name}", "", text, "", "## Ratios", *found]
    lines += ["", "## Machine", *facts, f"* versions: {versions}", ""]
    (folder / f"{name}.md").write_text("\n".join(lines))
    for suffix, figure in result.figures.items():
        (folder / f"{name}.{suffix}").write_bytes(figure)
