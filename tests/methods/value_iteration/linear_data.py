"""Small trajectories and programs for the tests of linear value iteration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.executor import LocalExecutor, WorkerGroup
from distributed_privrl.core.random import Streams
from distributed_privrl.data.shards import shard_of
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.tabular import TabularMdp
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.integer_sums import FineLattice
from distributed_privrl.methods.value_iteration.linear import LinearProgram
from distributed_privrl.methods.value_iteration.linear_sensitivity import vector_to_symmetric
from distributed_privrl.methods.value_iteration.linear_settings import (
    LinearSettings,
    statistics_spec,
)
from distributed_privrl.methods.value_iteration.statistics import (
    StatisticsWorker,
    ValueLattices,
    ValueSums,
    VarianceLattices,
    VarianceSums,
)
from distributed_privrl.privacy.noise import NoiseSource

Step = tuple[int, int, float]
FINE = FineLattice(bound=16.0)


@dataclass(frozen=True)
class Given:
    """A picklable source of trajectories that are at hand."""

    trajectories: Trajectories

    def __call__(self) -> Trajectories:
        return self.trajectories


def trajectories_of(
    episodes: Sequence[tuple[int, Sequence[Step], int]], *, terminated: Sequence[bool] = ()
) -> Trajectories:
    """Return (unit, [(state, action, reward), ...], last state) as trajectories."""
    observations: list[int] = []
    ends: list[bool] = []
    steps = [step for _, episode, _ in episodes for step in episode]
    for number, (_, episode, last) in enumerate(episodes):
        observations += [*(state for state, _, _ in episode), last]
        ended = bool(terminated[number]) if terminated else False
        ends += [False] * (len(episode) - 1) + [ended] * bool(episode)
    lengths = [len(episode) for _, episode, _ in episodes]
    return Trajectories(
        observations=np.array(observations, np.int64),
        actions=np.array([action for _, action, _ in steps], np.int64),
        rewards=np.array([reward for _, _, reward in steps], np.float32),
        terminated=np.array(ends, np.bool_),
        truncated=np.zeros(len(steps), np.bool_),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        unit_ids=np.array([unit for unit, _, _ in episodes], np.uint64),
    )


def sampled(mdp: TabularMdp, count: int, *, seed: int) -> Trajectories:
    """Return ``count`` episodes of the behaviour policy, a unit each."""
    chunks = sample_trajectories(mdp, trajectories=count, streams=Streams(seed))
    return Trajectories.concatenate(list(chunks))


def one_hot(states: int, actions: int) -> FeatureMap:
    """Return the feature map of a tabular problem: one coordinate for each pair."""
    return FeatureMap(table=np.eye(states * actions).reshape(states, actions, -1))


def workers_of(
    settings: LinearSettings, trajectories: Trajectories, workers: int = 1
) -> WorkerGroup:
    """Return workers of ``trajectories``, sharded as stored ones are."""
    shard = shard_of(trajectories.unit_ids, workers)
    specs = [
        statistics_spec(settings, Given(trajectories.select(np.flatnonzero(shard == index))))
        for index in range(workers)
    ]
    return LocalExecutor().start(StatisticsWorker, specs)


def learned(
    settings: LinearSettings,
    trajectories: Trajectories,
    noise: NoiseSource | None = None,
    *,
    workers: int = 1,
    after_step: Callable[[LinearProgram], None] = lambda program: None,
) -> LinearProgram:
    """Return the program after all its steps."""
    group, program = workers_of(settings, trajectories, workers), LinearProgram(settings)
    for index in range(settings.horizon):
        program.step(index, group, noise)
        after_step(program)
    return program


def variance_sums(worker: StatisticsWorker, features: FeatureMap, *given: Any) -> VarianceSums:
    """Return the worker's sums as numbers: (B, k, k) and (B, k)."""
    found = worker.variance_statistics(*given, VarianceLattices(FINE, FINE, FINE))
    return VarianceSums(*numbers(features, found))


def value_sums(
    worker: StatisticsWorker, features: FeatureMap, *given: Any, variances: Any = None
) -> ValueSums:
    """Return the worker's sums as numbers: (B, k, k) and (B, k)."""
    found = worker.value_statistics(*given, ValueLattices(FINE, FINE), variances)
    return ValueSums(*numbers(features, found))


def numbers(features: FeatureMap, found: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Return steps of `FINE` as numbers; the first are a Gram matrix's."""
    assert all(steps.dtype == np.int64 for steps in found)
    gram, *sums = (steps * FINE.lattice for steps in found)
    shape = features.blocks, features.width
    return [vector_to_symmetric(gram, features.blocks), *(one.reshape(shape) for one in sums)]
