"""A simulator whose episodes end when a number has been counted down, and pay its rest."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.environments.simulators import Step


class Countdown:
    """States (M, 1): what is left. Row i of a reset has i + 1 left; an action is subtracted."""

    environment = "countdown"

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        return np.arange(1.0, count + 1)[:, None]

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        return states.astype(np.float32)

    def states_of(self, observations: NDArray[Any]) -> NDArray[np.float64]:
        return observations.astype(np.float64)

    def step(self, states: NDArray[np.float64], actions: NDArray[np.float32]) -> Step:
        assert (states > 0).all(), "an episode that is over was stepped"
        left = states - actions
        return Step(left, left[:, 0], left[:, 0] <= 0)
