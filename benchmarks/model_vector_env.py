"""The pessimistic model as a Gymnasium vector environment, for RLlib and other libraries."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.methods.primorl.model_environment import ModelEnvironment, Range

_Array = NDArray[Any]


class ModelVectorEnv(VectorEnv[_Array, _Array, _Array]):
    """Rollouts of a model in parallel; one that is over starts anew at its next step.

    Args:
        environment: model and start states.
        num_envs: rollouts (M).
        horizon: steps after which a rollout is truncated (H).

    Raises:
        ConfigError: a size is not positive.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's)
        "autoreset_mode": AutoresetMode.NEXT_STEP,
        "render_modes": [],
    }

    def __init__(self, environment: ModelEnvironment, *, num_envs: int, horizon: int) -> None:
        check_positive("num_envs", num_envs)
        check_positive("horizon", horizon)
        facts = environment.model.facts
        self.num_envs = num_envs
        self.single_observation_space: gymnasium.Space[Any] = _box(facts.observations)
        self.single_action_space: gymnasium.Space[Any] = _box(facts.actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._environment, self._horizon = environment, horizon
        self._generator = torch.Generator()
        self._observations = torch.zeros(num_envs, facts.observation_width)
        self._ages = torch.zeros(num_envs, dtype=torch.int64)
        self._over = torch.zeros(num_envs, dtype=torch.bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[_Array, dict[str, Any]]:
        """Begin every rollout anew.

        Args:
            seed: of all that follows; None goes on with the stream, or draws a seed for the first
                time.
            options: none are known.

        Returns:
            observations (M, O), and no infos.
        """
        super().reset(seed=seed, options=options)
        if seed is not None or self._np_random is None:
            self._generator.manual_seed(int(self.np_random.integers(2**63 - 1)))
        self._observations = self._environment.reset(self.num_envs, self._generator)
        self._ages.zero_()
        self._over.zero_()
        return self._observations.numpy().copy(), {}

    def step(self, actions: _Array) -> tuple[_Array, _Array, _Array, _Array, dict[str, Any]]:
        """Step every rollout; one that was over begins anew instead, its action unused.

        Args:
            actions: (M, A).

        Returns:
            observations (M, O), rewards, terminated and truncated (M,) each, and no infos.
        """
        raw = torch.from_numpy(np.asarray(actions, np.float32)).reshape(self.num_envs, -1)
        limits = self._environment.model.facts.actions
        after, rewards, terminated = self._environment.step(
            self._observations, limits.clip(raw), self._generator
        )
        begun = self._over.nonzero().squeeze(1)
        self._ages += 1
        if len(begun):
            fresh = self._environment.reset(len(begun), self._generator)
            after = after.index_copy(0, begun, fresh)
            rewards = rewards.index_fill(0, begun, 0.0)
            terminated = terminated & ~self._over
            self._ages[begun] = 0
        truncated = self._ages >= self._horizon
        self._observations, self._over = after, terminated | truncated
        flags = (terminated.numpy().copy(), truncated.numpy().copy())
        return after.numpy().copy(), rewards.numpy().copy(), *flags, {}


def _box(limits: Range) -> Box:
    return Box(limits.low.numpy(), limits.high.numpy(), dtype=np.float32)
