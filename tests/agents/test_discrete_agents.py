import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from distributed_privrl.agents.algorithm import Algorithm, Sizes
from distributed_privrl.agents.bc import discrete_imitation_loss
from distributed_privrl.agents.discrete_bcq import (
    DiscreteBCQ,
    DiscreteBCQConfig,
    DiscreteBCQNetworks,
    discrete_bcq_losses,
)
from distributed_privrl.agents.discrete_cql import (
    DiscreteCQL,
    DiscreteCQLConfig,
    discrete_cql_loss,
)
from distributed_privrl.agents.discrete_values import DiscreteValueNetworks
from distributed_privrl.agents.policy import Policy, likely_scores
from distributed_privrl.agents.training import train_agent
from distributed_privrl.core.random import Streams
from tests.agents.rows import generator, one_row, set_linear, transitions

TWO = Sizes(2, 2, discrete=True)
FIRST, SECOND = [1.0, 0.0], [0.0, 1.0]
SMALL: dict[str, Any] = {"hidden": (32,), "batch_size": 64, "learning_rate": 3e-3}
TARGET: dict[str, Any] = {"polyak": 0.05}


def test_discrete_cql_loss_by_hand() -> None:
    config = DiscreteCQLConfig(hidden=(), discount=0.5, alpha=4.0)
    nets = DiscreteValueNetworks(TWO, config=config, generator=generator())
    # Rows of a one-hot state: values (1, 2) in the first state, (3, 0) in the second.
    set_linear(nets.values, [[1.0, 3.0], [2.0, 0.0]], [0.0, 0.0])
    set_linear(nets.target_values, [[0.0, 10.0], [0.0, 20.0]], [0.0, 0.0])
    # Our values choose action 0 there, the target says 10: 1 + .5 x 10 = 6 against 1.
    loss = discrete_cql_loss(nets, one_row(FIRST, FIRST, 1.0, SECOND), config)
    conservative = math.log(math.e + math.e**2) - 1
    torch.testing.assert_close(loss, torch.tensor([4.5 + 4 * conservative]))
    # The end: 1.5 against 2, inside the Huber loss's square.
    row = one_row(FIRST, SECOND, 1.5, SECOND, terminal=True)
    conservative = math.log(math.e + math.e**2) - 2
    expected = torch.tensor([0.125 + 4 * conservative])
    torch.testing.assert_close(discrete_cql_loss(nets, row, config), expected)


def test_discrete_bcq_losses_by_hand() -> None:
    config = DiscreteBCQConfig(hidden=(), discount=0.5, threshold=0.3, logit_penalty=0.01)
    nets = DiscreteBCQNetworks(TWO, config=config, generator=generator())
    set_linear(nets.values, [[1.0, 3.0], [2.0, 0.0]], [0.0, 0.0])
    set_linear(nets.target_values, [[0.0, 10.0], [0.0, 20.0]], [0.0, 0.0])
    # In the second state the first action is a tenth as likely as the second: not allowed.
    set_linear(nets.behaviour, [[1.0, 0.0], [0.0, math.log(10)]], [0.0, 0.0])
    losses = discrete_bcq_losses(nets, one_row(FIRST, FIRST, 1.0, SECOND), config)
    torch.testing.assert_close(losses.values, torch.tensor([10 - 0.5]))  # 1 + .5 x 20 against 1
    imitation = math.log(1 + math.e**-1) + 0.01 * (1 + 0) / 2
    torch.testing.assert_close(losses.behaviour, torch.tensor([imitation]))


def test_the_threshold_is_exclusive_and_relative_to_the_likeliest() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125]]).log()
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    assert likely_scores(scores, logits, 0.3).argmax(dim=1).tolist() == [1]
    assert likely_scores(scores, logits, 0.2).argmax(dim=1).tolist() == [2]
    assert likely_scores(scores, logits, 0.0).tolist() == scores.tolist()
    equal = torch.zeros(1, 3)
    assert likely_scores(scores, equal, 0.99).tolist() == scores.tolist()


