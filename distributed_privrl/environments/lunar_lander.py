"""Gymnasium's LunarLander-v3, many at a time, each row with physics of its own: Box2D's worlds."""

import importlib.util
import itertools
from collections.abc import Mapping
from typing import Any, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import MissingExtraError
from distributed_privrl.environments.simulators import Step, check_physics

LUNAR_LANDER = "LunarLander-v3"
_PACKAGES = {"Box2D": "box2d", "pygame": "pygame"}
_SEEDS = 2**31


class LunarLanders:
    """States ``(M, 9)``: what is observed, and the number of the world that goes on from there.

    The worlds are Gymnasium's own environments. They cannot go back: only the newest state of a
    world can be stepped, and a world whose state is not among those of a step is used anew by
    the next `reset`. Where a world has ended, a step changes nothing.

    Args:
        physics: ``(M,)`` by name: gravity (10 by default), wind and turbulence (none by default;
            the most that they push with). They hold from the first step on.

    Raises:
        MissingExtraError: Box2D, or Pygame, without which Gymnasium does not load it, is not
            installed.
    """

    environment = LUNAR_LANDER
    actions = 4

    def __init__(self, physics: Mapping[str, NDArray[np.float64]] | None = None) -> None:
        for module, package in _PACKAGES.items():
            if importlib.util.find_spec(module) is None:
                raise MissingExtraError(package, "envs")
        self._physics = dict(physics or {})
        self._worlds: list[Any] = []
        self._over: list[bool] = []
        self._held: set[int] = set()

    def with_physics(self, physics: Mapping[str, NDArray[np.float64]]) -> Self:
        """Return it with other physics; see `simulators.PerturbedSimulator`."""
        check_physics(physics, ("gravity", "wind", "turbulence"), self.environment)
        return type(self)(physics)

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states, of worlds that nothing else goes on with."""
        free = (world for world in itertools.count() if world not in self._held)
        states = np.empty((count, 9))
        for row, world in enumerate(itertools.islice(free, count)):
            if world == len(self._worlds):
                windy = bool({"wind", "turbulence"} & set(self._physics))
                made = gymnasium.make(LUNAR_LANDER, enable_wind=windy).unwrapped
                self._worlds.append(made)
                self._over.append(False)
            seed = int(generator.integers(_SEEDS))
            states[row, :8], states[row, 8] = self._worlds[world].reset(seed=seed)[0], world
            self._over[world] = False
        self._held.update(states[:, 8].astype(int).tolist())
        return states

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return what is seen: place, speed, angle and turning, and which legs touch."""
        return states[:, :8].astype(np.float32)

    def step(self, states: NDArray[np.float64], actions: NDArray[Any]) -> Step:
        """Let every world go on for 0.02 s: nothing, left engine, main engine or right engine."""
        after, rewards = states.copy(), np.zeros(len(states))
        terminated = np.ones(len(states), dtype=np.bool_)
        worlds = states[:, 8].astype(int).tolist()
        self._held = set(worlds)
        for row, (world, action) in enumerate(zip(worlds, actions.tolist(), strict=True)):
            if self._over[world]:
                continue
            self._set_physics(row, self._worlds[world])
            shown, rewards[row], terminated[row], _, _ = self._worlds[world].step(action)
            after[row, :8], self._over[world] = shown, bool(terminated[row])
        return Step(after, rewards, terminated)

    def _set_physics(self, row: int, world: Any) -> None:
        for name, values in self._physics.items():
            value = float(values[row])
            if name == "gravity":
                world.world.gravity = (0.0, -value)
            else:
                setattr(world, f"{name}_power", value)
