"""Which joint counts may be measured, and how much each matters to whoever learns from the rows."""

import itertools
import math
from collections.abc import Sequence

from distributed_privrl.marginals.column import Column, Part
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.ends import is_told
from distributed_privrl.marginals.tables import Clique, JointCount

LARGEST_WEIGHT = 4
"""Weights of joint counts are 1 to this."""
MOST_TRIPLES = 400
_TURN = 3
"""Each so-manieth joint count tells of rewards or ends."""
_STATE: frozenset[Part] = frozenset({"observation", "time", "previous"})


def workload(columns: TableColumns, *, most_triples: int = MOST_TRIPLES) -> dict[Clique, int]:
    """Return the joint counts that may be measured, with their weights.

    What an agent learns from has the largest: actions in a state, rewards and ends given state and
    action, what each number becomes. All pairs are there but those that lengths tell; of three
    columns those in which state and action together decide. In a table without actions and rewards
    any two or three columns of a state matter as much.

    Args:
        columns: of the table.
        most_triples: joint counts of three columns at most; of more there are none.
    """
    states, actions = columns.of("observation"), columns.of("action")
    rewards, ends = columns.of("reward"), columns.of("end")
    alike = () if actions or rewards else states
    pairs: dict[Clique, int] = {
        pair: LARGEST_WEIGHT
        if set(pair) <= set(alike)
        else pair_weight(columns[pair[0]], columns[pair[1]])
        for pair in itertools.combinations(range(len(columns)), 2)
        if not columns.unused & set(pair) and not is_told(columns, *pair)
    }
    after = {columns[z].place: z for z in columns.of("next_observation")}
    triples = [
        *(
            (s, a, after[columns[s].place])
            for s in states
            if columns[s].place in after
            for a in actions
        ),
        *((s, a, r) for s in states for a in actions for r in (*rewards, *ends)),
        *((s, z, r) for s, z in itertools.combinations(states, 2) for r in (*rewards, *ends)),
        *((s, z, a) for s, z in itertools.combinations(states, 2) for a in actions),
        *itertools.combinations(alike, 3),
    ]
    if len(triples) > most_triples:
        triples = []
    return pairs | {tuple(sorted(one)): LARGEST_WEIGHT for one in triples}


def pair_weight(one: Column, other: Column) -> int:
    """Return how much two columns' joint count matters, 1 to `LARGEST_WEIGHT`."""
    parts = {one.part, other.part}
    if "unit" in parts:  # nobody sees it: it tells which rows are many
        if "next_observation" in parts:  # who comes often comes soon
            return 4 if one.rises or other.rises else 1
        return 4 if "end" in parts else 2
    if "memory" in parts:
        if "next_observation" in parts or "observation" in parts:
            return 4 if one.place == other.place else 1
        return 2 if "end" in parts or "action" in parts else 1
    if "next_observation" in parts:
        if parts == {"observation", "next_observation"}:
            return 4 if one.place == other.place else 2
        return 4 if "action" in parts else 1 if "reward" in parts else 2
    if parts <= _STATE:
        return 2
    return 2 if parts == {"reward", "end"} else 4


def in_turn(
    columns: TableColumns, candidates: Sequence[JointCount], number: int
) -> list[JointCount]:
    """Return those of the candidates among which joint count ``number`` is chosen.

    The next observations of a person's lasting properties are so like the observations that they
    would take all joint counts of a wide table. So each third one tells of rewards or ends, given a
    state, an action or a time, as long as there is one that has not been measured. In a table
    without actions and rewards all are chosen alike.

    Args:
        columns: of the table.
        candidates: that may be measured.
        number: of joint counts before.
    """
    if number % _TURN != _TURN - 1 or not columns.of("action", "reward"):
        return list(candidates)
    told, given = columns.of("reward", "end"), columns.of("action", *_STATE)
    own = [
        one
        for one in candidates
        if any(i in told for i in one.clique) and all(i in told or i in given for i in one.clique)
    ]
    return own or list(candidates)


def fitting(
    sizes: Sequence[int], candidates: dict[Clique, int], *, most_cells: int
) -> dict[Clique, int]:
    """Return the candidates of at most ``most_cells`` cells."""
    return {
        clique: weight
        for clique, weight in candidates.items()
        if math.prod(sizes[i] for i in clique) <= most_cells
    }