def test_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    torch.testing.assert_close(
        discrete_imitation_loss(logits, torch.tensor([FIRST])), torch.tensor([math.log(4)])
    )
    torch.testing.assert_close(
        discrete_imitation_loss(logits, torch.tensor([SECOND])), torch.tensor([math.log(4 / 3)])
    )


def train(agent: Algorithm[Any, Any], rows: Any, actions: int, **options: Any) -> Policy:
    settings: dict[str, Any] = {"observation_space": Discrete(5), "steps": 800, **options}
    return train_agent(agent, rows, action_space=Discrete(actions), streams=Streams(0), **settings)


def chain(rows: int = 3000) -> Any:
    """Five states in a row; the right end ends and pays 1, a step left pays .02 at once."""
    source = np.random.default_rng(0)
    states, actions = source.integers(0, 4, size=rows), source.integers(0, 2, size=rows)
    following = np.clip(states + 2 * actions - 1, 0, 4)
    rewards = np.where(actions == 0, 0.02, 0.0) + (following == 4)
    return transitions(states, actions, rewards, following, following == 4)


@pytest.mark.parametrize(
    "agent",
    [
        DiscreteCQL(DiscreteCQLConfig(**SMALL, **TARGET, alpha=0.5, discount=0.9)),
        DiscreteBCQ(DiscreteBCQConfig(**SMALL, **TARGET, discount=0.9)),
        DiscreteBCQ(DiscreteBCQConfig(**SMALL, polyak=1.0, target_interval=20, discount=0.9)),
    ],
    ids=["cql", "bcq", "bcq-copied-target"],
)
def test_a_chain_is_learnt_through_its_end(agent: Algorithm[Any, Any]) -> None:
    policy = train(agent, chain(), 2)
    assert policy.act(np.arange(4)).tolist() == [1, 1, 1, 1]


def test_without_a_future_the_chain_s_small_reward_wins() -> None:
    agent = DiscreteBCQ(DiscreteBCQConfig(**SMALL, **TARGET, discount=0.0))
    assert train(agent, chain(), 2).act(np.arange(4)).tolist() == [0, 0, 0, 1]


def bandit(rows: int = 2000) -> Any:
    """Three contexts, four actions with offset names; the best is the context's, never the last."""
    source = np.random.default_rng(0)
    contexts, actions = source.integers(0, 3, size=rows), source.integers(0, 3, size=rows)
    return transitions(contexts, actions + 7, (actions == (contexts + 1) % 3).astype(float))


@pytest.mark.parametrize(
    "agent",
    [
        DiscreteCQL(DiscreteCQLConfig(**SMALL)),
        DiscreteBCQ(DiscreteBCQConfig(**SMALL)),
    ],
    ids=["cql", "bcq"],
)
def test_a_contextual_bandit_is_learnt_and_unseen_actions_avoided(
    agent: Algorithm[Any, Any],
) -> None:
    policy = train_agent(
        agent,
        bandit(),
        observation_space=Discrete(3),
        action_space=Discrete(4, start=7),
        steps=300,
        streams=Streams(0),
    )
    assert policy.act(np.arange(3)).tolist() == [8, 9, 7]
    assert policy.act(np.arange(3)).dtype == np.int64


def test_box_observations_are_normalised_by_the_training_data() -> None:
    source = np.random.default_rng(0)
    observations = 1000 + 50 * source.uniform(-1, 1, size=(2000, 1))
    actions = source.integers(0, 2, size=2000)
    rewards = (actions == (observations[:, 0] > 1000)).astype(float)
    policy = train(
        DiscreteCQL(DiscreteCQLConfig(**SMALL)),
        transitions(observations, actions, rewards),
        2,
        observation_space=Box(-np.inf, np.inf, (1,)),
    )
    assert policy.act(np.array([[960.0], [985.0], [1015.0], [1040.0]])).tolist() == [0, 0, 1, 1]
