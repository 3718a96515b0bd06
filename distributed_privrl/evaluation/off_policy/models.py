"""What the estimators need, fitted on logged rows: cells of observations, who acted, what follows.

Observations are put into cells, and so are actions of a Box. Who acted and what an action is worth
are tables over cells and actions, so that they can be fitted anew on each of hundreds of resamples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2, vq
from scipy.sparse import csr_array

from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space
from distributed_privrl.evaluation.off_policy.estimators import Episodes, Floats

MOST_CELLS = 500
MOST_ACTIONS = 25
"""Cells of actions of a Box."""
_ROWS_A_CELL = 100
_CLUSTERED_ROWS = 20_000
_REACH = 1e6
"""Deviations from the mean at which an observation is cut off."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Puts observations into cells: a Discrete one into its own, others by k-means.

    Args:
        start: of a Discrete space.
        number: cells.
        normalisation: of the columns of a Box.
        centres: (C, O) of a Box's cells, normalised; None: the space is Discrete.

    Reference: Komorowski et al., "The artificial intelligence clinician learns optimal treatment
    strategies for sepsis in intensive care" (2018), which has 750 cells.
    """

    start: int
    number: int
    normalisation: Normalisation | None = None
    centres: NDArray[np.float32] | None = None

    @classmethod
    def discrete(cls, space: Space) -> "Cells":
        """Return the cells of a Discrete space: its values."""
        assert isinstance(space, Discrete)
        return cls(int(space.start), int(space.n))

    @classmethod
    def fit(
        cls,
        space: Space,
        observations: NDArray[Any],
        streams: Streams,
        *,
        most: int = MOST_CELLS,
        name: str = "cells",
    ) -> "Cells":
        """Return the cells of a space; of a Box with 100 rows each on average.

        Args:
            space: Box or Discrete.
            observations: (N, O) or (N,), whose neighbourhoods become cells of a Box; or actions.
            streams: public randomness.
            most: cells of a Box.
            name: of the stream.
        """
        if isinstance(space, Discrete):
            return cls.discrete(space)
        rows = observations.reshape(len(observations), -1)
        normalisation = Normalisation.fit(rows)
        generator = streams.numpy(name)
        if len(rows) > _CLUSTERED_ROWS:
            rows = rows[generator.choice(len(rows), _CLUSTERED_ROWS, replace=False)]
        wanted = int(np.clip(len(observations) // _ROWS_A_CELL, 1, most))
        places = np.unique(normalisation.apply(rows), axis=0)
        if len(places) > wanted:
            places, _ = kmeans2(places, wanted, minit="++", rng=generator, missing="warn")
        return cls(0, len(places), normalisation, places.astype(np.float32))

    def of(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """Return the cell of each observation (N,)."""
        if self.centres is None or self.normalisation is None:
            return np.asarray(observations, dtype=np.int64) - self.start
        near = self.near(observations)
        rows = self.normalisation.apply(near.reshape(len(observations), -1))
        found: NDArray[np.int64] = vq(rows, self.centres)[0].astype(np.int64)
        return found

    def near(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return observations of a Box cut off far outside the rows that the cells were fitted on.

        What is normalised then stays finite, and so do distances, and a policy's arithmetic: a row
        of the largest float in a file ends no run.
        """
        if self.normalisation is None:
            return observations
        wide = observations.astype(np.float64)
        middle = self.normalisation.mean.astype(np.float64)
        reach = _REACH * self.normalisation.spread.astype(np.float64)
        shape = (1, *observations.shape[1:])
        low, high = (middle - reach).reshape(shape), (middle + reach).reshape(shape)
        return np.asarray(np.clip(wide, low, high).astype(observations.dtype))


