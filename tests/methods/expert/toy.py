"""A toy decision process small enough that a filter's law is a table over all its outputs.

Two states and one where episodes end, two actions, at most three steps. Experts come in kinds, so
that a set of hundreds is a handful of numbers.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.expert.hosting import ExpertHost, HostSpec
from distributed_privrl.privacy import sparse_vector
from distributed_privrl.privacy.sparse_vector import StablePrefixes

END = 2
START = (0.6, 0.4)
STEP = {  # (state, action): odds of states 0, 1 and END
    (0, 0): (0.5, 0.5, 0.0),
    (0, 1): (0.2, 0.6, 0.2),
    (1, 0): (0.7, 0.3, 0.0),
    (1, 1): (0.1, 0.8, 0.1),
}
Law = Mapping[tuple[int, ...], float]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
"""Of an integral over a panel from -1 to 1."""


@dataclass(frozen=True)
class Table:
    """A policy: odds (2, 2) of action by state, as it says them; what it did may be another."""

    said: tuple[tuple[float, ...], ...]
    did: tuple[tuple[float, float], ...] | None = None

    def log_probabilities(self, observations: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([*self.said, self.said[0]], dtype=torch.float32).log()
        return table[observations[:, 0].long()]

    def odds(self, state: int, action: int) -> float:
        return (self.did or self.said)[state][action]


@dataclass(frozen=True)
class Hosted:
    """Policies of a host, as it knows them: tables, or anything with `log_probabilities`."""

    policies: Sequence[Any]
    unit_ids: NDArray[np.uint64]

    def log_probabilities(self, expert: int, observations: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.policies[expert].log_probabilities(observations)
        return found


@dataclass(frozen=True)
class Episode:
    """A whole episode: states (K + 1), actions (K) and the odds of its states given its actions."""

    states: tuple[int, ...]
    actions: tuple[int, ...]
    odds: float


def episodes(length: int) -> Iterator[Episode]:
    """Yield every episode of at most ``length`` steps, and cut there."""

    def go_on(states: tuple[int, ...], actions: tuple[int, ...], odds: float) -> Iterator[Episode]:
        if len(actions) == length or states[-1] == END:
            yield Episode(states, actions, odds)
            return
        for action, reached in product((0, 1), (0, 1, END)):
            chance = STEP[states[-1], action][reached]
            if chance:
                yield from go_on((*states, reached), (*actions, action), odds * chance)

    for first in (0, 1):
        yield from go_on((first,), (), START[first])


def host_of(
    policies: Sequence[object],
    *,
    minimum_probability: float,
    pool: Trajectories | None = None,
    release_pool: int = 1,
    first: int = 0,
) -> ExpertHost:
    """Return a host; without a ``pool`` each expert has as many trajectories as it needs."""
    units = np.arange(first, first + len(policies), dtype=np.uint64)
    if pool is None:
        each = np.repeat(units, release_pool)
        pool = trajectories([Episode((0, 0), (0,), 1.0)] * len(each), each.tolist())
    held = pool

    def own(wanted: NDArray[np.uint64]) -> Trajectories:
        return held.select(np.flatnonzero(np.isin(held.unit_ids, wanted)))

    return ExpertHost(
        HostSpec(
            policies=lambda: [Hosted(policies, units)],
            pool=own,
            first=first,
            actions=2,
            minimum_probability=minimum_probability,
            release_pool=release_pool,
        )
    )


def trajectories(some: Sequence[Episode], units: Sequence[int]) -> Trajectories:
    """Return episodes as trajectories whose rewards tell states and actions apart."""
    lengths = [len(one.actions) for one in some]
    actions = np.array([a for one in some for a in one.actions], np.int64)
    states = np.array([[float(s)] for one in some for s in one.states], np.float32)
    rewards = [10.0 * s + a for one in some for s, a in zip(one.states, one.actions, strict=False)]
    last = np.zeros(len(actions), np.bool_)
    last[np.cumsum(lengths, dtype=np.int64) - 1] = True
    done = np.array([one.states[-1] == END for one in some for _ in one.actions], np.bool_)
    return Trajectories(
        observations=states.reshape(-1, 1),
        actions=actions,
        rewards=np.array(rewards, np.float32),
        terminated=last & done,
        truncated=last & ~done,
        offsets=offsets_of(lengths),
        unit_ids=np.array(units, np.uint64),
    )


@dataclass(frozen=True)
class Toy:
    """A filter's law by enumeration, its counts from the real hosts.

    Args:
        kinds: of experts.
        length: steps of an episode at most.
        minimum_probability: that hosts ask for.
        null: kinds that have no trajectories: they are hosted, and cannot be drawn.
    """

    kinds: tuple[Table, ...]
    length: int
    minimum_probability: float
    null: frozenset[int] = frozenset()

    @cache  # noqa: B019 - sets are few and small
    def counts(self) -> NDArray[np.float64]:
        """Return the counts of one expert of each kind, (kinds, episodes, length)."""
        some = list(episodes(self.length))
        found = np.zeros((len(self.kinds), len(some), self.length))
        for number, kind in enumerate(self.kinds):
            host = host_of(
                [kind],
                minimum_probability=self.minimum_probability,
                pool=trajectories([], []) if number in self.null else None,
            )
            for place, one in enumerate(some):
                observations = np.array(one.states, np.float32)[:, None]
                counted = host.prefix_counts(observations, np.array(one.actions))
                found[number, place, : len(counted)] = counted
        return found

    @cache  # noqa: B019 - sets are few and small
    def odds(self) -> NDArray[np.float64]:
        """Return how likely an expert of each kind is to have each episode, (kinds, episodes)."""
        return np.array(
            [
                [
                    one.odds
                    * float(
                        np.prod(
                            [kind.odds(s, a) for s, a in zip(one.states, one.actions, strict=False)]
                        )
                    )
                    for one in episodes(self.length)
                ]
                for kind in self.kinds
            ]
        )

    def laws(
        self,
        mechanism: StablePrefixes,
        numbers: Sequence[int],
        odds: NDArray[np.float64] | None = None,
        counts: NDArray[np.float64] | None = None,
    ) -> list[Law]:
        """Return the law of a draw's output for an expert of each kind, given the whole set."""
        odds = self.odds() if odds is None else odds
        counts = self.counts() if counts is None else counts
        total = np.tensordot(np.array(numbers, float), counts, axes=1)
        found: list[defaultdict[tuple[int, ...], float]] = [defaultdict(float) for _ in self.kinds]
        for place, one in enumerate(episodes(self.length)):
            steps = len(one.actions)
            for k, chance in enumerate(stopping(mechanism, total[place, :steps])):
                output = output_of(one, k)
                for number in range(len(self.kinds)):
                    found[number][output] += odds[number, place] * chance
        return [dict(law) for law in found]

    def law(self, mechanism: StablePrefixes, numbers: Sequence[int], **options: NDArray) -> Law:
        """Return the law of a draw's output: the expert is uniform over the set."""
        drawn = [0 if kind in self.null else number for kind, number in enumerate(numbers)]
        if not sum(drawn):
            return {(): 1.0}
        return mixed(self.laws(mechanism, numbers, **options), drawn)


