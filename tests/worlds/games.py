"""Tiny runs of PATE-GAN on the admissions: teachers of two dozen patients of many rows each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.pate_gan.config import (
    AnyPateGanConfig,
    PateGanConfig,
    PrePateGanConfig,
)
from distributed_privrl.methods.pate_gan.teachers import TeacherSpec
from distributed_privrl.rounds.worker import SecretOfRun
from distributed_privrl.stages.coding import public_encoder
from tests.worlds.intake import BOUNDS, DATASET, PATIENTS, admission_store, public_admissions, write
from tests.worlds.overrides import changed, parsed
from tests.worlds.world import World

PUBLIC, RELEASED = "intake/public-v0", "intake/private-v0"
TEACHERS, VOTES, STEPS, SPARE = 13, 4, 5, 1


def config_values(bounds: Path, **changes: Any) -> dict[str, Any]:
    """Return a run on the admissions; ``section__key=value`` changes it."""
    values: dict[str, Any] = {
        "method": "pate_gan",
        "data": {
            "sensitive": DATASET,
            "unit": "patient",
            "units": PATIENTS,
            "bounds": str(bounds),
        },
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "model": {
            "teachers": TEACHERS,
            "generator_layers": 1,
            "generator_width": 16,
            "discriminator_layers": 1,
            "discriminator_width": 8,
            "latent": 4,
        },
        "training": {
            "votes_per_step": VOTES,
            "most_steps": STEPS,
            "spare": SPARE,
            "teacher_steps": 2,
            "teacher_batch": 8,
            "student_steps": 3,
            "student_batch": 8,
            "memory": 2,
            "generator_steps": 2,
            "generator_batch": 8,
            "sampling": {"chunk_rows": 100},
        },
        "output": {"dataset": RELEASED, "size": 150},
        "runtime": {"workers": 2, "executor": "local"},
    }
    return changed(values, changes)


def taught_values(bounds: Path, **changes: Any) -> dict[str, Any]:
    """Return the same run with public pre-training."""
    values = config_values(bounds, method="pre_pate_gan")
    values["data"]["public"] = [PUBLIC]
    values["training"]["pretraining"] = {"steps": 60, "batch_size": 32}
    return changed(values, changes)


def game_store(
    root: Path, write_admissions: Callable[[Path], DatasetStore] = admission_store
) -> DatasetStore:
    """Write the admissions, and public ones of another hospital, into a new store."""
    store = write_admissions(root)
    rows = public_admissions(400)
    write(store, PUBLIC, rows, metadata={"declared_public": True})
    return store


class Games(World):
    """The admissions, public ones, a ledger, and a place for runs of PATE-GAN."""

    dataset, key = DATASET, 7
    allowed: ClassVar[dict[str, Any]] = {"epsilon": 50.0, "delta": 3e-4, "unit": "patient"}

    def __init__(self, folder: Path, master: DatasetStore | None = None) -> None:
        super().__init__(folder, master, BOUNDS)
        if master is None:
            game_store(self.store.root)

    def config(self, **changes: Any) -> AnyPateGanConfig:
        if changes.pop("taught", False):
            return parsed(taught_values(self.bounds, **changes), PrePateGanConfig)
        return parsed(config_values(self.bounds, **changes), PateGanConfig)

    @property
    def encoder(self) -> Any:
        """The encoder of runs."""
        return public_encoder(self.config(), self.store)


SECRET = SecretOfRun(run_id="run", insecure_key=3)
FAKES = np.random.default_rng(0).standard_normal((3, 2, 8, 9)).astype(np.float32)
SAMPLES = np.random.default_rng(1).standard_normal((200, 9)).astype(np.float32)


def specs(world: Games, dataset: str = DATASET, workers: int = 1, **changes: Any) -> list[Any]:
    """Return what each of some workers is built from; ``changes`` replace parts of it."""
    config = world.config()
    (ref,) = shard_refs(world.store, dataset, count=1, unit="patient")
    about: dict[str, Any] = {
        "ref": ref,
        "encoder": world.encoder.to_json(),
        "secret": SECRET,
        "model": config.model,
        "training": config.training,
        "seed": 0,
        "workers": workers,
        "blocks": 4,
    }
    return [TeacherSpec(**(about | changes), index=index) for index in range(workers)]
