"""PrivORL-AR: bins from public facts, the model, a run with curiosity, the attack's losses."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding, RowLayout
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import method_named, parse_config, plan_run
from distributed_privrl.methods.privorl.autoregressive import (
    AutoregressiveMethod,
    AutoregressiveSynthesizer,
)
from distributed_privrl.methods.privorl.binning import row_bins
from distributed_privrl.methods.privorl.pretraining import coding_digest
from distributed_privrl.methods.privorl.release import TRAINED
from distributed_privrl.methods.privorl.transitions import TransitionRows
from distributed_privrl.models.row_bins import RowBins, Variable
from distributed_privrl.rounds.checkpoint import (
    CheckpointState,
    load_checkpoint,
    save_checkpoint,
)
from distributed_privrl.stages.coding import public_encoder
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import UnitBatch
from distributed_privrl.updates.parameters import FlatParameters
from tests.worlds import mazes
from tests.worlds.world import World

BOX = Box(-2.0, 2.0, (1,))
FREE = Box(-np.inf, np.inf, (1,))
CODING = RowCoding(next_observation="difference", reward_levels=(0.0, 1.0, 5.0))


def encoder_of(
    observations: Any, actions: Any, coding: RowCoding, *, scale: float = 1.0
) -> TransitionEncoder:
    width = RowLayout(observations, actions, coding).width
    scaling = Scaling(offset=np.zeros(width), scale=np.full(width, scale))
    return TransitionEncoder(observations, actions, scaling, coding)


def kinds(bins: RowBins) -> list[tuple[int, str, int]]:
    return [(one.start, one.kind, one.size) for one in bins.variables]


def test_every_column_belongs_to_a_variable_of_its_kind() -> None:
    encoder = encoder_of(MultiDiscrete([2, 3]), BOX, RowCoding(reward_levels=(0.0, 1.0, 5.0)))
    bins = row_bins(encoder, np.empty((0, encoder.width), np.float32), count=4, declared=True)
    assert kinds(bins) == [
        (0, "one_hot", 2),
        (2, "one_hot", 3),
        (5, "number", 4),
        (6, "level", 3),
        (7, "one_hot", 2),
        (9, "one_hot", 3),
        (12, "level", 2),
    ]
    assert bins.width == encoder.width
    free = encoder_of(BOX, Discrete(3), RowCoding())
    rewards = row_bins(free, np.empty((0, free.width), np.float32), count=4, declared=True)
    assert (4, "number", 4) in kinds(rewards)


def public(numbers: np.ndarray) -> np.ndarray:
    """Rows of one observation, one action, a reward, a difference and an end: all ``numbers``."""
    rows = np.repeat(numbers[:, None], 5, axis=1)
    return rows.astype(np.float32)


def marks(numbers: np.ndarray, count: int, *, column: int = 0, space: Box = FREE) -> np.ndarray:
    encoder = encoder_of(space, BOX, CODING)
    bins = row_bins(encoder, public(numbers), count=count, declared=False)
    return np.array(bins.variables[column].marks)


def floored(encoder: TransitionEncoder) -> list[int]:
    bins = row_bins(encoder, np.empty((0, encoder.width), np.float32), count=4, declared=True)
    return [one.start for one in bins.variables if one.floored]


def test_a_floor_leaves_out_no_rare_action_reward_end_or_category() -> None:
    assert floored(encoder_of(BOX, BOX, RowCoding())) == [0, 3]  # observation, next observation
    assert floored(encoder_of(BOX, Discrete(3), CODING)) == [0, 5]
    assert floored(encoder_of(MultiDiscrete([2, 3]), BOX, RowCoding())) == []


def test_half_of_the_edges_are_even_and_half_quantiles() -> None:
    numbers = np.random.default_rng(0).normal(scale=0.1, size=20_000)
    edges = marks(numbers, 40)
    seen = numbers.max() - numbers.min()
    assert edges[0] == pytest.approx(numbers.min() - seen / 4, abs=1e-5)
    assert edges[-1] == pytest.approx(numbers.max() + seen / 4, abs=1e-5)
    for even in np.linspace(edges[0], edges[-1], 21):
        assert np.abs(edges - even).min() < 1e-5
    for quantile in np.quantile(numbers.astype(np.float32), np.linspace(0, 1, 21)):
        assert np.abs(edges - quantile).min() < 1e-5


def test_a_value_on_which_quantiles_coincide_has_a_bin_of_its_own() -> None:
    numbers = np.concatenate([np.linspace(-1, 1, 1000), np.full(1000, 0.3)]).astype(np.float32)
    edges = marks(numbers, 20)
    bin_of = np.searchsorted(edges, numbers[-1].astype(float), side="right") - 1
    width = edges[bin_of + 1] - edges[bin_of]
    assert width < 1e-4
    assert np.abs(edges[bin_of : bin_of + 2].mean() - 0.3) < 1e-4
    assert np.abs(numbers[:1000] - 0.3).min() > width  # nothing else lies in it


def test_a_space_not_much_wider_than_the_public_rows_is_covered_whole() -> None:
    numbers = np.linspace(-0.9, 0.4, 500)
    assert marks(numbers, 10, space=BOX)[[0, -1]].tolist() == [-2, 2]
    far = Box(-100.0, 100.0, (1,))
    assert marks(numbers, 10, space=far)[[0, -1]] == pytest.approx([-1.225, 0.725], abs=1e-5)
    small = Box(-0.5, 0.5, (1,))  # public rows beyond a sensitive space keep their places
    assert marks(numbers, 10, space=small)[[0, -1]] == pytest.approx([-0.9, 0.5], abs=1e-5)
    near = Box(-0.95, 100.0, (1,))  # what lies beyond the space is nowhere
    assert marks(numbers, 10, space=near)[0] == pytest.approx(-0.95, abs=1e-5)


def test_declared_bounds_make_even_bins_dense_at_differences_of_zero() -> None:
    encoder = encoder_of(FREE, BOX, CODING)
    bins = row_bins(encoder, np.empty((0, encoder.width), np.float32), count=8, declared=True)
    observation, difference = (np.array(bins.variables[i].marks) for i in (0, 3))
    np.testing.assert_allclose(observation, np.linspace(-(3**0.5), 3**0.5, 9))
    np.testing.assert_allclose(difference, 6**0.5 * np.linspace(-1, 1, 9) ** 3)


def test_bins_follow_from_public_rows_and_spaces_alone(tmp_path: Path) -> None:
    """Other sensitive rows, equal public ones: equal bins."""
    store, other = mazes.maze_store(tmp_path / "a"), mazes.maze_store(tmp_path / "b")
    settings = mazes.ar_config()
    rows = other.read_transitions(mazes.SENSITIVE, unit="transition")
    info = other.info(mazes.SENSITIVE)
    moved = DatasetStore(tmp_path / "c")
    for name in (mazes.PUBLIC, mazes.SENSITIVE):
        kept = rows.select(slice(0, 9)) if name == mazes.SENSITIVE else None
        moved.write_transitions(
            name,
            kept or store.read_transitions(name, unit="transition"),
            layout="transitions",
            observation_space=info.observation_space,
            action_space=info.action_space,
            metadata={},
        )
    codings = []
    for one in (store, moved):
        encoder = public_encoder(settings, one)
        made = AutoregressiveMethod(settings).parts(one, encoder).synthesizer
        codings.append((made.bins, coding_digest(encoder.to_json(), made)))
    assert codings[0] == codings[1]


@pytest.mark.parametrize(("count", "off"), [(8, 1.3), (256, 0.05)])
def test_rows_come_back_from_their_bins(count: int, off: float, tmp_path: Path) -> None:
    store = mazes.maze_store(tmp_path)
    settings = mazes.ar_config(model={"bins": count, "hidden": [8]})
    encoder = public_encoder(settings, store)
    synthesizer = AutoregressiveMethod(settings).parts(store, encoder).synthesizer
    rows = torch.from_numpy(TransitionRows(encoder=encoder.to_json()).public(store, mazes.PUBLIC))
    chosen = synthesizer.bins.categories(rows)
    back = torch.cat(
        [
            synthesizer.bins.columns(index, chosen[:, index], torch.full((len(rows),), 0.5))
            for index in range(chosen.shape[1])
        ],
        dim=1,
    )
    raw, again = encoder.decode(rows.numpy()), encoder.decode(back.numpy())
    np.testing.assert_array_equal(raw.rewards, again.rewards)
    np.testing.assert_array_equal(raw.terminated, again.terminated)
    clipped = np.abs(raw.actions) == 1
    assert clipped.mean() > 0.1
    np.testing.assert_array_equal(again.actions[clipped], raw.actions[clipped])
    assert np.abs(raw.observations - again.observations).max() < off


def test_the_plan_is_that_of_privorl_n() -> None:
    ours, theirs = plan_run(mazes.ar_config()), plan_run(mazes.config())
    own = ("weights", "round_noise")  # the networks differ, and what is charged does not
    mine, other = (
        {name: value for name, value in plan.facts().items() if name not in own}
        for plan in (ours, theirs)
    )
    assert mine == other
    assert ours.facts()["weights"] != theirs.facts()["weights"]
    assert ours.events(6) == theirs.events(6)


def test_drafts_are_samples_as_many_as_asked_for() -> None:
    model = mazes.ar_config().model
    bins = RowBins((Variable(start=0, kind="number", marks=(0.0, 1.0, 2.0)),))
    synthesizer = AutoregressiveSynthesizer(model=model, bins=bins)
    network = synthesizer.build(0)
    given, generator = torch.zeros(7, 1), torch.Generator().manual_seed(0)
    assert synthesizer.draft(network, given, steps=3, generator=generator).shape == (7, 1)
    with pytest.raises(TypeError, match="AutoregressiveNetwork"):
        synthesizer.draft(torch.nn.Linear(1, 1), given, steps=3, generator=generator)


def test_ranges_that_are_empty_are_widened() -> None:
    """Bounds that were found with noise may lie beyond the space; the run was charged by then."""
    space = Box(0.0, 1.0, (1,))
    width = RowLayout(space, BOX, CODING).width
    beyond = Scaling(offset=np.full(width, 2.5), scale=np.full(width, 0.3))
    encoder = TransitionEncoder(space, BOX, beyond, CODING)
    bins = row_bins(encoder, np.empty((0, encoder.width), np.float32), count=8, declared=True)
    assert all(one.size >= 1 for one in bins.variables)
    flat = Box(np.zeros(1, np.float32), np.zeros(1, np.float32))
    constant = marks(np.full(100, 1e6), 8)
    assert (np.diff(constant) > 0).all()
    assert (np.diff(marks(np.zeros(100), 8, space=flat)) > 0).all()


def test_actions_at_a_bound_come_back_where_no_public_one_is_there() -> None:
    coding = RowCoding(next_observation="difference", action_margin=0.2)
    encoder = encoder_of(FREE, BOX, coding)
    rows = np.full((500, encoder.width), 0.5, np.float32)
    rows[:, 1] = np.linspace(0.8, 1.6, 500)  # of a space from -2 to 2
    bins = row_bins(encoder, rows, count=20, declared=False)
    asked = torch.zeros(2, encoder.width)
    asked[:, 1] = torch.tensor([-2.4, 2.4])  # as a bound is coded
    chosen = bins.categories(asked)[:, 1]
    for uniform in (0.0, 0.999):
        back = torch.zeros(2, encoder.width)
        back[:, 1:2] = bins.columns(1, chosen, torch.full((2,), uniform))
        assert encoder.decode(back.numpy()).actions[:, 0].tolist() == [-2, 2]


@pytest.mark.parametrize("change", [{"bins": 1}, {"hidden": [0]}, {"width": 8}])
def test_values_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse_config(mazes.ar_values(model=change), source="test")


def test_a_clipped_gradient_of_likelihoods_is_that_of_autograd(tmp_path: Path) -> None:
    """The engine's fast path, on this network, against one backward pass a row."""
    store, settings = mazes.maze_store(tmp_path), mazes.ar_config()
    encoder = public_encoder(settings, store)
    synthesizer = AutoregressiveMethod(settings).parts(store, encoder).synthesizer
    rows = TransitionRows(encoder=encoder.to_json()).public(store, mazes.PUBLIC)[:12]
    network = synthesizer.build(0)
    by_hand = torch.zeros(sum(p.numel() for p in network.parameters()))
    norms = []
    for row in torch.from_numpy(rows):
        gradient = torch.cat(
            [
                part.reshape(-1)
                for part in torch.autograd.grad(network(row[None]).sum(), network.parameters())
            ]
        )
        norms.append(gradient.norm().item())
        by_hand += gradient * min(1.0, 0.5 / norms[-1])
    assert min(norms) > 0.5
    update = GradientLocalUpdate(
        module=synthesizer.build(0), row_loss=synthesizer.row_loss, clip_norm=0.5
    )
    found = update.clipped_sum(
        update._flat.vector.clone().numpy(),
        UnitBatch(rows=rows[:, None], valid=np.ones((12, 1), bool), draws=np.zeros((12, 1, 0))),
    )
    np.testing.assert_allclose(found, by_hand.numpy(), atol=2e-5)
    assert type(update._gradients).__name__ == "BookKeeping"


