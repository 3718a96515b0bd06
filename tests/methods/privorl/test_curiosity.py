"""Curiosity in private rounds: fewer units, charged as such, and the model's own novel samples."""

import pickle
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
from distributed_privrl.methods.privorl.model_config import DenoiserConfig
from distributed_privrl.methods.privorl.release import TRAINED
from distributed_privrl.methods.privorl.row_model import RowSynthesizer
from distributed_privrl.methods.privorl.update import DiffusionUpdate, build_denoiser
from distributed_privrl.models import edm
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.events import PoissonGaussianEvent
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.server import PUBLIC_STATE
from distributed_privrl.updates.local_update import UnitBatch
from tests.worlds.mazes import SENSITIVE, Mazes, config, config_values, maze_store
from tests.worlds.watching import Watched

RATE = 0.25
WIDTH, SAMPLES, CANDIDATES, CLIP = 5, 6, 16, 0.5
MODEL = DenoiserConfig(width=16, depth=1, time_width=8)
FACTORY = NovelUpdateFactory(
    update=DiffusionUpdate(
        synthesizer=RowSynthesizer(model=MODEL, row_width=WIDTH),
        seed=0,
        clip_norm=CLIP,
        micro_batch_rows=4,
    ),
    samples=SAMPLES,
    candidates=CANDIDATES,
    copies=2,
    sampler_steps=2,
    seed=0,
    pretrained=Path("none"),
    run_id="run",
)


def curious(rate: float = RATE, **changes: Any) -> dict[str, Any]:
    return {"training": config_values()["training"] | {"curiosity_rate": rate, **changes}}


def parameters(seed: int = 1) -> NDArray[np.float32]:
    network = build_denoiser(MODEL, row_width=WIDTH, seed=seed)
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()


def test_units_are_sampled_and_charged_with_the_rest_of_q() -> None:
    plain, plan = plan_run(config()), plan_run(config(**curious()))
    q = (1 - RATE) * 64 / 3000
    (event,) = plan.events(plan.max_rounds)
    assert isinstance(event, PoissonGaussianEvent)
    assert plan.mechanism is not None
    assert plain.mechanism is not None
    assert plan.sampling_probability == plan.mechanism.sampling_probability == q
    assert event.sampling_probability == q
    assert event.noise_multiplier == plan.mechanism.noise_multiplier
    assert plan.mechanism.noise_multiplier < plain.mechanism.noise_multiplier
    assert plan.samples == RATE * 64
    assert plan.expected_units == plain.expected_units == 64
    costs = [
        epsilon(
            [event.model_copy(update={"sampling_probability": each})],
            delta=1e-5,
            relation=Relation.REPLACE_WITH_NULL,
        )
        for each in (q, 64 / 3000)
    ]
    assert 4.5 < costs[0] <= 5.0 < costs[1]


def test_a_plan_shows_what_takes_part() -> None:
    plan = plan_run(config(**curious()))
    assert plan.facts()["curiosity_rate"] == RATE
    assert plan.summary().startswith("on average 48 units a round")
    assert "curiosity_rate" not in plan_run(config()).facts()


@pytest.mark.parametrize("rate", [-0.1, 1.0, "nan"])
def test_a_share_that_leaves_no_unit_is_refused(rate: Any) -> None:
    with pytest.raises(ConfigError, match="curiosity_rate"):
        config(**curious(rate))


