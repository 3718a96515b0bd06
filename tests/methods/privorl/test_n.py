"""PrivORL-n: the steps of algorithm 1, each against what it must do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.core.config import NoisyCount
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.methods.privorl.model_config import DenoiserConfig
from distributed_privrl.methods.privorl.pretraining import (
    Pretrainer,
    PretrainerSpec,
    coding_digest,
    pretraining_key,
)
from distributed_privrl.methods.privorl.release import Sampler, SamplerSpec, read_chunks
from distributed_privrl.methods.privorl.row_model import RowDrawer, RowSynthesizer
from distributed_privrl.methods.privorl.transitions import TransitionRows
from distributed_privrl.methods.privorl.update import DiffusionUpdate, build_denoiser
from distributed_privrl.models import edm
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.stages.coding import public_encoder
from distributed_privrl.stages.encoders import search_ranges
from distributed_privrl.updates.local_update import UnitBatch
from tests.worlds.mazes import PUBLIC, config, config_values, maze_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return maze_store(tmp_path_factory.mktemp("datasets"))


def pretrainer_spec(store: DatasetStore, folder: Path, **changes: Any) -> PretrainerSpec:
    settings = config(**changes)
    encoder = public_encoder(settings, store)
    return PretrainerSpec(
        run_id="run",
        root=str(store.root),
        public=settings.data.public,
        rows=TransitionRows(encoder=encoder.to_json()),
        synthesizer=RowSynthesizer(model=settings.model, row_width=encoder.width),
        config=settings.training.pretraining,
        seed=0,
        checkpoint=folder / "pretrained.safetensors",
    )


def test_the_paper_network_has_six_and_a_half_million_parameters() -> None:
    paper = DenoiserConfig(width=1024, depth=6, normalise=False, activation="relu")
    network = build_denoiser(paper, row_width=11, seed=0)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(6.46e6, rel=0.005)


def test_curiosity_replaces_the_top_share_of_the_batch_by_the_most_novel_rows(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretraining = {
        "steps": 2,
        "batch_size": 40,
        "curiosity_rate": 0.3,
        "curiosity_sampler_steps": 2,
    }
    values = config_values()["training"] | {"pretraining": pretraining}
    trainer = Pretrainer(pretrainer_spec(store, tmp_path, training=values))
    synthetic: list[torch.Tensor] = []
    trained_on: list[torch.Tensor] = []
    real_sample = edm.sample

    def spy_sample(*arguments: Any, **keywords: Any) -> torch.Tensor:
        synthetic.append(real_sample(*arguments, **keywords))
        return synthetic[-1]

    monkeypatch.setattr(edm, "sample", spy_sample)
    monkeypatch.setattr(
        trainer._curiosity.distillation,
        "update",
        lambda rows: torch.arange(len(rows), dtype=torch.float32),
    )
    row_loss = trainer._row_loss

    class Spy:
        draw_count = row_loss.draw_count

        def __call__(self, network: Any, batch: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
            trained_on.append(batch.clone())
            return row_loss(network, batch, draws)

    trainer._row_loss = Spy()
    trainer.advance(1)
    assert len(synthetic) == 1
    assert synthetic[0].shape[0] == 40
    novel = synthetic[0][range(39, 27, -1)]  # the twelve with the highest scores
    assert torch.equal(trained_on[0][:12], novel)
    public = torch.from_numpy(trainer._rows)
    for row in trained_on[0][12:]:
        assert bool((public == row).all(dim=1).any())


def test_the_predictor_learns_from_every_scored_row(store: DatasetStore, tmp_path: Path) -> None:
    trainer = Pretrainer(pretrainer_spec(store, tmp_path))
    before = [p.clone() for p in trainer._curiosity.distillation.parameters()]
    trainer.advance(2)
    moved = [
        not torch.equal(a, b)
        for a, b in zip(before, trainer._curiosity.distillation.parameters(), strict=True)
    ]
    assert any(moved)


def test_pretraining_lowers_the_loss_and_resumes(store: DatasetStore, tmp_path: Path) -> None:
    training = config_values()["training"] | {
        "pretraining": {
            "steps": 60,
            "batch_size": 128,
            "curiosity_rate": 0.0,
            "optimiser": {"learning_rate": 0.02},
        }
    }
    spec = pretrainer_spec(store, tmp_path, training=training)
    trainer = Pretrainer(spec)
    rows = torch.from_numpy(trainer._rows[:512])
    generator = torch.Generator().manual_seed(3)
    noise, sigma = torch.randn(rows.shape, generator=generator), torch.ones(len(rows))

    def loss() -> float:
        with torch.no_grad():
            diffusion = config().model.diffusion()
            return float(diffusion.loss(trainer._network, rows, sigma, noise).mean())

    before = loss()
    assert trainer.loss() is None
    assert trainer.advance(5) == 5
    first = trainer.loss()
    assert trainer.advance(55) == 60
    assert loss() < 0.8 * before
    last = trainer.loss()
    assert first is not None
    assert last is not None
    assert last < first
    tensors, state = load_checkpoint(spec.checkpoint, run_id="run", stage="pretraining")
    assert state.round_index == 60
    assert torch.equal(tensors["parameters"], tensors["ema"])
    assert Pretrainer(spec).progress() == 60


def test_a_kept_pretraining_is_taken_by_another_run_and_by_no_other_settings(
    store: DatasetStore, tmp_path: Path
) -> None:
    def key(seed: int = 0, **changes: Any) -> str:
        settings = config(**changes)
        encoder = public_encoder(settings, store)
        model = RowSynthesizer(model=settings.model, row_width=encoder.width)
        return pretraining_key(
            public={name: inspect(store, name).fingerprint for name in settings.data.public},
            coding=coding_digest(encoder.to_json(), model),
            config=settings.training.pretraining,
            seed=seed,
        )

    kept = tmp_path / "kept" / f"{key()}.safetensors"
    first = Pretrainer(replace(pretrainer_spec(store, tmp_path / "one"), kept=kept))
    first.advance(3)
    assert not kept.exists()
    first.advance(3)
    spec = replace(pretrainer_spec(store, tmp_path / "two"), run_id="other", kept=kept)
    assert Pretrainer(spec).progress() == 6
    tensors, state = load_checkpoint(spec.checkpoint, run_id="other", stage="pretraining")
    mine, _ = load_checkpoint(
        tmp_path / "one" / "pretrained.safetensors", run_id="run", stage="pretraining"
    )
    assert state.round_index == 6
    assert torch.equal(tensors["parameters"], mine["parameters"])
    training = config_values()["training"]
    other = training | {"pretraining": training["pretraining"] | {"steps": 7}}
    keys = {key(), key(1), key(training=other), key(model={"width": 17}), key(data__public=[])}
    assert len(keys) == 5
    assert key(runtime={"pretrained": str(tmp_path)}) == key()


def test_without_pretraining_the_network_starts_untrained(
    store: DatasetStore, tmp_path: Path
) -> None:
    training = config_values()["training"] | {"pretraining": {"steps": 0}}
    spec = pretrainer_spec(store, tmp_path, training=training)
    assert Pretrainer(spec).progress() == 0
    tensors, _ = load_checkpoint(spec.checkpoint, run_id="run", stage="pretraining")
    network = spec.synthesizer.build(0)
    expected = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    assert torch.equal(tensors["parameters"], expected)


def test_the_local_update_is_the_gradient_of_the_edm_loss() -> None:
    model = DenoiserConfig(width=16, depth=2, time_width=8)
    synthesizer = RowSynthesizer(model=model, row_width=5)
    update = DiffusionUpdate(synthesizer=synthesizer, seed=0, clip_norm=None, micro_batch_rows=4)
    generator = np.random.default_rng(0)
    batch = UnitBatch(
        rows=generator.normal(size=(9, 1, 5)).astype(np.float32),
        valid=np.ones((9, 1), bool),
        draws=generator.normal(size=(9, 1, 6)),
    )
    network = build_denoiser(model, row_width=5, seed=0)
    start = torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()
    actual = update().clipped_sum(start, batch)
    rows = torch.from_numpy(batch.rows[:, 0])
    draws = torch.from_numpy(batch.draws[:, 0]).float()
    diffusion = model.diffusion()
    losses = diffusion.loss(network, rows, diffusion.training_sigma(draws[:, 0]), draws[:, 1:])
    losses.sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in network.parameters()]).numpy()
    np.testing.assert_allclose(actual, expected, atol=2e-5 * np.abs(expected).max())


def drawn(folder: Path, samplers: int) -> np.ndarray:
    """Return 150 rows of an untrained network, in three chunks that so many samplers draw."""
    model = DenoiserConfig(width=16, depth=1, time_width=8)
    network = build_denoiser(model, row_width=6, seed=1)
    vector = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    checkpoint = folder.parent / "c.safetensors"
    tensors = {"parameters": torch.zeros_like(vector), "ema": vector}
    save_checkpoint(
        checkpoint, tensors, CheckpointState(run_id="run", round_index=1, stage="rounds")
    )
    spec = SamplerSpec(
        run_id="run",
        checkpoint=checkpoint,
        pretrained=Path("none"),
        folder=folder,
        synthesizer=RowSynthesizer(model=model, row_width=6),
        drawer=RowDrawer(model=model, config=config().training.sampling, row_width=6, rows=150),
        seed=0,
        index=0,
        count=samplers,
    )
    for index in range(samplers):
        sampler = Sampler(replace(spec, index=index))
        while sampler.advance():
            pass
    return np.concatenate(list(read_chunks(folder, 3)))


@pytest.mark.parametrize("count", [1, 3])
def test_samplers_give_the_same_rows_whoever_draws_them(tmp_path: Path, count: int) -> None:
    alone = drawn(tmp_path / "alone", 1)
    assert alone.shape == (150, 6)
    assert alone.std() > 0.01
    assert np.array_equal(alone, drawn(tmp_path / f"by-{count}", count))


def test_a_sampler_that_is_built_again_draws_what_is_missing(tmp_path: Path) -> None:
    rows = drawn(tmp_path / "rows", 1)
    first, second, third = sorted((tmp_path / "rows").glob("*.npy"))
    second.unlink()
    written = [path.stat().st_mtime_ns for path in (first, third)]
    assert np.array_equal(rows, drawn(tmp_path / "rows", 1))
    assert second.exists()
    assert [path.stat().st_mtime_ns for path in (first, third)] == written


def test_scaling_never_sees_sensitive_rows(
    store: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = DatasetStore.iter_transitions

    def spy(self: DatasetStore, dataset: str, **keywords: Any) -> Any:
        read.append(dataset)
        return original(self, dataset, **keywords)

    monkeypatch.setattr(DatasetStore, "iter_transitions", spy)
    public_encoder(config(), store)
    environment = config(data__bounds="environment", data__public=[])
    public_encoder(environment, store)
    assert set(read) == {PUBLIC}


def test_bounds_that_were_found_scale_the_rows(store: DatasetStore, tmp_path: Path) -> None:
    search = tmp_path / "search.yaml"
    search.write_text(
        "observation: {low: -50, high: 50}\naction: {low: -1, high: 1}\nreward: [0, 1]"
    )
    asked = config(data__public=[], data__bounds={"epsilon": 1.0, "search": str(search)})
    ranges = search_ranges(asked.data, store, relation=Relation.REPLACE_WITH_NULL)
    assert ranges is not None
    assert ranges.high.tolist() == [50, 50, 50, 50, 1, 1, 1]
    with pytest.raises(ConfigError, match="find and charge them first"):
        public_encoder(asked, store)
    half = replace(ranges, low=ranges.low / 2, high=ranges.high / 2)
    wide, narrow = (public_encoder(asked, store, found).scaling for found in (ranges, half))
    assert narrow.scale[0] == wide.scale[0] / 2
    assert search_ranges(config().data, store, relation=Relation.REPLACE_WITH_NULL) is None


def test_columns_without_bounds_are_refused(store: DatasetStore) -> None:
    bare = config(data__public=[], data__environment=None)
    with pytest.raises(ConfigError, match="no bounds"):
        public_encoder(bare, store)
    with pytest.raises(ConfigError, match=r"needs data\.public"):
        public_encoder(config(data__public=[], data__bounds="public"), store)


def test_a_plan_states_the_noise_and_keeps_within_the_budget() -> None:
    weak, strong = (plan_run(config(privacy__epsilon=e)) for e in (10.0, 1.0))
    assert weak.mechanism is not None
    assert strong.mechanism is not None
    assert strong.mechanism.noise_multiplier > 1.5 * weak.mechanism.noise_multiplier
    for plan, limit in ((weak, 10.0), (strong, 1.0)):
        assert plan.sampling_probability == pytest.approx(64 / 3000)
        assert plan.max_rounds == 6 + 2
        assert 0.9 * limit < plan.epsilon(plan.max_rounds, certified=True) <= limit
        assert plan.epsilon(6, certified=True) < plan.epsilon(8, certified=True)


def test_plans_that_cannot_be_true_are_refused() -> None:
    with pytest.raises(UnsafeError, match="delta"):
        plan_run(config(privacy__delta=1e-3))
    with pytest.raises(ConfigError, match="not declared"):
        plan_run(config(data__units=None))
    with pytest.raises(ConfigError, match="counted with noise"):
        plan_run(config(data__units={"epsilon": 0.1}))
    with pytest.raises(ConfigError, match="expected_batch_size"):
        plan_run(config(data__units=10, privacy__delta=1e-3))
    assert config(data__units={"epsilon": 0.1}).data.units == NoisyCount(epsilon=0.1)