@dataclass(frozen=True, kw_only=True, eq=False)
class LoggedRows:
    """Rows of logged episodes, in cells.

    Args:
        episodes: their rewards and bounds.
        cells: (N,) of observations.
        actions: (N,) taken, from 0.
        following: (N,) cells of next observations.
        continues: (N,) 0 after a terminal step, else 1.
        cell_count: C.
        action_count: A.
    """

    episodes: Episodes
    cells: NDArray[np.int64]
    actions: NDArray[np.int64]
    following: NDArray[np.int64]
    continues: Floats
    cell_count: int
    action_count: int

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Cell * A + action of each row (N,)."""
        return self.cells * self.action_count + self.actions

    @cached_property
    def by_step(self) -> list[NDArray[np.int64]]:
        """The rows of each step."""
        order = np.argsort(self.episodes.step, kind="stable")
        starts = np.cumsum(np.bincount(self.episodes.step))[:-1]
        return list(np.split(order, starts))

    @cached_property
    def stopping_at(self) -> list[NDArray[np.int64]]:
        """The episodes that stop, without an end, after 0, 1, ... steps."""
        lengths, stopped = self.episodes.lengths, self.episodes.truncated
        return [
            np.flatnonzero(stopped & (lengths == steps))
            for steps in range(self.episodes.horizon + 1)
        ]

    def pair_counts(self, weights: Floats) -> Floats:
        """Return how much each pair of cell and action weighs (C, A), of rows' ``weights`` (N,)."""
        shape = (self.cell_count, self.action_count)
        found = np.bincount(self.pairs, weights, shape[0] * shape[1])
        return found.astype(np.float64, copy=False).reshape(shape)


def fit_behaviour(rows: LoggedRows) -> Floats:
    """Return the frequency of each action in each cell (C, A): who acted; zeros in empty cells.

    Args:
        rows: that were logged.

    Reference: Hanna, Niekum, Stone, "Importance sampling policy evaluation with an estimated
    behavior policy" (2019): frequencies fitted on the same rows have less variance than the truth.
    """
    counts = rows.pair_counts(np.ones(len(rows.pairs)))
    totals = counts.sum(axis=1, keepdims=True)
    frequencies = np.zeros_like(counts)
    np.divide(counts, totals, out=frequencies, where=totals > 0)
    return frequencies


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """How a policy acts in logged rows: probabilities, as sparse matrices over cell * A + action.

    Args:
        taken: (N,) of the action that was taken.
        now: (N, C A) where it was taken.
        following: (N, C A) where it led.
    """

    taken: Floats
    now: csr_array
    following: csr_array

    @classmethod
    def of(cls, now: Floats, following: Floats, rows: LoggedRows) -> "Choices":
        """Return a policy's choices.

        Args:
            now: (N, A) probabilities of actions where each row's action was taken.
            following: (N, A) where it led.
            rows: that were logged.
        """
        return cls(
            taken=now[np.arange(len(now)), rows.actions],
            now=_over_pairs(now, rows.cells, rows.cell_count),
            following=_over_pairs(following, rows.following, rows.cell_count),
        )


def _over_pairs(probabilities: Floats, cells: NDArray[np.int64], number: int) -> csr_array:
    actions = probabilities.shape[1]
    rows, chosen = np.nonzero(probabilities)
    columns = cells[rows] * actions + chosen
    shape = (len(cells), number * actions)
    return csr_array((probabilities[rows, chosen], (rows, columns)), shape=shape)


class FittedValues(NamedTuple):
    """What fitted Q evaluation says of a policy."""

    start: Floats
    """(K,): value of each episode's first state."""
    action_values: Floats
    """(N,): of the action taken, with the steps that are left."""
    state_values: Floats
    """(N,): of the state."""
    tail_values: Floats
    """(K,): of the state where a recording stopped before the horizon; else 0."""


class Prior(NamedTuple):
    """One further row of each pair of cell and action, for one resample.

    Reweighting alone never moves the mean of a pair that has one row, as if that row were certain.

    Reference: Muliere, Secchi, "Bayesian nonparametric predictive inference and bootstrap
    techniques" (1996): the proper Bayesian bootstrap.
    """

    rows: NDArray[np.int64]
    """(C, A): which row it copies."""
    weights: Floats
    """(C, A)."""

    @classmethod
    def draw(cls, rows: LoggedRows, generator: np.random.Generator) -> "Prior":
        """Return a row of each pair's cell at random (of all, if it is empty), of weight Exp(1)."""
        shape = (rows.cell_count, rows.action_count)
        order = np.argsort(rows.cells, kind="stable")
        sizes = np.bincount(rows.cells, minlength=shape[0])
        starts = np.where(sizes > 0, np.cumsum(sizes) - sizes, 0)[:, None]
        sizes = np.where(sizes > 0, sizes, len(order))[:, None]
        places = starts + (generator.random(shape) * sizes).astype(np.int64)
        return cls(order[places], generator.exponential(size=shape))


