"""Hosts of expert policies: how many experts would have taken each prefix of a trajectory.

Reference: Expert-level DP, section 4 (the count of algorithm 1).
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.experts import expert_files
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.action_levels import ActionLevels
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, no_trajectories
from distributed_privrl.methods.expert.pools import ExpertPools, PoolSource

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


PolicySource: TypeAlias = Callable[[], Sequence[HostedPolicies]]
"""Loads a host's policies in its own process, in the order of the experts; picklable."""


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
        store = DatasetStore(self.root)  # its copies last as long as it
        for path in expert_files(store, self.dataset):
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
    """``release_pool`` trajectories of each expert of a dataset (pool A).

    Args:
        root: folder of the dataset store.
        dataset: its id.
        release_pool: a; whatever follows is not used here.
        max_length: trajectories are cut after so many steps.
        levels: that stand for Box actions: trajectories hold positions of their combinations.
        first_trajectory: of each expert's; those before it are another run's.
    """

    root: str
    dataset: str
    release_pool: int
    max_length: int
    levels: ActionLevels | None = None
    first_trajectory: int = 0

    def __call__(self, unit_ids: NDArray[np.uint64]) -> Trajectories:
        """Read them as a stream; memory is that of the pool and one chunk."""
        store = DatasetStore(self.root)
        taken: dict[int, int] = {}
        info = store.info(self.dataset)
        parts = [no_trajectories(info.observation_space, info.action_space)]
        for chunk in store.iter_trajectories(
            self.dataset,
            unit=str(info.unit_column),
            keep=lambda ids: np.isin(ids, unit_ids),
            most_rows=self.max_length,
        ):
            wanted = []
            for position, unit in enumerate(chunk.unit_ids.tolist()):
                number = taken.get(unit, 0) - self.first_trajectory
                taken[unit] = taken.get(unit, 0) + 1
                if 0 <= number < self.release_pool:
                    wanted.append(position)
            parts.append(chunk.select(wanted))
        pool = Trajectories.concatenate(parts)
        if self.levels is not None:
            pool = replace(pool, actions=self.levels.cells(pool.actions))
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
    levels: ActionLevels | None = None,
    first_trajectory: int = 0,
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
        levels: that stand for Box actions.
        first_trajectory: of each expert's that draws may use.

    Raises:
        ConfigError: no such dataset, its actions are not Discrete, or a number below one.
    """
    root = store.place
    actions = store.info(dataset).action_space if levels is None else levels.space
    if not isinstance(actions, Discrete):
        raise ConfigError(f"{dataset} has actions {actions}: prefixes need Discrete ones")
    if experts < 1 or hosts < 1:
        raise ConfigError(f"experts and hosts must be at least 1, got {experts} and {hosts}")
    ends = np.linspace(0, experts, min(hosts, experts) + 1).astype(int).tolist()
    return [
        HostSpec(
            policies=StoredPolicies(root=root, dataset=dataset, start=start, stop=stop),
            pool=StoredPool(
                root=root,
                dataset=dataset,
                release_pool=release_pool,
                max_length=max_length,
                levels=levels,
                first_trajectory=first_trajectory,
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
        Unit: an expert. Relation: ``policy_level``. An expert that can be drawn adds a number in
        [0, 1] to each count, which never grows along a trajectory, so that one expert moves every
        count by at most 1, in one direction; one that cannot be drawn adds nothing, for no odds of
        its own would bound that. It counts for a prefix only if its probabilities are well-formed
        (finite, their sum one) and at least p_min at each of the prefix's states, the one after it
        included; its true odds then bound what it adds. From the first state where they are not,
        it counts for nothing: no error, no message, no other shape. One that fails altogether
        counts nowhere, and what it does to its own copy of the states reaches no other. All that
        is returned is raw, for the filter's process alone.

    Args:
        spec: what it hosts.
    """

    def __init__(self, spec: HostSpec) -> None:
        self._actions = spec.actions
        self._least = spec.minimum_probability * (1 - TOLERANCE)
        self._experts: list[tuple[HostedPolicies, int]] = []
        ids = []
        for part in spec.policies():
            self._experts += [(part, index) for index in range(len(part.unit_ids))]
            ids.append(part.unit_ids)
        self._spec, self._units = spec, np.concatenate([np.empty(0, np.uint64), *ids])
        self.pools = ExpertPools(
            spec.pool,
            spec.first + np.arange(len(self._units)),
            self._units,
            actions=spec.actions,
            release_pool=spec.release_pool,
        )
        self._live = torch.from_numpy(self.pools.live)

    def describe(self) -> NDArray[np.bool_]:
        """Return which of its experts can be drawn, (E,): private, for the filter alone.

        One that cannot is null, or was made null: it has fewer trajectories than a pool needs.
        This depends on no policy, and on nothing that a trajectory holds: to leave out experts by
        the states that their trajectories happened to visit would change the law of the others'
        trajectories. Bad rows cut the trajectory that holds them: see `cut_before_bad_rows`.
        """
        return self.pools.live

    def units(self) -> NDArray[np.uint64]:
        """Return its experts' units in the dataset, (E,)."""
        return self._units

    def built_from(self) -> HostSpec:
        """Return references and public facts, by which the filter reads what it draws itself."""
        return self._spec

    def prefix_counts(
        self, observations: NDArray[np.generic], actions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return how many of its experts would have taken each prefix of a trajectory.

        Args:
            observations: ``(K + 1, O)``, the last one after the last action: an expert counts for
                a prefix where it is well-formed at the state after it, too.
            actions: ``(K,)``.

        Returns:
            ``(K,)``: for k = 1 to K the sum over experts of ``prod_{j <= k} pi(a_j | s_j)``;
            multiples of `COUNT_UNIT`, so that sums over hosts do not depend on their number.
        """
        steps = len(actions)
        counts = torch.zeros(steps, dtype=torch.float64)
        states = torch.tensor(observations)
        chosen = torch.as_tensor(actions)
        with torch.inference_mode():
            for start in range(0, len(self._experts), EXPERTS_AT_ONCE):
                part = slice(start, start + EXPERTS_AT_ONCE)
                table = torch.stack([self._table(expert, states) for expert in self._experts[part]])
                counts += _counted(table, chosen, self._least, self._live[part])
        return np.asarray(counts.numpy() * COUNT_UNIT, np.float64)

    def _table(self, expert: tuple[HostedPolicies, int], states: Tensor) -> Tensor:
        """Return log-probabilities (K + 1, A), not numbers where the policy fails."""
        policies, index = expert
        shape = (len(states), self._actions)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = torch.split(states.clone(), ROWS_AT_ONCE)
                parts = [_numbers(policies.log_probabilities(index, one)) for one in rows]
                table = torch.cat(parts)
            if tuple(table.shape) == shape:
                return table
        except Exception:  # whatever an expert's code does stays without a trace
            pass
        return torch.full(shape, torch.nan)


def _numbers(answer: object) -> Tensor:
    """Return a policy's answer as float32 if it is an ordinary tensor of real numbers.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(answer, Tensor) or not answer.is_floating_point() or answer.is_nested:
        raise TypeError("a policy must answer with a tensor of real numbers")
    if answer.layout != torch.strided or answer.device.type != "cpu":
        raise TypeError("a policy must answer with a plain tensor in main memory")
    return answer.as_subclass(Tensor).float()


def _counted(table: Tensor, actions: Tensor, least: float, live: Tensor) -> Tensor:
    """Return each prefix's count in `COUNT_UNIT`, (K,), from log-probabilities (E, K + 1, A)."""
    probabilities = table.exp()
    sums = probabilities.sum(dim=2)
    sound = ((sums - 1).abs() <= TOLERANCE) & (probabilities.amin(dim=2) >= least)
    sound_so_far = (sound & live[:, None]).cumprod(dim=1).bool()
    steps = actions.expand(len(table), -1)[:, :, None]
    logs = table[:, :-1].gather(2, steps)[:, :, 0].double() - sums[:, :-1].double().log()
    logs = torch.where(sound_so_far[:, :-1], logs.clamp(max=0), 0).cumsum(dim=1)
    parts = (logs.exp() / COUNT_UNIT).floor()  # algorithm 1, line 1
    return torch.where(sound_so_far[:, 1:], parts, 0).sum(dim=0)
