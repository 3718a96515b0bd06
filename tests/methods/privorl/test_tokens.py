"""DP-Transformer: the loss of a fragment's tokens, rollouts that join, a whole run, an attack."""

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from distributed_privrl.core.random import Streams
from distributed_privrl.data.fragments import END_BITS
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY
from distributed_privrl.experiments.registry import method_named
from distributed_privrl.methods.privorl.attack import first_fragments
from distributed_privrl.methods.privorl.release import TRAINED
from distributed_privrl.methods.privorl.sampling_config import FlooredRolloutConfig
from distributed_privrl.methods.privorl.stitching import decode_trajectories
from distributed_privrl.methods.privorl.token_model import TokenDrawer, TokenSynthesizer
from distributed_privrl.methods.privorl.tokens import TokensMethod
from distributed_privrl.methods.privorl.trajectories import fragment_synthesizer
from distributed_privrl.models.token_transformer import TokenTransformer
from distributed_privrl.privacy.events import PoissonGaussianEvent
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.coding import public_encoder
from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.stages.verdict import Grade
from distributed_privrl.updates import book_keeping
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import UnitBatch
from distributed_privrl.updates.parameters import FlatParameters
from tests.worlds.walks import (
    PUBLIC,
    SENSITIVE,
    config_values,
    token_config,
    trained,
    walk_store,
    walks,
)
from tests.worlds.world import World


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return walk_store(tmp_path_factory.mktemp("walks"))


@pytest.fixture(scope="module")
def synthesizer(store: DatasetStore) -> TokenSynthesizer:
    settings = token_config()
    made = fragment_synthesizer(settings, store, public_encoder(settings, store))
    assert isinstance(made, TokenSynthesizer)
    return made