@dataclass(frozen=True, eq=False)
class FittedQ:
    """Fitted Q evaluation of one policy over a table of cells and actions.

    Q_k, the value with k steps to go, is the mean of r + V_(k-1)(s') over the rows of its cell and
    action and one further row: the mean of the cell's rows, or of all rows if the cell is empty.
    Without that row a pair that was seen once, and led to its own cell, could never be left. The
    dynamics are taken to be the same at every step, and the horizon is that of the longest
    episode. Nothing is discounted.

    Args:
        rows: that were logged.
        policy: how the policy acts in them.

    Reference: Le, Voloshin, Yue, "Batch policy learning under constraints" (2019), algorithm 3.
    """

    rows: LoggedRows
    policy: Choices

    @cached_property
    def _now_by_step(self) -> list[csr_array]:
        return [self.policy.now[chosen] for chosen in self.rows.by_step]

    def fit(self, weights: Floats, prior: Prior | None = None) -> FittedValues:
        """Return the values.

        Args:
            weights: (N,) of the rows.
            prior: the further row of each pair, drawn; None: the mean of the cell's rows.
        """
        episodes = self.rows.episodes
        action_values, state_values = (np.zeros(len(weights)) for _ in range(2))
        tail_values = np.zeros(len(episodes.lengths))
        for to_go, (values, later) in enumerate(self._backed_up(episodes.horizon, weights, prior)):
            step = episodes.horizon - to_go - 1
            stopped = self.rows.stopping_at[step + 1]
            tail_values[stopped] = later[episodes.last[stopped]]
            chosen = self.rows.by_step[step]
            action_values[chosen] = values[self.rows.pairs[chosen]]
            state_values[chosen] = self._now_by_step[step] @ values
        return FittedValues(
            start=state_values[episodes.offsets[:-1]],
            action_values=action_values,
            state_values=state_values,
            tail_values=tail_values,
        )

    def tables(self, horizon: int) -> Floats:
        """Return the value of each pair with 0 to ``horizon`` steps to go (horizon + 1, C, A)."""
        shape = (self.rows.cell_count, self.rows.action_count)
        backed_up = self._backed_up(horizon, np.ones(len(self.rows.pairs)), None)
        return np.stack([np.zeros(shape), *(values.reshape(shape) for values, _ in backed_up)])

    def _backed_up(
        self, horizon: int, weights: Floats, prior: Prior | None
    ) -> Iterator[tuple[Floats, Floats]]:
        """Yield the pairs' values (C A,) and what follows rows (N,), with 1, 2, ... steps to go."""
        rows = self.rows
        counts = rows.pair_counts(weights)
        totals = counts + (1.0 if prior is None else prior.weights)
        values = np.zeros(counts.size)
        for _ in range(horizon):
            later = rows.continues * (self.policy.following @ values)
            targets = rows.episodes.rewards + later
            sums = rows.pair_counts(weights * targets)
            further = _of_cells(sums, counts) if prior is None else _copied(targets, prior)
            values = ((sums + further) / totals).ravel()
            yield values, later


def _of_cells(sums: Floats, counts: Floats) -> Floats:
    """Return the mean of each cell (C, 1), of all rows if it is empty."""
    means = np.full((len(sums), 1), sums.sum() / counts.sum())
    in_cell = counts.sum(axis=1, keepdims=True)
    np.divide(sums.sum(axis=1, keepdims=True), in_cell, out=means, where=in_cell > 0)
    return means


def _copied(targets: Floats, prior: Prior) -> Floats:
    """Return what each pair's further row adds (C, A)."""
    return prior.weights * targets[prior.rows]
