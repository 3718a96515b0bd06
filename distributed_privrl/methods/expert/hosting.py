"""Hosts of expert policies: how many experts would have taken each prefix of a trajectory.

Reference: paper 004, section 4 (the count of algorithm 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.agents.experts import (
    UNIT_COLUMN,
    ExpertPolicies,
    ExpertPolicy,
    expert_files,
)
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import empty_part
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories

ROWS_AT_ONCE = 400
"""Rows of one forward: as many as still fit into a core's caches."""
EXPERTS_AT_ONCE = 64
COUNT_UNIT = 2.0**-36
"""Each expert's part of a count is rounded down to this: sums of 100,000 are exact in any order."""
TOLERANCE = 2.0**-12
"""By which probabilities may miss one, and miss p_min as a share of it: rounding of float32."""


class HostedPolicies(Protocol):
    """Several policies over the same observations and actions; `ExpertPolicies` is one such."""

    @property
    def unit_ids(self) -> NDArray[np.uint64]:
        """The dataset's unit of each policy's trajectories, (E,)."""
        ...

    def log_probabilities(self, expert: int, observations: Tensor) -> Tensor:
        """Return one policy's log-probability of each action, ``(L, O)`` to ``(L, A)``."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SinglePolicies:
    """Policies that are objects of their own: torch modules, or anything that can be called.

    Args:
        policies: E of them.
        unit_ids: (E,) uint64.
    """

    policies: Sequence[ExpertPolicy]
    unit_ids: NDArray[np.uint64]

    def log_probabilities(self, expert: int, observations: Tensor) -> Tensor:
        """Return one policy's log-probabilities; see `HostedPolicies`."""
        return self.policies[expert].log_probabilities(observations)


PolicySource: TypeAlias = Callable[[], Sequence[HostedPolicies]]
"""Loads a host's policies in its own process, in the order of the experts; picklable."""
PoolSource: TypeAlias = Callable[[NDArray[np.uint64]], Trajectories]
"""Loads units' trajectories for draws, each unit's in a fixed order; picklable."""


@dataclass(frozen=True, kw_only=True)
class StoredPolicies:
    """Experts ``start`` to ``stop`` of those that lie beside a dataset.

    Args:
        root: folder of the dataset store.
        dataset: its id.
        start: first expert.
        stop: after the last one.
    """

    root: str
    dataset: str
    start: int
    stop: int

    def __call__(self) -> list[ExpertPolicies]:
        """Read them.

        Raises:
            StorageError: a file is damaged.
            ConfigError: there are fewer experts.
        """
        parts, first = [], 0
        for path in expert_files(DatasetStore(Path(self.root)), self.dataset):
            whole = ExpertPolicies.load(path)
            low, high = max(self.start - first, 0), min(self.stop - first, len(whole))
            if low < high:
                parts.append(whole.part(low, high))
            first += len(whole)
        if sum(len(part) for part in parts) != self.stop - self.start:
            raise ConfigError(f"{self.dataset} has {first} experts, asked for up to {self.stop}")
        return parts


@dataclass(frozen=True, kw_only=True)
class StoredPool:
    """The first ``release_pool`` trajectories of each expert of a dataset (pool A).

    Args:
        root: folder of the dataset store.
        dataset: its id.
        release_pool: a; whatever follows is not read here.
        max_length: trajectories are cut after so many steps.
    """

    root: str
    dataset: str
    release_pool: int
    max_length: int

    def __call__(self, unit_ids: NDArray[np.uint64]) -> Trajectories:
        """Read them as a stream; memory is that of the pool and one chunk."""
        store = DatasetStore(Path(self.root))
        taken: dict[int, int] = {}
        parts = [_no_trajectories(store, self.dataset)]
        for chunk in store.iter_trajectories(
            self.dataset, unit=UNIT_COLUMN, keep=lambda ids: np.isin(ids, unit_ids)
        ):
            wanted = []
            for position, unit in enumerate(chunk.unit_ids.tolist()):
                taken[unit] = taken.get(unit, 0) + 1
                if taken[unit] <= self.release_pool:
                    wanted.append(position)
            parts.append(chunk.select(wanted))
        pool = Trajectories.concatenate(parts)
        return pool.cut(np.full(len(pool), self.max_length))


