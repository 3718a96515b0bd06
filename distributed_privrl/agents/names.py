"""Names of the agents, and the actions that each knows, for whoever must not wait for torch."""

from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import Space

AGENTS_FOR = {
    "Box": ("bc", "cql", "edac", "iql", "td3bc"),
    "Discrete": ("bc", "discrete_bcq", "discrete_cql"),
}
"""Names of the algorithms that know an action space."""


def action_spaces(agent: str) -> tuple[type, ...]:
    """Return the kinds of action space that the agent of a name knows.

    Example:
        >>> [kind.__name__ for kind in action_spaces("bc")]
        ['Box', 'Discrete']
    """
    return tuple(kind for kind in (Box, Discrete) if agent in AGENTS_FOR[kind.__name__])


def check_actions(agent: str, known: tuple[type, ...], space: Space) -> None:
    """Do nothing if ``space`` is one that an agent knows.

    Args:
        agent: its name.
        known: kinds of action space that it knows.
        space: of actions.

    Raises:
        ConfigError: another kind of action space; the message names who knows it.
    """
    if isinstance(space, known):
        return
    kinds = " or ".join(kind.__name__ for kind in known)
    others = AGENTS_FOR.get(type(space).__name__)
    advice = f"train {', '.join(others)} instead" if others else "no agent knows such actions"
    raise ConfigError(
        f"action space must be a {kinds} for this agent ({agent}), got {space}: {advice}"
    )
