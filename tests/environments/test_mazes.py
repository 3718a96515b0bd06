import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments import maze_layout, reference_returns
from distributed_privrl.environments.mazes import ENVIRONMENTS, MAZES, Maze, find_maze

UMAZE = MAZES["umaze"]


def test_centre_and_cell_are_inverse_on_every_free_cell() -> None:
    for maze in MAZES.values():
        for row, column in maze.free_cells:
            x, y = maze.centre(row, column)
            for offset in (-0.49, 0.49):
                assert maze.cell(x + offset, y - offset) == (row, column)


def test_cell_clamps_points_outside_the_map() -> None:
    assert UMAZE.cell(-99.0, 99.0) == (0, 0)
    assert UMAZE.cell(99.0, -99.0) == (4, 4)


@pytest.mark.parametrize(
    ("name", "goal", "time_limit", "free"),
    [
        ("open", (0.0, 0.0), 150, 15),
        ("umaze", (-1.0, 1.0), 300, 7),
        ("medium", (2.5, -2.5), 600, 26),
        ("large", (3.5, -3.0), 800, 46),
    ],
)
def test_goals_and_time_limits_are_those_of_d4rl(
    name: str, goal: tuple[float, float], time_limit: int, free: int
) -> None:
    maze = MAZES[name]
    assert (maze.goal, maze.time_limit, len(maze.free_cells)) == (goal, time_limit, free)
    assert maze.goal_cell in maze.free_cells


def test_sparse_reward_is_one_up_to_half_a_metre() -> None:
    x, y = UMAZE.goal
    observations = np.array(
        [[x, y, 0, 0], [x + 0.5, y, 9, 9], [x, y - 0.501, 0, 0]], dtype=np.float32
    )
    assert UMAZE.rewards(observations, dense=False).tolist() == [1.0, 1.0, 0.0]


def test_dense_reward_is_exp_of_minus_the_distance() -> None:
    x, y = UMAZE.goal
    observations = np.array([[x + 3, y - 4, 0, 0], [x, y, 5, 5]], dtype=np.float32)
    np.testing.assert_allclose(UMAZE.rewards(observations, dense=True), [np.exp(-5.0), 1.0])


def test_starts_cover_the_free_cells_and_are_exact_in_float32() -> None:
    rng = np.random.default_rng(0)
    starts = np.stack([UMAZE.draw_start(rng) for _ in range(700)])
    np.testing.assert_array_equal(starts, starts.astype(np.float32))
    cells = [UMAZE.cell(x, y) for x, y in starts[:, :2].tolist()]
    counts = [cells.count(cell) for cell in UMAZE.free_cells]
    assert min(counts) > 60
    assert max(counts) < 150
    offsets = starts[:, :2] - [UMAZE.centre(*cell) for cell in cells]
    assert 0.095 < np.abs(offsets).max() <= 0.1 + 1e-6
    assert 0.09 < starts[:, 2:].std() < 0.11


def test_layout_unpacks_for_plots() -> None:
    cells, scaling, goal = maze_layout("privrl/Maze2D-large-dense-v0")
    assert cells.shape == (9, 12)
    assert set(np.unique(cells).tolist()) == {0, 1}
    assert scaling == 1.0
    assert goal == MAZES["large"].goal
    assert not cells.flags.writeable


def test_unknown_environment_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'CartPole-v1' is no maze: privrl/Maze2D-open-v0, .*"):
        maze_layout("CartPole-v1")
    with pytest.raises(ConfigError, match="is no maze"):
        reference_returns("CartPole-v1")


def test_every_environment_has_reference_returns_in_order() -> None:
    for environment in ENVIRONMENTS:
        maze, dense = find_maze(environment)
        reference = reference_returns(environment)
        assert 0 < reference.random < reference.planner < maze.time_limit
        assert dense == environment.endswith("-dense-v0")


def test_mazes_are_closed_by_walls() -> None:
    for maze in MAZES.values():
        assert isinstance(maze, Maze)
        border = [*maze.cells[0], *maze.cells[-1], *maze.cells[:, 0], *maze.cells[:, -1]]
        assert all(border)
