"""A slippery grid with a goal and pits, rewarded at the goal alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distributed_privrl.core.checks import check_probability
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.tabular import (
    TabularMdp,
    optimal_policy,
    uniform_policy,
)

ROWS = (
    "S...",
    ".#.P",
    "...P",
    "P..G",
)
"""The default map: ``S`` the start, ``G`` the goal, ``P`` a pit, ``#`` a wall, ``.`` free."""

_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Up, right, down, left: turning right adds one."""


def gridworld(
    rows: Sequence[str] = ROWS, *, slip: float = 0.2, exploration: float = 0.5, horizon: int = 20
) -> TabularMdp:
    """Return a gridworld.

    A state is a cell without a wall, row by row, and last the state in which everything is over. An
    action moves up, right, down or left; with probability ``slip`` it goes to one of the two sides
    instead, and whatever would leave the grid or enter a wall stays. Arriving at a goal earns 1 and
    ends the episode; a pit ends it too.

    The behaviour takes a uniform action with probability ``exploration``; else one that is optimal
    with the whole horizon ahead, at every step.

    Args:
        rows: the map, rows of equal length; at least one ``S`` (several: each equally often).
        slip: probability of going sideways.
        exploration: in (0, 1].
        horizon: number of steps H.

    Raises:
        ConfigError: a map without start or of unequal rows, an unknown mark, or a number that is
            out of range.
    """
    check_probability("slip", slip, zero_allowed=True)
    check_probability("exploration", exploration)
    cells = _cells(rows)
    numbers = {cell: state for state, cell in enumerate(cells)}
    marks = np.array([*cells.values(), ""])
    over = len(cells)
    transitions = np.zeros((1, over + 1, len(_MOVES), over + 1))
    for state, (row, column) in enumerate(cells):
        for action in range(len(_MOVES)):
            for turn, probability in ((0, 1 - slip), (1, slip / 2), (-1, slip / 2)):
                down, right = _MOVES[(action + turn) % len(_MOVES)]
                arrival = numbers.get((row + down, column + right), state)
                transitions[0, state, action, arrival] += probability
    terminal = np.isin(marks, ["G", "P", ""])
    transitions[:, terminal] = 0.0
    transitions[:, terminal, :, over] = 1.0
    starts = marks == "S"
    mdp = TabularMdp(
        transitions=transitions,
        rewards=np.zeros(transitions.shape[:3]),
        arrival_rewards=(marks == "G").astype(np.float64),
        initial=starts / starts.sum(),
        terminal=terminal,
        horizon=horizon,
        behaviour=np.full((1, over + 1, len(_MOVES)), 1 / len(_MOVES)),
    )
    optimal = np.eye(len(_MOVES))[optimal_policy(mdp)[0][:1]]
    behaviour = exploration * uniform_policy(mdp) + (1 - exploration) * optimal
    return replace(mdp, behaviour=behaviour)


def _cells(rows: Sequence[str]) -> dict[tuple[int, int], str]:
    """Return row and column of each cell without a wall, and its mark."""
    if len({len(row) for row in rows}) != 1 or not set("".join(rows)) <= set("SGP#."):
        raise ConfigError(f"rows must be equally long and of S, G, P, # and ., got {list(rows)}")
    if "S" not in "".join(rows):
        raise ConfigError(f"rows must have a start S, got {list(rows)}")
    return {
        (row, column): mark
        for row, marks in enumerate(rows)
        for column, mark in enumerate(marks)
        if mark != "#"
    }
