"""The cart-pole of the DeepMind Control Suite as a Gymnasium environment."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.cartpole import CARTPOLES, Cartpole

Observation = NDArray[np.float32]
Action = NDArray[np.float32]


class CartpoleEnv(gymnasium.Env[Observation, Action]):
    """The suite's tasks ``balance`` and ``swingup``, without rendering.

    The observation is the suite's, in its order: position of the cart, cosine and sine of the
    pole's angle, both speeds. The action is a force on the cart in [-1, 1]. Nothing terminates.

    Args:
        task: Gymnasium id.

    Raises:
        ConfigError: no such task.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration
    reward_range = (0.0, 1.0)

    def __init__(self, *, task: str, render_mode: None = None) -> None:
        if task not in CARTPOLES:
            raise ConfigError(f"task must be one of {', '.join(CARTPOLES)}, got {task!r}")
        self._cartpole: Cartpole = CARTPOLES[task]
        self.render_mode = render_mode
        widest = np.array([np.inf, 1, 1, np.inf, np.inf], dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(-widest, widest, dtype=np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, shape=(1,), dtype=np.float32)
        self._state = np.zeros((1, 4))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start as the task does.

        Args:
            seed: seeds the environment's generator.
            options: ``{"state": (x, angle, speed, turning)}`` starts there instead.

        Raises:
            ConfigError: an unknown option, or a state that is not four finite numbers.
        """
        super().reset(seed=seed)
        unknown = sorted(set(options or {}) - {"state"})
        if unknown:
            raise ConfigError(f"reset options {unknown} are unknown (known: state)")
        state = (options or {}).get("state")
        if state is None:
            self._state = self._cartpole.reset(1, self.np_random)
        else:
            given = np.asarray(state, dtype=np.float64)
            if given.shape != (4,) or not np.isfinite(given).all():
                raise ConfigError(f"reset option state must be 4 finite numbers, got {state!r}")
            self._state = given[None]
        return self._cartpole.observe(self._state)[0], {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Push for 0.01 s; see `gymnasium.Env.step`.

        Raises:
            ConfigError: the action is not one finite number.
        """
        force = np.asarray(action, dtype=np.float32)
        if force.shape != (1,) or not np.isfinite(force).all():
            raise ConfigError(f"action must be one finite number, got {action!r}")
        self._state, rewards, _ = self._cartpole.step(self._state, force[None])
        return self._cartpole.observe(self._state)[0], float(rewards[0]), False, False, {}
