"""A gate on a whole run of PriMORL: what its workers and its server do is what it certifies."""

from pathlib import Path
from typing import Any

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.rounds.server import ServerSpec
from distributed_privrl.rounds.worker import WorkerSpec
from tests.gates.whole_runs import WholeRun, assert_built_as_certified, gate_whole_run
from tests.worlds.swings import BOUNDS, DATASET, Swings

PILOT, PILOTS = "pilot", 25
"""Whose swings: each pilot's are two, far apart in the dataset."""
ASKED: dict[str, Any] = {
    "data__unit": PILOT,
    "data__units": {"epsilon": 20.0},
    "data__max_length": 300,
    "privacy__epsilon": 225.0,
    "training__expected_batch_size": 5,
    "training__policy__steps": 2,
    "training__policy__starts": 2,
}


def pilot_store(root: Path, master: DatasetStore) -> DatasetStore:
    """Write the swings again, each by one of `PILOTS` pilots, who have two."""
    store, info = DatasetStore(root), master.info(DATASET)
    episodes = master.read_trajectories(DATASET)
    episodes.unit_ids[:] = episodes.unit_ids % PILOTS
    store.write_trajectories(
        DATASET,
        episodes,
        layout="packed",
        observation_space=info.observation_space,
        action_space=info.action_space,
        unit_column=PILOT,
    )
    return store


def rows_of(config: PrimorlConfig) -> tuple[bool, int]:
    """Return whether every row of a unit takes part, and how many copies."""
    steps = config.training.local.steps
    return steps is None, steps or 1


def assert_runs_as_certified(
    config: PrimorlConfig, stage: Stage, workers: list[WorkerSpec], servers: list[ServerSpec]
) -> None:
    """Fail if rounds differ from what their stage states and the configuration asks for."""
    assert_built_as_certified(config, stage, workers, servers, rows=rows_of(config))


def gate_certified_run(folder: Path, master: DatasetStore) -> None:
    """A run that counts, searches bounds and trains, each charged, does what it certifies."""
    world = Swings(folder, pilot_store(folder / "pilots", master), epsilon=300.0, unit=PILOT)
    search = folder / "search.yaml"
    search.write_text(BOUNDS)
    asked = {**ASKED, "data__bounds": {"epsilon": 200.0, "search": str(search)}}
    config = world.config(**asked)
    gate_whole_run(
        WholeRun(
            config=config,
            ledger=world.ledger,
            start=lambda: world.run(key=None, **asked),
            stages=["count", "bounds", "ensemble"],
            units=PILOTS,
            rows=rows_of(config),
        )
    )
