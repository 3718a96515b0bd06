"""What a round costs the parameter server, by workers and parameters, and what that foretells.

Workers are stubs that answer at once: an actor holds a vector, returns it, and stands in a group as
often as there are workers. What is measured is what the server itself does: sending, receiving,
adding, noise and step, in CPU time of its process, and its memory at the peak. The bound is the
same round with the vectors at hand. What workers need for themselves, coins for their units, is
measured beside it. A line through these figures says what clusters would take that nobody here has.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls

from benchmarks import harness, processes
from benchmarks.harness import SEED, Alternative, Result
from benchmarks.ray_round import ENDLESS, RUN_ID, open_ledger
from distributed_privrl.core.config import RuntimeConfig, summing_processes
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.sampling import RoundSecret, SlotCoins
from distributed_privrl.rounds.checkpoint import CheckpointState, save_checkpoint
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.rounds.server import ParameterServer, ServerSpec
from distributed_privrl.runtime.executor import RayExecutor, RayWorkerGroup

MECHANISM = PrivateRound(clip_norm=1.0, noise_multiplier=1.0, sampling_probability=0.01)
BYTES_A_PARAMETER = 4 + 8
"""For each worker: parameters go out in single precision, sums come in in double."""
MOST_WORKERS = 10_000
"""Workers up to which is looked for the number from which something holds."""
ROW_BYTES = 12 * 4
"""Of a transition of a maze, as a worker holds it."""
DEMO, LARGE = 88_076, 6_460_000
FORETOLD_WORKERS, FORETOLD_PARAMETERS = (10, 100, 1000), (DEMO, 1_000_000, LARGE)
BATCH, RATES, STEP = 16_384, harness.RESULTS / "dp_sgd.json", "clipped, without noise"
"""Of the example, and where its workers' gradients a core-second are stored."""
UNITS = 10**9
INCLUSION = 1e-4


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        grid: workers, by the number of parameters.
        turns: timed turns of a cell.
        slots: units of a worker, for its coins.
    """

    grid: Mapping[int, Sequence[int]]
    turns: int
    slots: Sequence[int]


FULL = Size(
    grid={DEMO: (1, 2, 10, 100, 1000), 1_000_000: (1, 2, 10, 100, 300), LARGE: (1, 2, 10, 50)},
    turns=7,
    slots=(10**6, 10**7),
)
QUICK = Size(grid={2_000: (1, 3), 20_000: (2, 5)}, turns=1, slots=(10**4,))


class InstantWorker:
    """Answers at once, with a vector of multiples of a power of two, as clipped sums are.

    Args:
        most: parameters that it is asked for.
    """

    def __init__(self, most: int) -> None:
        source = np.random.default_rng(SEED)
        self._sum = source.integers(-(2**20), 2**20, most) / 2.0**24

    def clipped_sum(self, parameters: NDArray[np.floating], nonce: str) -> NDArray[np.float64]:
        """Return the vector; see `LocalUpdateWorker.clipped_sum`."""
        return self._sum[: len(parameters)]


class AtHand:
    """A group whose answers lie in this process: nothing is sent.

    Args:
        workers: how many.
        parameters: how long their vectors are.
    """

    def __init__(self, workers: int, parameters: int) -> None:
        answer = InstantWorker(parameters).clipped_sum(np.empty(parameters), "")
        self._answers = [answer] * workers

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._answers)

    def call(self, method: str, shared: object = None, per_worker: object = None) -> list[Any]:
        """Return the vectors."""
        return self._answers

    def wait_for_lost(self) -> None:
        """Do nothing: none is lost."""

    def close(self) -> None:
        """Do nothing."""


def crowd(one: RayWorkerGroup, workers: int) -> WorkerGroup:
    """Return a group in which the one actor of another stands for all workers."""
    (name,), (actor,) = one._names, one._actors
    return RayWorkerGroup(
        [name] * workers, [actor] * workers, repeat_lost_calls=True, recovery_seconds=60.0
    )


def server(folder: Path, workers: WorkerGroup, parameters: int) -> ParameterServer:
    """Return the product's own server, in this process."""
    folder.mkdir(parents=True)
    initial = folder / "initial.safetensors"
    state = CheckpointState(run_id=RUN_ID, round_index=0, stage="pretraining")
    save_checkpoint(initial, {"parameters": torch.zeros(parameters)}, state)
    return ParameterServer(
        ServerSpec(
            run_id=RUN_ID,
            workers=workers,
            initial=initial,
            checkpoint=folder / "rounds.safetensors",
            mechanism=MECHANISM,
            expected_units=1024,
            rounds=ENDLESS,
            max_rounds=ENDLESS,
            block_rounds=ENDLESS,
            optimiser=OptimiserConfig(),
            ledger=open_ledger(folder, MECHANISM),
        )
    )