@dataclass(frozen=True, kw_only=True, eq=False)
class HostSpec:
    """What a host is built from: references and public facts.

    Args:
        policies: where its experts are.
        pool: where their trajectories for draws are.
        first: number of its first expert among all.
        actions: number A of actions.
        minimum_probability: p_min.
        release_pool: trajectories of each expert that draws may use.
    """

    policies: PolicySource
    pool: PoolSource
    first: int
    actions: int
    minimum_probability: float
    release_pool: int


def host_specs(
    store: DatasetStore,
    dataset: str,
    *,
    experts: int,
    hosts: int,
    minimum_probability: float,
    release_pool: int,
    max_length: int,
) -> list[HostSpec]:
    """Return what ``hosts`` hosts of a dataset's experts are built from, in order.

    Args:
        store: where the dataset is.
        dataset: its id.
        experts: number m of them.
        hosts: at most one an expert.
        minimum_probability: p_min.
        release_pool: trajectories of each expert that draws may use.
        max_length: L.

    Raises:
        ConfigError: no such dataset, its actions are not Discrete, or a number below one.
    """
    root, actions = str(store.root.absolute()), store.info(dataset).action_space
    if not isinstance(actions, Discrete):
        raise ConfigError(f"{dataset} has actions {actions}: prefixes need Discrete ones")
    if experts < 1 or hosts < 1:
        raise ConfigError(f"experts and hosts must be at least 1, got {experts} and {hosts}")
    ends = np.linspace(0, experts, min(hosts, experts) + 1).astype(int).tolist()
    return [
        HostSpec(
            policies=StoredPolicies(root=root, dataset=dataset, start=start, stop=stop),
            pool=StoredPool(
                root=root, dataset=dataset, release_pool=release_pool, max_length=max_length
            ),
            first=start,
            actions=int(actions.n),
            minimum_probability=minimum_probability,
            release_pool=release_pool,
        )
        for start, stop in pairwise(ends)
    ]


