"""A gate on a whole run of PriMORL: what its workers and its server do is what it certifies."""

from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.errors import VerificationError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.privacy.certificate import Certificate, Stage
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.server import ParameterServer, ServerSpec
from distributed_privrl.rounds.worker import LocalUpdateWorker, StoredShard, WorkerSpec
from tests.methods.swings import BOUNDS, DATASET, World

PILOT, PILOTS = "pilot", 25
"""Whose swings: each pilot's are two, far apart in the dataset."""
STAGES = ["count", "bounds", "ensemble"]
ASKED: dict[str, Any] = {
    "data__unit": PILOT,
    "data__units": {"epsilon": 20.0},
    "data__max_length": 300,
    "privacy__epsilon": 225.0,
    "training__expected_batch_size": 5,
    "training__policy__steps": 2,
    "training__policy__starts": 2,
}


class Watch:
    """Notes down what workers and servers are built from, while it is patched in."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.workers: list[WorkerSpec] = []
        self.servers: list[ServerSpec] = []
        for owner, specs in ((LocalUpdateWorker, self.workers), (ParameterServer, self.servers)):
            patch.setattr(owner, "__init__", _noting(owner.__init__, specs))


def _noting(right: Any, specs: list[Any]) -> Any:
    def started(self: Any, spec: Any) -> None:
        specs.append(spec)
        right(self, spec)

    return started


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


def assert_runs_as_certified(
    config: PrimorlConfig, stage: Stage, workers: list[WorkerSpec], servers: list[ServerSpec]
) -> None:
    """Fail if rounds differ from what their stage states and the configuration asks for."""
    (event,), training = stage.events, config.training
    assert len(workers) == config.runtime.workers, "another number of workers"
    for spec in workers:
        update: Any = spec.local_update
        assert update.clip_norm == stage.clip_norm, f"workers clip at {update.clip_norm}"
        coins = spec.sampling_probability
        assert coins == event.sampling_probability, f"coins are thrown at {coins}"
        assert isinstance(spec.source, StoredShard), "units come from elsewhere"
        ref, steps = spec.source.ref, training.local.steps
        assert ref.unit == stage.unit == config.data.unit, f"units are cut by {ref.unit}"
        assert ref.dataset == stage.dataset == config.data.sensitive, "another dataset"
        longest = ref.max_rows_per_unit
        assert longest == config.data.max_length, f"units are cut after {longest} rows"
        assert (spec.all_rows, spec.copies) == (steps is None, steps or 1), "other rows take part"
    (server,) = servers
    assert server.mechanism is not None, "no noise is drawn"
    assert server.mechanism.event(event.count) == event, "another noise is drawn than is stated"
    assert server.mechanism.clip_norm == stage.clip_norm, "noise is made for another norm"
    assert server.expected_units == training.expected_batch_size, "another denominator"
    assert server.ledger is not None, "nothing is charged"


def gate_certified_run(folder: Path, master: DatasetStore) -> None:
    """A run that counts, searches bounds and trains, each charged, does what it certifies."""
    world = World(folder, pilot_store(folder / "pilots", master), epsilon=300.0, unit=PILOT)
    search = folder / "search.yaml"
    search.write_text(BOUNDS)
    asked = {**ASKED, "data__bounds": {"epsilon": 200.0, "search": str(search)}}
    with pytest.MonkeyPatch.context() as patch:
        seen = Watch(patch)
        result = world.run(key=None, **asked)
    certificate = _verified(result.directory.certificate, world.ledger)
    names = [stage.name for stage in certificate.stages]
    assert names == STAGES, f"what was charged is certified as {names}"
    charged = {entry.id: entry.epsilon for entry in world.ledger.entries()}
    listed = certificate.ledger_entries
    assert set(listed) == set(charged), f"of {sorted(charged)}, {sorted(listed)} are certified"
    stated, spent = certificate.epsilon or 0.0, sum(charged.values())
    assert abs(stated - spent) < 1e-3 * spent, f"epsilon {spent} is certified as {stated}"
    units = {(stage.unit, stage.units) for stage in certificate.stages}
    assert units == {(PILOT, PILOTS)}, f"the certificate's units are {units}"
    assert_runs_as_certified(
        world.config(**asked), certificate.stages[-1], seen.workers, seen.servers
    )


def _verified(path: Path, ledger: Ledger) -> Certificate:
    try:
        return verify_certificate(path, ledger=ledger).certificate
    except VerificationError as error:
        raise AssertionError(f"the certificate does not verify: {error}") from error
