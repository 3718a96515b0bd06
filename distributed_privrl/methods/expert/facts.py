"""What is public of a run's agent: how its rows are coded, its settings, networks and policy.

A run makes the facts before its budget is held: what builds networks imports torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gymnasium.spaces import Discrete

from distributed_privrl.agents.names import action_spaces, check_actions
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.settings import AgentConfig
from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import PLAIN
from distributed_privrl.data.spaces import part_width
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.expert.config import AgentModelConfig, ExpertDataConfig
from distributed_privrl.methods.expert.settings import agent_settings, levels_of
from distributed_privrl.stages.encoders import bounds_of, public_encoder

if TYPE_CHECKING:
    from torch import Tensor, nn

    from distributed_privrl.agents.algorithm import Algorithm
    from distributed_privrl.agents.policy import Policy
    from distributed_privrl.methods.expert.losses import AgentLoss


@dataclass(frozen=True, kw_only=True)
class AgentFacts:
    """All that is public about a run's agent; picklable.

    Args:
        agent: its name.
        config: its settings.
        encoder_json: JSON of the encoder of its rows.
        reward_factor: what rewards are multiplied by, from public bounds.
        seed: the run's public seed.
    """

    agent: str
    config: AgentConfig
    encoder_json: str
    reward_factor: float
    seed: int

    @classmethod
    def of(
        cls, model: AgentModelConfig, data: ExpertDataConfig, store: DatasetStore, *, seed: int
    ) -> AgentFacts:
        """Return the facts of a run.

        Args:
            model: the agent.
            data: datasets and bounds.
            store: datasets.
            seed: the run's public seed.

        Raises:
            ConfigError: bounds are missing, or the agent does not know the actions.

        Privacy: reads the sensitive dataset's spaces, none of its rows.
        """
        settings = agent_settings(model)
        encoder = public_encoder(data, store, coding=PLAIN)
        levels = levels_of(data, store)
        if levels is not None:
            encoder = encoder.with_levels(levels)
        check_actions(model.agent, action_spaces(model.agent), encoder.action_space)
        bounds = bounds_of(data, store)
        largest = max(abs(float(bounds.low[-1])), abs(float(bounds.high[-1])))
        return cls(
            agent=model.agent,
            config=settings,
            encoder_json=encoder.to_json(),
            reward_factor=model.reward_scale / (largest or 1.0),
            seed=seed,
        )

    @property
    def algorithm(self) -> Algorithm[Any, Any]:
        """Losses and settings."""
        from distributed_privrl.agents.algorithms import ALGORITHMS

        return replace(ALGORITHMS[self.agent], config=self.config)

    @cached_property
    def encoder(self) -> TransitionEncoder:
        """Transitions to rows."""
        return TransitionEncoder.from_json(self.encoder_json)

    @cached_property
    def row_loss(self) -> AgentLoss:
        """The agent's losses of rows."""
        from distributed_privrl.methods.expert.losses import AgentLoss

        layout, scaling = self.encoder.layout, self.encoder.scaling
        reward = layout.blocks["reward"].start
        return AgentLoss(
            algorithm=self.algorithm,
            columns=tuple((name, part.start, part.stop) for name, part in layout.blocks.items()),
            reward_offset=float(scaling.offset[reward]) * self.reward_factor,
            reward_scale=float(scaling.scale[reward]) * self.reward_factor,
        )

    def networks(self) -> nn.Module:
        """Return the networks as they begin; the same public seed gives the same weights."""
        import torch

        from distributed_privrl.agents.algorithm import Sizes

        encoder = self.encoder
        sizes = Sizes(
            part_width(encoder.observation_space),
            part_width(encoder.action_space),
            isinstance(encoder.action_space, Discrete),
        )
        generator = torch.Generator().manual_seed(Streams(self.seed).integer("agent"))
        networks: nn.Module = self.algorithm.networks(sizes, generator)
        return networks

    def rows(self, transitions: Transitions) -> Tensor:
        """Return the proper ones of ``transitions`` as rows ``(N, D)``."""
        import torch

        encoded = self.encoder.encode(transitions)
        return torch.from_numpy(encoded.rows[encoded.valid])

    def policy(self, parameters: Tensor) -> Policy:
        """Return the policy of trained numbers ``(P,)``; its normalisation is public."""
        from distributed_privrl.agents.policy import Policy
        from distributed_privrl.updates.parameters import FlatParameters

        networks = self.networks()
        FlatParameters(networks).load(parameters)
        encoder, levels = self.encoder, self.encoder.levels
        columns = encoder.layout.blocks["observation"]
        return Policy(
            *self.algorithm.acting(networks),
            normalisation=Normalisation(
                mean=encoder.scaling.offset[columns].astype("float32"),
                spread=encoder.scaling.scale[columns].astype("float32"),
            ),
            observation_space=encoder.observation_space,
            action_space=encoder.action_space if levels is None else levels.box,
            levels=levels,
        )

    def about(self) -> dict[str, Any]:
        """Return the facts as JSON values, the encoder's apart."""
        return {
            "agent": self.agent,
            "reward_factor": self.reward_factor,
            "encoder": json.loads(self.encoder_json),
        }
