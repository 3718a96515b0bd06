"""The policy that value iteration learns: an action for every time step and state."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.numpy
from numpy.typing import ArrayLike, NDArray

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import write_atomically


@dataclass(frozen=True, kw_only=True, eq=False)
class GreedyPolicy:
    """A deterministic policy for finitely many states and time steps.

    Args:
        actions: (H, S) int64, action at each time step and state.
        values: (H + 1, S) float64, pessimistic estimate of what follows; the last is the end.
        penalties: (H, S, A) float64, what was subtracted from each action's value, or None.
        known: (H, S, A) bool, where the noisy count of visits is above the level of its noise
            (algorithm 1: the projected count above E; DP-VAPVI: two standard deviations), or None.
        count_noise: () float64, standard deviation of that noise in visits, or None.

    Raises:
        ConfigError: types or shapes that do not fit together.
    """

    actions: NDArray[np.int64]
    values: NDArray[np.float64]
    penalties: NDArray[np.float64] | None = None
    known: NDArray[np.bool_] | None = None
    count_noise: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        actions, values, penalties = self.actions, self.values, self.penalties
        if actions.dtype != np.int64 or actions.ndim != 2 or not actions.size or actions.min() < 0:
            raise ConfigError(
                f"actions must be non-negative int64 (H, S), got {actions.dtype} {actions.shape}"
            )
        horizon, states = actions.shape
        if values.dtype != np.float64 or values.shape != (horizon + 1, states):
            raise ConfigError(
                f"values must be float64 {(horizon + 1, states)}, got {values.dtype} {values.shape}"
            )
        for name, table, dtype in (
            ("penalties", penalties, np.float64),
            ("known", self.known, np.bool_),
        ):
            if table is not None and (
                table.dtype != dtype
                or table.ndim != 3
                or table.shape[:2] != actions.shape
                or table.shape[2] <= actions.max()
            ):
                raise ConfigError(
                    f"{name} must be {np.dtype(dtype)} {(horizon, states)} + (A,), got"
                    f" {table.dtype} {table.shape}"
                )

    @property
    def horizon(self) -> int:
        """The number of time steps, H."""
        return int(self.actions.shape[0])

    @property
    def states(self) -> int:
        """The number of states, S."""
        return int(self.actions.shape[1])

    @property
    def knows_taken(self) -> NDArray[np.bool_] | None:
        """Where the action that is taken is ``known``, (H, S)."""
        if self.known is None:
            return None
        return np.take_along_axis(self.known, self.actions[..., None], axis=2)[..., 0]

    def act(self, observations: ArrayLike, step: int) -> NDArray[np.int64]:
        """Return the actions ``(N,)`` in ``observations`` ``(N,)`` at time ``step``, from 0.

        From ``step`` = H on, the rule of the last time step goes on: that for one step to go, which
        looks no further than the next reward, and no value or certificate says what it earns there.
        A stationary policy has the same rule at every step.

        Raises:
            ConfigError: ``step`` is negative, or an observation is no state.
        """
        states = np.asarray(observations)
        if step < 0:
            raise ConfigError(f"step must be at least 0, got {step}")
        if states.dtype.kind not in "iu" or np.any((states < 0) | (states >= self.states)):
            raise ConfigError(f"observations must be integers in [0, {self.states}), got {states}")
        return np.asarray(self.actions[min(step, self.horizon - 1)][states])

    def save(self, path: Path) -> None:
        """Write the policy to ``path`` as safetensors.

        Raises:
            StorageError: the file cannot be written.
        """
        tensors: dict[str, NDArray[Any]] = {"actions": self.actions, "values": self.values}
        optional = {
            "penalties": self.penalties,
            "known": self.known,
            "count_noise": self.count_noise,
        }
        tensors |= {name: value for name, value in optional.items() if value is not None}
        contiguous = {name: np.array(value, order="C") for name, value in tensors.items()}
        write_atomically(path, safetensors.numpy.save(contiguous))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Return the policy in ``path``; verify its certificate first.

        Raises:
            StorageError: the file is missing, damaged or holds no greedy policy.
        """
        try:
            tensors = safetensors.numpy.load(Path(path).read_bytes())
            if undefined := sorted(name for name, one in tensors.items() if np.isnan(one).any()):
                raise ConfigError(f"{', '.join(undefined)} has numbers that are none (NaN)")
            return cls(**tensors)
        except Exception as error:
            raise StorageError(
                f"cannot read a greedy policy from {path}: {error}; give the file that a run of"
                " apvi or vapvi wrote"
            ) from error
