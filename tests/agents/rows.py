"""Rows, batches and weights that the agents' tests share."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.bc import BC, BCConfig
from distributed_privrl.agents.cql import CQL, CQLConfig
from distributed_privrl.agents.discrete_bcq import DiscreteBCQ, DiscreteBCQConfig
from distributed_privrl.agents.discrete_cql import DiscreteCQL, DiscreteCQLConfig
from distributed_privrl.agents.edac import EDAC, EDACConfig
from distributed_privrl.agents.iql import IQL, IQLConfig
from distributed_privrl.agents.td3bc import TD3BC, TD3BCConfig
from distributed_privrl.data.trajectories import Transitions

BOX, DISCRETE = Sizes(2, 2), Sizes(2, 3, discrete=True)
TINY: dict[str, Any] = {"hidden": (8, 6), "batch_size": 16, "learning_rate": 1e-2}
CONTINUOUS_AGENTS: tuple[Algorithm[Any, Any], ...] = (
    BC(BCConfig(**TINY, actor="gaussian")),
    IQL(IQLConfig(**TINY)),
    TD3BC(TD3BCConfig(**TINY, policy_delay=1)),
    EDAC(EDACConfig(**TINY, critics=4)),
    CQL(CQLConfig(**TINY, sampled_actions=3, entropy_backup=True)),
)
DISCRETE_AGENTS: tuple[Algorithm[Any, Any], ...] = (
    BC(BCConfig(**TINY)),
    DiscreteCQL(DiscreteCQLConfig(**TINY)),
    DiscreteBCQ(DiscreteBCQConfig(**TINY)),
)
AGENTS = [(agent, BOX) for agent in CONTINUOUS_AGENTS] + [
    (agent, DISCRETE) for agent in DISCRETE_AGENTS
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(rows: int, sizes: Sizes = BOX, *, noise_width: int = 0, seed: int = 1) -> Batch:
    source = generator(seed)
    observations = torch.randn(rows, sizes.observation, generator=source)
    if sizes.discrete:
        actions = torch.eye(sizes.action)[torch.arange(rows) % sizes.action]
    else:
        actions = torch.randn(rows, sizes.action, generator=source).tanh()
    return Batch(
        pairs=torch.cat((observations, actions), dim=1),
        observations=observations,
        actions=actions,
        rewards=torch.randn(rows, generator=source),
        next_observations=torch.randn(rows, sizes.observation, generator=source),
        continues=(torch.arange(rows) % 3 != 0).float(),
        noise=torch.randn(rows, noise_width, generator=source),
    )


def one_row(
    observation: list[float],
    action: list[float],
    reward: float,
    next_observation: list[float],
    *,
    terminal: bool = False,
    noise: list[float] | None = None,
) -> Batch:
    return Batch(
        pairs=torch.tensor([observation + action]),
        observations=torch.tensor([observation]),
        actions=torch.tensor([action]),
        rewards=torch.tensor([reward]),
        next_observations=torch.tensor([next_observation]),
        continues=torch.tensor([float(not terminal)]),
        noise=torch.tensor([noise or []]),
    )


def row(rows: Batch, index: int) -> Batch:
    return Batch(*(column[index : index + 1] for column in rows))


def set_linear(network: nn.Module, weight: list[list[float]], bias: list[float]) -> None:
    """Set the weights of an MLP without hidden layers."""
    (layer,) = (one for one in network.modules() if isinstance(one, nn.Linear))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))


def stir(networks: nn.Module, scale: float = 0.2) -> nn.Module:
    """Move every weight a little, targets apart from theirs, and return ``networks``."""
    source = generator(7)
    with torch.no_grad():
        for parameter in networks.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=source))
    return networks


def gradients(networks: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a sum of losses, by name; none are left behind."""
    networks.zero_grad()
    torch.autograd.backward(loss.sum())
    found = {
        name: parameter.grad.clone()
        for name, parameter in networks.named_parameters()
        if parameter.grad is not None
    }
    networks.zero_grad()
    return found


def transitions(
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray | None = None,
    next_observations: np.ndarray | None = None,
    terminated: np.ndarray | None = None,
) -> Transitions:
    """Return rows; without more, episodes of one step that earn nothing."""
    rows = len(observations)
    return Transitions(
        observations=observations,
        actions=actions,
        rewards=np.zeros(rows) if rewards is None else rewards,
        next_observations=observations if next_observations is None else next_observations,
        terminated=np.ones(rows, bool) if terminated is None else terminated,
        truncated=np.zeros(rows, bool),
        unit_ids=np.arange(rows),
    )
