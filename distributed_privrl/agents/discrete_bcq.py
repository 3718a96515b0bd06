"""Batch-constrained Q-learning (BCQ) for Discrete actions.

Reference: Fujimoto, Conti, Ghavamzadeh, Pineau, "Benchmarking batch deep reinforcement learning
algorithms" (2019), algorithm 1, and its authors' code; expert-level DP, section 6, uses it.
"""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from distributed_privrl.agents.algorithm import Batch, Sizes
from distributed_privrl.agents.bc import discrete_imitation_loss
from distributed_privrl.agents.discrete_values import (
    DiscreteValueAlgorithm,
    DiscreteValueNetworks,
    double_q_loss,
)
from distributed_privrl.agents.policy import Acting, likely_scores
from distributed_privrl.agents.settings import DiscreteBCQConfig
from distributed_privrl.models.layers import mlp


class DiscreteBCQNetworks(DiscreteValueNetworks):
    """Action values, their target and the behaviour policy.

    Args:
        sizes: what they are made for.
        config: sizes.
        generator: source of the initial weights.
    """

    def __init__(
        self, sizes: Sizes, *, config: DiscreteBCQConfig, generator: torch.Generator
    ) -> None:
        super().__init__(sizes, config=config, generator=generator)
        self.behaviour = mlp((sizes.observation, *config.hidden, sizes.action), generator)


class DiscreteBCQLosses(NamedTuple):
    """One number a row; each loss moves its own network only, so their sum may go backward."""

    values: Tensor
    """(N,): Huber loss of the Bellman error."""
    behaviour: Tensor
    """(N,): cross entropy, and the penalty of the logits."""


def discrete_bcq_losses(
    networks: DiscreteBCQNetworks, batch: Batch, config: DiscreteBCQConfig
) -> DiscreteBCQLosses:
    """Return both losses of each row, neither of which couples rows.

    Args:
        networks: action values, their target, behaviour policy.
        batch: N encoded transitions.
        config: hyper-parameters.

    Reference: Fujimoto et al., algorithm 1; the penalty is of raw logits, as in the authors' code
    (d3rlpy 2.8 has it of log-probabilities).
    """
    taken = (networks.values(batch.observations) * batch.actions).sum(dim=1)
    with torch.no_grad():
        next_scores = likely_scores(
            networks.values(batch.next_observations),
            networks.behaviour(batch.next_observations),
            config.threshold,
        )
        next_values = networks.target_values(batch.next_observations)
    logits = networks.behaviour(batch.observations)
    penalty = config.logit_penalty * logits.square().mean(dim=1)
    return DiscreteBCQLosses(
        values=double_q_loss(taken, next_scores, next_values, batch, config.discount),
        behaviour=discrete_imitation_loss(logits, batch.actions) + penalty,
    )


@dataclass(frozen=True)
class DiscreteBCQ(DiscreteValueAlgorithm[DiscreteBCQConfig, DiscreteBCQNetworks]):
    """Batch-constrained Q-learning for Discrete actions.

    Args:
        config: hyper-parameters.
    """

    config: DiscreteBCQConfig = field(default_factory=DiscreteBCQConfig)
    name: ClassVar[str] = "discrete_bcq"

    def networks(self, sizes: Sizes, generator: torch.Generator) -> DiscreteBCQNetworks:
        """Return new networks; see `Algorithm.networks`."""
        return DiscreteBCQNetworks(sizes, config=self.config, generator=generator)

    def losses(
        self, networks: DiscreteBCQNetworks, batch: Batch, *, step: int
    ) -> DiscreteBCQLosses:
        """Return both losses; see `Algorithm.losses`."""
        return discrete_bcq_losses(networks, batch, self.config)

    def acting(self, networks: DiscreteBCQNetworks) -> Acting:
        """Return action values among likely actions; see `Algorithm.acting`."""
        return Acting(networks.values, networks.behaviour, self.config.threshold)