def test_a_run_with_curiosity_is_attacked_by_the_likelihood_of_what_it_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = mazes.maze_store(tmp_path / "datasets")
    training = mazes.ar_values()["training"] | {"curiosity_rate": 0.25}
    training["pretraining"] = training["pretraining"] | {"curiosity_rate": 0.3}
    settings = mazes.ar_config(training=training)
    world = World(tmp_path)
    result, context = world.finish(settings, monkeypatch)
    (event,) = result.certificate.stages[0].events
    assert event.sampling_probability == pytest.approx(0.75 * 64 / 3000)  # type: ignore[union-attr]
    rows = store.read_transitions(mazes.SENSITIVE, unit="transition").select(slice(0, 40))
    attack = method_named(settings.method).open_attack(settings, context)
    found = attack.losses(rows)
    encoder = public_encoder(settings, store)
    synthesizer = AutoregressiveMethod(settings).parts(store, encoder).synthesizer
    network = synthesizer.build(settings.seed)
    fresh = network(torch.from_numpy(encoder.encode(rows).rows)).sum(dim=1).detach()
    tensors, _ = load_checkpoint(context.folder / TRAINED, run_id=context.run_id, stage="rounds")
    FlatParameters(network).load(tensors["ema"])
    expected = network(torch.from_numpy(encoder.encode(rows).rows)).sum(dim=1).detach()
    assert attack.settings == ("negative log-likelihood",)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5)
    assert not torch.allclose(fresh, expected)

    shutil.rmtree(store.root / mazes.PUBLIC)
    collect("maze2d-medium", dataset=mazes.PUBLIC, store=store, steps=3000, seed=7, options={})
    with pytest.raises(UnsafeError, match="public datasets, spaces or bounds are not those"):
        method_named(settings.method).open_attack(settings, context)
    with pytest.raises(UnsafeError, match="public datasets, spaces or bounds are not those"):
        world.start(settings, resume=True)
    context.ledger.close()


def test_a_checkpoint_of_an_earlier_version_says_so(tmp_path: Path) -> None:
    path, tensors = tmp_path / "c.safetensors", {"ema": torch.zeros(2)}
    for coding, message in (("", "written by an earlier version"), ("b", "are not those")):
        state = CheckpointState(run_id="run", round_index=1, stage="rounds", coding=coding)
        save_checkpoint(path, tensors, state)
        with pytest.raises(UnsafeError, match=message):
            load_checkpoint(path, run_id="run", stage="rounds", coding="a")
