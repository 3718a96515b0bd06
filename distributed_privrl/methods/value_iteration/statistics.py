"""The worker of DP-VAPVI: raw sums over its shard, one time step at a time."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.hashing import mix
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.integer_sums import Lattice, gram_steps, row_steps
from distributed_privrl.methods.value_iteration.rows import TrajectorySource, step_rows

_HALF_SALT = np.uint64(0x452821E638D01377)


@dataclass(frozen=True, kw_only=True)
class StatisticsSpec:
    """What a worker is built from: a reference to data and public facts.

    Args:
        source: where its trajectories are.
        features: the public feature map.
        horizon: time steps H; later ones are left out.
        reward_range: declared bounds of a reward; rewards are clipped to them, then mapped to
            [0, 1].
        split: variance and value statistics come from two disjoint halves of the units; otherwise
            both come from all.
        max_trajectories_per_unit: public cap m; a unit's further trajectories are left out.

    Raises:
        ConfigError: a value is out of range.
    """

    source: TrajectorySource
    features: FeatureMap
    horizon: int
    reward_range: tuple[float, float] = (0.0, 1.0)
    split: bool = True
    max_trajectories_per_unit: int = 1

    def __post_init__(self) -> None:
        check_positive("horizon", self.horizon)
        check_positive("max_trajectories_per_unit", self.max_trajectories_per_unit)
        check_reward_range(self.reward_range)


def check_reward_range(reward_range: tuple[float, float]) -> None:
    """Check that the declared bounds of a reward are finite and rise.

    Raises:
        ConfigError: otherwise.
    """
    low, high = reward_range
    if not (np.isfinite([low, high]).all() and low < high):
        raise ConfigError(f"reward_range must be finite with low < high, got {reward_range}")


class VarianceSums(NamedTuple):
    """Raw sums over the variance half D', in steps: private, for the server's process alone."""

    gram: NDArray[np.int64]
    squares: NDArray[np.int64]
    values: NDArray[np.int64]


class ValueSums(NamedTuple):
    """Raw sums over the value half D, in steps: private, for the server's process alone."""

    gram: NDArray[np.int64]
    targets: NDArray[np.int64]


class VarianceLattices(NamedTuple):
    """What terms of `VarianceSums` are rounded to, one by one: public."""

    gram: Lattice
    squares: Lattice
    values: Lattice


class ValueLattices(NamedTuple):
    """What terms of `ValueSums` are rounded to, one by one: public."""

    gram: Lattice
    targets: Lattice


def variance_half(unit_ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Say which units belong to the variance half D', (U,), by a public hash of the id alone."""
    return np.asarray(mix(unit_ids ^ _HALF_SALT) >> np.uint64(63) == 1)


class StatisticsWorker:
    """Owns a shard and answers the sums of a time step, over the steps that count.

    Privacy: a unit adds to each sum at most m terms a time step: phi phi^T w, phi y or phi y w with
    |phi| <= 1, a weight w in (0, 1] and y within the bounds of the arguments. Each term is rounded
    to a public lattice for itself, and integers are added: exact, in any order. With ``split`` no
    unit is in both kinds of sums. The sums are raw: the server adds noise to them before anything
    else. Sensitivities: `linear_sensitivity`.
    """

    def __init__(self, spec: StatisticsSpec) -> None:
        self._features, self._split = spec.features, spec.split
        states, actions = self._features.shape
        rows = step_rows(
            spec.source(),
            states=states,
            actions=actions,
            horizon=spec.horizon,
            reward_range=spec.reward_range,
            max_trajectories_per_unit=spec.max_trajectories_per_unit,
        )
        order = np.argsort(rows.times, kind="stable")
        self._offsets = np.searchsorted(rows.times[order], np.arange(spec.horizon + 1))
        self._pairs = (rows.states * actions + rows.actions)[order]
        self._next_states, self._rewards = rows.next_states[order], rows.rewards[order]
        self._terminated = rows.terminated[order]
        self._in_variance_half = variance_half(rows.unit_ids[order])

    def variance_statistics(
        self,
        time_step: int,
        next_values: NDArray[np.float64],
        end_value: float | None,
        lattices: VarianceLattices,
    ) -> VarianceSums:
        """Return the sums of phi phi^T, phi V(s')^2 and phi V(s') over the variance half.

        Args:
            time_step: h - 1, from 0.
            next_values: ``(S,)`` public V_{h+1}, possibly shifted.
            end_value: the same after a terminated step; None: the flag is ignored.
            lattices: of each sum.
        """
        rows, values = self._rows(time_step, next_values, end_value, half=True)
        pairs = self._pairs[rows]
        return VarianceSums(  # DP-VAPVI, algorithm 2, lines 4 to 6
            self._gram(pairs, np.ones(self._features.shape), lattices.gram),
            row_steps(self._features, pairs, values**2, lattices.squares),
            row_steps(self._features, pairs, values, lattices.values),
        )

    def value_statistics(
        self,
        time_step: int,
        next_values: NDArray[np.float64],
        end_value: float | None,
        lattices: ValueLattices,
        variances: NDArray[np.float64] | None = None,
    ) -> ValueSums:
        """Return the sums of w phi phi^T and w phi (r + V(s')) over the value half.

        Args:
            time_step: h - 1, from 0.
            next_values: ``(S,)`` public V_{h+1}, possibly shifted.
            end_value: the same after a terminated step; None: the flag is ignored.
            lattices: of each sum.
            variances: ``(S, A)`` public sigma^2 >= 1, with w = 1 / sigma^2; None: 1.

        Raises:
            ConfigError: a variance below 1, whose weight would break the sensitivity.
        """
        if variances is not None and not (variances >= 1).all():
            raise ConfigError("variances must be at least 1: smaller ones break the sensitivity")
        weights = np.ones(self._features.shape) if variances is None else 1 / variances
        rows, values = self._rows(time_step, next_values, end_value, half=False)
        pairs = self._pairs[rows]
        targets = (self._rewards[rows] + values) * weights.reshape(-1)[pairs]
        return ValueSums(  # DP-VAPVI, algorithm 2, lines 9 and 10
            self._gram(pairs, weights, lattices.gram),
            row_steps(self._features, pairs, targets, lattices.targets),
        )

    def _gram(
        self, pairs: NDArray[np.int64], weights: NDArray[np.float64], lattice: Lattice
    ) -> NDArray[np.int64]:
        counts = np.bincount(pairs, minlength=weights.size).reshape(weights.shape)
        return gram_steps(self._features, counts, weights, lattice)

    def _rows(
        self,
        time_step: int,
        next_values: NDArray[np.float64],
        end_value: float | None,
        *,
        half: bool,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the rows of a time step in one of the halves, and V(s') of each."""
        rows = np.arange(self._offsets[time_step], self._offsets[time_step + 1])
        if self._split:
            rows = rows[self._in_variance_half[rows] == half]
        values = next_values[self._next_states[rows]]
        if end_value is not None:
            values[self._terminated[rows]] = end_value
        return rows, values
