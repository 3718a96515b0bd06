"""Rows that one learner holds in this process: no Ray, no file, and the same training."""

import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.agents.algorithms import ALGORITHMS, configured
from distributed_privrl.agents.training import train_agent
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space
from distributed_privrl.evaluation.trainer import Spaces
from distributed_privrl.runtime.rllib.algorithm import RLLIB_ALGORITHMS
from distributed_privrl.runtime.rllib.rows import HeldRows
from distributed_privrl.runtime.rllib.trainer import RLlibTrainer
from tests.runtime.rllib.rows import (
    BOX_ACTIONS,
    DISCRETE_ACTIONS,
    OBSERVATIONS,
    bridge,
    released,
    transitions,
)
from tests.runtime.rllib.watching import forbid_ray, left

SETTINGS: dict[str, Any] = {"hidden": (8, 8), "batch_size": 16}


def held(space: Space, seed: int = 3, **changes: Any) -> HeldRows:
    about = {"observation_space": OBSERVATIONS, "action_space": space, "seed": seed}
    return HeldRows.of(released(space), **(about | changes))


@pytest.mark.parametrize("space", [BOX_ACTIONS, DISCRETE_ACTIONS])
def test_rows_in_memory_are_those_of_a_bridge(space: Space, tmp_path: Path) -> None:
    ours, read = held(space), HeldRows.read(bridge(tmp_path / "bridge", space))
    for item in fields(HeldRows):
        mine, theirs = getattr(ours, item.name), getattr(read, item.name)
        if item.name == "normalisation":
            assert np.array_equal(mine.mean, theirs.mean)
            assert np.array_equal(mine.spread, theirs.spread)
        else:
            assert np.array_equal(mine, theirs) if item.name == "rows" else mine == theirs


def test_rows_in_memory_do_not_leave_their_process() -> None:
    rows = held(BOX_ACTIONS)
    config = RLLIB_ALGORITHMS["td3bc"].get_default_config().rows(rows)
    for what in (rows, config):
        with pytest.raises(UnsafeError, match="do not leave their process"):
            pickle.dumps(what)
    assert config.copy().held is rows
    with pytest.raises(ConfigError, match="are for num_learners=0"):
        config.learners(num_learners=1).validate()
    with pytest.raises(ConfigError, match="empty"):
        HeldRows.of(
            transitions(BOX_ACTIONS, 0),
            observation_space=OBSERVATIONS,
            action_space=BOX_ACTIONS,
            seed=0,
        )


def test_training_needs_no_ray_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = forbid_ray(monkeypatch, tmp_path)
    rows, during = released(DISCRETE_ACTIONS), []
    agent = configured(ALGORITHMS["bc"], SETTINGS)
    policy = RLlibTrainer("bc", agent.config).train(
        rows,
        Spaces(observation=OBSERVATIONS, action=DISCRETE_ACTIONS),
        seed=2**62,
        steps=4,
        evaluate_every=2,
        on_evaluation=lambda step, _: during.append((step, len(left(tmp_path)))),
    )
    assert during == [(2, 1), (4, 1)]
    assert left(tmp_path) == []
    assert counted == []
    plain = train_agent(
        agent,
        transitions(DISCRETE_ACTIONS).select(
            Streams(2**62).numpy("rllib bridge").permutation(len(rows))
        ),
        observation_space=OBSERVATIONS,
        action_space=DISCRETE_ACTIONS,
        steps=4,
        streams=Streams(2**62),
    )
    for mine, theirs in zip(policy.network.parameters(), plain.network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
