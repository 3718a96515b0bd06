"""The synthesizer of fragments: bounds from public facts, drafts after given steps, its loss."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.methods.privorl.fragment_network import (
    FARTHEST,
    FragmentSynthesizer,
    step_bounds,
)
from distributed_privrl.methods.privorl.model_config import TransformerConfig, UNetConfig


def encoder(observations, actions, **coding):
    width = 2 * (3 if isinstance(observations, Discrete) else 1) + 1 + 2
    scaling = Scaling(offset=np.full(width, 0.5), scale=np.full(width, 0.5))
    return FragmentEncoder(
        TransitionEncoder(observations, actions, scaling, RowCoding(**coding)), 8
    )


BOUNDED, FREE = Box(0.0, 2.0, (1,), np.float32), Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.parametrize(
    ("observations", "coding", "low", "high"),
    [
        # observation, action, reward, next observation, terminal, truncated
        (BOUNDED, {}, [-1, -1, -10, -1, -1, -1], [3, 3, 10, 3, 1, 1]),
        (FREE, {}, [-10, -1, -10, -10, -1, -1], [10, 3, 10, 10, 1, 1]),
        (
            BOUNDED,
            {"next_observation": "difference", "action_margin": 0.5, "reward_levels": (0.0, 1.0)},
            [-1, -2, -3, -5, -1, -1],
            [3, 4, 1, 3, 1, 1],
        ),
    ],
)
def test_steps_are_bounded_by_spaces_and_coding(observations, coding, low, high):
    assert FARTHEST == 10
    found = step_bounds(encoder(observations, BOUNDED, **coding))
    np.testing.assert_allclose(found, [low, high])


def test_one_hot_columns_lie_between_minus_one_and_one():
    low, high = step_bounds(encoder(Discrete(3), BOUNDED))
    assert low.tolist() == [-1, -1, -1, -1, -10, -1, -1, -1, -1, -1]
    assert high.tolist() == [1, 1, 1, 3, 10, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "model",
    [
        TransformerConfig(width=8, depth=1, heads=2, horizon=8),
        UNetConfig(width=8, depth=2, horizon=8),
    ],
)
def test_drafts_keep_the_conditions_they_are_given(model):
    made = FragmentSynthesizer(model=model, encoder=encoder(BOUNDED, BOUNDED).to_json())
    network = made.build(0)
    same = made.build(0).state_dict()
    assert all(torch.equal(value, same[name]) for name, value in network.state_dict().items())
    given = torch.randn(5, made.row_width, generator=torch.Generator().manual_seed(0))
    drafts = [
        made.draft(network, given, steps=2, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(drafts[0], drafts[1])
    condition, steps, mask = made.fragments.layout.split(drafts[0])
    assert torch.equal(condition, given[:, :6])
    assert (mask == 1).all()
    assert not torch.equal(steps, made.fragments.layout.split(drafts[2])[1])
    low, high = (torch.from_numpy(side) for side in step_bounds(made.fragments))
    assert ((steps >= low - 1e-5) & (steps <= high + 1e-5)).all()
    draws = torch.randn(5, made.row_loss.draw_count, generator=torch.Generator().manual_seed(0))
    losses = made.row_loss(network, drafts[0], draws)
    assert losses.shape == (5,)
    alone = made.row_loss(network, drafts[0][2:3], draws[2:3])
    assert torch.allclose(losses[2:3], alone, atol=1e-5)


@pytest.mark.parametrize("spaces", [(BOUNDED, FREE), (Discrete(3), BOUNDED)])
@pytest.mark.parametrize(
    "model",
    [
        TransformerConfig(width=8, depth=3, heads=2, horizon=8),
        TransformerConfig(width=12, depth=1, heads=4, horizon=16, column_frequencies=2),
        UNetConfig(width=8, depth=1, horizon=8),
        UNetConfig(width=6, depth=3, horizon=16, column_frequencies=2),
    ],
)
def test_weights_are_those_of_the_network_that_is_built(model, spaces):
    made = FragmentSynthesizer(model=model, encoder=encoder(*spaces).to_json())
    assert made.weights == sum(one.numel() for one in made.build(0).parameters())
