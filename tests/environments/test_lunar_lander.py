"""Many landers step as Gymnasium's single ones do."""

import importlib.util
import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.environments.lunar_lander import LUNAR_LANDER, LunarLanders


@pytest.fixture(autouse=True)
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium imports Pygame to draw; nothing here is drawn."""
    if importlib.util.find_spec("pygame") is None:
        for name in ("pygame", "pygame.gfxdraw"):
            module = ModuleType(name)
            module.__spec__ = importlib.util.spec_from_loader(name, None)
            monkeypatch.setitem(sys.modules, name, module)
        sys.modules["pygame"].gfxdraw = sys.modules["pygame.gfxdraw"]  # type: ignore[attr-defined]


def seeds(count: int) -> list[int]:
    generator = np.random.default_rng(4)
    return [int(generator.integers(2**31)) for _ in range(count)]


@pytest.mark.parametrize("physics", [None, {"gravity": 9.2, "wind": 4.0, "turbulence": 0.4}])
def test_each_row_moves_as_gymnasium_does(physics: dict[str, float] | None) -> None:
    simulator = LunarLanders()
    if physics is not None:
        rows = {name: np.array([1.0, value]) for name, value in physics.items()}
        simulator = simulator.with_physics(rows)
    states = simulator.reset(2, np.random.default_rng(4))
    single = gymnasium.make(LUNAR_LANDER, enable_wind=physics is not None).unwrapped
    first, _ = single.reset(seed=seeds(2)[1])
    np.testing.assert_array_equal(simulator.observe(states)[1], first)
    if physics is not None:
        single.world.gravity = (0.0, -physics["gravity"])
        single.wind_power, single.turbulence_power = physics["wind"], physics["turbulence"]
    actions = np.random.default_rng(1).integers(4, size=(300, 2))
    for chosen in actions:
        moved = simulator.step(states, chosen)
        shown, reward, ended, _, _ = single.step(int(chosen[1]))
        np.testing.assert_array_equal(simulator.observe(moved.states)[1], shown)
        assert moved.rewards[1] == pytest.approx(reward)
        assert moved.terminated[1] == ended
        states = moved.states
        if ended:
            break
    assert ended
    still = simulator.step(states, np.array([2, 2]))
    np.testing.assert_array_equal(still.states[1], states[1])
    assert (still.rewards[1], still.terminated[1]) == (0.0, True)


def test_worlds_that_nothing_goes_on_with_are_used_anew() -> None:
    simulator, generator = LunarLanders(), np.random.default_rng(0)
    states = simulator.reset(3, generator)
    assert states[:, 8].tolist() == [0, 1, 2]
    states = simulator.step(states[[0, 2]], np.zeros(2, np.int64)).states
    assert simulator.reset(2, generator)[:, 8].tolist() == [1, 3]


def test_physics_matter() -> None:
    rows = {"gravity": np.array([9.0, 11.0]), "wind": np.zeros(2), "turbulence": np.zeros(2)}
    simulator = LunarLanders().with_physics(rows)
    states = simulator.reset(2, np.random.default_rng(0))
    before = states[:, 3]
    for _ in range(5):
        states = simulator.step(states, np.zeros(2, np.int64)).states
    fallen = states[:, 3] - before
    assert fallen[1] / fallen[0] == pytest.approx(11 / 9, rel=0.02)
    with pytest.raises(ConfigError, match="unknown"):
        LunarLanders().with_physics({"mass": np.ones(2)})


@pytest.mark.parametrize(("module", "package"), [("Box2D", "box2d"), ("pygame", "pygame")])
def test_what_is_missing_is_named(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def without(name: str) -> object:
        return None if name == module else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(MissingExtraError, match=rf"{package} .*\[envs\]"):
        LunarLanders()
