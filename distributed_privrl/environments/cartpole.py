"""The cart-pole of the DeepMind Control Suite in closed form, many at a time.

The suite steps it with MuJoCo. With one cart, one pole and one soft limit, what MuJoCo solves
numerically has a solution that can be written down; tests compare both. So neither MuJoCo nor the
suite is needed, and a step of thousands costs a fraction of a microsecond each.

Reference: Tassa et al., "DeepMind Control Suite" (2018), cartpole; MuJoCo's documentation, chapter
"Computation": equations of motion, constraint model, numerical integration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.environments.simulators import Step

HORIZON = 1000
"""Steps of an episode: the suite's 10 s."""

SECONDS = 0.01
_GRAVITY = 9.81
_FORCE = 10.0
_CART_MASS = 1.0
_CART_DAMPING = 5e-4
_POLE_MASS = 0.1
_POLE_LENGTH = 1.0
_POLE_RADIUS = 0.045
_POLE_DAMPING = 2e-6
_LIMIT = 1.8
_LIMIT_SECONDS = 0.08
_LEAST_IMPEDANCE, _MOST_IMPEDANCE, _IMPEDANCE_WIDTH = 0.9, 0.95, 0.001


def _pole_inertia() -> float:
    """Return the inertia of the pole, a capsule, around its hinge at one end."""
    radius, length = _POLE_RADIUS, _POLE_LENGTH
    ends = _POLE_MASS * 4 * radius / (4 * radius + 3 * length)
    around_middle = (_POLE_MASS - ends) * (3 * radius**2 + length**2) / 12
    around_middle += ends * (2 * radius**2 / 5 + length**2 / 4 + 3 * length * radius / 8)
    return around_middle + _POLE_MASS * (length / 2) ** 2


_TOTAL_MASS = _CART_MASS + _POLE_MASS
_LEVER = _POLE_MASS * _POLE_LENGTH / 2
_INERTIA = _pole_inertia()
_UPRIGHT_INVERSE_MASS = _INERTIA / (_TOTAL_MASS * _INERTIA - _LEVER**2)
_MARGIN_SCALE = np.sqrt(-2 * np.log(0.1))
"""Makes a Gaussian 0.1 at the margin, as the suite's rewards do by default."""


@dataclass(frozen=True)
class Cartpole:
    """States ``(M, 4)``: position of the cart, angle of the pole from upright, and their speeds.

    Nothing terminates.

    Args:
        environment: the Gymnasium id.
        swing_up: start with the pole hanging, instead of nearly upright.
    """

    environment: str
    swing_up: bool

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states."""
        if self.swing_up:
            places = [0.0, np.pi] + 0.01 * generator.standard_normal((count, 2))
        else:
            places = generator.uniform(-1.0, 1.0, size=(count, 2)) * [0.1, 0.034]
        speeds = 0.01 * generator.standard_normal((count, 2))
        return np.concatenate((places, speeds), axis=1)

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return position, cosine and sine of the angle, and both speeds, ``(M, 5)``."""
        place, angle, *speeds = states.T
        shown = (place, np.cos(angle), np.sin(angle), *speeds)
        return np.stack(shown, axis=1).astype(np.float32)

    def states_of(self, observations: NDArray[Any]) -> NDArray[np.float64]:
        """Return the states of ``observations`` ``(M, 5)``, with angles in [-pi, pi]."""
        place, cosine, sine, *speeds = observations.astype(np.float64).T
        return np.stack((place, np.arctan2(sine, cosine), *speeds), axis=1)

    def step(self, states: NDArray[np.float64], actions: NDArray[np.float32]) -> Step:
        """Push for 0.01 s with ``actions`` ``(M, 1)`` times 10 N, clipped to [-1, 1].

        The fourth order Runge-Kutta method.
        """
        control = actions[:, 0].astype(np.float64)
        force = _FORCE * np.clip(control, -1.0, 1.0)
        columns = np.ascontiguousarray(states.T)
        first = _slope(columns, force)
        second = _slope(columns + SECONDS / 2 * first, force)
        third = _slope(columns + SECONDS / 2 * second, force)
        fourth = _slope(columns + SECONDS * third, force)
        columns = columns + SECONDS / 6 * (first + 2 * (second + third) + fourth)
        rewards = _rewards(columns, control)
        return Step(columns.T.copy(), rewards, np.zeros(len(states), dtype=bool))