def mixed(laws: Sequence[Law], numbers: Sequence[int]) -> Law:
    found: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for law, number in zip(laws, numbers, strict=True):
        for output, chance in law.items():
            found[output] += chance * number / sum(numbers)
    return dict(found)


def output_of(one: Episode, steps: int) -> tuple[int, ...]:
    """Name an output: states and actions of the prefix, and whether the episode ended there."""
    if steps == 0:
        return ()
    pairs = [n for pair in zip(one.states[:steps], one.actions[:steps], strict=True) for n in pair]
    return (*pairs, one.states[steps], int(steps == len(one.actions)))


def stopping(mechanism: StablePrefixes, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return P(k steps are released) for k = 0 .. K.

    Exactly, by adding up over the threshold's noise, where steps are coarse. There are too many of
    the steps that are in use: an integral over continuous noise stands for them.
    """
    if sparse_vector.STEP > 2.0**-6:
        return _stopping_in_steps(mechanism, counts, sparse_vector.STEP)
    return _stopping_in_the_limit(mechanism, counts)


def _stopping_in_steps(
    mechanism: StablePrefixes, counts: NDArray[np.float64], step: float
) -> NDArray[np.float64]:
    scale, queries = mechanism.threshold_scale / step, mechanism.query_scale / step
    wide = math.ceil(45 * scale)
    points = np.arange(-wide, wide + 1)
    density = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(points) / scale)
    threshold = math.ceil(mechanism.threshold / step) + points[:, None]
    gaps = threshold - np.floor(counts / step)
    odds = 1 + math.exp(-1 / queries)
    reach = np.exp(-np.abs(gaps) / queries) / odds  # P(noise >= gap) of a gap above 0
    beyond = np.exp(-(np.abs(gaps) + 1) / queries) / odds  # P(noise > |gap|)
    return _stopped(
        density, np.where(gaps > 0, reach, 1 - beyond), np.where(gaps > 0, 1 - reach, beyond)
    )


def _stopping_in_the_limit(
    mechanism: StablePrefixes, counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    scale, queries = mechanism.threshold_scale, mechanism.query_scale
    kinks = np.concatenate([[0.0], counts - mechanism.threshold])
    panel, wide = 3 * min(scale, queries), 36 * max(scale, queries)
    panels = np.arange(kinks.min() - wide, kinks.max() + wide + panel, panel)
    edges = np.unique(np.concatenate([kinks, panels]))
    half = np.diff(edges)[:, None] / 2
    points = ((edges[:-1] + edges[1:])[:, None] / 2 + half * NODES).ravel()
    density = (half * WEIGHTS).ravel() * np.exp(-np.abs(points) / scale) / (2 * scale)
    gaps = (mechanism.threshold + points[:, None] - counts) / queries
    tail = np.exp(-np.abs(gaps)) / 2
    return _stopped(density, np.where(gaps > 0, tail, 1 - tail), np.where(gaps > 0, 1 - tail, tail))


def _stopped(
    density: NDArray[np.float64], above: NDArray[np.float64], below: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mix the laws given the threshold's noise: odds of each answer, (points, K)."""
    sure = np.ones((len(density), 1))
    so_far = np.concatenate([sure, above.cumprod(axis=1)], axis=1)
    return np.asarray(density @ (so_far * np.concatenate([below, sure], axis=1)))


def excess(one: Law, other: Law, epsilon: float) -> float:
    """Return the least delta for which ``one`` is within exp(epsilon) of ``other``."""
    factor = np.exp(epsilon)
    return sum(max(p - factor * other.get(output, 0.0), 0.0) for output, p in one.items())
