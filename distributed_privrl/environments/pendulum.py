"""Gymnasium's Pendulum-v1, many at a time."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.environments.simulators import Step

PENDULUM = "Pendulum-v1"

_GRAVITY = 10.0
_SECONDS = 0.05
_MOST_SPEED = 8.0
_MOST_TORQUE = 2.0


class Pendulum:
    """States ``(M, 2)``: the angle from upright, in radians, and its speed.

    Nothing terminates. Step for step it computes as Gymnasium does, in the same precision, so
    that recorded rows are those of the environment to the last bit.
    """

    environment = PENDULUM

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states: any angle, speeds in [-1, 1]."""
        return generator.uniform(-1.0, 1.0, size=(count, 2)) * [np.pi, 1.0]

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return cosine and sine of the angle, and the speed, ``(M, 3)``."""
        angle, speed = states.T
        return np.stack((np.cos(angle), np.sin(angle), speed), axis=1).astype(np.float32)

    def states_of(self, observations: NDArray[Any]) -> NDArray[np.float64]:
        """Return the states of ``observations`` ``(M, 3)``, with angles in [-pi, pi]."""
        cosine, sine, speed = observations.astype(np.float64).T
        return np.stack((np.arctan2(sine, cosine), speed), axis=1)

    def step(self, states: NDArray[np.float64], actions: NDArray[np.float32]) -> Step:
        """Turn for 0.05 s under torques ``(M, 1)``, clipped to [-2, 2]."""
        angle, speed = states.T
        torque = np.clip(actions[:, 0], -_MOST_TORQUE, _MOST_TORQUE)
        turned = (angle + np.pi) % (2 * np.pi) - np.pi
        cost = turned**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = speed + (1.5 * _GRAVITY * np.sin(angle) + 3.0 * torque) * _SECONDS
        speed = np.clip(speed, -_MOST_SPEED, _MOST_SPEED)
        moved = np.stack((angle + speed * _SECONDS, speed), axis=1)
        return Step(moved, -cost, np.zeros(len(states), dtype=bool))
