"""A tiny crowd of experts with Box actions: pendulums that are pushed at declared levels."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.experts import unit_of_expert
from distributed_privrl.collection.experts_episodes import play_experts
from distributed_privrl.core.random import Streams
from distributed_privrl.data.action_levels import ActionLevels
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments.pendulum import Pendulum
from distributed_privrl.environments.simulators import Step
from tests.worlds.crowd import EXPERTS, LENGTH, P_MIN, TRAJECTORIES, write_crowd

LEVELS = ((-2.0, 0.0, 2.0),)
BOUNDS = """
observation: {low: [-1, -1, -8], high: [1, 1, 8]}
action: {low: -2, high: 2}
reward: [-17, 0]
"""


class PushedPendulum(Pendulum):
    """Takes positions of `LEVELS` for actions."""

    actions = 3

    def step(self, states: np.ndarray, actions: np.ndarray) -> Step:
        return super().step(states, ActionLevels(LEVELS).values(actions))


def swingers(seed: int = 0) -> ExpertPolicies:
    """Return linear rules: push with the swing, each expert with weights of its own."""
    generator = torch.Generator().manual_seed(seed)
    rule = torch.tensor([0.0, -0.5, 1.0]) + 0.05 * torch.randn(EXPERTS, 3, generator=generator)
    still = torch.zeros(EXPERTS, 3)
    return ExpertPolicies(
        weights=(torch.stack([-rule, still, rule], dim=2),),
        biases=(torch.tensor([0.0, 0.05, 0.0]).repeat(EXPERTS, 1),),
        activation="tanh",
        minimum_probability=P_MIN,
        unit_ids=np.array([unit_of_expert(i) for i in range(EXPERTS)], np.uint64),
        offset=torch.zeros(3),
        scale=torch.ones(3),
    )


def swingers_store(
    root: Path,
    policies: ExpertPolicies | None = None,
    spread: float = 0.0,
    spoiled: Sequence[int] = (),
    **facts: Any,
) -> DatasetStore:
    """Write the dataset.

    Args:
        root: of the store.
        policies: that act.
        spread: by which recorded actions lie off their levels, at most.
        spoiled: experts whose actions are recorded as not a number.
        facts: that metadata say otherwise.
    """
    store, policies = DatasetStore(root), policies or swingers()
    played = play_experts(
        PushedPendulum(),  # type: ignore[arg-type]
        policies,
        episodes=TRAJECTORIES,
        max_length=LENGTH,
        streams=Streams(3),
    )
    rows = played.trajectories
    actions = ActionLevels(LEVELS).values(rows.actions)
    actions += np.random.default_rng(5).uniform(-spread, spread, actions.shape).astype(np.float32)
    units = np.repeat(rows.unit_ids, rows.lengths)
    actions[np.isin(units, policies.unit_ids[list(spoiled)])] = np.nan
    write_crowd(
        store,
        policies,
        replace(rows, actions=np.clip(actions, -2, 2)),
        played.log_probabilities,
        environment="Pendulum-v1",
        **facts,
    )
    return store