def test_the_vectors_of_the_most_novel_samples_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[torch.Tensor] = []
    right = edm.sample

    def spy(*arguments: Any, **keywords: Any) -> torch.Tensor:
        drawn.append(right(*arguments, **keywords))
        return drawn[-1]

    monkeypatch.setattr(edm, "sample", spy)
    update = NovelUpdate(FACTORY)
    scores = torch.tensor([5.0, 1, 9, 0, 3, 7, 2, 8, 4, 6, *range(-6, 0)])
    monkeypatch.setattr(update._rows.distillation, "update", lambda rows: scores[: len(rows)])
    batches: list[UnitBatch] = []
    clipped_sum = update._update.clipped_sum

    def watch(vector: NDArray[Any], batch: UnitBatch) -> NDArray[Any]:
        batches.append(batch)
        return clipped_sum(vector, batch)

    monkeypatch.setattr(update._update, "clipped_sum", watch)
    total = update.vector_sum(parameters(), 0)
    (rows,), (batch,) = drawn, batches
    assert rows.shape == (CANDIDATES, WIDTH)
    best = rows[[2, 7, 5, 9, 0, 8]].numpy()
    assert np.array_equal(batch.rows, np.stack([best, best], axis=1))
    assert batch.valid.all()
    assert batch.draws.shape == (SAMPLES, 2, 1 + WIDTH)
    assert abs(batch.draws.mean()) < 0.5
    assert 0.7 < batch.draws.std() < 1.3
    assert np.array_equal(total, FACTORY.update().clipped_sum(parameters(), batch))
    assert 0 < np.linalg.norm(total) <= SAMPLES * CLIP


def test_samples_come_from_the_given_parameters_and_the_round_alone() -> None:
    first, second = NovelUpdate(FACTORY), pickle.loads(pickle.dumps(FACTORY))()
    one = first.vector_sum(parameters(), 0).copy()
    assert np.array_equal(second.vector_sum(parameters(), 0), one)
    for vector, round_index, seed in (
        (parameters(2), 0, 0),
        (parameters(), 1, 0),
        (parameters(), 0, 7),
    ):
        other = replace(FACTORY, seed=seed)().vector_sum(vector, round_index)
        assert not np.array_equal(other, one)


def test_what_the_predictor_learned_survives_a_resume() -> None:
    whole = FACTORY()
    for round_index in range(3):
        whole.vector_sum(parameters(), round_index)
    resumed = FACTORY()
    resumed.restore({name: value.clone() for name, value in whole.tensors().items()})
    expected = whole.vector_sum(parameters(), 3).copy()
    assert np.array_equal(resumed.vector_sum(parameters(), 3), expected)
    scores = [each._rows.distillation.scores(torch.ones(1, WIDTH)) for each in (whole, FACTORY())]
    assert not torch.equal(*scores)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return maze_store(tmp_path_factory.mktemp("datasets"))


def test_a_run_charges_what_it_samples_and_adds_what_follows_from_releases(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    seen = Watched(monkeypatch)
    world = Mazes(tmp_path, store).budget()
    result = world.run(**curious(noise_multiplicity=2))
    q = (1 - RATE) * 64 / 3000
    (stage,) = result.certificate.stages
    (event,) = stage.events
    assert [spec.sampling_probability for spec in seen.workers] == [q, q]
    assert event.sampling_probability == q
    (entry,) = world.ledger.entries(SENSITIVE)
    assert [charged["sampling_probability"] for charged in entry.event["events"]] == [q]
    assert entry.drawn_rounds == entry.reserved_rounds == len(seen.rounds) == 6
    (server,) = seen.servers
    assert server.mechanism is not None
    assert server.mechanism.sampling_probability == q
    assert server.mechanism.noise_multiplier == event.noise_multiplier
    assert server.expected_units == 64
    assert isinstance(server.public_update, NovelUpdateFactory)
    assert (server.public_update.samples, server.public_update.candidates) == (16, 64)
    # Replayed beside any data: what was added follows from released parameters and the round.
    replayed = server.public_update()
    for index, (vector, round_index, added) in enumerate(seen.rounds.copy()):
        assert round_index == index
        assert np.array_equal(replayed.vector_sum(vector, round_index), added)
    initial, _ = load_checkpoint(server.initial, run_id=server.run_id, stage="pretraining")
    assert np.array_equal(seen.rounds[0][0], initial["parameters"].numpy())
    kept, _ = load_checkpoint(server.checkpoint, run_id=server.run_id, stage="rounds")
    assert server.checkpoint.name == TRAINED
    for name, value in replayed.tensors().items():
        assert torch.equal(kept[f"{PUBLIC_STATE}{name}"], value)