@pytest.fixture(scope="module")
def network(synthesizer: TokenSynthesizer) -> TokenTransformer:
    made = synthesizer.build(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
        for one, layer in zip(made.variables, made.decode, strict=True):
            if one.part == "terminal":
                layer.bias.copy_(torch.tensor([2.0, 0.0]))  # or few walks have a second fragment
    return made


def encoded(synthesizer: TokenSynthesizer, count: int = 20) -> torch.Tensor:
    found = synthesizer.fragments.encode(walks(count, seed=5))
    assert found.valid.all()
    return torch.from_numpy(found.rows)


def losses(
    synthesizer: TokenSynthesizer, network: torch.nn.Module, rows: torch.Tensor
) -> torch.Tensor:
    return synthesizer.row_loss(network, rows, torch.zeros(len(rows), 0))


def by_hand(synthesizer: TokenSynthesizer, network: TokenTransformer, row: torch.Tensor) -> float:
    """Walk through a fragment token after token, as the drawing does."""
    encoder, tokens = synthesizer.fragments, synthesizer.tokens
    (condition,), (steps,), _ = encoder.layout.split(row[None])
    linked = bool((condition != 0).any())
    seen, rest = tokens.variables
    now = encoder.transitions.decode(steps[:, :-1].numpy())
    moved = encoder.transitions.encode(
        type(now)(**{**vars(now), "observations": now.next_observations})
    ).rows[:, : tokens.width]
    observations = np.concatenate([steps[:1, : tokens.width].numpy(), moved])
    total, begun, past = 0.0, 0.0, [None] * len(network.blocks)
    shown = network.start(
        torch.tensor([[0.0 if linked else 1.0, float(condition[-1]) if linked else -1.0]])
    )
    token, ended = 0, False
    for time in range(len(observations)):
        parts = [(one, observations[time]) for one in seen]
        if time < len(steps) and not ended:
            parts += [(one, steps[time].numpy()) for one in rest]
        for place, (one, columns) in enumerate(parts):
            if one.kind == "number":
                inner = np.float32(one.marks[1:-1])
                category = int(np.searchsorted(inner, columns[one.start], side="right"))
            else:
                category = int(columns[one.start] > 0)
            hidden = (shown + network.position(network.positions)[token])[:, None]
            for index, block in enumerate(network.blocks):
                hidden, past[index] = block.follow(hidden, past[index])
            hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
            loss = -float(network.decode[place](hidden[:, 0]).log_softmax(dim=1)[0, category])
            if time == 0 and place < len(seen):
                begun += (not linked) * loss
            else:
                total += loss
            shown = network._embedded(place, torch.tensor([category]))
            token += 1
        if ended:
            break  # where an end led to still counts, and nothing after it
        ended = time < len(steps) and bool((steps[time, -END_BITS:] > 0).any())
    return total / len(steps) + synthesizer.model.first_weight * begun


def test_a_fragment_s_loss_is_that_of_its_tokens_one_after_the_other(
    synthesizer: TokenSynthesizer, network: TokenTransformer
) -> None:
    rows = encoded(synthesizer, 6)
    linked = (rows[:, : synthesizer.fragments.step_width] != 0).any(dim=1)
    assert 0 < linked.sum() < len(rows)
    with torch.no_grad():
        found = losses(synthesizer, network, rows)
        expected = [by_hand(synthesizer, network, row) for row in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_steps_after_an_end_change_nothing(
    synthesizer: TokenSynthesizer, network: TokenTransformer
) -> None:
    rows = encoded(synthesizer)
    _, steps, _ = synthesizer.fragments.layout.split(rows)
    ends = (steps[..., -END_BITS:] > 0).any(dim=-1)
    after = torch.nn.functional.pad(ends, (1, -1)).cummax(dim=1).values
    assert after.any()
    before = losses(synthesizer, network, rows)
    steps[after] = 0.3
    assert torch.equal(losses(synthesizer, network, rows), before)


def test_fragments_do_not_meet(synthesizer: TokenSynthesizer, network: TokenTransformer) -> None:
    rows = encoded(synthesizer)
    alone = torch.cat([losses(synthesizer, network, row[None]) for row in rows])
    together = losses(synthesizer, network, rows)
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-6)


def test_a_plan_counts_the_weights_that_rounds_learn(synthesizer: TokenSynthesizer) -> None:
    network = synthesizer.build(0)
    assert synthesizer.weights == sum(one.numel() for one in network.parameters())
    assert book_keeping.supports(network)


def summed(synthesizer: TokenSynthesizer, per_unit: str, rows: np.ndarray) -> np.ndarray:
    """Return the clipped sum of units of two fragments each."""
    module = synthesizer.build(0)
    update = GradientLocalUpdate(
        module=module,
        row_loss=synthesizer.row_loss,
        clip_norm=0.5,
        micro_batch_rows=64,
        per_unit_gradients=per_unit,  # type: ignore[arg-type]
    )
    batch = UnitBatch(
        rows=rows.reshape(len(rows) // 2, 2, -1),
        valid=np.ones((len(rows) // 2, 2), dtype=bool),
        draws=np.zeros((len(rows) // 2, 2, 0)),
    )
    total = np.array(update.clipped_sum(update._flat.vector.clone().numpy(), batch))
    update.close()
    return total


def test_both_ways_to_clip_agree(synthesizer: TokenSynthesizer) -> None:
    rows = encoded(synthesizer).numpy()[:8]
    found = summed(synthesizer, "book_keeping", rows)
    np.testing.assert_allclose(found, summed(synthesizer, "opacus", rows), atol=1e-5)
    assert 0.5 < np.linalg.norm(found) <= 4 * 0.5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1000.0])
def test_a_bad_fragment_moves_no_other_s_vector(
    synthesizer: TokenSynthesizer, value: float
) -> None:
    rows = encoded(synthesizer).numpy()[:8]
    bad = rows[:2].copy()
    bad[0, synthesizer.fragments.step_width + 1] = value
    others, alone = (summed(synthesizer, "auto", own) for own in (rows, bad))
    together = summed(synthesizer, "auto", np.concatenate([bad, rows]))
    assert np.linalg.norm(alone) <= 0.5
    np.testing.assert_allclose(together - alone, others, atol=2e-6)


def drawn(synthesizer: TokenSynthesizer, network: torch.nn.Module, count: int) -> np.ndarray:
    drawer = TokenDrawer(
        synthesizer=synthesizer,
        trajectories=count,
        config=FlooredRolloutConfig(chunk_trajectories=200),
        max_length=20,
    )
    chunks = [
        drawer.draw(network, index, streams=Streams(3), device="cpu")
        for index in range(drawer.count)
    ]
    again = drawer.draw(network, drawer.count - 1, streams=Streams(3), device="cpu")
    assert torch.equal(chunks[-1], again)
    return torch.cat(chunks).numpy()


def test_rollouts_join_and_end_once(
    synthesizer: TokenSynthesizer, network: TokenTransformer
) -> None:
    found = decode_trajectories(synthesizer.fragments, drawn(synthesizer, network, 230))
    assert len(found) == 230
    assert 1 <= found.lengths.min() < 9 <= found.lengths.max() <= 20
    ends = found.terminated | found.truncated
    assert np.flatnonzero(ends).tolist() == (found.offsets[1:] - 1).tolist()
    assert not (found.terminated & found.truncated).any()
    steps = drawn(synthesizer, network, 230)
    tokens = torch.from_numpy(steps)
    joined = np.setdiff1d(np.arange(len(steps) - 1), found.offsets[1:] - 1)
    led = synthesizer.tokens.reached(tokens)[joined]
    torch.testing.assert_close(
        led, tokens[joined + 1, : synthesizer.tokens.width], rtol=1e-4, atol=1e-4
    )


def test_what_is_drawn_has_the_likelihood_that_the_loss_says(
    synthesizer: TokenSynthesizer, network: TokenTransformer
) -> None:
    """The mean loss of drafts is the entropy of the drawing, known from its own probabilities."""
    given = torch.zeros(400, synthesizer.row_width)
    made = synthesizer.draft(network, given, steps=1, generator=torch.Generator().manual_seed(0))
    tokens = synthesizer.tokens
    condition, steps, mask = synthesizer.fragments.layout.split(made)
    assert not condition.any()
    assert mask.all()
    with torch.no_grad():
        first, _ = network(
            tokens.observed(
                torch.cat((steps[:, :1, : tokens.width], tokens.reached(steps)), dim=1)
            ),
            tokens.others(steps),
            torch.tensor([[1.0, -1.0]]).expand(400, -1),
        )
        start = network.start(torch.tensor([[1.0, -1.0]])) + network.position(network.positions)[0]
        hidden = start[:, None]
        for block in network.blocks:
            hidden = block(hidden, causal=True)
        hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
        log = network.decode[0](hidden[0, 0]).log_softmax(dim=0)
    entropy = float(-(log.exp() * log).sum())
    spread = float((log.exp() * log**2).sum() - entropy**2) ** 0.5
    assert float(first[:, 0, 0].mean()) == pytest.approx(entropy, abs=5 * spread / 20 + 1e-6)
    counts = torch.bincount(tokens.observed(steps[:, 0])[:, 0], minlength=len(log)) / 400
    assert float((counts - log.exp()).abs().max()) < 5 * math.sqrt(0.25 / 400)


def test_a_trained_model_walks_as_the_public_ones_do(tmp_path: Path, store: DatasetStore) -> None:
    """Walks keep their side, and end beyond 1 or at the time limit."""
    optimiser = {"learning_rate": 1e-2, "schedule": "cosine", "ema_decay": 0.9}
    training = config_values()["training"] | {
        "sampling": {},
        "pretraining": {"steps": 160, "batch_size": 24, "optimiser": optimiser},
    }
    model = {"bins": 24, "width": 24, "depth": 1, "heads": 2, "first_weight": 0.2}
    settings = token_config(model=model, training=training)
    made = fragment_synthesizer(settings, store, public_encoder(settings, store))
    assert isinstance(made, TokenSynthesizer)
    network = trained(store, made, settings, tmp_path)
    found = decode_trajectories(made.fragments, drawn(made, network, 200))
    real = store.read_trajectories(PUBLIC)
    assert found.lengths.mean() == pytest.approx(real.lengths.mean(), rel=0.35)
    rows = found.transitions(TRAJECTORY)
    moved = rows.next_observations[:, 0] - rows.observations[:, 0]
    assert np.mean(np.sign(moved) == np.sign(rows.actions[:, 0])) > 0.7
    assert np.mean(np.abs(rows.next_observations[rows.terminated, 0]) > 0.9) > 0.7


class Tokens(World):
    """Runs on the walks whose noise is seeded, of as many workers as are asked for."""

    dataset = SENSITIVE
    allowed: ClassVar[dict[str, Any]] = {"epsilon": 8.0, "delta": 1e-4, "unit": "trajectory"}
    config = staticmethod(token_config)
    key = 3


def test_parameters_are_the_same_for_any_number_of_workers_and_a_resume_draws_the_same(
    tmp_path: Path, store: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    found = []
    for workers in (1, 4):
        (tmp_path / str(workers)).mkdir()
        world = Tokens(tmp_path / str(workers), store).budget()
        result = world.run(training__rounds=2, runtime__workers=workers)
        folder = result.directory.checkpoint
        found.append(load_file(folder / TRAINED))
    assert len(found[0]["parameters"]) == token_weights_of(store)
    for other in found[1:]:
        assert all(torch.equal(other[name], value) for name, value in found[0].items())
    chunks = sorted((folder / "synthetic").iterdir())
    before = [path.read_bytes() for path in chunks]
    chunks[1].unlink()
    world.run(resume=True, training__rounds=2, runtime__workers=4)
    assert [path.read_bytes() for path in chunks] == before


def token_weights_of(store: DatasetStore) -> int:
    settings = token_config()
    return fragment_synthesizer(settings, store, public_encoder(settings, store)).weights


def test_a_run_with_curiosity_is_attacked_by_the_likelihood_of_its_fragments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = walk_store(tmp_path / "datasets")
    novel = {"curiosity_rate": 0.25, "pretraining": {"steps": 4, "curiosity_rate": 0.3}}
    training = token_config().training.model_dump(mode="json") | novel
    settings = token_config(training=training)
    result, context = World(tmp_path).finish(settings, monkeypatch)
    (event,) = result.certificate.stages[0].events
    assert isinstance(event, PoissonGaussianEvent)
    assert event.sampling_probability == pytest.approx(0.75 * 20 / 200)
    attack = method_named(settings.method).open_attack(settings, context)
    assert attack.settings == ("negative log-likelihood",)
    made = fragment_synthesizer(settings, store, public_encoder(settings, store))
    network = made.build(settings.seed)
    tensors, _ = load_checkpoint(context.folder / TRAINED, run_id=context.run_id, stage="rounds")
    FlatParameters(network).load(tensors["ema"])
    rows = store.read_transitions(SENSITIVE, unit=TRAJECTORY).select(slice(0, 40))
    fragments, places = first_fragments(made.fragments, 3, rows)
    with torch.no_grad():
        expected = losses(made, network, torch.from_numpy(fragments))
    found = attack.losses(rows)[:, 0]
    np.testing.assert_allclose(found[places], expected, rtol=1e-4)
    assert np.isnan(np.delete(found, places)).all()


def test_a_plan_says_minutes_and_judges_nothing(store: DatasetStore) -> None:
    units, method = UnitCount(value=200, source="declared"), TokensMethod(token_config())
    (stage,) = method.foreseen_stages(store, units)
    plan = stage.plan
    assert isinstance(plan, RoundPlan)
    assert plan.verdict is not None
    assert plan.verdict.grade is Grade.NOT_JUDGED
    assert plan.verdict.figures["noise_of_a_round"] > 0
    assert plan.effort is not None
    weights = plan.verdict.figures["weights"]
    steps, tokens = 8, 2 + 1 + 1 + 2
    alone = plan.rounds * 20 * steps * weights * tokens
    assert 1 < plan.effort.private_rows / alone < 5
    assert weights == pytest.approx(token_weights_of(store), rel=0.1)
