import numpy as np
import pytest

from distributed_privrl.collection.planner import WaypointPlanner, next_cells
from distributed_privrl.collection.runs import roll
from distributed_privrl.environments.mazes import MAZES, Maze
from distributed_privrl.environments.point_mass import PointMass, State

UMAZE = MAZES["umaze"]


def _way(maze: Maze, start: tuple[int, int], goal: tuple[int, int]) -> list[tuple[int, int]]:
    way, ways = [start], next_cells(maze)[goal]
    while way[-1] != goal:
        way.append(ways[way[-1]])
    return way


def test_the_way_through_the_u_goes_around() -> None:
    assert _way(UMAZE, (3, 1), (1, 1)) == [
        (3, 1), (3, 2), (3, 3), (2, 3), (1, 3), (1, 2), (1, 1)
    ]  # fmt: skip


def test_the_goal_is_followed_by_itself() -> None:
    assert next_cells(UMAZE)[(1, 1)][(1, 1)] == (1, 1)


@pytest.mark.parametrize("name", list(MAZES))
def test_ways_are_as_short_as_those_of_value_iteration(name: str) -> None:
    maze = MAZES[name]
    free = maze.cells == 0
    goal = maze.goal_cell
    distance = np.full(free.shape, np.inf)
    distance[goal] = 0
    for _ in range(free.sum()):
        padded = np.pad(distance, 1, constant_values=np.inf)
        nearest = np.min(
            [padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]], axis=0
        )
        distance = np.where(free, np.minimum(distance, nearest + 1), np.inf)
    for cell in maze.free_cells:
        assert len(_way(maze, cell, goal)) - 1 == distance[cell]


def test_forces_are_the_clipped_pd_law() -> None:
    planner = WaypointPlanner(UMAZE, (1, 1))
    x, y = UMAZE.centre(1, 1)
    # 10 * 0.05 - 1 * 0.2 = 0.3 towards the middle of the goal cell
    assert planner.action(x - 0.05, y, 0.2, 0.0) == pytest.approx([0.3, 0.0])
    assert planner.reached
    assert planner.action(x - 0.4, y, 0.0, 0.0) == pytest.approx([1.0, 0.0])
    assert not planner.reached
    assert planner.action(x + 0.05, y, 3.0, 0.0) == pytest.approx([-1.0, 0.0])


@pytest.mark.parametrize("name", list(MAZES))
def test_it_reaches_the_goal_from_every_cell_and_stays(name: str) -> None:
    maze, ball = MAZES[name], PointMass(name)
    for cell in maze.free_cells:
        planner = WaypointPlanner(maze, maze.goal_cell)
        start = np.array([*maze.centre(*cell), 0.0, 0.0])
        observations, _ = roll(
            ball, lambda state, p=planner: p.action(*state), start=start, steps=maze.time_limit
        )
        inside = maze.rewards(observations, dense=False) == 1
        assert inside.any()
        assert inside[np.argmax(inside) :].all()
        assert np.hypot(*(observations[-1, :2] - maze.goal)) < 0.01


def test_pushed_off_its_way_it_plans_again() -> None:
    ball = PointMass("umaze")
    planner = WaypointPlanner(UMAZE, (1, 1))
    planner.action(*UMAZE.centre(3, 1), 0.0, 0.0)
    ball.reset((*UMAZE.centre(1, 3), 0.0, 0.0))
    for _ in range(200):
        ball.step(planner.action(*ball.state))
    assert planner.reached


def test_waypoints_on_the_way_vary_and_the_goal_does_not() -> None:
    def waypoints(seed: int) -> list[State]:
        ball = PointMass("umaze")
        planner = WaypointPlanner(UMAZE, (1, 1), rng=np.random.default_rng(seed))
        ball.reset((*UMAZE.centre(3, 1), 0.0, 0.0))
        for _ in range(300):
            ball.step(planner.action(*ball.state))
        return [ball.state[:2], planner._waypoint]

    way = next_cells(UMAZE)[(1, 1)]
    offsets = []
    for seed in range(200):
        planner = WaypointPlanner(UMAZE, (1, 1), rng=np.random.default_rng(seed))
        planner.action(*UMAZE.centre(3, 1), 0.0, 0.0)
        offsets.append(np.subtract(planner._waypoint, UMAZE.centre(*way[(3, 1)])))
    assert 0.09 < np.abs(offsets).max() <= 0.1
    assert np.abs(np.mean(offsets)) < 0.02
    for seed in (0, 1):
        position, waypoint = waypoints(seed)
        assert waypoint == UMAZE.goal
        np.testing.assert_allclose(position, UMAZE.goal, atol=0.01)
