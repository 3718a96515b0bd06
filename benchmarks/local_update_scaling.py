"""Rounds of DP-FedAvg on Ray: 1, 2, 4 and 8 workers on one problem, and the server's share.

The trajectories are written by another process and read by the workers, each its own shard: the
driver holds none.
"""

import multiprocessing
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

from benchmarks import processes, ray_round
from benchmarks.harness import SEED, Result
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding, RowLayout
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.primorl.update import DynamicsUpdate, TransitionColumns
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.rounds.checkpoint import CheckpointState, save_checkpoint
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.rounds.server import ParameterServer, ServerSpec
from distributed_privrl.rounds.worker import LocalUpdateWorker, SecretOfRun, StoredShard, WorkerSpec
from distributed_privrl.runtime.executor import RayExecutor
from distributed_privrl.stages.round_plan import FEWEST_BLOCKS
from distributed_privrl.updates.federated_config import FederatedConfig

DATASET = "benchmark/trajectories-v0"
SPACES = Box(-np.inf, np.inf, (3,), np.float32), Box(-2.0, 2.0, (1,), np.float32)
CODING = RowCoding(next_observation="difference")
LAYOUT = RowLayout(*SPACES, coding=CODING)
SCALING = Scaling(offset=np.zeros(LAYOUT.width), scale=np.ones(LAYOUT.width))
ENCODER = TransitionEncoder(*SPACES, SCALING, CODING)
SERVER = "ray::ParameterServer"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        trajectories: of the dataset.
        steps: of each.
        batch: expected trajectories a round.
        workers: numbers of them.
        rounds: timed.
    """

    trajectories: int
    steps: int
    batch: int
    workers: tuple[int, ...]
    rounds: int


FULL = Size(trajectories=100_000, steps=20, batch=2_000, workers=(1, 2, 4, 8), rounds=20)
QUICK = Size(trajectories=400, steps=5, batch=40, workers=(2,), rounds=3)
UPDATE = DynamicsUpdate(
    columns=TransitionColumns.of(LAYOUT),
    members=3,
    hidden=(64, 64),
    config=FederatedConfig(learning_rate=1e-2),
    clip_norm=0.3,
)


def write_trajectories(folder: Path, size: Size) -> None:
    """Write the dataset; runs in a process of its own."""
    generator = Streams(SEED).numpy("local_update_scaling/trajectories")
    count = size.trajectories * size.steps
    trajectories = Trajectories(
        observations=generator.normal(size=(count + size.trajectories, 3)).astype(np.float32),
        actions=generator.uniform(-2, 2, size=(count, 1)).astype(np.float32),
        rewards=generator.normal(size=count).astype(np.float32),
        terminated=np.zeros(count, bool),
        truncated=np.arange(count) % size.steps == size.steps - 1,
        offsets=offsets_of([size.steps] * size.trajectories),
        unit_ids=np.arange(size.trajectories, dtype=np.uint64),
    )
    DatasetStore(folder).write_trajectories(
        DATASET, trajectories, observation_space=SPACES[0], action_space=SPACES[1]
    )


def worker_specs(store: Path, size: Size, workers: int) -> list[WorkerSpec]:
    """Return what each worker is built from."""
    (ref,) = shard_refs(DatasetStore(store), DATASET, count=1, unit="trajectory")
    return [
        WorkerSpec(
            source=StoredShard(ref=ref, encoder=ENCODER.to_json()),
            local_update=UPDATE,
            sampling_probability=size.batch / size.trajectories,
            secret=SecretOfRun(run_id=ray_round.RUN_ID, insecure_key=SEED),
            index=index,
            workers=workers,
            blocks=max(workers, FEWEST_BLOCKS),
            all_rows=True,
            most_rows=size.steps,
        )
        for index in range(workers)
    ]


def server_spec(folder: Path, workers: WorkerGroup, size: Size) -> ServerSpec:
    """Return a parameter server with secure noise and a ledger."""
    assert UPDATE.clip_norm is not None
    mechanism = PrivateRound(
        clip_norm=UPDATE.clip_norm,
        noise_multiplier=1.0,
        sampling_probability=size.batch / size.trajectories,
    )
    ensemble = UPDATE.ensemble(torch.Generator().manual_seed(SEED))
    vector = nn.utils.parameters_to_vector(ensemble.parameters()).detach()
    initial = folder / "initial.safetensors"
    state = CheckpointState(run_id=ray_round.RUN_ID, round_index=0, stage="pretraining")
    save_checkpoint(initial, {"parameters": vector}, state)
    return ServerSpec(
        run_id=ray_round.RUN_ID,
        workers=workers,
        initial=initial,
        checkpoint=folder / "rounds.safetensors",
        mechanism=mechanism,
        expected_units=size.batch,
        rounds=ray_round.ENDLESS,
        max_rounds=ray_round.ENDLESS,
        block_rounds=ray_round.ENDLESS,
        optimiser=OptimiserConfig(learning_rate=3e-3),
        ledger=ray_round.open_ledger(folder, mechanism),
    )


def run(quick: bool) -> Result:
    """Measure rounds with each number of workers."""
    size = QUICK if quick else FULL
    cells: list[dict[str, Any]] = []
    growth = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = multiprocessing.get_context("spawn").Process(
            target=write_trajectories, args=(folder, size)
        )
        writer.start()
        writer.join()
        UPDATE()  # what the driver loads beside data
        for workers in size.workers:
            own = folder / f"run-{workers}"
            own.mkdir()
            before = processes.own_memory_bytes()
            cells.append(_measure(folder, own, size, workers))
            growth.append(processes.own_memory_bytes() - before)
    dataset = size.trajectories * size.steps * LAYOUT.width * 4
    first = cells[0]
    ratios: dict[str, float | None] = {
        "server_share": max(cell["server's share of CPU"] for cell in cells),
        "cpu_most_vs_fewest_workers": cells[-1]["CPU ms"] / first["CPU ms"],
        "wall_2_vs_1_workers": cells[1]["wall ms"] / first["wall ms"] if len(cells) > 1 else None,
        "driver_growth_vs_dataset": max(growth[1:] or growth) / dataset,
    }
    notes = [
        f"{size.trajectories:,} trajectories of {size.steps} steps, {size.batch:,} a round in"
        f" expectation, 3 members of 64 x 64; rows take {dataset / 1e6:.0f} MB; the driver grew by"
        f" {', '.join(f'{value / 1e6:.1f}' for value in growth)} MB."
    ]
    return Result(cells=cells, ratios=ratios, notes=notes)


def _measure(store: Path, folder: Path, size: Size, workers: int) -> dict[str, Any]:
    executor = RayExecutor(workers=workers, cpus_per_worker=min(1.0, 2 / workers))
    group = executor.start(LocalUpdateWorker, worker_specs(store, size, workers))
    server = executor.start(ParameterServer, [server_spec(folder, group, size)], service=True)
    server.call("advance", {"rounds": 3})
    before, begin = _cpu(), time.perf_counter()
    server.call("advance", {"rounds": size.rounds})
    wall, after = time.perf_counter() - begin, _cpu()
    server.close()
    group.close()
    executor.close()
    of_server, of_workers = (
        1e3 * (late - early) / size.rounds for early, late in zip(before, after, strict=True)
    )
    return {
        "workers": workers,
        "wall ms": 1e3 * wall / size.rounds,
        "CPU ms": of_server + of_workers,
        "workers' CPU ms": of_workers,
        "server's CPU ms": of_server,
        "server's share of CPU": of_server / (of_server + of_workers),
    }


def _cpu() -> tuple[float, float]:
    """Return the CPU seconds of the server and of the workers."""
    used, commands = processes.cpu_by_process(), processes.family()
    found = [0.0, 0.0]
    for pid, seconds in used.items():
        command = commands.get(pid, "")
        if command.startswith((SERVER, "ray::LocalUpdateWorker")):
            found[0 if command.startswith(SERVER) else 1] += seconds
    return found[0], found[1]
