"""CartPole and Acrobot in batches: Gymnasium's own, with every row's physics."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.classic_control import ClassicAcrobot, ClassicCartPole

CASES: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "cart-pole": (
        ClassicCartPole(),
        {"gravity": [9.8, 8.75, 11.0], "force": [10, 9, 11.25], "cart_mass": [1, 0.8, 1.25]},
        {"gravity": "gravity", "force": "force_mag", "cart_mass": "masscart"},
    ),
    "acrobot": (
        ClassicAcrobot(),
        {"length": [1, 0.8, 1.2], "first_mass": [1, 0.9, 1.1], "second_mass": [1, 1.1, 0.9]},
        {"length": "LINK_LENGTH_1", "first_mass": "LINK_MASS_1", "second_mass": "LINK_MASS_2"},
    ),
}


def perturbed(environment: str, physics: dict[str, float], names: dict[str, str]) -> Any:
    raw: Any = gymnasium.make(environment).unwrapped
    for name, value in physics.items():
        setattr(raw, names[name], value)
    if environment == "CartPole-v1":
        raw.total_mass = raw.masspole + raw.masscart
    else:
        raw.LINK_LENGTH_2 = raw.LINK_LENGTH_1
    return raw


@pytest.mark.parametrize("case", CASES)
def test_every_row_is_gymnasiums_with_its_physics(case: str) -> None:
    plain, physics, names = CASES[case]
    columns = {name: np.array(values, dtype=np.float64) for name, values in physics.items()}
    batched = plain.with_physics(columns)
    raws = [
        perturbed(plain.environment, {name: float(v[row]) for name, v in columns.items()}, names)
        for row in range(3)
    ]
    for raw in raws:
        raw.reset(seed=0)
    starts = np.stack([np.asarray(raw.state, np.float64) for raw in raws])
    # swing, so that speeds are clipped and angles wrapped; nothing stops at the end of an episode
    states, rng, ends = starts, np.random.default_rng(0), 0
    for step in range(150):
        observations = batched.observe(states)
        actions = rng.integers(plain.actions, size=3)
        if plain.actions == 3 and step < 100:
            actions = np.where(states[:, 3] > 0, 2, 0)
        moved, rewards, terminated = batched.step(states, actions)
        for row, raw in enumerate(raws):
            raw.state, raw.steps_beyond_terminated = states[row].copy(), None
            if plain.actions == 3:
                np.testing.assert_array_equal(raw._get_ob(), observations[row])
            shown, reward, ended, _, _ = raw.step(int(actions[row]))
            np.testing.assert_allclose(raw.state, moved[row], rtol=1e-13, atol=1e-14)
            np.testing.assert_allclose(shown, batched.observe(moved)[row], rtol=1e-6, atol=1e-7)
            assert (rewards[row], terminated[row]) == (reward, ended)
        ends += int(terminated.sum())
        states = np.where(terminated[:, None] & (plain.actions == 2), starts, moved)
    assert ends > 3
    assert len(np.unique(states[:, 1])) == 3


@pytest.mark.parametrize("case", CASES)
def test_starts_are_the_environments(case: str) -> None:
    plain = CASES[case][0]
    environment: Any = gymnasium.make(plain.environment)
    observation, _ = environment.reset(seed=4)
    states = plain.reset(1, np.random.Generator(np.random.PCG64(4)))
    np.testing.assert_array_equal(plain.observe(states)[0], observation)
    assert environment.action_space.n == plain.actions


def test_unknown_physics_are_refused() -> None:
    with pytest.raises(ConfigError, match="physics wind of CartPole-v1 are unknown"):
        ClassicCartPole().with_physics({"wind": np.zeros(1)})
    with pytest.raises(ConfigError, match="physics gravity of Acrobot-v1 are unknown"):
        ClassicAcrobot().with_physics({"gravity": np.zeros(1)})
