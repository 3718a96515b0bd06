"""Whole runs that are watched, with all that must not be found in what may leave them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.experiments import samples
from distributed_privrl.rounds.server import ServerSpec
from distributed_privrl.rounds.worker import WorkerSpec
from distributed_privrl.stages.coding import public_encoder
from tests.gates.leak_secrets import Secrets
from tests.gates.leaks import logged
from tests.worlds.sending import SendingExecutor
from tests.worlds.watching import watch
from tests.worlds.world import World


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that was watched, and what must not be found in it."""

    folder: Path
    config: RunConfig
    store: DatasetStore
    ledger_url: str
    secrets: Secrets
    deviations: list[float]
    workers: list[WorkerSpec]
    servers: list[ServerSpec]
    said: str
    sent: list[bytes]

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.json"

    @property
    def released(self) -> Path:
        (name,) = self.config.output.datasets
        return self.store.root / name


def raw_rows(store: DatasetStore, dataset: str) -> np.ndarray:
    """Return a dataset's rows as they are."""
    rows = store.read_transitions(dataset, unit="transition")
    return samples.layout_of(store, dataset).to_rows(rows)[0].astype(np.float32)


def rows_of(store: DatasetStore, config: Any, dataset: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a dataset's rows, raw and encoded."""
    rows = store.read_transitions(dataset, unit="transition")
    return raw_rows(store, dataset), public_encoder(config, store).encode(rows).rows


def figures_of(recorded: Trajectories) -> tuple[float, ...]:
    """Return what describes trajectories as wholes: lengths, returns, and how they end."""
    earned = np.add.reduceat(recorded.rewards, recorded.offsets[:-1], dtype=np.float64)
    ends = recorded.terminated[recorded.offsets[1:] - 1]
    parts = [
        part for values in (recorded.lengths, earned) for part in (values.mean(), values.std())
    ]
    return (*map(float, parts), float(ends.mean()))


def watched_run(world: World, config: RunConfig, secrets: Secrets) -> Finished:
    """Run ``config`` and note down what comes into being that must not leave."""
    seen: dict[str, list[Any]] = {"deviations": [], "workers": [], "servers": [], "said": []}
    executor = SendingExecutor()
    with pytest.MonkeyPatch.context() as patch, logged() as lines:
        watch(patch, secrets, seen)
        world.afford(config).start(
            config,
            executor=executor,
            progress=lambda *facts: seen["said"].append(" ".join(map(str, facts))),
        )
    assert lines == [], "a run logs nothing: no scan would know what a line may say"
    return Finished(
        folder=world.folder / "run",
        config=config,
        store=world.store,
        ledger_url=world.url,
        secrets=secrets,
        deviations=seen["deviations"],
        workers=seen["workers"],
        servers=seen["servers"],
        said="\n".join(seen["said"]),
        sent=executor.arguments,
    )
