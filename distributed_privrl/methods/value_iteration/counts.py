"""The worker of DP-APVI: it owns a shard of trajectories and counts transitions by time step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.value_iteration.rows import (
    StepRows,
    TrajectorySource,
    first_visits,
    step_rows,
)
from distributed_privrl.methods.value_iteration.sensitivity import (
    TabularSensitivities,
    Visits,
    tabular_sensitivities,
)
from distributed_privrl.privacy.units import Relation

REWARD_UNIT = 2.0**-30
"""What scaled rewards are rounded to multiples of without privacy; with it, the noise's lattice."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CountLayout:
    """Which cells are counted: public facts that workers and server share.

    Successors are the states. Where ``terminal`` is None nobody has said which states end an
    episode; a further successor, the last, then stands for "ended", and a step flagged
    ``terminated`` counts there whatever state it reached. Where ``terminal`` is given, every step
    counts at the state it reached, whose continuation is worth 0 if it is terminal.

    Args:
        states: S.
        actions: A.
        horizon: H, time steps; later steps of a trajectory are cut.
        reward_range: lowest and highest reward of one step; rewards are clipped to it.
        terminal: ``(S,)`` bool, states in which episodes end, or None: not known.
        clusters: ``(S,)`` int, public map from states to clusters 0 .. G-1, or None.
        pooled: count all time steps together (a model that does not depend on time).
        visits: ``first``: of each trajectory only its first visit to each pair of (cluster of)
            state and action; needs ``pooled``. ``every``: all.
        estimate_reward: sum rewards too.
        max_trajectories_per_unit: m; a unit's further trajectories are left out.
        max_rows_per_unit: L; a unit's further rows, of all its trajectories, are left out; None: no
            cap.

    Raises:
        ConfigError: a value is out of range, or a cluster is empty or partly terminal, or first
            visits are asked for by time step.
    """

    states: int
    actions: int
    horizon: int
    reward_range: tuple[float, float] = (0.0, 1.0)
    terminal: NDArray[np.bool_] | None = None
    clusters: NDArray[np.int64] | None = None
    pooled: bool = False
    visits: Visits = "every"
    estimate_reward: bool = False
    max_trajectories_per_unit: int = 1
    max_rows_per_unit: int | None = None

    def __post_init__(self) -> None:
        for name in ("states", "actions", "horizon", "max_trajectories_per_unit"):
            check_positive(name, getattr(self, name))
        if self.max_rows_per_unit is not None:
            check_positive("max_rows_per_unit", self.max_rows_per_unit)
        if self.visits not in ("every", "first"):
            raise ConfigError(f"visits must be every or first, got {self.visits!r}")
        if self.visits == "first" and not self.pooled:
            raise ConfigError("visits=first needs pooled=true: a time step has one visit anyway")
        low, high = self.reward_range
        if not (np.isfinite([low, high]).all() and low < high):
            raise ConfigError(f"reward_range must be (low, high), finite, got {self.reward_range}")
        terminal, clusters = self.terminal, self.clusters
        if terminal is not None and (terminal.shape != (self.states,) or terminal.dtype != bool):
            raise ConfigError(f"terminal must be bool ({self.states},), got {terminal.shape}")
        if terminal is not None and terminal.all():
            raise ConfigError("terminal must leave a state in which an episode goes on")
        if clusters is None:
            return
        if clusters.shape != (self.states,) or clusters.dtype.kind not in "iu":
            raise ConfigError(f"clusters must be integers ({self.states},), got {clusters.shape}")
        if clusters.min() < 0 or not np.bincount(clusters).all():
            raise ConfigError("clusters must be numbered 0, 1, ... with a state in each")
        if terminal is not None and len(np.unique(2 * clusters + terminal)) > self.groups:
            raise ConfigError("clusters must not join terminal states with others")

    @property
    def groups(self) -> int:
        """States that are told apart, G: clusters, or all."""
        return self.states if self.clusters is None else int(self.clusters.max()) + 1

    @property
    def successors(self) -> int:
        """Successors that are told apart: G, and "ended" where ``terminal`` is None."""
        return self.groups + (self.terminal is None)

    @property
    def pairs(self) -> int:
        """Pairs of state and action, G A."""
        return self.groups * self.actions

    @property
    def dimension(self) -> int:
        """Length of the vector that one release covers: successors, pairs and reward sums."""
        return self.pairs * (self.successors + 1 + self.estimate_reward)

    @property
    def releases(self) -> int:
        """Vectors that a run releases: one a time step, or one."""
        return 1 if self.pooled else self.horizon

    def sensitivities(self, relation: Relation) -> TabularSensitivities:
        """Return how far one unit moves a release; see `tabular_sensitivities`."""
        return tabular_sensitivities(
            relation,
            horizon=self.horizon,
            max_trajectories_per_unit=self.max_trajectories_per_unit,
            estimate_reward=self.estimate_reward,
            pooled=self.pooled,
            visits=self.visits,
            max_rows_per_unit=self.max_rows_per_unit,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CountSpec:
    """What a count worker is built from: a reference and public facts.

    Args:
        source: where its trajectories are; picklable.
        layout: which cells are counted.
    """

    source: TrajectorySource
    layout: CountLayout


@dataclass(frozen=True, kw_only=True, eq=False)
class StepCounts:
    """Raw sums of one time step over a worker's trajectories: for the server's process alone.

    Args:
        cells: ``(C,)`` int64, rising: (state A + action) successors + successor.
        counts: ``(C,)`` int64.
        pairs: ``(P,)`` int64, rising: state A + action; empty where rewards are known.
        reward_sums: ``(P,)`` int64, of rewards scaled to [0, 1], in steps of the unit asked for.
    """

    cells: NDArray[np.int64]
    counts: NDArray[np.int64]
    pairs: NDArray[np.int64]
    reward_sums: NDArray[np.int64]


class CountWorker:
    """Owns a shard of trajectories and answers with its counts of a time step.

    Privacy: a unit adds at most ``max_trajectories_per_unit`` to one time step's counts of
    successors, the same to the counts of pairs that follow from them, and at most that to the sums
    of scaled rewards; to pooled ones up to H times as much, and never more than
    ``max_rows_per_unit``. With ``visits="first"`` it adds at most ``max_trajectories_per_unit`` to
    each cell. A row that is malformed (a state or action out of range, a reward that is not
    finite) adds nothing and leaves no trace. Sums are exact integers: a scaled reward is rounded
    to the noise's lattice for itself and stays within [0, 1], so that it needs no allowance. What
    is returned is raw: event ``discrete_gaussian`` or ``discrete_laplace`` (``gaussian`` or
    ``laplace`` from a million cells on) once the server has added its noise.
    """

    def __init__(self, spec: CountSpec) -> None:
        layout = spec.layout
        rows = step_rows(
            spec.source(),
            states=layout.states,
            actions=layout.actions,
            horizon=layout.horizon,
            reward_range=layout.reward_range,
            max_trajectories_per_unit=layout.max_trajectories_per_unit,
            max_rows_per_unit=layout.max_rows_per_unit,
        )
        self._blocks = layout.releases
        cells, rewards = _cells_of(rows, layout), rows.rewards
        times = np.zeros_like(rows.times) if layout.pooled else rows.times
        if layout.visits == "first":
            first = first_visits(rows, cells // layout.successors)
            times, cells, rewards = times[first], cells[first], rewards[first]
        self._cells = _Sums(times, cells, np.ones(len(cells)), layout.pairs * layout.successors)
        used = slice(None) if layout.estimate_reward else slice(0)
        pairs = cells[used] // layout.successors
        self._rewards = _Sums(times[used], pairs, rewards[used], layout.pairs)

    def counts(self, step: int, reward_unit: float = REWARD_UNIT) -> StepCounts:
        """Return the counts of time ``step``, from 0; pooled counts are those of step 0.

        Args:
            step: time step.
            reward_unit: what each scaled reward is rounded to a multiple of; 1 is one, too, so
                that no reward leaves [0, 1].

        Raises:
            ConfigError: ``step`` is beyond the horizon, or 1 is no multiple of the unit.
        """
        if not 0 <= step < self._blocks:
            raise ConfigError(f"step must lie in [0, {self._blocks}), got {step}")
        check_reward_unit(reward_unit)
        cells, counts = self._cells.of(step, 1.0)
        pairs, reward_sums = self._rewards.of(step, reward_unit)
        return StepCounts(cells=cells, counts=counts, pairs=pairs, reward_sums=reward_sums)


def check_reward_unit(unit: float) -> None:
    """Check that 1 is a multiple of ``unit``.

    Raises:
        ConfigError: otherwise.
    """
    if not (unit > 0 and (1 / unit).is_integer()):
        raise ConfigError(
            f"the lattice of rewards must divide 1, got {unit!r}: let fewer rows count"
        )


class _Sums:
    """Numbers, each rounded to an integer, summed by (time, cell).

    Args:
        times: (N,).
        cells: (N,), below ``size``.
        weights: (N,).
        size: number of cells.
    """

    def __init__(
        self,
        times: NDArray[np.int64],
        cells: NDArray[np.int64],
        weights: NDArray[np.float64],
        size: int,
    ) -> None:
        keys = times * size + cells
        order = np.argsort(keys, kind="stable")
        self._size, self._weights = size, weights[order]
        self._keys, first = np.unique(keys[order], return_index=True)
        self._first = np.append(first, len(keys))

    def of(self, time: int, unit: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the cells of ``time`` that occur, rising, and their sums in ``unit``."""
        begin, end = np.searchsorted(self._keys, [time * self._size, (time + 1) * self._size])
        first = self._first[begin : end + 1]
        steps = np.rint(self._weights[first[0] : first[-1]] / unit).astype(np.int64)
        sums = np.add.reduceat(steps, first[:-1] - first[0]) if end > begin else steps[:0]
        return self._keys[begin:end] - time * self._size, sums


def _cells_of(rows: StepRows, layout: CountLayout) -> NDArray[np.int64]:
    """Return the cell of each row, (N,)."""
    states, reached = rows.states, rows.next_states
    if layout.clusters is not None:
        states, reached = layout.clusters[states], layout.clusters[reached]
    if layout.terminal is None:
        reached = np.where(rows.terminated, layout.groups, reached)
    return np.asarray((states * layout.actions + rows.actions) * layout.successors + reached)
