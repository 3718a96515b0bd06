"""Small tabular data for the tests: a random problem, its exact values, and shards in memory."""

from dataclasses import dataclass

import numpy as np

from distributed_privrl.core.executor import LocalExecutor, LocalWorkerGroup
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.value_iteration.counts import CountLayout, CountSpec, CountWorker
from distributed_privrl.privacy.noise import SeededNoise


def trajectories_of(paths, unit_ids=None) -> Trajectories:
    """Build trajectories from paths ``([(s, a, r), ...], final state, terminated)``."""
    ends = np.cumsum([len(steps) for steps, _, _ in paths], dtype=int)
    total = int(ends[-1]) if len(paths) else 0
    terminated, truncated = np.zeros(total, bool), np.zeros(total, bool)
    for (steps, _, ended), end in zip(paths, ends, strict=True):
        if steps:
            terminated[end - 1], truncated[end - 1] = ended, not ended
    rows = [row for steps, _, _ in paths for row in steps]
    observations = [s for steps, final, _ in paths for s in (*(row[0] for row in steps), final)]
    return Trajectories(
        observations=np.array(observations, np.int64),
        actions=np.array([row[1] for row in rows], np.int64),
        rewards=np.array([row[2] for row in rows], np.float32),
        terminated=terminated,
        truncated=truncated,
        offsets=offsets_of([len(steps) for steps, _, _ in paths]),
        unit_ids=np.arange(len(paths), dtype=np.uint64)
        if unit_ids is None
        else np.array(unit_ids, np.uint64),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryShard:
    """A share of trajectories in memory, by unit id."""

    trajectories: Trajectories
    index: int = 0
    count: int = 1

    def __call__(self) -> Trajectories:
        units = self.trajectories.unit_ids
        return self.trajectories.select(np.flatnonzero(units % self.count == self.index))


def start(trajectories: Trajectories, layout: CountLayout, workers: int = 1) -> LocalWorkerGroup:
    """Start count workers over ``trajectories``."""
    shards = [
        CountSpec(
            source=MemoryShard(trajectories=trajectories, index=i, count=workers), layout=layout
        )
        for i in range(workers)
    ]
    return LocalExecutor().start(CountWorker, shards)


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomProblem:
    """A random MDP with transitions (H, S, A, S) and rewards (S, A) in [0, 1]."""

    transitions: np.ndarray
    rewards: np.ndarray

    @classmethod
    def draw(cls, states: int, actions: int, horizon: int, seed: int) -> "RandomProblem":
        generator = np.random.default_rng(seed)
        transitions = generator.dirichlet(np.full(states, 0.5), (horizon, states, actions))
        return cls(transitions=transitions, rewards=generator.random((states, actions)))

    def sample(self, count: int, seed: int) -> Trajectories:
        """Draw trajectories of full length under the uniform policy and start."""
        generator = np.random.default_rng(seed)
        horizon, states, actions, _ = self.transitions.shape
        observations = np.empty((count, horizon + 1), np.int64)
        taken = generator.integers(actions, size=(count, horizon))
        observations[:, 0] = generator.integers(states, size=count)
        for h in range(horizon):
            sums = self.transitions[h][observations[:, h], taken[:, h]].cumsum(axis=1)
            reached = (generator.random((count, 1)) > sums).sum(axis=1)
            observations[:, h + 1] = np.minimum(reached, states - 1)
        return Trajectories(
            observations=observations.ravel(),
            actions=taken.ravel(),
            rewards=self.rewards[observations[:, :-1], taken].ravel(),
            terminated=np.zeros(count * horizon, bool),
            truncated=np.tile(np.arange(horizon) == horizon - 1, count),
            offsets=np.arange(count + 1) * horizon,
            unit_ids=np.arange(count, dtype=np.uint64),
        )

    def value(self, actions: np.ndarray | None = None) -> float:
        """Return the exact value of a policy (H, S), or of the optimal one, uniform start."""
        horizon, states, _, _ = self.transitions.shape
        values = np.zeros(states)
        for h in reversed(range(horizon)):
            table = self.rewards + self.transitions[h] @ values
            chosen = table.argmax(axis=1) if actions is None else actions[h]
            values = table[np.arange(states), chosen]
        return float(values.mean())


class SpyNoise(SeededNoise):
    """Keeps what it was asked for."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.calls: list[dict] = []

    def add_discrete_gaussian(self, values, **arguments):
        self.calls.append({"kind": "gaussian", "dimension": len(values), **arguments})
        return super().add_discrete_gaussian(values, **arguments)

    def add_discrete_laplace(self, values, **arguments):
        self.calls.append({"kind": "laplace", "dimension": len(values), **arguments})
        return super().add_discrete_laplace(values, **arguments)
