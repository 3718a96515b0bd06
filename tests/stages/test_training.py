"""What the workers and the server of a run's rounds are built from: what is charged."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from distributed_privrl.core.config import (
    DataConfig,
    PolicyOutputConfig,
    PrivacyConfig,
    RunConfig,
    RuntimeConfig,
    StrictModel,
)
from distributed_privrl.core.progress import silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.sampling import slots_of_a_block
from distributed_privrl.privacy.units import PrivacyBudget, Relation, UnitCount
from distributed_privrl.rounds.round_server import RoundProgress
from distributed_privrl.rounds.server import ServerSpec
from distributed_privrl.rounds.worker import StoredShard, WorkerSpec
from distributed_privrl.stages.charging import charges_of, held_budget, open_charges
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.round_plan import RoundPlan, RoundsConfig, make_plan
from distributed_privrl.stages.training import TrainingSpec, train_in_rounds
from tests.worlds.toy import ToyUpdate

DATASET, UNITS = "toy/walks-v0", 40


class NotingGroup:
    """A group whose server has nothing left to do."""

    def __init__(self, closed: list[str], name: str) -> None:
        self.size, self._closed, self._name = 1, closed, name

    def call(self, method: str, *_: Any) -> list[Any]:
        assert method == "progress"
        return [RoundProgress(round_index=3, target=3, reserved=3)]

    def close(self) -> None:
        self._closed.append(self._name)


class NotingExecutor:
    """Notes what it is asked to start, and starts nothing."""

    def __init__(self) -> None:
        self.specs: dict[str, Sequence[Any]] = {}
        self.options: dict[str, dict[str, bool]] = {}
        self.closed: list[str] = []

    def start(self, worker_cls: type, shards: Sequence[Any], **options: bool) -> NotingGroup:
        self.specs[worker_cls.__name__] = shards
        self.options[worker_cls.__name__] = options
        return NotingGroup(self.closed, worker_cls.__name__)

    @property
    def workers(self) -> list[WorkerSpec]:
        return list(self.specs["LocalUpdateWorker"])

    @property
    def server(self) -> ServerSpec:
        (spec,) = self.specs["ParameterServer"]
        assert isinstance(spec, ServerSpec)
        return spec


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    store, box = DatasetStore(tmp_path_factory.mktemp("toy")), Box(-1.0, 1.0, (1,), np.float32)
    trajectories = Trajectories(
        observations=np.zeros((2 * UNITS, 1)),
        actions=np.zeros((UNITS, 1)),
        rewards=np.zeros(UNITS),
        terminated=np.zeros(UNITS, bool),
        truncated=np.ones(UNITS, bool),
        offsets=offsets_of([1] * UNITS),
        unit_ids=np.arange(UNITS, dtype=np.uint64),
    )
    store.write_trajectories(DATASET, trajectories, observation_space=box, action_space=box)
    return store


def config_of(epsilon: float | None) -> RunConfig:
    return RunConfig(
        method="toy",
        data=DataConfig(sensitive=DATASET, unit="trajectory", units=UNITS, max_length=7),
        privacy=PrivacyConfig(epsilon=epsilon, delta=1e-3, accountant="rdp"),
        model=StrictModel(),
        training=RoundsConfig(rounds=3, expected_batch_size=10, clip_norm=2.0),
        output=PolicyOutputConfig(),
        runtime=RuntimeConfig(workers=2),
    )


def plan_of(config: RunConfig) -> RoundPlan:
    assert isinstance(config.training, RoundsConfig)
    units = UnitCount(value=UNITS, source="declared")
    return make_plan(config.privacy, config.training, unit="trajectory", units=units)


def started(store: DatasetStore, folder: Path, config: RunConfig, plan: RoundPlan) -> Any:
    executor = NotingExecutor()
    context = RunContext(
        run_id="run-toy",
        folder=folder,
        executor=executor,
        store=store,
        ledger=Ledger(f"sqlite:///{folder / 'ledger.sqlite'}"),
        fingerprint="f" * 64,
        progress=silent,
        insecure_key=3,
    )
    spec = TrainingSpec(
        source=lambda ref: StoredShard(ref=ref, encoder="of the toy"),
        local_update=lambda clip_norm: ToyUpdate(clip_norm=clip_norm),
        initial=folder / "initial.safetensors",
        checkpoint=folder / "rounds.safetensors",
        copies=4,
    )
    if plan.budget is not None:
        budget = PrivacyBudget(epsilon=9.0, delta=2e-3, unit="trajectory")
        context.ledger.set_budget(dataset=DATASET, fingerprint=context.fingerprint, budget=budget)
        with held_budget(config.data, config.privacy, context):
            open_charges(context, charges_of(config.data, context, [(context, plan)]))
    train_in_rounds(spec, config, context, plan)
    return executor


def test_clip_norm_coins_and_noise_are_those_of_the_mechanism_that_is_charged(
    store: DatasetStore, tmp_path: Path
) -> None:
    config = config_of(5.0)
    plan = plan_of(config)
    assert plan.mechanism is not None
    other = replace(plan.mechanism, clip_norm=0.5, sampling_probability=0.125, noise_multiplier=9.0)
    plan = replace(plan, mechanism=other, trajectories=(2, None))
    found = started(store, tmp_path, config, plan)
    assert plan.clip_norm == plan.facts()["clip_norm"] == other.clip_norm
    assert [spec.local_update.clip_norm for spec in found.workers] == [0.5, 0.5]
    assert [spec.sampling_probability for spec in found.workers] == [0.125, 0.125]
    assert found.server.mechanism == other
    assert found.server.ledger is not None
    assert [spec.source.ref.skip_trajectories for spec in found.workers] == [2, 2]


def test_the_rest_is_the_plan_s_and_the_run_s(store: DatasetStore, tmp_path: Path) -> None:
    config = config_of(5.0)
    plan = plan_of(config)
    found = started(store, tmp_path, config, plan)
    refs = [spec.source.ref for spec in found.workers]
    places = [(spec.index, spec.workers, spec.blocks) for spec in found.workers]
    assert places == [(0, 2, 4), (1, 2, 4)]
    for ref in refs:
        assert (ref.index, ref.count) == (0, 1)
        assert (ref.dataset, ref.unit, ref.max_rows_per_unit) == (DATASET, "trajectory", 7)
        assert ref.skip_trajectories == 0
    assert {(spec.copies, spec.all_rows, spec.least_slots) for spec in found.workers} == {
        (4, False, 0)
    }
    for spec in found.workers:
        assert (spec.secret.run_id, spec.secret.insecure_key) == ("run-toy", 3)
        assert spec.secret.ledger is not None
    server = found.server
    assert (server.rounds, server.max_rounds, server.block_rounds) == (3, 5, 1)
    assert (server.expected_units, server.run_id, server.insecure_key) == (10, "run-toy", 3)
    assert server.optimiser == plan.config.optimiser
    assert found.options["ParameterServer"] == {"service": True}
    assert found.options["LocalUpdateWorker"] == {"repeat_lost_calls": True}
    assert found.closed == ["ParameterServer", "LocalUpdateWorker"]


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE, Relation.POLICY_LEVEL])
def test_whoever_may_be_removed_leaves_an_empty_slot(relation: Relation) -> None:
    """Blocks have room for all units: no other unit's coins, place or shape tell that one is gone.

    Where a unit becomes null it keeps its slot, and no more are needed.
    """
    plan = plan_of(config_of(5.0))
    assert plan.mechanism is not None
    assert plan.mechanism.relation is Relation.REPLACE_WITH_NULL
    assert plan.least_slots(4) == 0
    removes = replace(plan, mechanism=replace(plan.mechanism, relation=relation))
    assert removes.least_slots(4) == slots_of_a_block(UNITS, 4) >= UNITS / 4


def test_without_privacy_nothing_is_clipped_drawn_or_charged(
    store: DatasetStore, tmp_path: Path
) -> None:
    config = config_of(None)
    plan = plan_of(config)
    found = started(store, tmp_path, config, plan)
    assert plan.clip_norm is None
    assert [spec.local_update.clip_norm for spec in found.workers] == [None, None]
    assert [spec.sampling_probability for spec in found.workers] == [0.25, 0.25]
    assert found.server.mechanism is found.server.ledger is None
