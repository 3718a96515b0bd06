"""A private round of the demo's model on Ray against the same round in one process.

CPU time is that of all processes: driver, workers, parameter server, and Ray's own. Rounds are
whole: inclusion, broadcast, clipped sums, noise, step; no checkpoint or ledger block falls into the
timed ones, which cost the same on both sides.
"""

import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from benchmarks import harness, processes
from benchmarks.harness import SEED, Alternative, Result, Timing
from distributed_privrl.core.executor import Executor, LocalExecutor, WorkerGroup
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments import demo_configs
from distributed_privrl.methods.privorl.config import PrivorlNConfig
from distributed_privrl.methods.privorl.row_model import RowSynthesizer
from distributed_privrl.methods.privorl.update import DiffusionUpdate, build_denoiser
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.units import PrivacyBudget
from distributed_privrl.rounds.checkpoint import CheckpointState, save_checkpoint
from distributed_privrl.rounds.server import ParameterServer, ServerSpec
from distributed_privrl.rounds.worker import LocalUpdateWorker, SecretOfRun, StoredShard, WorkerSpec
from distributed_privrl.runtime.executor import RayExecutor
from distributed_privrl.stages.round_plan import FEWEST_BLOCKS

WORKERS = 2
DATASET = "benchmark/rows-v0"
OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (4,), np.float32), Box(-1.0, 1.0, (2,), np.float32)
ROW_WIDTH = 12
ENCODER = TransitionEncoder(
    OBSERVATIONS,
    ACTIONS,
    Scaling(offset=np.zeros(ROW_WIDTH), scale=np.ones(ROW_WIDTH)),
    RowCoding(next_observation="difference"),
)
CONFIG = PrivorlNConfig.model_validate(demo_configs.CONFIG)
ROUNDS_A_CALL = 25
ENDLESS = 10**6
RUN_ID = "benchmark"
LOCAL, RAY, BOUND = "LocalExecutor", "Ray", "bound: the workers' gradients alone"
TWO = "bound: the same gradients in processes of their own, at once"
ACTORS = ("ray::LocalUpdateWorker", "ray::ParameterServer")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        units: units of the dataset.
        batches: expected batch sizes.
        turns: timed turns of each alternative.
        calls_a_turn: calls of the server in a turn.
    """

    units: int
    batches: tuple[int, ...]
    turns: int
    calls_a_turn: int


FULL = Size(units=500_000, batches=(1024, 2048), turns=15, calls_a_turn=2)
QUICK = Size(units=5_000, batches=(2048,), turns=2, calls_a_turn=1)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that processes hold for themselves.

    Args:
        first: of workers and server after the first rounds.
        last: of workers and server after the last rounds.
        driver_growth: of the driver while the workers loaded the dataset and ran.
    """

    first: int
    last: int
    driver_growth: int


class Rounds:
    """A parameter server and its workers on an executor.

    Args:
        executor: where they run.
        store: folder of the dataset.
        folder: an empty one for checkpoint and ledger.
        probability: of each unit, each round.
        batch: expected units a round.
    """

    def __init__(
        self, executor: Executor, store: Path, folder: Path, *, probability: float, batch: int
    ) -> None:
        self._workers = executor.start(LocalUpdateWorker, worker_specs(store, probability))
        spec = server_spec(folder, self._workers, probability, batch)
        self._server = executor.start(ParameterServer, [spec], service=True)

    def __call__(self) -> None:
        """Run some rounds."""
        self._server.call("advance", {"rounds": ROUNDS_A_CALL})

    def close(self) -> None:
        """End the processes."""
        self._server.close()
        self._workers.close()


class GradientsAlone:
    """What the workers compute in a round, called directly."""

    def __init__(self, store: Path, *, probability: float) -> None:
        self._workers = [LocalUpdateWorker(spec) for spec in worker_specs(store, probability)]
        self._parameters = initial_vector().numpy()

    def __call__(self) -> None:
        """Compute as many clipped sums as `Rounds` does."""
        for index in range(ROUNDS_A_CALL):
            for worker in self._workers:
                worker.clipped_sum(self._parameters, str(index))


