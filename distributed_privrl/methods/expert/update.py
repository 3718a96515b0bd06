"""The agent of a run: how its rows are coded, its losses by row, its networks and its policy."""

import functools
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.algorithms import ALGORITHMS
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import PLAIN
from distributed_privrl.data.spaces import part_width
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.expert.config import (
    AgentModelConfig,
    ExpertDataConfig,
    LocalExpertConfig,
)
from distributed_privrl.methods.expert.settings import (
    agent_settings,
    levels_of,
    local_settings,
)
from distributed_privrl.stages.encoders import bounds_of, public_encoder
from distributed_privrl.updates.ensemble_clipping import EnsembleClip, EnsembleLayout
from distributed_privrl.updates.federated import FederatedUpdate
from distributed_privrl.updates.functional_training import FunctionalTrainer
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import LocalUpdate
from distributed_privrl.updates.parameters import FlatParameters


def algorithm_of(model: AgentModelConfig) -> Algorithm[Any, Any]:
    """Return the agent with the settings of a configuration.

    Raises:
        ConfigError: a setting is unknown, of another type or out of range.
    """
    return replace(ALGORITHMS[model.agent], config=agent_settings(model))


@dataclass(frozen=True, kw_only=True)
class AgentFacts:
    """All that is public about a run's agent; picklable.

    Args:
        algorithm: losses and settings.
        encoder_json: JSON of the encoder of its rows.
        reward_factor: what rewards are multiplied by, from public bounds.
        seed: the run's public seed.
    """

    algorithm: Algorithm[Any, Any]
    encoder_json: str
    reward_factor: float
    seed: int

    @classmethod
    def of(
        cls, model: AgentModelConfig, data: ExpertDataConfig, store: DatasetStore, *, seed: int
    ) -> "AgentFacts":
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
        algorithm = algorithm_of(model)
        encoder = public_encoder(data, store, coding=PLAIN)
        levels = levels_of(data, store)
        if levels is not None:
            encoder = encoder.with_levels(levels)
        algorithm.check_actions(encoder.action_space)
        bounds = bounds_of(data, store)
        largest = max(abs(float(bounds.low[-1])), abs(float(bounds.high[-1])))
        return cls(
            algorithm=algorithm,
            encoder_json=encoder.to_json(),
            reward_factor=model.reward_scale / (largest or 1.0),
            seed=seed,
        )

    @cached_property
    def encoder(self) -> TransitionEncoder:
        """Transitions to rows."""
        return TransitionEncoder.from_json(self.encoder_json)

    @cached_property
    def row_loss(self) -> "AgentLoss":
        """The agent's losses of rows."""
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
        encoded = self.encoder.encode(transitions)
        return torch.from_numpy(encoded.rows[encoded.valid])

    def policy(self, parameters: Tensor) -> Policy:
        """Return the policy of trained numbers ``(P,)``; its normalisation is public."""
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
            "agent": self.algorithm.name,
            "reward_factor": self.reward_factor,
            "encoder": json.loads(self.encoder_json),
        }


@dataclass(frozen=True, kw_only=True)
class AgentLoss:
    """An agent's losses, summed, of each encoded row; rows never meet in it.

    The target network is part of the module and not trained: it comes behind the parameters.

    Args:
        algorithm: losses.
        columns: name, start and stop of each part of a row.
        reward_offset: of the reward's column, as the agent counts rewards.
        reward_scale: of the reward's column, as the agent counts rewards.
    """

    algorithm: Algorithm[Any, Any]
    columns: tuple[tuple[str, int, int], ...]
    reward_offset: float
    reward_scale: float
    draw_count: int = 0

    def batch(self, rows: Tensor) -> Batch:
        """Return encoded rows ``(M, D)`` as the agent reads them.

        Rewards are scaled and not shifted: what an episode earns must not depend on its length
        where rewards do not.
        """
        part = {name: rows[:, start:stop] for name, start, stop in self.columns}
        actions = (part["action"] + 1) / 2
        return Batch(
            pairs=torch.cat((part["observation"], actions), dim=1),
            observations=part["observation"],
            actions=actions,
            rewards=part["reward"][:, 0] * self.reward_scale + self.reward_offset,
            next_observations=part["next_observation"],
            continues=(1 - part["terminal"][:, 0]) / 2,
        )

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the loss of each row, ``(M, D), (M, 0) -> (M,)``."""
        losses = self.algorithm.losses(module, self.batch(rows), step=1)
        total: Tensor = functools.reduce(torch.add, losses)
        return total


@dataclass(frozen=True, kw_only=True)
class AgentUpdate:
    """Builds the local update of a run in a worker's process.

    Args:
        facts: of the agent.
        clip_norm: L2 bound of an expert's vector; None without privacy.
        micro_batch_rows: rows computed at once.
        federated: local training of an expert, in place of its gradient.
    """

    facts: AgentFacts
    clip_norm: float | None
    micro_batch_rows: int
    federated: LocalExpertConfig | None = None

    @property
    def draw_count(self) -> int:
        """Standard normals that a row's loss needs."""
        return self.facts.row_loss.draw_count

    def __call__(self) -> LocalUpdate:
        """Return a fresh local update."""
        networks, loss = self.facts.networks(), self.facts.row_loss
        if self.federated is None:
            return GradientLocalUpdate(
                module=networks,
                row_loss=loss,
                clip_norm=self.clip_norm,
                micro_batch_rows=self.micro_batch_rows,
            )
        clip = EnsembleClip(layout=EnsembleLayout.of(networks), clip_norm=self.clip_norm)
        trainer = FunctionalTrainer(
            module=networks, row_loss=loss, config=local_settings(self.federated), clip=clip
        )
        return FederatedUpdate(trainer=trainer, clip=clip)
