from pathlib import Path

import gymnasium
import numpy as np
import pytest

from distributed_privrl.collection import RECIPES, collect
from distributed_privrl.collection.gym_recipes import GYM_RECIPES, MixedOptions
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from tests.worlds.opened import opened


def _returns(found: Trajectories) -> np.ndarray:
    return np.add.reduceat(found.rewards, found.offsets[:-1])[:-1]  # the last one may be cut


def _made(name: str, steps: int, **options: float) -> Trajectories:
    chunks = RECIPES[name].trajectories(
        steps=steps, options=MixedOptions(**options), streams=Streams(0)
    )
    return Trajectories.concatenate(list(chunks))


@pytest.mark.parametrize(
    ("name", "good", "bad"), [("cartpole-mixed", 490, 30), ("pendulum-mixed", -350, -900)]
)
def test_the_controller_is_good_and_random_actions_are_not(
    name: str, good: float, bad: float
) -> None:
    assert _returns(_made(name, 4000, random=0, slips=0)).mean() > good
    assert _returns(_made(name, 4000, random=1)).mean() < bad
    mixed = _returns(_made(name, 4000))
    assert mixed.min() < bad < mixed.max()


@pytest.mark.parametrize("recipe", [recipe.name for recipe in GYM_RECIPES])
def test_a_dataset_replays_in_its_environment(recipe: str, tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    info = collect(recipe, dataset="a/b-v0", store=store, steps=250, seed=4)
    rows = store.read_trajectories("a/b-v0")
    assert len(rows.rewards) == opened(info.total_steps) == 250
    assert opened(info.metadata).get("declared_public") is None
    environment = gymnasium.make(info.environment)
    assert info.action_space == environment.action_space
    ends = rows.offsets[1:] - 1
    assert (rows.terminated | rows.truncated)[ends].all()
    assert (rows.terminated | rows.truncated).sum() == len(ends)
    seed = Streams(4).child(f"collection/{recipe}").child("0").integer("start") % 2**31
    observation, _ = environment.reset(seed=seed)
    for step in range(rows.offsets[1]):
        np.testing.assert_allclose(rows.observations[step], observation, rtol=1e-6)
        action = rows.actions[step]
        observation, reward, *_ = environment.step(action)
        assert rows.rewards[step] == pytest.approx(reward)


def test_an_episode_depends_on_the_seed_and_its_number_alone() -> None:
    short, long = _made("cartpole-mixed", 300), _made("cartpole-mixed", 900)
    np.testing.assert_array_equal(short.actions[:250], long.actions[:250])
    other = RECIPES["cartpole-mixed"].trajectories(
        steps=300, options=MixedOptions(), streams=Streams(1)
    )
    assert not np.array_equal(next(other).actions[:250], short.actions[:250])


def test_public_is_what_the_caller_declares(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    info = collect("cartpole-mixed", dataset="a-v0", store=store, steps=20, public=True)
    assert opened(info.metadata)["declared_public"] is True
    assert info.may_leave