class GradientsAtOnce:
    """What the workers compute in a round, in a process each and without Ray.

    It shows what two busy cores cost one another: their caches and their clock.
    """

    def __init__(self, store: Path, *, probability: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for index in range(WORKERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, store, probability, index))
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        self()

    def __call__(self) -> None:
        """Compute as many clipped sums as `Rounds` does."""
        for pipe in self._pipes:
            pipe.send(ROUNDS_A_CALL)
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(0)
            process.join()


def _serve(pipe: Connection, store: Path, probability: float, index: int) -> None:
    torch.set_num_threads(1)
    worker = LocalUpdateWorker(worker_specs(store, probability)[index])
    parameters = initial_vector().numpy()
    while rounds := pipe.recv():
        for round_index in range(rounds):
            worker.clipped_sum(parameters, str(round_index))
        pipe.send(rounds)


def initial_vector() -> torch.Tensor:
    """Return the demo's denoiser as one vector."""
    network = build_denoiser(CONFIG.model, row_width=ROW_WIDTH, seed=SEED)
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


def worker_specs(store: Path, probability: float) -> list[WorkerSpec]:
    """Return references to the workers' shards, with the demo's local update."""
    update = DiffusionUpdate(
        synthesizer=RowSynthesizer(model=CONFIG.model, row_width=ROW_WIDTH),
        seed=SEED,
        clip_norm=CONFIG.training.clip_norm,
        micro_batch_rows=CONFIG.training.rows_at_once(CONFIG.runtime),
    )
    (ref,) = shard_refs(DatasetStore(store), DATASET, count=1, unit="transition")
    return [
        WorkerSpec(
            source=StoredShard(ref=ref, encoder=ENCODER.to_json()),
            local_update=update,
            sampling_probability=probability,
            secret=SecretOfRun(run_id=RUN_ID, insecure_key=SEED),
            index=index,
            workers=WORKERS,
            blocks=FEWEST_BLOCKS,
        )
        for index in range(WORKERS)
    ]


def server_spec(folder: Path, workers: WorkerGroup, probability: float, batch: int) -> ServerSpec:
    """Return a parameter server with the demo's optimiser and secure noise."""
    mechanism = PrivateRound(
        clip_norm=CONFIG.training.clip_norm,
        noise_multiplier=1.0,
        sampling_probability=probability,
    )
    initial = folder / "initial.safetensors"
    state = CheckpointState(run_id=RUN_ID, round_index=0, stage="pretraining")
    save_checkpoint(initial, {"parameters": initial_vector()}, state)
    return ServerSpec(
        run_id=RUN_ID,
        workers=workers,
        initial=initial,
        checkpoint=folder / "rounds.safetensors",
        mechanism=mechanism,
        expected_units=batch,
        rounds=ENDLESS,
        max_rounds=ENDLESS,
        block_rounds=ENDLESS,
        optimiser=CONFIG.training.optimiser,
        ledger=open_ledger(folder, mechanism),
    )


def open_ledger(folder: Path, mechanism: PrivateRound) -> Ledger:
    """Return a ledger that holds all rounds; what they cost does not matter here."""
    ledger = Ledger(f"sqlite:///{folder / 'ledger.sqlite'}")
    budget = PrivacyBudget(epsilon=2.0, delta=1e-6, unit="transition")
    fingerprint = "0" * 64
    ledger.set_budget(dataset=DATASET, fingerprint=fingerprint, budget=budget)
    charge = Charge(
        entry_id=RUN_ID,
        kind="rounds",
        dataset=DATASET,
        fingerprint=fingerprint,
        unit=budget.unit,
        relation=mechanism.relation,
        epsilon=1.0,
        delta=1e-7,
        max_rounds=ENDLESS,
        event=mechanism.event(ENDLESS).model_dump(),
    )
    ledger.open_together([charge])
    return ledger


def write_rows(folder: Path, units: int) -> None:
    """Write the dataset; runs in a process of its own, so that the driver never holds it."""
    generator = np.random.default_rng(SEED)
    rows = Transitions(
        observations=generator.normal(size=(units, 4)),
        actions=generator.uniform(-1, 1, size=(units, 2)),
        rewards=generator.normal(size=units).astype(np.float32),
        next_observations=generator.normal(size=(units, 4)),
        terminated=np.zeros(units, bool),
        truncated=np.zeros(units, bool),
        unit_ids=np.arange(units, dtype=np.uint64),
    )
    DatasetStore(folder).write_transitions(
        DATASET,
        rows,
        layout="transitions",
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
    )