def measured(
    one: RayWorkerGroup, folder: Path, workers: int, parameters: int, turns: int
) -> dict[str, Any]:
    """Return what a round of so many workers and parameters costs the server."""
    groups = {"ray": crowd(one, workers), "bound": AtHand(workers, parameters)}
    servers = {name: server(folder / name, group, parameters) for name, group in groups.items()}
    servers["ray"].advance(1)
    processes.forget_peak()
    before = processes.peak_megabytes()
    servers["ray"].advance(1)
    peak = processes.peak_megabytes() - before
    timings = harness.interleave(
        {name: Alternative(run=lambda one=one: one.advance(1)) for name, one in servers.items()},
        turns=turns,
    )
    ours, bound = timings["ray"], timings["bound"]
    return {
        "parameters": parameters,
        "workers": workers,
        "CPU ms": 1e3 * ours.cpu_median,
        "wall ms": 1e3 * ours.wall_median,
        "bound, CPU ms": 1e3 * bound.cpu_median,
        "of bound": ours.cpu_median / bound.cpu_median,
        "MB sent and received": workers * parameters * BYTES_A_PARAMETER / 1e6,
        "MB at the peak": peak,
    }


def line_through(cells: Sequence[Mapping[str, Any]]) -> tuple[NDArray[np.float64], float]:
    """Return CPU ms of a round, a worker, a million parameters, and both; and the largest error.

    Least squares of relative errors, with no coefficient below zero.
    """
    workers = np.array([cell["workers"] for cell in cells], np.float64)
    millions = np.array([cell["parameters"] for cell in cells]) / 1e6
    found = np.array([cell["CPU ms"] for cell in cells])
    terms = np.stack([np.ones_like(workers), workers, millions, workers * millions], axis=1)
    line, _ = nnls(terms / found[:, None], np.ones_like(found))
    return line, float(np.abs(terms @ line / found - 1).max())


def coins_ms(slots: int) -> float:
    """Return CPU ms of a worker's coins for so many units, of which one in 10,000 takes part."""
    coins = SlotCoins(RoundSecret(bytes(32)))
    times = []
    for turn in range(3):
        start = time.process_time()
        coins.draw(slots, INCLUSION, nonce=str(turn), block=0)
        times.append(time.process_time() - start)
    return 1e3 * sorted(times)[1]


def foretold(line: NDArray[np.float64], workers: int, parameters: int) -> str:
    """Return in words what a round would take: all workers at the server, and with sums between."""
    between, most = in_between(workers)
    moved = workers * parameters * BYTES_A_PARAMETER / 1e9
    return (
        f"{workers:,} workers, {parameters:,} parameters: the server computes"
        f" {seconds(line, workers, parameters):.3g} s and moves {moved:.3g} GB a round"
        f" ({moved * 8 / 10:.3g} s at 10 Gbit/s). With {between} processes that add up for {most}"
        f" each: {seconds(line, most, parameters):.3g} s in each of them, then"
        f" {seconds(line, between, parameters):.3g} s and"
        f" {between * parameters * BYTES_A_PARAMETER / 1e9:.3g} GB at the server."
    )


def seconds(line: NDArray[np.float64], workers: int, parameters: int) -> float:
    """Return CPU seconds of whoever asks so many workers, by the line of `line_through`."""
    millions = parameters / 1e6
    return float(np.array([1.0, workers, millions, workers * millions]) @ line) / 1e3


def in_between(workers: int) -> tuple[int, int]:
    """Return how many processes add up for workers, and for how many each at most."""
    processes_between = summing_processes(workers, 1)
    return processes_between, math.ceil(workers / processes_between)


def seconds_between(line: NDArray[np.float64], workers: int, parameters: int) -> float:
    """Return CPU seconds of a process in between and of the server, one after the other."""
    return sum(seconds(line, asked, parameters) for asked in in_between(workers))


def first(holds: Callable[[int], bool]) -> int | None:
    """Return the least number of workers, two or more, of which something holds.

    None: it holds of none up to `MOST_WORKERS`. In a quick run noise may hide what a worker costs.
    """
    return next((workers for workers in range(2, MOST_WORKERS + 1) if holds(workers)), None)


