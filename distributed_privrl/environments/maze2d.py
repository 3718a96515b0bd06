"""D4RL's maze2d as a Gymnasium environment: push a ball through a maze to a fixed goal."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.mazes import Maze
from distributed_privrl.environments.point_mass import PointMass
from distributed_privrl.environments.random_mazes import maze_named

Observation = NDArray[np.float32]
Action = NDArray[np.float32]


class Maze2DEnv(gymnasium.Env[Observation, Action]):
    """A point mass in a maze, without rendering.

    The observation is ``(x, y, vx, vy)``, the action two forces in [-1, 1]. The reward is 1 within
    0.5 m of the goal and else 0, or exp(-distance). Reaching the goal ends nothing: the return
    counts the steps spent there. ``step`` and ``reset`` report ``{"success": bool}``.

    Args:
        maze: name of the maze.
        dense: exp(-distance) as the reward.

    Raises:
        ConfigError: no such maze.
        MissingExtraError: mujoco or gymnasium-robotics is not installed.

    Reference: Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", appendix A.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration
    reward_range = (0.0, 1.0)

    def __init__(self, *, maze: str, dense: bool = False, render_mode: None = None) -> None:
        self._point_mass = PointMass(maze)
        self._maze: Maze = maze_named(maze)
        self._dense = dense
        self.render_mode = render_mode
        bounds = self._maze.bounds
        self.observation_space = gymnasium.spaces.Box(-bounds, bounds, dtype=np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, shape=(2,), dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start near the middle of a random free cell.

        Args:
            seed: seeds the environment's generator.
            options: ``{"state": (x, y, vx, vy)}`` starts there instead.

        Raises:
            ConfigError: an unknown option, or a state outside the free cells.
        """
        super().reset(seed=seed)
        self._point_mass.reset(self._start(dict(options or {})))
        observation = self._observe()
        return observation, {"success": bool(self._maze.rewards(observation, dense=False))}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Push for 0.01 s; see `gymnasium.Env.step`.

        Raises:
            ConfigError: the action is not two finite numbers.
        """
        self._point_mass.step(action.tolist())
        observation = self._observe()
        reward = success = float(self._maze.rewards(observation, dense=False))
        if self._dense:
            reward = float(self._maze.rewards(observation, dense=True))
        return observation, reward, False, False, {"success": bool(success)}

    def _observe(self) -> Observation:
        return np.array(self._point_mass.state, dtype=np.float32)

    def _start(self, options: dict[str, Any]) -> Sequence[float]:
        state = options.pop("state", None)
        if options:
            raise ConfigError(f"reset options {sorted(options)} are unknown (known: state)")
        if state is None:
            return tuple(self._maze.draw_start(self.np_random))
        state = np.asarray(state, dtype=np.float64)
        if state.shape != (4,) or not np.isfinite(state).all():
            raise ConfigError(f"reset option state must be 4 finite numbers, got {state.tolist()}")
        if self._maze.cell(state[0], state[1]) not in self._maze.free_cells:
            raise ConfigError(f"reset option state {state.tolist()} lies inside a wall")
        return tuple(state)
