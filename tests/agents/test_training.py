"""The training loop on another device: the policy is the CPU's, and comes back to the CPU."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.agents.algorithm import Algorithm, Sizes
from distributed_privrl.agents.policy import Policy
from distributed_privrl.agents.training import train_agent
from distributed_privrl.core.random import Streams
from tests.agents.rows import AGENTS, transitions


@pytest.mark.parametrize(
    ("algorithm", "sizes"), AGENTS, ids=[type(agent).__name__ for agent, _ in AGENTS]
)
def test_agents_learn_on_a_device_what_they_learn_on_the_cpu(
    device: str, algorithm: Algorithm[Any, Any], sizes: Sizes
) -> None:
    source = np.random.default_rng(0)
    seen = source.normal(size=(40, sizes.observation))
    discrete, width = sizes.discrete, sizes.action
    done = np.arange(40) % width if discrete else source.uniform(-1, 1, (40, width))
    rows = transitions(seen, done, source.normal(size=40))
    found: dict[str, list[np.ndarray]] = {}
    for name in ("cpu", device):
        on_the_way: list[Policy] = []
        policy = train_agent(
            algorithm,
            rows,
            observation_space=Box(-np.inf, np.inf, (sizes.observation,)),
            action_space=Discrete(width) if discrete else Box(-1.0, 1.0, (width,)),
            steps=6,
            streams=Streams(3),
            on_evaluation=lambda _, policy, kept=on_the_way: kept.append(policy),
            evaluate_every=3,
            device=name,
        )
        assert {one.device.type for one in policy.network.parameters()} == {"cpu"}
        found[name] = [policy.act(seen), on_the_way[-1].act(seen)]
    for mine, theirs in zip(found[device], found["cpu"], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