def from_on(workers: int | None) -> str:
    """Return in words from how many workers on something holds; see `first`."""
    return (
        f"from {workers} workers on" if workers else f"with none of up to {MOST_WORKERS:,} workers"
    )


def example_rate() -> float:
    """Return the stored gradients a core-second of a worker of the example."""
    rows = [one for one in json.loads(RATES.read_text())["cells"] if one["step"] == STEP]
    return float(max(rows, key=lambda one: one["batch"])["samples per core-second"])


def fan_in(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what follows from the line through cells for `runtime.fan_in`.

    Of each size: CPU seconds at the default's number of workers, at a server alone and with
    processes in between, and from how many workers on these are quicker. Of the example, PrivORL-n
    at the paper's size: from how many workers on a server alone needs longer than they do.
    """
    line, _ = line_through(cells)
    workers, rate = RuntimeConfig().fan_in, example_rate()
    sizes = [
        {
            "parameters": size,
            "server alone, s": seconds(line, workers, size),
            "with processes in between, s": seconds_between(line, workers, size),
            "quicker from": first(
                lambda n, size=size: seconds_between(line, n, size) < seconds(line, n, size)
            ),
        }
        for size in FORETOLD_PARAMETERS
    ]
    work = BATCH / rate
    return {
        "workers": workers,
        "processes in between": in_between(workers)[0],
        "sizes": sizes,
        "example": {
            "parameters": LARGE,
            "batch": BATCH,
            "gradients a core-second": rate,
            "core-seconds": work,
            "server is the limit from": first(lambda n: seconds(line, n, LARGE) > work / n),
        },
    }


def said_of(found: Mapping[str, Any]) -> list[str]:
    """Return in words what `fan_in` found."""
    example = found["example"]
    return [
        *(
            f"{found['workers']} workers, {size['parameters']:,} parameters:"
            f" {size['server alone, s']:.3g} s at the server alone,"
            f" {size['with processes in between, s']:.3g} s with {found['processes in between']}"
            f" processes in between; these are quicker {from_on(size['quicker from'])}."
            for size in found["sizes"]
        ),
        f"A batch of {example['batch']:,} at {example['parameters']:,} parameters is"
        f" {example['core-seconds']:.3g} core-seconds of workers"
        f" ({example['gradients a core-second']:,.0f} gradients a core-second,"
        f" {RATES.stem}.md): {from_on(example['server is the limit from'])} a server alone"
        " needs longer than they do.",
    ]


def run(quick: bool) -> Result:
    """Measure rounds of stubs, and say what follows."""
    size = QUICK if quick else FULL
    executor = RayExecutor(workers=1)
    one = executor.start(InstantWorker, [max(size.grid)])
    with tempfile.TemporaryDirectory() as name:
        cells = [
            measured(one, Path(name) / f"{parameters}-{workers}", workers, parameters, size.turns)
            for parameters, counts in size.grid.items()
            for workers in counts
        ]
    executor.close()
    line, error = line_through(cells)
    between = fan_in(cells)
    coins = {slots: coins_ms(slots) for slots in size.slots}
    most = max(size.slots)
    each = coins[most] / most * UNITS
    notes = [
        f"A round costs the server {line[0]:.3g} ms, {line[1]:.3g} ms for each worker,"
        f" {line[2]:.3g} ms for each million parameters, and {line[3]:.3g} ms for each worker's"
        f" million. The line misses the cells by {error:.0%} at most.",
        *(foretold(line, w, p) for p in FORETOLD_PARAMETERS for w in FORETOLD_WORKERS),
        *said_of(between),
        *(f"Coins of {slots:,} units: {ms:.3g} CPU ms a round." for slots, ms in coins.items()),
        f"{UNITS:,} transitions on 1,000 workers: {UNITS * ROW_BYTES / 1e12:.3g} GB of rows and"
        f" {each / 1000:.3g} ms of coins a round each; on 10: {UNITS * ROW_BYTES / 1e10:.3g} GB"
        f" and {each / 10:.3g} ms.",
        "CPU time and memory are the server's; wall time has the one actor's in it, which sends all"
        " answers one after the other, on the same cores. A network is not in it.",
    ]
    ratios = {f"ours_vs_bound_{c['workers']}x{c['parameters']}": c["of bound"] for c in cells}
    return Result(cells=cells, ratios=ratios, notes=notes, facts={"fan_in": between})


if __name__ == "__main__":
    harness.main("scaling", run)
