"""The point mass of gymnasium-robotics' PointMaze in MuJoCo, and nothing around it.

The environment and the collection of datasets step the same object, so that recorded data and
environment agree bit by bit. PointMaze clips the velocity before it acts; here it is clipped when
it arises, which moves the ball in the same way and bounds what is observed.
"""

import functools
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.environments.mazes import SCALING, SPEED_LIMIT
from distributed_privrl.environments.random_mazes import maze_named

if TYPE_CHECKING:
    import mujoco

WALL_HEIGHT = 0.4

State = tuple[float, float, float, float]


class PointMass:
    """A ball that two motors push through a maze, 0.01 s a step.

    Args:
        maze: name of the maze.

    Raises:
        ConfigError: no such maze.
        MissingExtraError: mujoco or gymnasium-robotics is not installed.
    """

    def __init__(self, maze: str) -> None:
        if importlib.util.find_spec("mujoco") is None:
            raise MissingExtraError("mujoco", "envs")
        self._xml = _model_xml(maze)

    @functools.cached_property
    def _model(self) -> "mujoco.MjModel":
        return _build_model(self._xml)

    @functools.cached_property
    def _data(self) -> "mujoco.MjData":
        return _mujoco().MjData(self._model)

    @property
    def state(self) -> State:
        """Position and velocity: x, y, vx, vy."""
        x, y = self._data.qpos.tolist()
        velocity_x, velocity_y = self._data.qvel.tolist()
        return x, y, velocity_x, velocity_y

    def reset(self, state: Sequence[float]) -> None:
        """Put the ball somewhere, and forget everything else.

        Args:
            state: ``(4,)``: x, y, vx, vy.
        """
        _mujoco().mj_resetData(self._model, self._data)
        self._data.qpos[:] = state[:2]
        self._data.qvel[:] = state[2:]
        self._limit_speed()

    def step(self, action: Sequence[float]) -> None:
        """Push for 0.01 s.

        Args:
            action: ``(2,)`` forces, clipped to [-1, 1] by the motors.

        Raises:
            ConfigError: a force is not finite.
        """
        force_x, force_y = action
        if not math.isfinite(force_x + force_y):
            raise ConfigError(f"action must be finite, got {action}")
        self._data.ctrl[:] = force_x, force_y
        _mujoco().mj_step(self._model, self._data)
        self._limit_speed()

    def _limit_speed(self) -> None:
        velocity = self._data.qvel
        for axis, speed in enumerate(velocity.tolist()):
            if abs(speed) > SPEED_LIMIT:
                velocity[axis] = math.copysign(SPEED_LIMIT, speed)


@functools.cache
def _mujoco() -> ModuleType:
    """Return MuJoCo, imported when something moves: a plan asks for the spaces alone."""
    import mujoco

    module: ModuleType = mujoco
    return module


@functools.cache
def _build_model(xml: str) -> "mujoco.MjModel":
    """Return the model of a text; shared, never changed."""
    return _mujoco().MjModel.from_xml_string(xml)


@functools.cache
def _model_xml(maze: str) -> str:
    """Return gymnasium-robotics' point mass with the walls of ``maze``, as MuJoCo reads it."""
    layout = maze_named(maze)
    spec = importlib.util.find_spec("gymnasium_robotics")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("gymnasium-robotics", "envs")
    package = Path(spec.submodule_search_locations[0])
    tree = ElementTree.parse(package / "envs" / "assets" / "point" / "point.xml")
    world = tree.find(".//worldbody")
    assert world is not None
    half_cell, half_height = SCALING / 2, WALL_HEIGHT * SCALING / 2
    for row, marks in enumerate(layout.rows):
        for column, mark in enumerate(marks):
            if mark == "#":
                x, y = layout.centre(row, column)
                wall = {
                    "name": f"block_{row}_{column}",
                    "type": "box",
                    "pos": f"{x} {y} {half_height}",
                    "size": f"{half_cell} {half_cell} {half_height}",
                    "contype": "1",
                    "conaffinity": "1",
                }
                ElementTree.SubElement(world, "geom", wall)
    return ElementTree.tostring(tree.getroot(), encoding="unicode")
