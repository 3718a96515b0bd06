"""A finite MDP as a Gymnasium environment."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.problems import PROBLEMS, tabular_problem
from distributed_privrl.environments.tabular import TabularMdp


class TabularEnvironment(gymnasium.Env[np.int64, np.int64]):
    """Steps through a finite MDP; the observation is the number of the state.

    Arriving at a terminal state terminates; the horizon truncates.

    Args:
        problem: the MDP, or the Gymnasium id of a registered one.

    Raises:
        ConfigError: no such problem.
        MissingExtraError: the problem's package is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, problem: TabularMdp | str, render_mode: None = None) -> None:
        mdp = tabular_problem(problem) if isinstance(problem, str) else problem
        if mdp is None:
            raise ConfigError(f"problem {problem!r} is unknown (known: {', '.join(PROBLEMS)})")
        self.mdp = mdp
        self.render_mode = render_mode
        self.reward_range = mdp.reward_range
        self.observation_space = gymnasium.spaces.Discrete(mdp.states)
        self.action_space = gymnasium.spaces.Discrete(mdp.actions)
        self._state = 0
        self._steps: int | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start in a state drawn from the initial distribution.

        Args:
            seed: seeds the environment's generator.
            options: ``{"state": s}`` starts there instead.

        Raises:
            ConfigError: an unknown option, or no state that an episode can go on from.
        """
        super().reset(seed=seed)
        unknown = sorted(set(options or {}) - {"state"})
        if unknown:
            raise ConfigError(f"reset options {unknown} are unknown (known: state)")
        state = (options or {}).get("state")
        if state is None:
            state = self._draw(self.mdp.initial)
        elif state not in self.observation_space or self.mdp.terminal[state]:
            raise ConfigError(f"reset option state must be a state that goes on, got {state!r}")
        self._state, self._steps = int(state), 0
        return np.int64(self._state), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Take an action; see `gymnasium.Env.step`.

        Raises:
            ConfigError: no such action, or the episode is over.
        """
        if self._steps is None:
            raise ConfigError("the episode is over: call reset before step")
        if action not in self.action_space:
            raise ConfigError(f"action must lie in {self.action_space}, got {action!r}")
        stage = self._steps % len(self.mdp.transitions)
        arrival = self._draw(self.mdp.transitions[stage, self._state, action])
        reward = self.mdp.rewards[stage, self._state, action] + self.mdp.arrival_rewards[arrival]
        self._state, self._steps = arrival, self._steps + 1
        terminated = bool(self.mdp.terminal[arrival])
        truncated = not terminated and self._steps == self.mdp.horizon
        if terminated or truncated:
            self._steps = None
        return np.int64(arrival), float(reward), terminated, truncated, {}

    def _draw(self, probabilities: Any) -> int:
        """Return an index with these probabilities, which may be off by a rounding."""
        cumulative = np.cumsum(probabilities, dtype=np.float64)
        drawn = np.searchsorted(cumulative, self.np_random.random() * cumulative[-1], side="right")
        return int(min(drawn, np.flatnonzero(probabilities)[-1]))
