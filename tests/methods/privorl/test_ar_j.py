"""PrivORL-AR-j: the loss of a fragment's own steps, rollouts whose steps join, a whole run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.fragments import END_BITS
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories, offsets_of
from distributed_privrl.experiments.registry import method_named
from distributed_privrl.methods.privorl.attack import first_fragments
from distributed_privrl.methods.privorl.config import PrivorlArJConfig
from distributed_privrl.methods.privorl.release import TRAINED
from distributed_privrl.methods.privorl.sampling_config import StepRolloutConfig
from distributed_privrl.methods.privorl.step_loss import step_context
from distributed_privrl.methods.privorl.step_model import StepDrawer, StepSynthesizer, _settled_ends
from distributed_privrl.methods.privorl.stitching import SeamErrors, decode_trajectories
from distributed_privrl.methods.privorl.trajectories import FragmentRows, fragment_synthesizer
from distributed_privrl.models.autoregressive import AutoregressiveNetwork
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.coding import public_encoder
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import UnitBatch
from distributed_privrl.updates.parameters import FlatParameters
from tests.worlds.walks import (
    PUBLIC,
    SENSITIVE,
    SPACES,
    ar_config,
    config_values,
    trained,
    walk_store,
    walks,
)
from tests.worlds.world import World


@pytest.fixture(scope="module")
def synthesizer(tmp_path_factory: pytest.TempPathFactory) -> StepSynthesizer:
    store = walk_store(tmp_path_factory.mktemp("walks"))
    settings = ar_config()
    made = fragment_synthesizer(settings, store, public_encoder(settings, store))
    assert isinstance(made, StepSynthesizer)
    return made


def encoded(synthesizer: StepSynthesizer, count: int = 20) -> torch.Tensor:
    found = synthesizer.fragments.encode(walks(count, seed=5))
    assert found.valid.all()
    return torch.from_numpy(found.rows)


def parts(
    synthesizer: StepSynthesizer, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    condition, steps, mask = synthesizer.fragments.layout.split(rows)
    return condition, steps, mask


def by_hand(
    synthesizer: StepSynthesizer, network: AutoregressiveNetwork, row: torch.Tensor
) -> float:
    """Walk through a fragment, one step after the other."""
    (condition,), (steps,), _ = parts(synthesizer, row[None])
    linked = bool((condition != 0).any())
    clock = float(condition[-1]) if linked else -1.0
    before, total, begun = condition, 0.0, 0.0
    for position, step in enumerate(steps):
        first = torch.tensor([0.0 if linked or position else 1.0])
        now = torch.tensor([min(1.0, clock + position * synthesizer.tick)])
        losses = network(step[None], step_context(before[None], first, now))[0].detach()
        total += float(losses[2:].sum())
        begun += float(losses[:2].sum() * first)
        if (step[-END_BITS:] > 0).any():
            break
        before = step
    return total / synthesizer.model.horizon + synthesizer.model.first_weight * begun


def test_a_fragment_s_loss_is_that_of_its_own_steps(synthesizer: StepSynthesizer) -> None:
    network, rows = synthesizer.build(0), encoded(synthesizer)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
        found = synthesizer.row_loss(network, rows, torch.zeros(len(rows), 0))
        expected = [by_hand(synthesizer, network, row) for row in rows]
    linked = (rows[:, : synthesizer.fragments.step_width] != 0).any(dim=1)
    assert 0 < linked.sum() < len(rows)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def _of_horizon(horizon: int) -> PrivorlArJConfig:
    model = {"bins": 8, "hidden": [8], "horizon": horizon, "first_weight": 8 / horizon}
    return ar_config(model=model, data__max_length=64)


@pytest.mark.parametrize("horizon", [8, 16, 64])
def test_a_step_counts_as_one_of_the_horizon_s(horizon: int, tmp_path: Path) -> None:
    store = walk_store(tmp_path)
    settings = _of_horizon(horizon)
    made = fragment_synthesizer(settings, store, public_encoder(settings, store))
    assert isinstance(made, StepSynthesizer)
    found = made.fragments.encode(walks(40, seed=5, limit=7))  # a fragment each
    losses = made.row_loss(
        made.build(0), torch.from_numpy(found.rows), torch.zeros(len(found.rows), 0)
    )
    other = _of_horizon(32)
    longer = fragment_synthesizer(other, store, public_encoder(other, store))
    assert isinstance(longer, StepSynthesizer)
    again = longer.fragments.encode(walks(40, seed=5, limit=7))
    expected = longer.row_loss(
        longer.build(0), torch.from_numpy(again.rows), torch.zeros(len(again.rows), 0)
    )
    torch.testing.assert_close(horizon * losses, 32 * expected, rtol=1e-4, atol=1e-4)


def test_steps_after_an_end_change_nothing(synthesizer: StepSynthesizer) -> None:
    network, rows = synthesizer.build(0), encoded(synthesizer)
    _, steps, _ = parts(synthesizer, rows)
    ends = (steps[..., -END_BITS:] > 0).any(dim=-1)
    after = torch.nn.functional.pad(ends, (1, -1)).cummax(dim=1).values
    assert after.any()
    before = synthesizer.row_loss(network, rows, torch.zeros(len(rows), 0))
    steps[after] = 0.3
    assert torch.equal(synthesizer.row_loss(network, rows, torch.zeros(len(rows), 0)), before)


def test_fragments_do_not_meet(synthesizer: StepSynthesizer) -> None:
    network, rows = synthesizer.build(0), encoded(synthesizer)
    alone = torch.cat([synthesizer.row_loss(network, row[None], torch.zeros(1, 0)) for row in rows])
    together = synthesizer.row_loss(network, rows, torch.zeros(len(rows), 0))
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-6)


def drawn(synthesizer: StepSynthesizer, network: AutoregressiveNetwork) -> torch.Tensor:
    drawer = StepDrawer(
        synthesizer=synthesizer,
        trajectories=25,
        config=StepRolloutConfig(chunk_trajectories=20),
        max_length=17,
    )
    assert drawer.count == 2
    chunks = [drawer.draw(network, index, streams=Streams(3), device="cpu") for index in range(2)]
    again = drawer.draw(network, 1, streams=Streams(3), device="cpu")
    assert torch.equal(chunks[1], again)
    return torch.cat(chunks)


def test_rollouts_join_and_end_once(synthesizer: StepSynthesizer) -> None:
    encoder = synthesizer.fragments
    steps = drawn(synthesizer, synthesizer.build(0)).numpy()
    found = decode_trajectories(encoder, steps)
    assert len(found) == 25
    assert len(set(found.lengths)) > 2
    assert found.lengths.max() <= 17
    last = found.offsets[1:] - 1
    assert (found.terminated | found.truncated)[last].all()
    assert (found.terminated | found.truncated).sum() == 25
    assert not (found.terminated & found.truncated).any()
    errors = SeamErrors.none()
    errors.add(encoder, steps)
    facts = errors.facts()
    assert facts["inside"] is not None
    assert facts["inside"] < 1e-6 < (facts["of_a_step"] or 0)


def test_a_floor_leaves_out_no_rare_end(synthesizer: StepSynthesizer) -> None:
    layout = synthesizer.fragments.transitions.layout
    blocks = [layout.blocks[name] for name in ("observation", "next_observation")]
    numbers = [column for block in blocks for column in range(block.start, block.stop)]
    assert [one.start for one in synthesizer.bins.variables if one.floored] == numbers


def test_a_step_that_terminates_is_not_cut_as_well() -> None:
    steps = torch.tensor([[0.0, 1, 1], [0, -1, 1], [0, 1, -1], [0, -1, -1]])
    assert _settled_ends(steps, last=False).tolist() == [True, True, True, False]
    assert steps[:, 1:].tolist() == [[1, -1], [-1, 1], [1, -1], [-1, -1]]
    assert _settled_ends(steps, last=True).all()
    assert steps[3, 1:].tolist() == [-1, 1]


def drawn_by(synthesizer: StepSynthesizer, network: torch.nn.Module, count: int) -> Trajectories:
    drawer = StepDrawer(
        synthesizer=synthesizer, trajectories=count, config=StepRolloutConfig(), max_length=24
    )
    steps = drawer.draw(network, 0, streams=Streams(0), device="cpu").numpy()
    return decode_trajectories(synthesizer.fragments, steps)


def test_a_trained_model_walks_as_the_public_ones_do(tmp_path: Path) -> None:
    """Speed is kept, the side too, and a walk ends beyond 1 or at the time limit."""
    store = walk_store(tmp_path / "walks", public=400)
    training = {
        "rounds": 1,
        "expected_batch_size": 1,
        "max_fragments_per_unit": 3,
        "pretraining": {
            "steps": 200,
            "batch_size": 64,
            "curiosity_rate": 0.0,
            "optimiser": {"learning_rate": 1e-2, "ema_decay": 0.9},
        },
    }
    settings = ar_config(
        model={"horizon": 8, "bins": 32, "hidden": [32, 32], "first_weight": 0.2}, training=training
    )
    made = fragment_synthesizer(settings, store, public_encoder(settings, store))
    assert isinstance(made, StepSynthesizer)
    network = trained(store, made, settings, tmp_path)
    found = drawn_by(made, network, 200)
    real = store.read_trajectories(PUBLIC)
    assert found.lengths.mean() == pytest.approx(real.lengths.mean(), rel=0.3)
    rows = found.transitions(TRAJECTORY)
    moved = rows.next_observations[:, 0] - rows.observations[:, 0]
    speed = rows.observations[:, 1] * np.sign(rows.actions[:, 0])
    assert np.corrcoef(moved, speed)[0, 1] > 0.8
    beyond = np.abs(rows.next_observations[rows.terminated, 0])
    assert np.mean(beyond > 0.9) > 0.7
    assert found.terminated.sum() > 100


def test_short_trajectories_come_back_as_often_as_they_are(tmp_path: Path) -> None:
    """Half have one step and half eight; a mean over a fragment's own steps gives .89."""
    store = DatasetStore(tmp_path / "lengths")
    lengths = np.tile([1, 8], 100)
    ends = np.zeros(lengths.sum(), bool)
    ends[np.cumsum(lengths) - 1] = True
    generator = np.random.default_rng(0)
    for dataset in (PUBLIC, SENSITIVE):
        made = Trajectories(
            observations=generator.uniform(-1, 1, (len(ends) + len(lengths), 2)),
            actions=generator.uniform(-1, 1, (len(ends), 1)),
            rewards=ends.astype(np.float32),
            terminated=ends,
            truncated=np.zeros(len(ends), bool),
            offsets=offsets_of(lengths),
            unit_ids=np.arange(len(lengths), dtype=np.uint64),
        )
        store.write_trajectories(dataset, made, **SPACES)
    optimiser = {"learning_rate": 1e-2, "schedule": "cosine", "ema_decay": 0.9}
    pretraining = {"steps": 200, "batch_size": 64, "curiosity_rate": 0.0, "optimiser": optimiser}
    training = config_values()["training"] | {"sampling": {}, "pretraining": pretraining}
    settings = ar_config(training=training)
    synthesizer = fragment_synthesizer(settings, store, public_encoder(settings, store))
    assert isinstance(synthesizer, StepSynthesizer)
    network = trained(store, synthesizer, settings, tmp_path)
    found = drawn_by(synthesizer, network, 1000).lengths
    assert np.mean(found == 1) == pytest.approx(0.5, abs=0.08)
    assert found.mean() == pytest.approx(4.5, abs=0.7)


