"""Curiosity in private rounds over trajectories: fewer units, charged as such; novel samples."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.methods.privorl.curiosity import NovelUpdate, NovelUpdateFactory
from distributed_privrl.methods.privorl.update import DiffusionUpdate
from distributed_privrl.privacy.events import PoissonGaussianEvent
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.server import PUBLIC_STATE
from distributed_privrl.updates.local_update import UnitBatch
from tests.worlds.walks import SENSITIVE, Walks, config, config_values, synthesizer_of, walk_store
from tests.worlds.watching import Watched

RATE, SAMPLES, CANDIDATES, CLIP = 0.25, 3, 8, 0.5
METHODS = {
    "privorl_j": {"width": 8, "depth": 1, "heads": 2, "horizon": 8},
    "privorl_j_unet": {"width": 8, "depth": 2, "horizon": 8},
}


def curious(rate: Any = RATE) -> dict[str, Any]:
    return {"training": config_values()["training"] | {"curiosity_rate": rate}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return walk_store(tmp_path_factory.mktemp("walks"))


@pytest.fixture(params=METHODS)
def factory(request: pytest.FixtureRequest, store: DatasetStore) -> NovelUpdateFactory:
    settings = config(method=request.param, model=METHODS[request.param])
    update = DiffusionUpdate(
        synthesizer=synthesizer_of(settings, store), seed=0, clip_norm=CLIP, micro_batch_rows=4
    )
    return NovelUpdateFactory(
        update=update,
        samples=SAMPLES,
        candidates=CANDIDATES,
        copies=2,
        sampler_steps=2,
        seed=0,
        pretrained=Path("none"),
        run_id="run",
    )


def parameters(factory: NovelUpdateFactory, seed: int = 1) -> NDArray[np.float32]:
    network = factory.update.synthesizer.build(seed)
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()


def test_trajectories_are_sampled_and_charged_with_the_rest_of_q() -> None:
    plain, plan = plan_run(config()), plan_run(config(**curious()))
    q = (1 - RATE) * 20 / 200
    (event,) = plan.events(plan.max_rounds)
    assert isinstance(event, PoissonGaussianEvent)
    assert plan.mechanism is not None
    assert plain.mechanism is not None
    assert plan.sampling_probability == plan.mechanism.sampling_probability == q
    assert event.sampling_probability == q
    assert plan.mechanism.noise_multiplier < plain.mechanism.noise_multiplier
    assert plan.samples == 5
    assert plan.expected_units == plain.expected_units == 20
    assert plan.facts()["curiosity_rate"] == RATE
    assert plan.summary().startswith("on average 15 units a round")


@pytest.mark.parametrize("rate", [-0.1, 1.0, "nan"])
def test_a_share_that_leaves_no_trajectory_is_refused(rate: Any) -> None:
    with pytest.raises(ConfigError, match="curiosity_rate"):
        config(**curious(rate))


def test_samples_begin_trajectories_and_are_clipped_as_units(
    factory: NovelUpdateFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = NovelUpdate(factory)
    batches: list[UnitBatch] = []
    clipped_sum = update._update.clipped_sum

    def watch(vector: NDArray[Any], batch: UnitBatch) -> NDArray[Any]:
        batches.append(batch)
        return clipped_sum(vector, batch)

    monkeypatch.setattr(update._update, "clipped_sum", watch)
    total = update.vector_sum(parameters(factory), 0)
    (batch,) = batches
    synthesizer = factory.update.synthesizer
    assert batch.rows.shape == (SAMPLES, 2, synthesizer.row_width)
    assert np.array_equal(batch.rows[:, 0], batch.rows[:, 1])
    condition, steps, mask = synthesizer.fragments.split(batch.rows[:, 0])  # type: ignore[attr-defined]
    assert not condition.any()
    assert np.abs(steps).max() > 0
    assert (mask == 1).all()
    assert len(np.unique(batch.rows[:, 0], axis=0)) == SAMPLES
    assert 0 < np.linalg.norm(total.astype(np.float64)) <= SAMPLES * CLIP


def test_samples_come_from_the_given_parameters_and_the_round_alone(
    factory: NovelUpdateFactory,
) -> None:
    one = factory().vector_sum(parameters(factory), 0).copy()
    assert np.array_equal(factory().vector_sum(parameters(factory), 0), one)
    for vector, round_index, seed in (
        (parameters(factory, 2), 0, 0),
        (parameters(factory), 1, 0),
        (parameters(factory), 0, 7),
    ):
        other = replace(factory, seed=seed)().vector_sum(vector, round_index)
        assert not np.array_equal(other, one)


def test_a_run_charges_what_it_samples_and_adds_what_follows_from_releases(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    seen = Watched(monkeypatch)
    settings = config(**curious())
    world = Walks(tmp_path, store).afford(settings)
    result = world.start(settings)
    q = (1 - RATE) * 20 / 200
    (stage,) = result.certificate.stages
    (event,) = stage.events
    assert (stage.unit, event.sampling_probability) == ("trajectory", q)
    assert [(spec.all_rows, spec.sampling_probability) for spec in seen.workers] == [(True, q)] * 2
    (entry,) = world.ledger.entries(SENSITIVE)
    assert [charged["sampling_probability"] for charged in entry.event["events"]] == [q]
    assert entry.drawn_rounds == entry.reserved_rounds == len(seen.rounds) == 4
    (server,) = seen.servers
    assert server.mechanism is not None
    assert server.mechanism.sampling_probability == q
    assert server.expected_units == 20
    assert isinstance(server.public_update, NovelUpdateFactory)
    assert (server.public_update.samples, server.public_update.candidates) == (5, 20)
    # Replayed beside any data: what was added follows from released parameters and the round.
    replayed = server.public_update()
    for index, (vector, round_index, added) in enumerate(seen.rounds.copy()):
        assert round_index == index
        assert np.array_equal(replayed.vector_sum(vector, round_index), added)
    initial, _ = load_checkpoint(server.initial, run_id=server.run_id, stage="pretraining")
    assert np.array_equal(seen.rounds[0][0], initial["parameters"].numpy())
    kept, _ = load_checkpoint(server.checkpoint, run_id=server.run_id, stage="rounds")
    for name, value in replayed.tensors().items():
        assert torch.equal(kept[f"{PUBLIC_STATE}{name}"], value)
