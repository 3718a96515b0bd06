"""Exact returns in a maze: a policy that pushes nowhere earns where it starts, or nothing."""

import numpy as np
import pytest

from benchmarks import off_policy_maze
from distributed_privrl.environments import register
from distributed_privrl.environments.mazes import MAZES
from tests.benchmarks.quick import last_line


def test_off_policy_maze(capsys: pytest.CaptureFixture[str]) -> None:
    found = last_line(off_policy_maze, capsys)
    assert abs(found["ratios"]["who_acted_fitted_q_error"]) < 1
    assert {*found["ratios"]} == {
        f"{name}_fitted_q_error" for name in ("who_acted", "no_force", "bc")
    }


def test_who_rests_at_the_goal_earns_every_step() -> None:
    register()
    goal = (*MAZES[off_policy_maze.MAZE].goal, 0.0, 0.0)
    away = (*MAZES[off_policy_maze.MAZE].centre(*MAZES[off_policy_maze.MAZE].free_cells[0]), 0, 0)
    found = off_policy_maze.exact_returns(off_policy_maze.Still(), np.array([goal, away]), 7)
    np.testing.assert_array_equal(found, [7, 0])