def test_drafts_follow_their_conditions_and_stay_ended(synthesizer: StepSynthesizer) -> None:
    network, given = synthesizer.build(0), encoded(synthesizer)
    made = synthesizer.draft(network, given, steps=3, generator=torch.Generator().manual_seed(0))
    assert made.shape == given.shape
    condition, steps, _ = parts(synthesizer, made)
    assert torch.equal(condition, parts(synthesizer, given)[0])
    bits = (steps[..., -END_BITS:] > 0).any(dim=-1)
    assert torch.equal(bits, bits.cummax(dim=1).values)
    assert bits.any()
    with pytest.raises(TypeError, match="AutoregressiveNetwork"):
        synthesizer.draft(
            torch.nn.Linear(1, 1), given, steps=3, generator=torch.Generator().manual_seed(0)
        )


def test_public_rows_are_fragments_of_public_trajectories(
    synthesizer: StepSynthesizer, tmp_path: Path
) -> None:
    store = walk_store(tmp_path)
    rows = FragmentRows(encoder=synthesizer.encoder, max_fragments_per_unit=3)
    assert rows.public(store, PUBLIC).shape[1] == synthesizer.row_width


BAD = (np.nan, np.inf, -np.inf, 3e38, 1000.0)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_bad_fragment_moves_no_other_s_vector(
    synthesizer: StepSynthesizer, value: float, scale: float
) -> None:
    """Whatever one record holds, others' vectors stay, and its own is at most C long."""
    clip = 0.5
    module = synthesizer.build(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)
    update = GradientLocalUpdate(
        module=module, row_loss=synthesizer.row_loss, clip_norm=clip, micro_batch_rows=64
    )
    parameters = update._flat.vector.clone().numpy()
    rows = encoded(synthesizer, 6).numpy()[:6]
    bad = rows[:1].copy()
    bad[0, synthesizer.fragments.step_width + 1] = value

    def total(own: np.ndarray) -> np.ndarray:
        batch = UnitBatch(
            rows=own[:, None],
            valid=np.ones((len(own), 1), dtype=bool),
            draws=np.zeros((len(own), 1, 0)),
        )
        return np.array(update.clipped_sum(parameters, batch), dtype=np.float64)

    others, alone, together = total(rows), total(bad), total(np.concatenate([bad, rows]))
    assert np.linalg.norm(alone) <= clip
    assert np.linalg.norm(others) > 0
    np.testing.assert_allclose(together - alone, others, atol=2e-6)