class ExpertHost:
    """Hosts experts, their policies and their trajectories for draws; holds no state of a run.

    Privacy:
        Unit: an expert. Relation: ``policy_level``. An expert adds a number in [0, 1] to each
        count, which never grows along a trajectory, so that one expert moves every count by at
        most 1, in one direction. It counts for a prefix only if its probabilities are well-formed
        (finite, their sum one) and at least p_min at each of the prefix's states, the one after it
        included unless the trajectory ends there; its true odds then bound what it adds. From the
        first state where they are not, it counts for nothing: no error, no message, no other
        shape. One that fails altogether counts nowhere. All that is returned is raw, for the
        filter's process alone.

    Args:
        spec: what it hosts.
    """

    def __init__(self, spec: HostSpec) -> None:
        self._first, self._actions = spec.first, spec.actions
        self._least = spec.minimum_probability * (1 - TOLERANCE)
        self._experts: list[tuple[HostedPolicies, int]] = []
        ids = []
        for part in spec.policies():
            self._experts += [(part, index) for index in range(len(part.unit_ids))]
            ids.append(part.unit_ids)
        units = np.concatenate([np.empty(0, np.uint64), *ids])
        self._trajectories = spec.pool(units)
        self._pools = _usable_pools(self._trajectories, units, spec)

    def describe(self) -> NDArray[np.bool_]:
        """Return which of its experts can be drawn, (E,): private, for the filter alone.

        One that cannot is null: it lacks trajectories, or they hold what no environment gave
        (numbers that are not finite, actions that do not exist). This depends on no policy. A
        policy that is malformed somewhere does not make its expert null as a whole: to leave out
        experts by the states that their trajectories happened to visit would change the law of
        the others' trajectories.
        """
        return np.array([len(pool) > 0 for pool in self._pools], np.bool_)

    def drawn(self, expert: int, number: int) -> Trajectories | None:
        """Return one trajectory of an expert's pool; None if it is another host's expert.

        Args:
            expert: its number among all.
            number: position in the pool, from 0 on.
        """
        local = expert - self._first
        if not 0 <= local < len(self._pools):
            return None
        return self._trajectories.select([self._pools[local][number]])

    def prefix_counts(
        self, observations: NDArray[np.generic], actions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return how many of its experts would have taken each prefix of a trajectory.

        Args:
            observations: ``(K + 1, O)``, the last one after the last action.
            actions: ``(K,)``.

        Returns:
            ``(K,)``: for k = 1 to K the sum over experts of ``prod_{j <= k} pi(a_j | s_j)``;
            multiples of `COUNT_UNIT`, so that sums over hosts do not depend on their number.
        """
        steps = len(actions)
        counts = torch.zeros(steps, dtype=torch.float64)
        states = torch.as_tensor(observations[:steps])
        chosen = torch.as_tensor(actions)
        with torch.inference_mode():
            for start in range(0, len(self._experts), EXPERTS_AT_ONCE):
                some = self._experts[start : start + EXPERTS_AT_ONCE]
                table = torch.stack([self._table(expert, states) for expert in some])
                counts += _counted(table, chosen, self._least)
        return np.asarray(counts.numpy() * COUNT_UNIT, np.float64)

    def _table(self, expert: tuple[HostedPolicies, int], states: Tensor) -> Tensor:
        """Return log-probabilities (K, A), not numbers where the policy fails."""
        policies, index = expert
        shape = (len(states), self._actions)
        try:
            starts = range(0, len(states), ROWS_AT_ONCE)
            rows = [states[start : start + ROWS_AT_ONCE] for start in starts]
            parts = [policies.log_probabilities(index, one) for one in rows]
            table = parts[0] if len(parts) == 1 else torch.cat(parts)
            if tuple(table.shape) == shape:
                return table.float()
        except Exception:  # whatever an expert's code does stays without a trace
            pass
        return torch.full(shape, torch.nan)


def _counted(table: Tensor, actions: Tensor, least: float) -> Tensor:
    """Return the count of each prefix in `COUNT_UNIT`, (K,), from log-probabilities (E, K, A)."""
    probabilities = table.exp()
    sums = probabilities.sum(dim=2)
    sound = ((sums - 1).abs() <= TOLERANCE) & (probabilities.amin(dim=2) >= least)
    taken = table.gather(2, actions.expand(len(table), -1)[:, :, None])[:, :, 0]
    logs = taken.double() - sums.double().log()
    sound_so_far = sound.cumprod(dim=1).bool()
    counts = torch.cat((sound_so_far[:, 1:], sound_so_far[:, -1:]), dim=1)
    logs = torch.where(sound_so_far, logs.clamp(max=0), 0).cumsum(dim=1)
    parts = (logs.exp() / COUNT_UNIT).floor()
    return torch.where(counts, parts, 0).sum(dim=0)


def _usable_pools(
    trajectories: Trajectories, units: NDArray[np.uint64], spec: HostSpec
) -> list[list[int]]:
    """Return the positions of each expert's trajectories; none where any of them is unusable."""
    pools: dict[int, list[int]] = {unit: [] for unit in units.tolist()}
    bad = set()
    steps = (trajectories.actions >= 0) & (trajectories.actions < spec.actions)
    steps &= np.isfinite(trajectories.rewards)
    states = np.isfinite(trajectories.observations)
    states = states.all(axis=tuple(range(1, states.ndim)))
    offsets = trajectories.offsets
    for position, unit in enumerate(trajectories.unit_ids.tolist()):
        begin, end = int(offsets[position]), int(offsets[position + 1])
        pools[unit].append(position)
        whole = states[begin + position : end + position + 1].all() and steps[begin:end].all()
        if begin == end or not whole:
            bad.add(unit)
    wanted = spec.release_pool
    return [
        pools[unit][:wanted] if unit not in bad and len(pools[unit]) >= wanted else []
        for unit in units.tolist()
    ]


def _no_trajectories(store: DatasetStore, dataset: str) -> Trajectories:
    info = store.info(dataset)
    return Trajectories(
        observations=empty_part(info.observation_space),
        actions=empty_part(info.action_space),
        rewards=np.empty(0, np.float32),
        terminated=np.empty(0, np.bool_),
        truncated=np.empty(0, np.bool_),
        offsets=np.zeros(1, np.int64),
        unit_ids=np.empty(0, np.uint64),
    )
