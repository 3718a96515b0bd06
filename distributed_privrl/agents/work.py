"""How much work agents are, from their sizes alone: for plans, which import no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from distributed_privrl.agents.settings import AgentConfig, SacConfig
from distributed_privrl.models.sizes import dense_weights

FORWARD = 1 / 3
"""Of a network that goes forward and backward: forward alone."""
_INPUTS_ALONE = 2 / 3
"""Likewise, where the gradient reaches its inputs and not its weights."""
_PASSES: Mapping[str, float] = {
    "bc": 1.0,
    "discrete_cql": 1 + 2 * FORWARD,  # values; of the next rows, and of their target
    "discrete_bcq": 2 + 3 * FORWARD,  # likewise, and who acted in both rows
}
"""How often an agent of Discrete actions uses a network of its sizes in a gradient step."""


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """What a gradient step uses; a network that goes forward and backward counts once.

    Args:
        networks: that it uses.
        weights: of all of them, each used by every row.
    """

    networks: float
    weights: float


def discrete_work(agent: str, config: AgentConfig, observation: int, actions: int) -> StepWork:
    """Return the work of an agent of Discrete actions.

    Args:
        agent: its name, one of `names.AGENTS_FOR` such actions.
        config: its hyper-parameters.
        observation: numbers of an encoded observation.
        actions: how many there are.
    """
    passes = _PASSES[agent]
    weights = dense_weights((observation, *config.hidden, actions))
    return StepWork(networks=passes, weights=passes * weights)


def sac_work(config: SacConfig, observation: int, action: int) -> StepWork:
    """Return the work of SAC: its actor twice, and each critic, its target and its slope.

    Args:
        config: its hyper-parameters.
        observation: numbers of an observation.
        action: numbers of an action.
    """
    actor = dense_weights((observation, *config.hidden, 2 * action))
    critic = dense_weights((observation + action, *config.hidden, 1))
    acted, valued = 1 + FORWARD, config.critics * (1 + FORWARD + _INPUTS_ALONE)
    return StepWork(networks=acted + valued, weights=acted * actor + valued * critic)
