"""A toy private run: units in memory, the toy network, the real worker, server, ledger, noise."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.executor import Executor, LocalExecutor, WorkerGroup
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.shards import EncodedShard
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.events import charged_rounds
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.rounds.server import ParameterServer, PublicUpdateFactory, ServerSpec
from distributed_privrl.rounds.summing import start_workers
from distributed_privrl.rounds.worker import SecretOfRun, WorkerSpec
from tests.worlds.ledgers import open_run
from tests.worlds.toy import ToyUpdate, initial_parameters

UNITS = 400
RUN_ID = "run-toy"


@dataclass(frozen=True, kw_only=True)
class MemoryShard:
    """Units made from a seed in the worker's process: no array travels."""

    units: int = UNITS
    rows_per_unit: int = 1
    poison: float | None = None

    def __call__(self, keep: Keep | None = None) -> EncodedShard:
        generator = np.random.default_rng(7)
        rows = generator.normal(size=(self.units, self.rows_per_unit, 5)).astype(np.float32)
        if self.poison is not None:
            rows[3] = self.poison
        ids = np.arange(self.units, dtype=np.uint64)
        mine = np.ones(self.units, bool) if keep is None else keep(ids)
        kept = rows[mine].reshape(-1, 5)
        return EncodedShard(
            rows=kept,
            valid=np.ones(len(kept), bool),
            unit_ids=ids[mine],
            offsets=np.arange(mine.sum() + 1, dtype=np.int64) * self.rows_per_unit,
        )


@dataclass(frozen=True, kw_only=True)
class ToyRun:
    """Settings of a toy run."""

    folder: Path
    workers: int = 1
    fan_in: int = 32
    blocks: int = 6
    rounds: int = 20
    spare: int = 10
    block: int = 5
    noise_multiplier: float | None = 1.0
    sampling_probability: float = 0.2
    insecure_key: int | None = 3
    copies: int = 1
    rows_per_unit: int = 1
    poison: float | None = None
    update: ToyUpdate = field(default_factory=ToyUpdate)
    public_update: PublicUpdateFactory | None = None
    optimiser: OptimiserConfig = field(
        default_factory=lambda: OptimiserConfig(learning_rate=0.01, ema_decay=0.9)
    )

    @property
    def mechanism(self) -> PrivateRound | None:
        if self.noise_multiplier is None:
            return None
        return PrivateRound(
            clip_norm=1.0,
            noise_multiplier=self.noise_multiplier,
            sampling_probability=self.sampling_probability,
            relation=Relation.REPLACE_WITH_NULL,
        )

    @property
    def ledger(self) -> Ledger:
        return Ledger(f"sqlite:///{self.folder / 'ledger.sqlite'}")

    def open(self) -> None:
        """Make the initial checkpoint, and hold the cost in the ledger."""
        initial = self.folder / "initial.safetensors"
        if not initial.exists():
            tensors = {"parameters": torch.from_numpy(initial_parameters(self.update.dtype).copy())}
            save_checkpoint(
                initial, tensors, CheckpointState(run_id=RUN_ID, round_index=0, stage="pretraining")
            )
        if self.mechanism is None:
            return
        ledger = self.ledger
        ledger.set_budget(
            dataset="toy/units-v0",
            fingerprint="f" * 64,
            budget=PrivacyBudget(epsilon=50.0, delta=1e-4, unit="transition"),
        )
        open_run(
            ledger,
            RUN_ID,
            dataset="toy/units-v0",
            fingerprint="f" * 64,
            unit="transition",
            relation=Relation.REPLACE_WITH_NULL,
            epsilon=40.0,
            delta=1e-5,
            max_rounds=self.rounds + self.spare,
            event=charged_rounds([self.mechanism.event(1)]),
        )

    def worker_specs(self) -> list[WorkerSpec]:
        return [
            WorkerSpec(
                source=MemoryShard(rows_per_unit=self.rows_per_unit, poison=self.poison),
                local_update=self.update,
                sampling_probability=self.sampling_probability,
                secret=SecretOfRun(
                    run_id=RUN_ID,
                    ledger=self.ledger if self.mechanism is not None else None,
                    insecure_key=self.insecure_key,
                ),
                index=index,
                workers=self.workers,
                blocks=self.blocks,
                copies=self.copies,
            )
            for index in range(self.workers)
        ]

    def server_spec(self, workers: WorkerGroup) -> ServerSpec:
        return ServerSpec(
            run_id=RUN_ID,
            workers=workers,
            initial=self.folder / "initial.safetensors",
            checkpoint=self.folder / "rounds.safetensors",
            mechanism=self.mechanism,
            expected_units=self.sampling_probability * UNITS,
            rounds=self.rounds,
            max_rounds=self.rounds + self.spare,
            block_rounds=self.block,
            optimiser=self.optimiser,
            public_update=self.public_update,
            ledger=self.ledger if self.mechanism is not None else None,
            insecure_key=self.insecure_key,
        )

    @contextmanager
    def server(self, executor: Executor | None = None) -> Iterator[WorkerGroup]:
        """Start workers and server; the same folder again resumes."""
        self.open()
        own = executor or LocalExecutor()
        workers = start_workers(own, self.worker_specs(), fan_in=self.fan_in)
        server = own.start(ParameterServer, [self.server_spec(workers)], service=True)
        try:
            yield server
        finally:
            server.close()
            workers.close()

    def train(self, executor: Executor | None = None) -> NDArray[Any]:
        """Run all rounds and return the parameters."""
        with self.server(executor) as server:
            while not server.call("advance", {"rounds": 7})[0].finished:
                pass
        return self.parameters()

    def parameters(self, name: str = "parameters") -> NDArray[Any]:
        tensors, _ = load_checkpoint(
            self.folder / "rounds.safetensors", run_id=RUN_ID, stage="rounds"
        )
        return tensors[name].numpy()

    def with_folder(self, name: str) -> "ToyRun":
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return replace(self, folder=folder)
