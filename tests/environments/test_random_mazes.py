from pathlib import Path

import gymnasium
import numpy as np
import pytest

from distributed_privrl.collection import collect
from distributed_privrl.collection.planner import next_cells
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import register
from distributed_privrl.environments.random_mazes import (
    LOOPS,
    RANDOM_MAZES,
    ROOMS,
    maze_named,
    random_maze,
    random_maze_id,
)
from tests.worlds.opened import opened


def test_every_maze_is_closed_solvable_and_its_own() -> None:
    mazes = [random_maze(number) for number in range(RANDOM_MAZES)]
    assert len({maze.rows for maze in mazes}) == RANDOM_MAZES
    for maze in mazes:
        border = [*maze.cells[0], *maze.cells[-1], *maze.cells[:, 0], *maze.cells[:, -1]]
        assert all(border)
        assert "".join(maze.rows).count("G") == 1
        assert len(maze.free_cells) == ROOMS**2 + (ROOMS**2 - 1) + LOOPS
        assert set(next_cells(maze)[maze.goal_cell]) == set(maze.free_cells)


def test_a_number_makes_the_same_maze_for_good() -> None:
    assert random_maze(7).rows == (
        "#########",
        "#O#OOOOO#",
        "#O#O#O#O#",
        "#OOO#O#O#",
        "#O#O###O#",
        "#OOOOOOO#",
        "#O###O#O#",
        "#OOOOOOG#",
        "#########",
    )


def test_names_and_numbers_that_are_none_are_refused() -> None:
    assert maze_named("umaze").name == "umaze"
    for name in ("random-", "random-x", "random-0.5", "spiral"):
        with pytest.raises(ConfigError, match=r"or random-NUMBER, got"):
            maze_named(name)
    with pytest.raises(ConfigError, match="from 0 to 99, got 100"):
        maze_named("random-100")


def test_the_seed_names_the_maze_unless_an_option_does(tmp_path: Path) -> None:
    register()
    store = DatasetStore(tmp_path)
    for dataset, seed, options in (("a-v0", 7, {}), ("b-v0", 8, {"maze": 7})):
        info = collect(
            "maze2d-random", dataset=dataset, store=store, steps=700, seed=seed, options=options
        )
        assert info.environment == random_maze_id(7)
        assert opened(info.metadata)["collection"]["options"]["maze"] == 7
    first, second = (store.read_trajectories(name) for name in ("a-v0", "b-v0"))
    assert not np.array_equal(first.observations, second.observations)
    maze = random_maze(7)
    for runs in (first, second):
        assert {maze.cells[maze.cell(x, y)] for x, y in runs.observations[:, :2].tolist()} == {0}
        np.testing.assert_array_equal(runs.lengths, [600, 100])
    environment = gymnasium.make(random_maze_id(7))
    environment.reset(options={"state": first.observations[0]})
    for index in range(600):
        observation, reward, *_ = environment.step(first.actions[index])
        np.testing.assert_array_equal(observation, first.observations[index + 1])
        assert reward == first.rewards[index]


@pytest.mark.parametrize(
    ("seed", "options", "message"),
    [
        (RANDOM_MAZES, {}, "no random maze has the number 100: give a seed below 100"),
        (0, {"maze": RANDOM_MAZES}, "maze"),
        (0, {"maze": -1}, "maze"),
    ],
)
def test_a_maze_that_is_none_is_refused_before_anything_is_written(
    seed: int, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    store = DatasetStore(tmp_path)
    with pytest.raises(ConfigError, match=message):
        collect("maze2d-random", dataset="m-v0", store=store, seed=seed, options=options)
    assert store.ids() == []
