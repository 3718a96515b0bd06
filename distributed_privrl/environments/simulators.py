"""Environments as pure functions of many states at once, equal to the registered ones."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError


class Step(NamedTuple):
    """What M states and actions lead to."""

    states: NDArray[np.float64]
    """(M, S)."""
    rewards: NDArray[np.float64]
    """(M,)."""
    terminated: NDArray[np.bool_]
    """(M,): the state has no future."""


class Simulator(Protocol):
    """A registered environment's motion, rewards and starts, without its clock.

    A state holds all that decides the future, in float64; an observation is what the environment
    shows of it.
    """

    @property
    def environment(self) -> str:
        """The Gymnasium id."""
        ...

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states ``(M, S)``, drawn as the environment draws them.

        Args:
            count: M.
            generator: source of the draws.
        """
        ...

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return what the environment shows ``(M, O)`` of ``states`` ``(M, S)``."""
        ...

    def states_of(self, observations: NDArray[Any]) -> NDArray[np.float64]:
        """Return states ``(M, S)`` that show ``observations`` ``(M, O)``, and move as seen there.

        What an observation leaves out (full turns, a position that nothing depends on) is taken
        as zero, and what it clips as the clipped value.
        """
        ...

    def step(self, states: NDArray[np.float64], actions: NDArray[np.float32]) -> Step:
        """Return what ``actions`` ``(M, A)``, in the environment's units, lead to."""
        ...


class PerturbedSimulator(Protocol):
    """A simulator (see `Simulator`) of Discrete actions whose physics can be changed."""

    @property
    def environment(self) -> str:
        """The Gymnasium id."""
        ...

    @property
    def actions(self) -> int:
        """The number A of actions."""
        ...

    def with_physics(self, physics: Mapping[str, NDArray[np.float64]]) -> Self:
        """Return it with other physics, ``(M,)`` of each name: of as many rows as are stepped.

        Raises:
            ConfigError: a name that is not one of its physics.
        """
        ...

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states ``(M, S)``, drawn as the environment draws them."""
        ...

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return what the environment shows ``(M, O)`` of ``states`` ``(M, S)``."""
        ...

    def step(self, states: NDArray[np.float64], actions: NDArray[Any]) -> Step:
        """Return what ``actions`` ``(M,)`` int64 lead to."""
        ...


def check_physics(physics: Mapping[str, Any], known: tuple[str, ...], environment: str) -> None:
    """Check that ``physics`` names what can be changed.

    Raises:
        ConfigError: it names something else.
    """
    unknown = sorted(set(physics) - set(known))
    if unknown:
        raise ConfigError(
            f"physics {', '.join(unknown)} of {environment} are unknown (known: {', '.join(known)})"
        )
