"""Stitching: fragments follow each other, trajectories end, seams are measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from numpy.typing import NDArray

from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.stitching import (
    SeamErrors,
    TrajectoryDrawer,
    decode_trajectories,
    set_end_bits,
    stitched_steps,
)
from distributed_privrl.models.ddpm import DDPMSampler
from tests.worlds.walks import (
    PUBLIC,
    config,
    config_values,
    synthesizer_of,
    trained,
    walk_store,
    walks,
)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return walk_store(tmp_path_factory.mktemp("walks"))


def test_whoever_draws_a_chunk_draws_the_same(master: DatasetStore) -> None:
    settings = config()
    synthesizer = synthesizer_of(settings, master)
    network = synthesizer.build(1)
    drawer = TrajectoryDrawer(
        synthesizer=synthesizer, config=settings.training.sampling, trajectories=20, max_length=24
    )

    def draw(index: int) -> NDArray[np.float32]:
        return drawer.draw(network, index, streams=Streams(0), device="cpu").numpy()

    forward, backward = [draw(i) for i in (0, 1, 2)], [draw(i) for i in (2, 1, 0)][::-1]
    assert all(np.array_equal(*pair) for pair in zip(forward, backward, strict=True))
    sizes = [len(decode_trajectories(synthesizer.fragments, steps)) for steps in forward]
    assert sizes == [8, 8, 4]
    assert not np.array_equal(forward[0][:8], forward[1][:8])


class Fixed(torch.nn.Module):
    """A network that finds the same steps behind any noise of the last level."""

    def __init__(self, fragment: NDArray[np.float32]) -> None:
        super().__init__()
        self.fragment, self.conditions = torch.from_numpy(fragment), list[torch.Tensor]()
        kept = config().model.ddpm().alpha_bars[-1].item()
        self.signal, self.level = kept**0.5, (1 - kept) ** 0.5

    def forward(self, noisy: Any, share: Any, condition: Any, mask: Any) -> torch.Tensor:
        self.conditions.append(condition.clone())
        return (self.signal * noisy - self.fragment) / self.level  # the velocity


def test_fragments_follow_each_others_last_step_until_an_end_or_the_cap(
    master: DatasetStore,
) -> None:
    settings = config()
    synthesizer = synthesizer_of(settings, master)
    encoder = synthesizer.fragments
    fragment = np.full((1, 8, encoder.step_width), 0.25, dtype=np.float32)
    fragment[..., -2:] = -0.9

    def stitch(network: Fixed) -> NDArray[np.float32]:
        return stitched_steps(
            network,
            synthesizer,
            DDPMSampler(steps=1, stochasticity=0.0),
            count=3,
            max_length=20,
            generator=torch.Generator().manual_seed(0),
        )

    network = Fixed(fragment)
    made = decode_trajectories(encoder, stitch(network))
    assert made.lengths.tolist() == [20, 20, 20]
    assert made.truncated.nonzero()[0].tolist() == [19, 39, 59]
    assert not made.terminated.any()
    first, second, third = network.conditions
    assert not first.any()
    for condition, passed in ((second, 8), (third, 16)):
        numbers = torch.tensor([0.25, 0.25, 0.25, 1, 0.25, 0.25])  # the reward, to its level
        assert torch.allclose(condition[:, :-2], numbers, atol=1e-4)
        assert (condition[:, -2] == -1).all()
        assert torch.allclose(condition[:, -1], torch.tensor(2 * passed / 24 - 1))
    fragment[0, 2, -2:] = 0.9  # a bit that went astray: nothing after it agrees
    fragment[0, 5, -2] = 0.1  # the end; what follows it is dropped
    fragment[0, 6:] = 1.0
    made = decode_trajectories(encoder, stitch(Fixed(fragment)))
    assert made.lengths.tolist() == [6, 6, 6]
    assert made.terminated.nonzero()[0].tolist() == [5, 11, 17]
    assert not made.truncated.any()
    raw = encoder.decode_steps(fragment[0, 5:6])[0].next_observations
    assert np.allclose(made.observations[[6, 13, 20]], raw)


@pytest.mark.parametrize(
    ("bits", "length", "kind"),
    [
        ([-1, -1, -1, -1], 5, None),
        ([0.9, -1, -1, -1], 5, None),
        ([-1, 0.2, 0.9, 1], 2, 0),
        ([1, 1, -0.3, 1], 1, 1),
        ([-1, -1, -1, 0.1], 4, 1),
        ([1, -1, -1, 1], 4, 0),
    ],
)
def test_an_end_is_where_what_follows_agrees(bits: list[float], length: int, kind: int) -> None:
    steps = np.full((1, 4, 5), -1.0, dtype=np.float32)
    steps[0, :, -2 + (kind or 0)] = bits
    assert set_end_bits(steps).tolist() == [length]
    expected = np.full((4, 2), -1.0)
    if kind is not None:
        expected[length - 1, kind] = 1.0
    assert steps[0, :, -2:].tolist() == expected.tolist()


def test_seams_are_measured_before_they_are_closed(master: DatasetStore) -> None:
    encoder = synthesizer_of(config(), master).fragments
    scale = encoder.transitions.scaling.scale[:2]
    real = walks(40, 9)
    fragments = encoder.encode(real)
    steps = encoder.split(fragments.rows)[1].reshape(-1, encoder.step_width)
    steps = steps[np.abs(steps[:, :-2]).any(axis=1)]
    exact = SeamErrors.none()
    exact.add(encoder, steps)
    facts = exact.facts()
    assert facts["inside"] == pytest.approx(0, abs=1e-5)
    assert facts["at_seams"] == pytest.approx(0, abs=1e-5)
    moves = np.abs(np.diff(real.observations, axis=0)) / scale
    same = np.ones(len(moves), bool)
    same[real.offsets[1:-1] + np.arange(len(real) - 1)] = False
    last = real.offsets[1:] + np.arange(len(real)) - 1
    same[last] = False  # the move into the last observation has no next step
    assert facts["of_a_step"] == pytest.approx(moves[same].mean(), rel=1e-4)
    place = np.concatenate([np.arange(length) for length in real.lengths])
    steps[(place % 8 == 0) & (place > 0), 0] += 0.5  # every fragment begins half a deviation off
    moved = SeamErrors.none()
    moved.add(encoder, steps)
    assert moved.facts()["inside"] == pytest.approx(0, abs=1e-5)
    assert moved.facts()["at_seams"] == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("observations", [Box(0, 1, (3,)), Discrete(3), MultiDiscrete([3])])
def test_trajectories_of_one_step_have_no_seams(observations: Space[Any]) -> None:
    scaling = Scaling(offset=np.zeros(9), scale=np.ones(9))
    transitions = TransitionEncoder(observations, Box(0, 1, (1,)), scaling, RowCoding())
    encoder = FragmentEncoder(transitions, 8)
    steps = np.zeros((4, encoder.step_width), np.float32)
    steps[:, -2] = 1.0
    errors = SeamErrors.none()
    errors.add(encoder, steps)
    assert errors.facts() == {"inside": None, "at_seams": None, "of_a_step": None}


def test_a_trained_model_learns_where_episodes_end_and_how_steps_join(tmp_path: Path) -> None:
    settings = config(
        method="privorl_j_unet",
        model={"width": 32, "depth": 2, "horizon": 8},
        training=config_values()["training"]
        | {
            "pretraining": {
                "steps": 500,
                "batch_size": 64,
                "curiosity_rate": 0.0,
                "optimiser": {"learning_rate": 5e-3, "schedule": "cosine", "ema_decay": 0.99},
            }
        },
    )
    store = walk_store(tmp_path / "walks", public=600)
    synthesizer = synthesizer_of(settings, store)
    network = trained(store, synthesizer, settings, tmp_path)
    steps = stitched_steps(
        network,
        synthesizer,
        DDPMSampler(steps=10, stochasticity=0.0),
        count=200,
        max_length=24,
        generator=torch.Generator().manual_seed(0),
    )
    made = decode_trajectories(synthesizer.fragments, steps)
    real = store.read_trajectories(PUBLIC)
    quartiles = [np.percentile(each.lengths, (25, 50, 75)) for each in (made, real)]
    np.testing.assert_allclose(*quartiles, atol=2)
    last = made.offsets[1:] - 1
    assert made.terminated[last].mean() > 0.8
    ends = made.observations[made.offsets[1:] + np.arange(len(made)), 0]
    assert np.abs(ends[made.terminated[last]]).mean() > 0.8
    errors = SeamErrors.none()
    errors.add(synthesizer.fragments, steps)
    facts = errors.facts()
    assert facts["inside"] is not None
    assert facts["at_seams"] is not None
    print(facts)
    assert facts["inside"] < 0.2
    assert facts["at_seams"] < 0.4