def run(quick: bool) -> Result:
    """Measure rounds on Ray and in one process."""
    size = QUICK if quick else FULL
    cells: list[dict[str, Any]] = []
    ratios: dict[str, float | None] = {}
    memories = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = multiprocessing.get_context("spawn").Process(
            target=write_rows, args=(folder, size.units)
        )
        writer.start()
        writer.join()
        ray = RayExecutor(workers=WORKERS)
        _load_code(folder)
        for batch in size.batches:
            timings, memory = _measure(ray, folder, size, batch)
            cells += _cells(batch, timings)
            base = timings[LOCAL].cpu_median
            ratios[f"ray_vs_local_{batch}"] = timings[RAY].cpu_median / base
            ratios[f"at_once_vs_local_{batch}"] = timings[TWO].cpu_median / base
            memories.append(memory)
        ray.close()
    dataset = size.units * ROW_WIDTH * 4
    ratios["ray_vs_local"] = ratios[f"ray_vs_local_{CONFIG.training.expected_batch_size}"]
    ratios["memory_last_vs_first"] = max(memory.last / memory.first for memory in memories)
    ratios["driver_growth_vs_dataset"] = memories[-1].driver_growth / dataset
    return Result(cells=cells, ratios=ratios, notes=_notes(size, memories, dataset))


def _load_code(store: Path) -> None:
    """Make the driver load what it needs, so that its memory grows by data alone from here on."""
    folder = store / "scratch"
    folder.mkdir()
    worker_specs(store, 0.5)
    server_spec(folder, LocalExecutor().start(LocalUpdateWorker, []), 0.5, 1)


def _measure(
    ray: RayExecutor, store: Path, size: Size, batch: int
) -> tuple[dict[str, Timing], Memory]:
    probability = batch / size.units
    folders = [store / f"{name}-{batch}" for name in ("ray", "local")]
    for folder in folders:
        folder.mkdir()
    driver = processes.own_memory_bytes()
    on_ray = Rounds(ray, store, folders[0], probability=probability, batch=batch)
    for _ in range(4 * size.calls_a_turn):
        on_ray()
    driver_growth = processes.own_memory_bytes() - driver
    first = sum(processes.memory_bytes(actor) for actor in ACTORS)
    local = Rounds(LocalExecutor(), store, folders[1], probability=probability, batch=batch)
    at_once = GradientsAtOnce(store, probability=probability)
    timings = harness.interleave(
        {
            LOCAL: Alternative(run=local),
            RAY: Alternative(run=on_ray, cpu_clock=processes.cpu_seconds),
            BOUND: Alternative(run=GradientsAlone(store, probability=probability)),
            TWO: Alternative(run=at_once, cpu_clock=processes.cpu_seconds),
        },
        turns=size.turns,
        runs_a_turn=size.calls_a_turn,
    )
    last = sum(processes.memory_bytes(actor) for actor in ACTORS)
    on_ray.close()
    local.close()
    at_once.close()
    return timings, Memory(first=first, last=last, driver_growth=driver_growth)


def _cells(batch: int, timings: dict[str, Timing]) -> list[dict[str, Any]]:
    base = timings[LOCAL].cpu_median
    return [
        {
            "expected batch": batch,
            "round": name,
            "CPU ms": 1e3 * timing.cpu_median / ROUNDS_A_CALL,
            "wall ms": 1e3 * timing.wall_median / ROUNDS_A_CALL,
            "of local": timing.cpu_median / base,
        }
        for name, timing in timings.items()
    ]


def _notes(size: Size, memories: Sequence[Memory], dataset: int) -> Sequence[str]:
    rounds = ROUNDS_A_CALL * size.calls_a_turn * (size.turns + 5)
    return [
        f"{initial_vector().numel():,} parameters, {WORKERS} workers, {size.units:,} units.",
        *(
            f"Batch {batch}: workers and server {memory.first / 1e6:.0f} MB after the first rounds,"
            f" {memory.last / 1e6:.0f} MB after {rounds:,}; the driver grew by"
            f" {memory.driver_growth / 1e6:.1f} MB (dataset: {dataset / 1e6:.0f} MB)."
            for batch, memory in zip(size.batches, memories, strict=True)
        ),
    ]


if __name__ == "__main__":
    harness.main("ray_round", run)