def test_a_run_with_curiosity_is_attacked_by_the_likelihood_of_its_fragments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = walk_store(tmp_path / "datasets")
    training = config_values()["training"] | {"sampling": {"chunk_trajectories": 8}}
    novel = {"curiosity_rate": 0.25, "pretraining": {"steps": 4, "curiosity_rate": 0.3}}
    settings = ar_config(training=training | novel)
    result, context = World(tmp_path).finish(settings, monkeypatch)
    (event,) = result.certificate.stages[0].events
    sampled = 0.75 * settings.training.expected_batch_size / 200
    assert event.sampling_probability == pytest.approx(sampled)  # type: ignore[union-attr]
    attack = method_named(settings.method).open_attack(settings, context)
    assert attack.settings == ("negative log-likelihood",)
    rows = store.read_transitions(SENSITIVE, unit=TRAJECTORY).select(slice(0, 40))
    made = fragment_synthesizer(settings, store, public_encoder(settings, store))
    network = made.build(settings.seed)
    tensors, _ = load_checkpoint(context.folder / TRAINED, run_id=context.run_id, stage="rounds")
    FlatParameters(network).load(tensors["ema"])
    fragments, places = first_fragments(
        made.fragments, settings.training.max_fragments_per_unit, rows
    )
    likelihoods = [by_hand(made, network, row) for row in torch.from_numpy(fragments)]
    found = attack.losses(rows)[:, 0]
    np.testing.assert_allclose(found[places], likelihoods, rtol=1e-4)
    assert np.isnan(np.delete(found, places)).all()

    shutil.rmtree(store.root / PUBLIC)
    store.write_trajectories(PUBLIC, walks(12, 9), **SPACES)
    with pytest.raises(UnsafeError, match="public datasets, spaces or bounds are not those"):
        method_named(settings.method).open_attack(settings, context)
    context.ledger.close()
