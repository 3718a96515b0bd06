"""Conservative Q-learning (CQL) for Discrete actions, on double Q-learning.

Reference: Kumar, Zhou, Tucker, Levine, "Conservative Q-learning for offline reinforcement learning"
(2020), equation 4 and appendix F; expert-level DP, section 6, uses it.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from distributed_privrl.agents.algorithm import Batch, Sizes
from distributed_privrl.agents.discrete_values import (
    DiscreteValueAlgorithm,
    DiscreteValueNetworks,
    double_q_loss,
)
from distributed_privrl.agents.policy import Acting
from distributed_privrl.agents.settings import DiscreteCQLConfig


def discrete_cql_loss(
    networks: DiscreteValueNetworks, batch: Batch, config: DiscreteCQLConfig
) -> Tensor:
    """Return the loss of each row ``(N,)``, which couples no rows.

    Args:
        networks: action values and their target.
        batch: N encoded transitions.
        config: hyper-parameters.

    Reference: Kumar et al., equation 4: the Bellman error, and alpha times (log-sum-exp of all
    action values - the value of the data's action).
    """
    values: Tensor = networks.values(batch.observations)
    taken = (values * batch.actions).sum(dim=1)
    with torch.no_grad():
        next_scores = networks.values(batch.next_observations)
        next_values = networks.target_values(batch.next_observations)
    error = double_q_loss(taken, next_scores, next_values, batch, config.discount)
    return error + config.alpha * (values.logsumexp(dim=1) - taken)


@dataclass(frozen=True)
class DiscreteCQL(DiscreteValueAlgorithm[DiscreteCQLConfig, DiscreteValueNetworks]):
    """Conservative Q-learning for Discrete actions.

    Args:
        config: hyper-parameters.
    """

    config: DiscreteCQLConfig = field(default_factory=DiscreteCQLConfig)
    name: ClassVar[str] = "discrete_cql"

    def networks(self, sizes: Sizes, generator: torch.Generator) -> DiscreteValueNetworks:
        """Return new networks; see `Algorithm.networks`."""
        return DiscreteValueNetworks(sizes, config=self.config, generator=generator)

    def losses(
        self, networks: DiscreteValueNetworks, batch: Batch, *, step: int
    ) -> tuple[Tensor, ...]:
        """Return the one loss; see `Algorithm.losses`."""
        return (discrete_cql_loss(networks, batch, self.config),)

    def acting(self, networks: DiscreteValueNetworks) -> Acting:
        """Return the action values; see `Algorithm.acting`."""
        return Acting(networks.values)
