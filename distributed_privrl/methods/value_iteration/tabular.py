"""DP-APVI: pessimistic value iteration backwards over noisy counts (algorithm 1)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.methods.value_iteration.pessimism import (
    Uncertainty,
    noise_deviation,
)
from distributed_privrl.methods.value_iteration.policy import GreedyPolicy
from distributed_privrl.methods.value_iteration.projection import (
    project_counts,
    transition_moments,
)
from distributed_privrl.methods.value_iteration.tabular_settings import TabularSettings
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.rounds.releases import Program


@dataclass(frozen=True, kw_only=True, eq=False)
class _Model:
    """Noisy estimate of one time step, or of all when they are pooled.

    counts (N, successors), totals (N,), rewards (N,) or None, error E.
    """

    counts: NDArray[np.float64]
    totals: NDArray[np.float64]
    rewards: NDArray[np.float64] | None
    error: float


class TabularProgram(Program):
    """Learns a policy step by step, from the last time step to the first.

    Every cell is released, visited or not: which cells are empty is as private as what is in the
    others.

    Privacy:
        Unit: what owns at most ``layout.max_trajectories_per_unit`` trajectories. Relation:
        ``settings.relation``. Sensitivity: ``layout.sensitivities(relation)`` for the vector
        (counts of successors, counts of pairs[, sums of scaled rewards]) of one time step, or of
        all when pooled. Event: one ``settings.release.event`` a call of `step`; everything kept or
        returned is computed from released vectors.

    Args:
        settings: public facts.

    Reference: DP-VAPVI, algorithm 1; without a release Yin and Wang 2021b, APVI.
    """

    def __init__(self, settings: TabularSettings) -> None:
        layout = settings.layout
        self.settings = settings
        self.steps = layout.releases
        self._done = 0
        self._rewards = _grouped(settings.rewards, layout.clusters, axis=-2)
        arrival = settings.arrival_rewards
        self._arrival = _grouped(arrival, layout.clusters, axis=-1)
        self._terminal = layout.terminal
        if layout.terminal is not None and layout.clusters is not None:
            self._terminal = np.zeros(layout.groups, np.bool_)
            self._terminal[layout.clusters[layout.terminal]] = True
        low, high = layout.reward_range
        if layout.terminal is None or layout.terminal.any():
            low, high = min(low, 0.0), max(high, 0.0)
        self._low, self._high = low, high
        self._size = Uncertainty(
            horizon=layout.horizon,
            states=layout.groups,
            actions=layout.actions,
            successors=layout.successors,
            releases=layout.releases,
            reward_width=high - low,
            estimated_reward=layout.estimate_reward,
            random_reward=arrival is not None,
        )
        self._actions = np.zeros((layout.horizon, layout.groups), np.int64)
        self._values = np.zeros((layout.horizon + 1, layout.groups))
        self._penalties = np.zeros((layout.horizon, layout.groups, layout.actions))
        self._known = np.zeros(self._penalties.shape, np.bool_)

    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        """Release counts of time step H - 1 - ``index``, or all; back values up: `Program.step`.

        Raises:
            ConfigError: steps out of order.
            UnsafeError: noise without a release or the other way round.
        """
        layout = self.settings.layout
        if index != self._done or index >= self.steps:
            raise ConfigError(f"index must be {self._done} of {self.steps} steps, got {index}")
        if (noise is None) != (self.settings.noise is None):
            raise UnsafeError("noise and settings.noise go together: give both or neither")
        last = layout.horizon - 1 - index
        model = self._released(0 if layout.pooled else last, workers, noise, tag=index)
        times = range(last, -1, -1) if layout.pooled else (last,)
        for time in times:
            self._back_up(time, model)
        if self.settings.stationary:
            rule = self._actions[0].copy()
            for time in times:
                self._back_up(time, model, rule)
        self._done += 1

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what a resume needs.

        (H, G) actions, (H + 1, G) values, (H, G, A) penalties and which pairs are known.
        """
        arrays = {
            "actions": self._actions,
            "values": self._values,
            "penalties": self._penalties,
            "known": self._known,
        }
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def restore(self, tensors: Mapping[str, torch.Tensor], steps_done: int) -> None:
        """Go on after ``steps_done`` steps from what `tensors` returned.

        Raises:
            ConfigError: the tensors are those of another problem.
        """
        own = self.tensors()
        if not 0 <= steps_done <= self.steps:
            raise ConfigError(f"steps_done must lie in [0, {self.steps}], got {steps_done}")
        for name, tensor in own.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise ConfigError(f"tensors must hold {name} of shape {tuple(tensor.shape)}")
        self._actions = tensors["actions"].to(torch.int64).numpy().copy()
        self._values = tensors["values"].to(torch.float64).numpy().copy()
        self._penalties = tensors["penalties"].to(torch.float64).numpy().copy()
        self._known = tensors["known"].to(torch.bool).numpy().copy()
        self._done = steps_done

    def policy(self) -> GreedyPolicy:
        """Return the learned policy over all states; clusters' actions are their states'.

        Raises:
            ConfigError: steps are left.
        """
        if self._done < self.steps:
            raise ConfigError(f"{self.steps - self._done} steps are left: call step first")
        layout = self.settings.layout
        groups = np.arange(layout.states) if layout.clusters is None else layout.clusters
        release = self.settings.release
        noise = None if release is None else noise_deviation(release)
        return GreedyPolicy(
            actions=self._actions[:, groups],
            values=self._values[:, groups],
            penalties=self._penalties[:, groups],
            known=self._known[:, groups],
            count_noise=None if noise is None else np.array(noise),
        )

    def _released(
        self, step: int, workers: WorkerGroup, noise: NoiseSource | None, *, tag: int
    ) -> _Model:
        """Return the estimate from the counts of ``step``, noisy where there is a release."""
        layout, release = self.settings.layout, self.settings.release
        pairs = layout.pairs
        cells = pairs * layout.successors
        steps = self._summed(step, workers)
        error = 0.0
        if release is not None and noise is not None:
            error = self.settings.pessimism.count_error(release, self._size)
            vector = release.release(steps, noise, tag=tag)
        else:
            vector = np.asarray(steps * self.settings.unit, np.float64)
        np.maximum(vector, 0, out=vector)  # equation 2
        noisy_next = vector[:cells].reshape(pairs, layout.successors)
        noisy_pair = vector[cells : cells + pairs]
        counts, totals = project_counts(noisy_next, noisy_pair, error, out=noisy_next)  # equation 3
        rewards = None
        if layout.estimate_reward:
            low, high = layout.reward_range
            scaled = vector[cells + pairs :] / np.where(totals > error, totals, np.inf)
            rewards = low + (high - low) * np.minimum(scaled, 1)
        return _Model(counts=counts, totals=totals, rewards=rewards, error=error)

    def _summed(self, step: int, workers: WorkerGroup) -> NDArray[np.int64]:
        """Return the exact sums over workers in steps of ``settings.unit``: raw private data."""
        layout = self.settings.layout
        unit = self.settings.unit
        cells, one = layout.pairs * layout.successors, round(1 / unit)
        vector = np.zeros(layout.dimension, np.int64)
        successors = vector[:cells]
        rewards = vector[cells + layout.pairs :]
        for answer in workers.call("counts", {"step": step, "reward_unit": unit}):
            successors[answer.cells] += answer.counts * one
            rewards[answer.pairs] += answer.reward_sums
        table = successors.reshape(layout.pairs, layout.successors)
        vector[cells : cells + layout.pairs] = table.sum(axis=1)
        return vector

    def _back_up(self, time: int, model: _Model, rule: NDArray[np.int64] | None = None) -> None:
        """Write actions, values and penalties of ``time``: lines 4 to 8 of algorithm 1.

        With a ``rule`` (G,) its actions are taken, and its values are those of going on with it.
        """
        layout, shape = self.settings.layout, self._penalties.shape[1:]
        future = self._values[time + 1].copy()
        if self._arrival is not None:
            future += self._arrival
        if layout.terminal is None:
            future = np.append(future, 0.0)
        means, variances = transition_moments(  # equation 5
            model.counts, model.totals, future, threshold=model.error
        )
        steps_left = layout.horizon - 1 - time
        penalties = self.settings.pessimism.penalties(  # line 5
            variances, model.totals, error=model.error, size=self._size, steps_left=steps_left
        ).reshape(shape)
        rewards = model.rewards
        if self._rewards is not None:
            rewards = self._rewards[time] if self._rewards.ndim == 3 else self._rewards
        assert rewards is not None
        pessimistic = rewards.reshape(shape) + means.reshape(shape) - penalties  # lines 4, 6
        bounded = np.clip(pessimistic, (steps_left + 1) * self._low, (steps_left + 1) * self._high)
        self._actions[time] = bounded.argmax(axis=1) if rule is None else rule  # line 8
        self._values[time] = bounded[np.arange(layout.groups), self._actions[time]]
        if self._terminal is not None:
            self._values[time, self._terminal] = 0.0
        self._penalties[time] = penalties
        self._known[time] = (model.totals > model.error).reshape(shape)


def _grouped(
    table: NDArray[np.float64] | None, clusters: NDArray[np.int64] | None, *, axis: int
) -> NDArray[np.float64] | None:
    """Return the means of ``table`` over the states of each cluster along ``axis``."""
    if table is None or clusters is None:
        return None if table is None else np.asarray(table, np.float64)
    moved = np.moveaxis(np.asarray(table, np.float64), axis, 0)
    sums = np.zeros((int(clusters.max()) + 1, *moved.shape[1:]))
    np.add.at(sums, clusters, moved)
    sizes = np.bincount(clusters).reshape(-1, *[1] * (moved.ndim - 1))
    return np.moveaxis(sums / sizes, 0, axis)
