"""Which joint counts may be measured, and how much each matters to whoever learns from the rows."""

import itertools
import math
from collections.abc import Sequence

from distributed_privrl.marginals.columns import Column, Part, TableColumns
from distributed_privrl.marginals.tables import Clique

LARGEST_WEIGHT = 4
"""Weights of joint counts are 1 to this."""
MOST_TRIPLES = 400
_STATE: frozenset[Part] = frozenset({"observation", "time", "previous"})


def workload(columns: TableColumns) -> dict[Clique, int]:
    """Return the joint counts that may be measured, with their weights.

    What an agent learns from has the largest: actions in a state, rewards and ends given state and
    action, what each number becomes. All pairs are there; of three columns those in which state and
    action together decide.

    Args:
        columns: of the table.
    """
    pairs: dict[Clique, int] = {
        pair: pair_weight(columns[pair[0]], columns[pair[1]])
        for pair in itertools.combinations(range(len(columns)), 2)
    }
    states, actions = columns.of("observation"), columns.of("action")
    rewards, ends = columns.of("reward"), columns.of("end")
    after = columns.of("next_observation")  # of each state, or none at all
    triples = [
        *((s, a, z) for s, z in zip(states, after, strict=bool(after)) for a in actions),
        *((s, a, r) for s in states for a in actions for r in (*rewards, *ends)),
        *((s, z, r) for s, z in itertools.combinations(states, 2) for r in (*rewards, *ends)),
        *((s, z, a) for s, z in itertools.combinations(states, 2) for a in actions),
    ]
    if len(triples) > MOST_TRIPLES:
        triples = []
    return pairs | {tuple(sorted(one)): LARGEST_WEIGHT for one in triples}


def pair_weight(one: Column, other: Column) -> int:
    """Return how much two columns' joint count matters, 1 to `LARGEST_WEIGHT`."""
    parts = {one.part, other.part}
    if "next_observation" in parts:
        if parts == {"observation", "next_observation"}:
            return 4 if one.place == other.place else 2
        return 4 if "action" in parts else 1 if "reward" in parts else 2
    if parts <= _STATE:
        return 2
    return 2 if parts == {"reward", "end"} else 4


def fitting(
    sizes: Sequence[int], candidates: dict[Clique, int], *, most_cells: int
) -> dict[Clique, int]:
    """Return the candidates of at most ``most_cells`` cells."""
    return {
        clique: weight
        for clique, weight in candidates.items()
        if math.prod(sizes[i] for i in clique) <= most_cells
    }
