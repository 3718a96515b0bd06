"""The finite problems that are registered in Gymnasium, and the builders behind them."""

import functools
from collections.abc import Callable, Mapping

import numpy as np

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.gridworld import gridworld
from distributed_privrl.environments.linear_mdp import linear_mdp
from distributed_privrl.environments.sepsis import icu_sepsis, icu_sepsis_features
from distributed_privrl.environments.tabular import TabularMdp

__all__ = [
    "HORIZON",
    "PROBLEMS",
    "gridworld",
    "icu_sepsis",
    "icu_sepsis_features",
    "linear_mdp",
    "random_mdp",
    "tabular_problem",
]

HORIZON = 20
"""The horizon of every registered problem."""


def random_mdp(
    states: int, actions: int, horizon: int, generator: np.random.Generator
) -> TabularMdp:
    """Return a random MDP that changes from step to step.

    Each row of transitions, the initial distribution and each row of the behaviour are uniform on
    the simplex, each reward is uniform in [0, 1], and no state is terminal.

    Args:
        states: number of states S.
        actions: number of actions A.
        horizon: number of steps H.
        generator: draws it.

    Raises:
        ConfigError: a number is below 1.
    """
    for name, value in (("states", states), ("actions", actions), ("horizon", horizon)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    shape = (horizon, states, actions)
    return TabularMdp(
        transitions=generator.dirichlet(np.ones(states), size=shape),
        rewards=generator.uniform(size=shape),
        initial=generator.dirichlet(np.ones(states)),
        horizon=horizon,
        behaviour=generator.dirichlet(np.ones(actions), size=(1, states)),
    )


PROBLEMS: Mapping[str, Callable[[], TabularMdp]] = {
    "privrl/LinearMDP-a-v0": lambda: linear_mdp("a", HORIZON),
    "privrl/LinearMDP-b-v0": lambda: linear_mdp("b", HORIZON),
    "privrl/Gridworld-v0": lambda: gridworld(horizon=HORIZON),
    "privrl/RandomMDP-v0": lambda: random_mdp(
        10, 5, HORIZON, Streams(0).numpy("environments/random-mdp")
    ),
    "privrl/ICU-Sepsis-v0": lambda: icu_sepsis(HORIZON),
}
"""Gymnasium id to what builds the problem."""


@functools.cache
def tabular_problem(environment_id: str) -> TabularMdp | None:
    """Return the MDP behind a Gymnasium id, built once; None for an id of anything else.

    Args:
        environment_id: Gymnasium id, e.g. ``privrl/ICU-Sepsis-v0``.

    Raises:
        MissingExtraError: the problem's package is not installed.

    Example:
        >>> tabular_problem("privrl/LinearMDP-a-v0").transitions.shape
        (20, 2, 100, 2)
        >>> tabular_problem("CartPole-v1") is None
        True
    """
    build = PROBLEMS.get(environment_id)
    return None if build is None else build()
