"""What DP-APVI does, as public facts, and the noise of what it releases."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.value_iteration.counts import (
    REWARD_UNIT,
    CountLayout,
    check_reward_unit,
)
from distributed_privrl.methods.value_iteration.pessimism import Pessimism
from distributed_privrl.methods.value_iteration.step_noise import Release, StepNoise, check_cells
from distributed_privrl.privacy.units import Relation


@dataclass(frozen=True, kw_only=True, eq=False)
class TabularSettings:
    """What DP-APVI needs beside the data: public facts.

    Rewards keep their own units: values lie between k low and k high with k steps to go, where
    (low, high) is the declared range, widened to hold 0 where episodes can end (a finished one goes
    on earning 0), and penalties are those of the paper times high - low. That equals mapping
    rewards to [0, 1] by the affine map of that range, running the paper's algorithm and mapping
    values back.

    Args:
        layout: which cells are counted.
        stationary: the policy has one rule for all time steps, that of the first: what is best
            with all of the horizon to go; needs ``layout.pooled``.
        rewards: known expected reward of each pair, ``(S, A)`` or ``(H, S, A)``; None: estimated
            from noisy sums (``layout.estimate_reward``), clipped to the range.
        arrival_rewards: known further reward for arriving in a state, ``(S,)``; needs
            ``layout.terminal``. Clusters have the mean of their states' known rewards.
        pessimism: penalties and their constants.
        noise: of a release; None: APVI, without privacy.
        relation: what the noise is for.

    Raises:
        ConfigError: shapes or values that do not fit together.
        UnsafeError: the noise was planned for vectors of another size.
    """

    layout: CountLayout
    stationary: bool = False
    rewards: NDArray[np.float64] | None = None
    arrival_rewards: NDArray[np.float64] | None = None
    pessimism: Pessimism = field(default_factory=Pessimism)
    noise: StepNoise | None = None
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        layout = self.layout
        if self.stationary and not layout.pooled:
            raise ConfigError("stationary needs layout.pooled: one model for all time steps")
        if (self.rewards is None) != layout.estimate_reward:
            raise ConfigError("rewards must be given, or layout.estimate_reward set: one of them")
        shape = (layout.states, layout.actions)
        if self.rewards is not None and self.rewards.shape not in (shape, (layout.horizon, *shape)):
            raise ConfigError(
                f"rewards must be {shape} or {(layout.horizon, *shape)}, got {self.rewards.shape}"
            )
        if self.arrival_rewards is not None:
            self._check_arrival(self.arrival_rewards)
        self._check_range()
        if self.noise is not None:
            check_cells(self.noise, layout.dimension)
        check_reward_unit(self.unit)

    @cached_property
    def release(self) -> Release | None:
        """What adds the noise: made for how far one unit moves these counts."""
        if self.noise is None:
            return None
        sensitivities = self.layout.sensitivities(self.relation)
        return self.noise.release(
            sensitivity=sensitivities.l1 if self.noise.law == "laplace" else sensitivities.l2,
            dimension=self.layout.dimension,
        )

    @property
    def unit(self) -> float:
        """What sums are whole multiples of: 1 is one, too."""
        return REWARD_UNIT if self.release is None else self.release.lattice

    def _check_arrival(self, arrival: NDArray[np.float64]) -> None:
        if arrival.shape != (self.layout.states,):
            raise ConfigError(f"arrival_rewards must be ({self.layout.states},): {arrival.shape}")
        if self.layout.estimate_reward:
            raise ConfigError("arrival_rewards belong to known rewards, not to estimated ones")
        if self.layout.terminal is None:
            raise ConfigError(
                "arrival_rewards need layout.terminal: say which states end an episode, or that"
                " none does"
            )

    def _check_range(self) -> None:
        if self.rewards is None:
            return
        low, high = self.layout.reward_range
        arrival = np.zeros(1) if self.arrival_rewards is None else self.arrival_rewards
        terminal = self.layout.terminal
        states = np.ones(self.layout.states, np.bool_) if terminal is None else ~terminal
        lows, highs = self.rewards[..., states, :].min(), self.rewards[..., states, :].max()
        fits = low <= lows + arrival.max() and highs + arrival.min() <= high
        fits &= bool(low <= highs + arrival.min() and lows + arrival.max() <= high)
        if not (fits and np.isfinite(self.rewards).all() and np.isfinite(arrival).all()):
            raise ConfigError(
                f"rewards and arrival_rewards leave reward_range={self.layout.reward_range}:"
                " declare the range of their sum"
            )
