"""Gymnasium's CartPole-v1 and Acrobot-v1, many at a time, each row with physics of its own.

Step for step they compute as Gymnasium does, in the same precision.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.environments.simulators import Step, check_physics

CARTPOLE = "CartPole-v1"
ACROBOT = "Acrobot-v1"


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassicCartPole:
    """States ``(M, 4)``: position and speed of the cart, angle of the pole and its speed.

    Args:
        gravity: of every row, or ``(M,)``.
        force: with which the cart is pushed.
        cart_mass: of the cart.
    """

    gravity: NDArray[np.float64] | float = 9.8
    force: NDArray[np.float64] | float = 10.0
    cart_mass: NDArray[np.float64] | float = 1.0

    environment = CARTPOLE
    actions = 2

    def with_physics(self, physics: Mapping[str, NDArray[np.float64]]) -> Self:
        """Return it with other physics; see `simulators.PerturbedSimulator`."""
        check_physics(physics, ("gravity", "force", "cart_mass"), self.environment)
        return type(self)(**physics)

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states: each number in [-0.05, 0.05]."""
        return generator.uniform(-0.05, 0.05, size=(count, 4))

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the states themselves."""
        return states.astype(np.float32)

    def step(self, states: NDArray[np.float64], actions: NDArray[Any]) -> Step:
        """Push for 0.02 s, to the right where an action is 1."""
        place, speed, angle, turning = states.T
        force = np.where(actions == 1, self.force, -self.force)
        cosine, sine = np.cos(angle), np.sin(angle)
        total_mass = 0.1 + self.cart_mass
        lever = 0.1 * 0.5
        push = (force + lever * np.square(turning) * sine) / total_mass
        turned = (self.gravity * sine - cosine * push) / (
            0.5 * (4.0 / 3.0 - 0.1 * np.square(cosine) / total_mass)
        )
        moved = push - lever * turned * cosine / total_mass
        place, angle = place + 0.02 * speed, angle + 0.02 * turning
        speed, turning = speed + 0.02 * moved, turning + 0.02 * turned
        limit = 12 * 2 * np.pi / 360
        fallen = (np.abs(place) > 2.4) | (np.abs(angle) > limit)
        after = np.stack((place, speed, angle, turning), axis=1)
        return Step(after, np.ones(len(states)), fallen)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassicAcrobot:
    """States ``(M, 4)``: both angles, each from the link before, and their speeds.

    Args:
        length: of the first link (nothing depends on the second one's), of every row or ``(M,)``;
            the centres of mass stay where they are.
        first_mass: of the first link.
        second_mass: of the second link.
    """

    length: NDArray[np.float64] | float = 1.0
    first_mass: NDArray[np.float64] | float = 1.0
    second_mass: NDArray[np.float64] | float = 1.0

    environment = ACROBOT
    actions = 3

    def with_physics(self, physics: Mapping[str, NDArray[np.float64]]) -> Self:
        """Return it with other physics; see `simulators.PerturbedSimulator`."""
        check_physics(physics, ("length", "first_mass", "second_mass"), self.environment)
        return type(self)(**physics)

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states: each number in [-0.1, 0.1], in float32's precision."""
        drawn = generator.uniform(-0.1, 0.1, size=(count, 4))
        return drawn.astype(np.float32).astype(np.float64)

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return cosine and sine of both angles, and their speeds, ``(M, 6)``."""
        first, second, *speeds = states.T
        shown = (np.cos(first), np.sin(first), np.cos(second), np.sin(second), *speeds)
        return np.stack(shown, axis=1).astype(np.float32)

    def step(self, states: NDArray[np.float64], actions: NDArray[Any]) -> Step:
        """Turn the second joint for 0.2 s with torques of -1, 0 or 1: fourth order Runge-Kutta."""
        torque = actions - 1.0
        columns = np.ascontiguousarray(states.T)
        first = self._slope(columns, torque)
        second = self._slope(columns + 0.1 * first, torque)
        third = self._slope(columns + 0.1 * second, torque)
        fourth = self._slope(columns + 0.2 * third, torque)
        columns = columns + 0.2 / 6.0 * (first + 2 * second + 2 * third + fourth)
        for angle in columns[:2]:
            for _ in range(2):
                angle[angle > np.pi] -= 2 * np.pi
                angle[angle < -np.pi] += 2 * np.pi
        np.clip(columns[2], -4 * np.pi, 4 * np.pi, out=columns[2])
        np.clip(columns[3], -9 * np.pi, 9 * np.pi, out=columns[3])
        up = -np.cos(columns[0]) - np.cos(columns[1] + columns[0]) > 1.0
        return Step(columns.T.copy(), np.where(up, 0.0, -1.0), up)

    def _slope(
        self, columns: NDArray[np.float64], torque: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the derivative ``(4, M)`` of states ``(4, M)``, the book's equations."""
        first, second, first_speed, second_speed = columns
        length, mass, other = self.length, self.first_mass, self.second_mass
        middle, inertia, gravity = 0.5, 1.0, 9.8
        cosine, sine = np.cos(second), np.sin(second)
        both = mass * middle**2 + other * (length**2 + middle**2 + 2 * length * middle * cosine)
        both = both + inertia + inertia
        coupling = other * (middle**2 + length * middle * cosine) + inertia
        lower = other * middle * gravity * np.cos(first + second - np.pi / 2.0)
        upper = (
            -other * length * middle * second_speed**2 * sine
            - 2 * other * length * middle * second_speed * first_speed * sine
            + (mass * middle + other * length) * gravity * np.cos(first - np.pi / 2)
            + lower
        )
        second_turn = (
            torque
            + coupling / both * upper
            - other * length * middle * first_speed**2 * sine
            - lower
        ) / (other * middle**2 + inertia - coupling**2 / both)
        first_turn = -(coupling * second_turn + upper) / both
        return np.stack((first_speed, second_speed, first_turn, second_turn))
