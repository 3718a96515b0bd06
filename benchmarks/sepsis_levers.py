"""What may be counted in ICU-Sepsis beside the counts of DP-APVI, with the same guarantee.

The problem is public, and so are the clusters and every constant here, which were chosen on it.
They are no part of the package.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

from benchmarks.harness import SEED
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.problems import icu_sepsis_features
from distributed_privrl.environments.sepsis import DEATH, SURVIVAL
from distributed_privrl.methods.value_iteration.rows import first_visits, step_rows
from distributed_privrl.privacy.exact_releases import DiscreteGaussianRelease
from distributed_privrl.privacy.noise import NoiseSource

DEVIATIONS = 2.0
"""How many standard deviations an action's outcome must lie above its state's to be taken."""

PRIOR_PATIENTS = 50.0
"""Weight of all patients' outcome in that of a state."""


@functools.cache
def clusters(count: int) -> NDArray[np.int64]:
    """Return the cluster of each of the 716 states; each terminal state has its own.

    Args:
        count: clusters of the other states, by k-means of their public measurements.

    Privacy: no event; a function of the package's public file and a public seed.
    """
    generator = Streams(SEED).numpy(f"sepsis/clusters/{count}")
    features = icu_sepsis_features()
    _, found = kmeans2(features[:DEATH, 1:], count, iter=50, minit="++", rng=generator)
    used, lasting = np.unique(found, return_inverse=True)
    ends = len(used) + np.arange(len(features) - DEATH)
    return np.concatenate([lasting, ends]).astype(np.int64)


class OutcomeCounts:
    """How many patients lived and died after an action in a group of states: 2 G A numbers.

    A patient counts once in each pair of group and action, at the first visit, and only if the end
    was seen within the horizon.

    Args:
        source: gives one trajectory a unit.
        groups: ``(S,)``, group of each state.
        actions: A.
        horizon: H.

    Privacy:
        Unit: one trajectory. Relation: replace-one. Sensitivity: a unit adds 1 to one of two cells
        of each of at most H pairs, so that |u|_2^2 <= H and |u - v|_2^2 <= 2 H. Event: one
        ``gaussian`` a call of `released`.
    """

    def __init__(
        self,
        source: Callable[[], Trajectories],
        *,
        groups: NDArray[np.int64],
        actions: int,
        horizon: int,
    ) -> None:
        self.sensitivity = math.sqrt(2 * horizon)
        self._groups, self._actions = groups, actions
        rows = step_rows(
            source(),
            states=len(groups),
            actions=actions,
            horizon=horizon,
            reward_range=(0.0, 1.0),
            max_trajectories_per_unit=1,
        )
        pairs = groups[rows.states] * actions + rows.actions
        first = first_visits(rows, pairs)
        self._vector = np.concatenate(
            [
                self._counted(pairs[first[np.isin(rows.unit_ids[first], rows.unit_ids[ended])]])
                for ended in (rows.next_states == SURVIVAL, rows.next_states == DEATH)
            ]
        )

    def _counted(self, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        pairs_in_all = int(self._groups.max() + 1) * self._actions
        return np.bincount(pairs, minlength=pairs_in_all).astype(np.float64)

    def policy(self, noise_multiplier: float | None, noise: NoiseSource) -> NDArray[np.int64]:
        """Return one rule for all time steps, ``(1, S)``: one step of improvement.

        In each group the action whose survivors' share lies furthest above the group's, less some
        standard deviations of sampling and noise. What follows the action is the clinicians' doing.

        Args:
            noise_multiplier: of the release; None: without privacy.
            noise: draws it.
        """
        deviation, vector = 0.0, self._vector
        if noise_multiplier is not None:
            release = DiscreteGaussianRelease(
                sensitivity=self.sensitivity,
                noise_multiplier=noise_multiplier,
                dimension=len(vector),
            )
            deviation = noise_multiplier * self.sensitivity
            steps = np.rint(vector / release.lattice).astype(np.int64)
            vector = release.release(steps, noise)
        lived, died = vector.reshape(2, -1, self._actions)
        patients = lived + died
        overall = lived.sum() / max(patients.sum(), 1.0)
        seen = np.maximum(patients.sum(axis=1, keepdims=True), 1.0)
        mean = (lived.sum(axis=1, keepdims=True) + PRIOR_PATIENTS * overall) / (
            seen + PRIOR_PATIENTS
        )
        mean = np.clip(mean, 0.01, 0.99)
        count = np.maximum(patients, 1.0)
        spoiled = (deviation / count) ** 2 * (mean**2 + (1 - mean) ** 2)
        uncertainty = np.sqrt(mean * (1 - mean) / count + spoiled)
        share = np.clip(lived / count, 0.0, 1.0)
        rule = (share - mean - DEVIATIONS * uncertainty).argmax(axis=1)
        chosen: NDArray[np.int64] = rule[self._groups][None]
        return chosen
