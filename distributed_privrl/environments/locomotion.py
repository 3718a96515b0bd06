"""Gymnasium's planar robots in MuJoCo, one at a time behind the interface of many."""

import importlib.util
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.environments.simulators import Step

_RESET_SEEDS = 2**31
_CLIPPED = {"HalfCheetah-v5": np.inf, "Hopper-v5": 10.0, "Walker2d-v5": 10.0}
"""How far each environment shows velocities."""


class Locomotion:
    """Puts one Gymnasium environment into each state and steps it there.

    States ``(M, S)``: positions, velocities, and the accelerations that MuJoCo's solver starts
    from, so that an episode is the environment's own to the last bit. The first position, the way
    covered, is not observed.

    Args:
        environment: HalfCheetah-v5, Hopper-v5 or Walker2d-v5.

    Raises:
        ConfigError: another environment.
        MissingExtraError: mujoco is not installed.
    """

    def __init__(self, environment: str) -> None:
        if environment not in _CLIPPED:
            raise ConfigError(
                f"environment {environment!r} has no simulator (known: {', '.join(_CLIPPED)})"
            )
        if importlib.util.find_spec("mujoco") is None:
            raise MissingExtraError("mujoco", "envs")
        self.environment = environment
        self._made = cast(Any, gymnasium.make(environment).unwrapped)
        self._positions = int(self._made.model.nq)
        self._velocities = int(self._made.model.nv)

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states."""
        states = np.empty((count, self._positions + 2 * self._velocities))
        for state, seed in zip(states, generator.integers(_RESET_SEEDS, size=count), strict=True):
            self._made.reset(seed=int(seed))
            state[:] = self._state()
        return states

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return all positions but the first, and the velocities, ``(M, O)``."""
        places, speeds, _ = self._parts(states)
        most = _CLIPPED[self.environment]
        shown = (places[:, 1:], np.clip(speeds, -most, most))
        return np.concatenate(shown, axis=1).astype(np.float32)

    def states_of(self, observations: NDArray[Any]) -> NDArray[np.float64]:
        """Return the states of ``observations`` ``(M, O)``, at position zero."""
        states = np.zeros((len(observations), self._positions + 2 * self._velocities))
        states[:, 1 : observations.shape[1] + 1] = observations
        return states

    def step(self, states: NDArray[np.float64], actions: NDArray[np.float32]) -> Step:
        """Move under ``actions`` ``(M, A)`` in [-1, 1]."""
        moved = np.empty_like(states)
        rewards, terminated = np.empty(len(states)), np.empty(len(states), dtype=bool)
        data = self._made.data
        for row, parts in enumerate(zip(*self._parts(states), strict=True)):
            data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = parts
            _, rewards[row], terminated[row], _, _ = self._made.step(actions[row])
            moved[row] = self._state()
        return Step(moved, rewards, terminated)

    def _parts(self, states: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        return np.split(states, (self._positions, self._positions + self._velocities), axis=1)

    def _state(self) -> NDArray[np.float64]:
        data = self._made.data
        return np.concatenate((data.qpos, data.qvel, data.qacc_warmstart))
