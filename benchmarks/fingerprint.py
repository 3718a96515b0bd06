"""Inspecting a dataset (fingerprint, units, sketch) against reading it, and the memory it takes.

``--scale full`` is ten million rows of 4 + 2 + 4 numbers, as stays of 20 steps whose 100,000
patients' rows lie together, and as independent rows whose patients take turns at random, which is
the worst that memory can be asked for. A thread reads ahead while rows are looked at, so that an
idle core hides most of the inspection: wall time, which the target is for, and CPU time are both
printed. Files are in the page cache. Memory is the growth of the largest resident size, in a
process of its own; the compiler that makes the kernels, which every run loads, is loaded before.
"""

import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box

from benchmarks import harness
from benchmarks.harness import SEED, Alternative, Result
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions

ROWS = {"full": 10_000_000, "quick": 200_000}
PATIENTS, STEPS, CHUNK = 100_000, 20, 60_000
UNIT, KEY = "patient", bytes(32)
SPACES = {"observation_space": Box(-9, 9, (4,)), "action_space": Box(-9, 9, (2,))}
CASES = {"bench/together-v0": "stays of 20 steps", "bench/scattered-v0": "scattered rows"}


def chunks(rows: int, *, scattered: bool) -> Iterator[Transitions]:
    """Yield rows of patients, some at a time."""
    source = np.random.default_rng(SEED)
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        patients = (start + np.arange(count)) // STEPS % PATIENTS
        if scattered:
            patients = source.integers(0, PATIENTS, count)
        yield Transitions(
            observations=source.standard_normal((count, 4), dtype=np.float32),
            actions=source.standard_normal((count, 2), dtype=np.float32),
            rewards=source.standard_normal(count, dtype=np.float32),
            next_observations=source.standard_normal((count, 4), dtype=np.float32),
            terminated=np.zeros(count, bool),
            truncated=np.arange(start, start + count) % STEPS == STEPS - 1,
            unit_ids=patients.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        )


def read(store: DatasetStore, dataset: str) -> None:
    for _ in store.iter_transitions(dataset, unit=UNIT):
        pass


def look(store: DatasetStore, dataset: str) -> None:
    inspect(store, dataset, unit=UNIT, key=KEY)


JOBS: dict[str, Callable[[DatasetStore, str], None]] = {"read": read, "look": look}


def growth(root: Path, dataset: str, job: str) -> float:
    """Return by how many MB the resident size grows at most, in a process of its own."""
    line = [sys.executable, "-m", "benchmarks.fingerprint", "--child", str(root), dataset, job]
    return float(subprocess.run(line, check=True, capture_output=True, text=True).stdout)


def child(root: str, dataset: str, job: str) -> None:
    store = DatasetStore(Path(root))
    look(store, "bench/few-v0")  # loads the kernels and what reads files
    sizes, done = [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            sizes.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    JOBS[job](store, dataset)
    done.set()
    watcher.join()
    print(max(sizes) - sizes[0])


def resident() -> float:
    """Return the resident size now, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def run(quick: bool) -> Result:
    rows = ROWS["quick" if quick else "full"]
    cells: list[dict[str, object]] = []
    ratios: dict[str, float | None] = {}
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = DatasetStore(Path(folder))
        about = {"layout": "transitions", "unit_column": UNIT, **SPACES}
        store.write_transitions("bench/few-v0", chunks(1000, scattered=False), **about)
        for dataset, name in CASES.items():
            scattered = "scattered" in dataset
            store.write_transitions(dataset, chunks(rows, scattered=scattered), **about)
            timings = harness.interleave(
                {
                    job: Alternative(run=lambda job=job, d=dataset: JOBS[job](store, d))
                    for job in JOBS
                },
                turns=5,
            )
            reading, looking = timings["read"].wall_median, timings["look"].wall_median
            cpu = timings["look"].cpu_median - timings["read"].cpu_median
            grown = {job: growth(store.root, dataset, job) for job in JOBS}
            ratios[f"{name}: inspection beyond reading / reading, wall"] = looking / reading - 1
            ratios[f"{name}: inspection beyond reading / reading, CPU"] = (
                cpu / timings["read"].cpu_median
            )
            memory[name] = round(grown["look"] - grown["read"], 1)
            cells.append(
                {
                    "rows": name,
                    "reading, s": round(reading, 3),
                    "reading and inspecting, s": round(looking, 3),
                    "CPU ns a row beyond reading": round(cpu / rows * 1e9, 1),
                    "memory of reading, MB": round(grown["read"], 1),
                    "beyond it, MB": memory[name],
                }
            )
    notes = (
        f"{rows:,} rows of 11 numbers in a Parquet table; {PATIENTS:,} patients.",
        "Targets (PRIVACY.md section 13): a fifth of reading, 50 MB.",
    )
    return Result(
        cells=cells, ratios=ratios, notes=notes, facts={"rows": rows, "memory_mb": memory}
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        harness.main("fingerprint", run)
