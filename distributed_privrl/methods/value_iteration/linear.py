"""DP-VAPVI and DP-PEVI: pessimistic value iteration in a linear MDP from noisy sums.

Reference: DP-VAPVI, algorithm 2; without noise and without a split VAPVI (Yin et al. 2022), or
PEVI (Jin et al. 2021).
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.integer_sums import FineLattice, Lattice
from distributed_privrl.methods.value_iteration.linear_sensitivity import vector_to_symmetric
from distributed_privrl.methods.value_iteration.linear_settings import (
    LinearSettings,
    Statistic,
    ValueBounds,
    releases,
    weighs_variances,
    worst_bounds,
)
from distributed_privrl.methods.value_iteration.pessimism import PRACTICAL_DEVIATIONS
from distributed_privrl.methods.value_iteration.policy import GreedyPolicy
from distributed_privrl.methods.value_iteration.ridge import Regression, regression
from distributed_privrl.methods.value_iteration.statistics import (
    ValueLattices,
    VarianceLattices,
)
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.rounds.releases import Program

_TAGS = {statistic: tag for tag, statistic in enumerate(Statistic)}


class LinearProgram(Program):
    """Learns the policy step by step, the last time step first.

    Args:
        settings: public settings.

    Privacy: unit and relation: the settings'. Each step releases what `releases` lists and draws
    its noise here, once, after the sum over workers; all else is post-processing. What survives a
    step is the table of values and actions. Event: one
    ``discrete_gaussian`` of the settings' noise multiplier a step and half, see
    `plan.linear_plan`.
    """

    def __init__(self, settings: LinearSettings) -> None:
        self._settings = settings
        states, _ = settings.features.shape
        self._values = np.zeros((settings.horizon + 1, states))
        self._actions = np.zeros((settings.horizon, states), dtype=np.int64)
        self._known = np.zeros((settings.horizon, *settings.features.shape), np.bool_)
        self._pool = _Pool(settings.features)
        self._steps_done = 0

    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        """Learn time step h = H - ``index`` from the values of the next one; see `Program.step`.

        Raises:
            ConfigError: another step is due.
            UnsafeError: noise without a noise multiplier, or the other way round.
        """
        if (noise is None) != (self._settings.noise_multiplier is None):
            raise UnsafeError("noise and settings.noise_multiplier go together: give both or none")
        if index != self._steps_done or index >= self._settings.horizon:
            raise ConfigError(f"index must be {self._steps_done}, the step due, got {index}")
        step = _Step(self._settings, index, self._values[-1 - index], workers, noise)
        pool = copy.deepcopy(self._pool)  # an interrupted step leaves nothing behind
        learned = step.learn(pool)
        time_step = self._settings.horizon - 1 - index
        self._actions[time_step] = learned.argmax(axis=1)  # algorithm 2, line 14
        self._values[time_step] = learned.max(axis=1)
        self._known[time_step] = step.known
        self._pool = pool
        self._steps_done = index + 1

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what a resume needs: noisy values, actions and pooled Gram matrices."""
        return {name: torch.from_numpy(array.copy()) for name, array in self._arrays().items()}

    def restore(self, tensors: Mapping[str, torch.Tensor], steps_done: int) -> None:
        """Go back to where `tensors` was called, after ``steps_done`` steps.

        Raises:
            ConfigError: tensors of another shape, or no such step.
        """
        if not 0 <= steps_done <= self._settings.horizon:
            raise ConfigError(
                f"steps_done must lie in [0, horizon={self._settings.horizon}], got {steps_done}"
            )
        for name, array in self._arrays().items():
            if name not in tensors or tuple(tensors[name].shape) != array.shape:
                raise ConfigError(f"tensors[{name!r}] must have the shape {array.shape}")
            array[:] = tensors[name].numpy()
        self._steps_done = steps_done

    def _arrays(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {
            "values": self._values,
            "actions": self._actions,
            "known": self._known,
        }
        pool = {"grams": self._pool.grams, "gram_variance": self._pool.variance}
        return arrays | (pool if self._settings.pool_grams else {})

    def policy(self) -> GreedyPolicy:
        """Return the greedy policy; its values are pessimistic, in the rewards' own units."""
        low, high = self._settings.reward_range
        left = np.arange(self._settings.horizon, -1, -1)[:, None]
        noise = self._count_noise()
        return GreedyPolicy(
            actions=self._actions,
            values=self._values * (high - low) + low * left,
            known=self._known,
            count_noise=None if noise is None else np.array(noise),
        )

    def _count_noise(self) -> float | None:
        """Return the largest standard deviation of the noise on a Gram matrix's diagonal."""
        if self._settings.noise_multiplier is None:
            return None
        return max(
            releases(self._settings, index)[Statistic.GRAM].standard_deviation
            for index in range(self._settings.horizon)
        )


def _above_noise(
    features: FeatureMap, gram: NDArray[np.float64], deviation: float
) -> NDArray[np.bool_]:
    """Say which pairs' features point where a noisy Gram matrix is above its noise, (S, A).

    phi^T Z phi of the noise Z has the standard deviation |phi|^2 times that of the diagonal; with a
    feature of its own for a pair, phi^T G phi is the pair's noisy count.
    """
    lengths = features.quadratic(np.broadcast_to(np.eye(features.width), gram.shape))
    return np.asarray(features.quadratic(gram) > PRACTICAL_DEVIATIONS * deviation * lengths)


class _Pool:
    """The sum of the noisy Gram matrices so far, (B, k, k), where they are pooled.

    ``variance`` (1,) is that of the sum's noise, on the diagonal.
    """

    def __init__(self, features: FeatureMap) -> None:
        self.grams = np.zeros((features.blocks, features.width, features.width))
        self.variance = np.zeros(1)


class _Step:
    """One time step; lives as long as its raw sums do."""

    def __init__(
        self,
        settings: LinearSettings,
        index: int,
        next_values: NDArray[np.float64],
        workers: WorkerGroup,
        noise: NoiseSource | None,
    ) -> None:
        self._settings, self._index = settings, index
        self._workers, self._noise = workers, noise
        low, high = settings.reward_range
        end = index * -low / (high - low)  # rewards of 0 for the steps that are left
        self._centre, self._bounds = 0.0, worst_bounds(settings, index)
        if settings.centre_values:
            known = np.append(next_values, end) if settings.early_termination else next_values
            self._centre = float(known.min() + known.max()) / 2
            spread = float(np.abs(known - self._centre).max())
            self._bounds = ValueBounds(values=spread, targets=spread + 0.5)
        self._next_values = next_values
        self._end_value = end if settings.early_termination else None
        self._releases = releases(settings, index, self._bounds) if noise is not None else {}
        self.known = np.zeros(settings.features.shape, np.bool_)

    def learn(self, pool: _Pool) -> NDArray[np.float64]:
        """Return the pessimistic values of each pair, clipped to what they can be, (S, A).

        Args:
            pool: this step's noisy Gram matrix is added to it, if they are pooled.
        """
        if not weighs_variances(self._settings, self._index, self._bounds):
            return self._learn_values(pool, None, None)
        fit, variances = self._learn_variances(pool)
        return self._learn_values(pool, fit if self._settings.reuse_gram else None, variances)

    def _learn_variances(self, pool: _Pool) -> tuple[Regression, NDArray[np.float64]]:
        """Return the unweighted regression and sigma^2, (S, A); algorithm 2, lines 4 to 8."""
        reused = self._settings.reuse_gram
        name = Statistic.GRAM if reused else Statistic.VARIANCE_GRAM
        lattices = VarianceLattices(
            *(self._lattice(one) for one in (name, Statistic.SQUARES, Statistic.VALUES))
        )
        gram, squares, values = self._total(
            "variance_statistics", {**self._ahead(0.0), "lattices": lattices}
        )
        fit = self._regression(name, gram, pool)  # line 4
        if self._settings.centre_values:
            low, high = -self._bounds.values, self._bounds.values
        else:
            low, high = 0.0, self._settings.largest_value(self._index + 1)
        second = fit.predict(self._sums(Statistic.SQUARES, squares))  # line 5
        first = fit.predict(self._sums(Statistic.VALUES, values))  # line 6
        variances = np.clip(second, 0, high**2) - np.clip(first, low, high) ** 2  # line 7
        return fit, np.maximum(1, variances)  # line 8

    def _learn_values(
        self,
        pool: _Pool,
        fit: Regression | None,
        variances: NDArray[np.float64] | None,
    ) -> NDArray[np.float64]:
        """Return the values; algorithm 2, lines 9 to 13, or with ``fit`` unweighted."""
        # Centring takes 1/2 from the reward and the centre from the value ahead.
        shift = 0.5 if self._settings.centre_values else 0.0
        lattices = ValueLattices(
            *(self._lattice(one) for one in (Statistic.GRAM, Statistic.TARGETS))
        )
        weights = {"variances": variances if fit is None else None, "lattices": lattices}
        gram, targets = self._total("value_statistics", {**self._ahead(shift), **weights})
        spread: NDArray[np.float64] | float = 1.0
        if fit is None:
            fit = self._regression(Statistic.GRAM, gram, pool)  # line 9
        elif variances is not None:
            spread = np.sqrt(variances)
        parameters = fit.parameters(self._sums(Statistic.TARGETS, targets))  # line 10
        estimate = self._settings.features.predict(parameters) + self._centre + shift
        most = self._settings.largest_value(self._index + 1)
        return np.clip(estimate - self._penalty(fit, parameters, spread), 0, most)  # lines 12, 13

    def _ahead(self, shift: float) -> dict[str, Any]:
        """Return the values ahead, less centre and ``shift``: a worker's arguments."""
        end = None if self._end_value is None else self._end_value - self._centre - shift
        return {
            "time_step": self._settings.horizon - 1 - self._index,
            "next_values": self._next_values - self._centre - shift,
            "end_value": end,
        }

    def _penalty(
        self,
        fit: Regression,
        parameters: NDArray[np.float64],
        spread: NDArray[np.float64] | float,
    ) -> NDArray[np.float64]:
        """Return Gamma, (S, A); algorithm 2, line 11. ``spread``: sigma of an unweighted fit."""
        settings, pessimism = self._settings, self._settings.pessimism
        dimension, units = settings.features.dimension, settings.units
        factor = math.sqrt(dimension)
        if settings.method == "pevi":
            zeta = math.log(2 * dimension * settings.horizon * units / settings.failure)
            factor = dimension * settings.horizon * math.sqrt(zeta)
        penalty = pessimism.constant * factor * spread * fit.uncertainty()
        if pessimism.noise_constant:
            targets = self._standard_deviation(Statistic.TARGETS)
            noise = math.hypot(targets, fit.noise * float(np.linalg.norm(parameters)))
            penalty = penalty + pessimism.noise_constant * noise * fit.sensitivity_to_noise()
        return np.asarray(penalty + pessimism.offset / (units / 2 if settings.halves else units))

    def _regression(self, statistic: Statistic, gram: NDArray[np.int64], pool: _Pool) -> Regression:
        """Release a Gram matrix's steps, pool it if asked for, and return its regression."""
        settings, features = self._settings, self._settings.features
        noisy = vector_to_symmetric(self._released(statistic, gram), features.blocks)
        deviation = self._standard_deviation(statistic)
        if settings.pool_grams:
            pool.grams += noisy
            pool.variance += deviation**2
            steps = self._index + 1
            noisy, deviation = pool.grams / steps, math.sqrt(pool.variance[0]) / steps
        if statistic is Statistic.GRAM:
            self.known = _above_noise(features, noisy, deviation)
        return regression(
            features,
            noisy,
            settings.ridge,
            noise=deviation / math.sqrt(2),
            matrices=2 * settings.horizon * features.blocks,
            failure=settings.failure,
        )

    def _sums(self, statistic: Statistic, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return released sums of phi y, (B, k)."""
        return self._released(statistic, steps).reshape(self._settings.features.blocks, -1)

    def _released(self, statistic: Statistic, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return sums with this statistic's noise: all that may leave this object."""
        if self._noise is None:
            return np.asarray(steps * self._lattice(statistic).lattice, np.float64)
        tag = self._index * len(_TAGS) + _TAGS[statistic]
        return self._releases[statistic].release(steps, self._noise, tag=tag)

    def _standard_deviation(self, statistic: Statistic) -> float:
        """Return that of the noise of a released statistic; 0 without privacy."""
        return 0.0 if self._noise is None else self._releases[statistic].standard_deviation

    def _lattice(self, statistic: Statistic) -> Lattice:
        """Return what the statistic's terms are rounded to."""
        if self._noise is None:
            return FineLattice(bound=max(1.0, self._bounds.values**2, self._bounds.targets))
        return self._releases[statistic]

    def _total(self, method: str, shared: Mapping[str, Any]) -> list[NDArray[np.int64]]:
        """Return the exact sums of all workers, in steps: raw private data."""
        answers = self._workers.call(method, shared)
        return [np.sum(parts, axis=0) for parts in zip(*answers, strict=True)]
