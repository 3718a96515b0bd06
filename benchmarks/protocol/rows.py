"""Transitions of a maze as a judge sees them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRANSITION, Transitions


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Transitions.

    Args:
        observations: ``(N, 4)``.
        actions: ``(N, 2)``.
        rewards: ``(N,)``.
        next_observations: ``(N, 4)``.
    """

    observations: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]
    next_observations: NDArray[np.float32]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rewards)

    def chosen(self, index: NDArray[Any]) -> "Rows":
        """Return the rows that ``index`` picks."""
        return Rows(
            observations=self.observations[index],
            actions=self.actions[index],
            rewards=self.rewards[index],
            next_observations=self.next_observations[index],
        )

    def finite(self) -> "Rows":
        """Return the rows whose numbers are all finite.

        Raises:
            ConfigError: there is none.
        """
        parts = (self.observations, self.actions, self.rewards[:, None], self.next_observations)
        kept = np.logical_and.reduce([np.isfinite(part).all(axis=1) for part in parts])
        if not kept.any():
            raise ConfigError("no row is finite: nothing can be judged")
        return self.chosen(kept)


def read_rows(store: DatasetStore, dataset: str) -> Rows:
    """Return the transitions of a dataset, real or synthetic."""
    return rows_of(store.read_transitions(dataset, unit=TRANSITION))


def rows_of(found: Transitions) -> Rows:
    """Return transitions of a maze as a judge sees them."""
    return Rows(
        observations=found.observations,
        actions=found.actions,
        rewards=found.rewards,
        next_observations=found.next_observations,
    )