BALANCE = "privrl/CartpoleBalance-v0"
SWINGUP = "privrl/CartpoleSwingup-v0"
CARTPOLES: Mapping[str, Cartpole] = {
    BALANCE: Cartpole(BALANCE, swing_up=False),
    SWINGUP: Cartpole(SWINGUP, swing_up=True),
}


def _slope(columns: NDArray[np.float64], force: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the derivative ``(4, M)`` of states ``(4, M)`` under ``force`` ``(M,)`` on the cart.

    Both accelerations without the limit are ``inverse mass matrix * forces``; the limit adds a
    force on the cart that depends on the cart's acceleration, and may only push back.
    """
    place, angle, speed, turning = columns
    coupling = _LEVER * np.cos(angle)
    sine = np.sin(angle)
    on_cart = force - _CART_DAMPING * speed + _LEVER * sine * turning**2
    on_pole = _LEVER * _GRAVITY * sine - _POLE_DAMPING * turning
    determinant = _TOTAL_MASS * _INERTIA - coupling**2
    beyond = np.abs(place) > _LIMIT
    if beyond.any():
        free = (_INERTIA * on_cart - coupling * on_pole)[beyond] / determinant[beyond]
        inverse_mass = _INERTIA / determinant[beyond]
        on_cart[beyond] += _limit_force(place[beyond], speed[beyond], free, inverse_mass)
    return np.stack(
        (
            speed,
            turning,
            (_INERTIA * on_cart - coupling * on_pole) / determinant,
            (_TOTAL_MASS * on_pole - coupling * on_cart) / determinant,
        )
    )


def _limit_force(
    place: NDArray[np.float64],
    speed: NDArray[np.float64],
    free: NDArray[np.float64],
    inverse_mass: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the force of the soft limit on carts that are beyond it.

    Args:
        place: (M,) positions of the cart.
        speed: (M,) its speeds.
        free: (M,) its accelerations without the limit.
        inverse_mass: (M,) acceleration that a unit of force adds.

    Reference: MuJoCo's documentation, "Solver parameters": impedance, reference acceleration; with
    a single constraint the solver's minimum is where ``f = -(a + A f - reference) / R``.
    """
    inwards = -np.sign(place)
    depth = np.abs(place) - _LIMIT
    reach = np.minimum(depth / _IMPEDANCE_WIDTH, 1.0)
    bend = np.where(reach <= 0.5, 2 * reach**2, 1 - 2 * (1 - reach) ** 2)
    impedance = _LEAST_IMPEDANCE + bend * (_MOST_IMPEDANCE - _LEAST_IMPEDANCE)
    regularisation = (1 - impedance) / impedance * _UPRIGHT_INVERSE_MASS
    damping = 2 / (_MOST_IMPEDANCE * _LIMIT_SECONDS)
    stiffness = (damping / 2) ** 2
    reference = stiffness * impedance * depth - damping * inwards * speed
    push = (reference - inwards * free) / (regularisation + inverse_mass)
    return inwards * np.maximum(push, 0.0)


def _rewards(columns: NDArray[np.float64], control: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the suite's smooth rewards ``(M,)`` of states ``(4, M)`` that were arrived at."""
    place, angle, _, turning = columns
    upright = (np.cos(angle) + 1) / 2
    centred = (1 + np.exp(-0.5 * (place / 2 * _MARGIN_SCALE) ** 2)) / 2
    small_control = (4 + np.maximum(1 - control**2, 0.0)) / 5
    small_turning = (1 + np.exp(-0.5 * (turning / 5 * _MARGIN_SCALE) ** 2)) / 2
    rewards: NDArray[np.float64] = upright * small_control * small_turning * centred
    return rewards
