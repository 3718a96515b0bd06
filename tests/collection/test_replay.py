import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from distributed_privrl.collection import RECIPES, collect, recipes, replay
from distributed_privrl.collection.replay import (
    REPLAY_RECIPES,
    ReplayOptions,
    ReplayRecipe,
    chosen_policies,
)
from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments.registered_simulators import simulator_of
from tests.worlds.opened import opened

SMALL = {"hidden": [8], "environments": 4, "warmup": 20, "batch_size": 8, "capacity": 500}
QUICK: Mapping[str, Any] = {"training_steps": 9, "snapshots": 3, "reference_episodes": 2}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetStore:
    small = {one.name: dataclasses.replace(one, sac=SMALL) for one in REPLAY_RECIPES}
    monkeypatch.setattr(recipes, "RECIPES", small)
    return DatasetStore(tmp_path)


def made(store: DatasetStore, recipe: str = "pendulum-replay", **arguments: Any) -> DatasetInfo:
    options = {**QUICK, **arguments.pop("options", {})}
    return collect(
        recipe, dataset=arguments.pop("dataset", "a-v0"), store=store, options=options, **arguments
    )


def content(store: DatasetStore, dataset: str = "a-v0") -> list[np.ndarray]:
    data = store.read_trajectories(dataset)
    return [getattr(data, field.name) for field in dataclasses.fields(data)]


@pytest.mark.parametrize(
    ("mixture", "chosen"),
    [
        ("replay", [None, 0, 1, 2, 3]),
        ("medium_replay", [None, 0, 1]),
        ("medium", [1]),
        ("medium_expert", [1, 3]),
    ],
)
def test_mixtures(mixture: replay.Mixture, chosen: list[int | None]) -> None:
    assert chosen_policies(mixture, 0.0, [20.0, 30.0, 29.0, 90.0]) == chosen
    if mixture == "medium":
        assert chosen_policies(mixture, 0.0, [29.0, 29.9, 29.0, 90.0]) == [3]
        assert chosen_policies(mixture, -300.0, [-201.0, -199.0, -1.0, 0.0]) == [1]
        assert chosen_policies(mixture, 0.0, [-5.0, -9.0]) == [1]


@pytest.mark.parametrize(
    ("recipe", "trajectories", "horizon"),
    [
        ("pendulum-replay", 30_000, 200),
        ("cartpole-balance-replay", 30_000, 1000),
        ("cartpole-swingup-replay", 30_000, 1000),
        ("halfcheetah-medium-replay", 202, 1000),
        ("hopper-medium-replay", 402, 1000),
        ("walker2d-medium-replay", 302, 1000),
        ("hopper-medium", 1000, 1000),
        ("walker2d-medium-expert", 2000, 1000),
    ],
)
def test_default_sizes_are_the_papers(recipe: str, trajectories: int, horizon: int) -> None:
    chosen = RECIPES[recipe]
    assert chosen.total_steps(None, ReplayOptions()) == trajectories * horizon
    assert chosen.total_steps(7, ReplayOptions()) == 7
    assert chosen.total_steps(None, ReplayOptions(trajectories=3)) == 3 * horizon
    with pytest.raises(ConfigError, match="steps=7 and trajectories=3 exclude each other"):
        chosen.total_steps(7, ReplayOptions(trajectories=3))


@pytest.mark.parametrize("recipe", ["pendulum-replay", "cartpole-swingup-replay"])
def test_recorded_steps_are_the_environments(recipe: str, store: DatasetStore) -> None:
    info = made(store, recipe, options={"trajectories": 5})
    assert (opened(info.total_trajectories), info.layout, info.unit_column) == (5, "packed", None)
    environment = gymnasium.make(str(info.environment))
    assert info.observation_space == environment.observation_space
    assert info.action_space == environment.action_space
    simulator = simulator_of(str(info.environment))
    rows = store.read_transitions("a-v0", unit="trajectory")
    states = simulator.states_of(rows.observations)
    moved, rewards, _ = simulator.step(states, rows.actions)
    np.testing.assert_allclose(simulator.observe(moved), rows.next_observations, atol=1e-4)
    np.testing.assert_allclose(rewards, rows.rewards, atol=1e-4)
    assert not rows.terminated.any()
    assert rows.unit_ids.tolist() == np.repeat(range(5), len(rows) // 5).tolist()
    assert (np.abs(rows.actions) <= info.action_space.high).all()  # type: ignore[union-attr]


def test_metadata_say_what_policies_earn(store: DatasetStore) -> None:
    info = made(store, options={"trajectories": 8})
    earned = dict(opened(info.metadata)["reference_returns"])
    assert set(earned) == {"random", "expert", "snapshots", "episodes", "behaviour"}
    assert list(earned["snapshots"]) == ["1", "4", "9"]
    assert earned["expert"] == earned["snapshots"]["9"]
    assert earned["episodes"] == 2
    assert all(-2000 < value < 0 for value in (earned["random"], *earned["snapshots"].values()))
    data = store.read_trajectories("a-v0")
    returns = np.add.reduceat(data.rewards, data.offsets[:-1])
    assert earned["behaviour"] == pytest.approx(returns.mean(), rel=1e-5)
    assert opened(info.metadata)["collection"]["options"] == {
        **QUICK,
        "trajectories": 8,
        "keep_policies": False,
    }


def test_a_number_of_steps_cuts_the_last_trajectory(
    store: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "CHUNK_STEPS", 400)
    told: list[tuple[int, int]] = []
    made(store, steps=1050, progress=lambda *numbers: told.append(numbers))
    data = store.read_trajectories("a-v0")
    assert data.lengths.tolist() == [200] * 5 + [50]
    assert np.flatnonzero(data.truncated).tolist() == [199, 399, 599, 799, 999, 1049]
    assert told == [(400, 1050), (800, 1050), (1050, 1050)]


def test_the_seed_decides_the_data(store: DatasetStore) -> None:
    for dataset, seed in (("a-v0", 0), ("b-v0", 0), ("c-v0", 1)):
        made(store, dataset=dataset, seed=seed, steps=600)
    first, again, other = (content(store, name) for name in ("a-v0", "b-v0", "c-v0"))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert (first[0] != other[0]).any()


@pytest.mark.parametrize("moment", ["training", "collecting"])
def test_after_an_interruption_the_next_call_goes_on(moment: str, store: DatasetStore) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    made(store, dataset="whole-v0", steps=600)
    stop = {"training_progress" if moment == "training" else "progress": interrupt}
    with pytest.raises(KeyboardInterrupt):
        made(store, steps=600, **stop)
    assert store.ids() == ["whole-v0"]
    told: list[int] = []
    made(store, steps=600, training_progress=lambda done, total: told.append(done))
    assert told == ([4, 9] if moment == "training" else [])
    for one, two in zip(content(store), content(store, "whole-v0"), strict=True):
        np.testing.assert_array_equal(one, two)
    assert sorted(path.name for path in store.root.iterdir()) == ["a-v0", "whole-v0"]


def test_another_recipe_of_the_environment_takes_policies_that_were_kept(
    store: DatasetStore,
) -> None:
    def never(done: int, total: int) -> None:
        raise AssertionError("trained again")

    options = {"keep_policies": True, "reference_episodes": 1, "trajectories": 1, "snapshots": 1}
    made(store, "halfcheetah-medium-replay", options=options)
    info = made(
        store,
        "halfcheetah-medium-expert",
        dataset="b-v0",
        options={**options, "keep_policies": False},
        training_progress=never,
    )
    assert opened(info.total_steps) == 1000
    assert sorted(path.name for path in store.root.iterdir()) == ["a-v0", "b-v0"]


@pytest.mark.parametrize("robot", ["hopper", "walker2d"])
def test_episodes_that_fall_are_counted_or_filled_up(robot: str, store: DatasetStore) -> None:
    options = {"reference_episodes": 1, "snapshots": 1}
    info = made(store, f"{robot}-medium", options={**options, "trajectories": 3})
    earned = opened(info.metadata)["reference_returns"]
    assert set(earned) == {"random", "expert", "snapshots", "episodes", "behaviour"}
    data = store.read_trajectories("a-v0")
    assert opened(info.total_trajectories) == 3
    assert data.lengths.max() < 1000
    assert data.terminated.sum() == 3
    assert not data.truncated.any()
    info = made(store, f"{robot}-medium", dataset="b-v0", options=options, steps=300)
    assert opened(info.total_steps) == 300
    assert opened(info.total_trajectories) > 1


def test_an_existing_dataset_is_refused_before_training(store: DatasetStore) -> None:
    def never(done: int, total: int) -> None:
        raise AssertionError("trained although the dataset exists")

    made(store, steps=200)
    with pytest.raises(ConfigError, match="exists already"):
        made(store, steps=200, training_progress=never)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"snapshots": 4}}, r"training_steps=9 .* snapshots=4"),
        ({"options": {"mixture": "medium"}}, "unknown key 'mixture'"),
        ({"options": {"trajectories": 0}}, "trajectories"),
        ({"steps": 5, "options": {"trajectories": 1}}, "exclude each other"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_written(
    arguments: dict[str, Any], message: str, store: DatasetStore
) -> None:
    with pytest.raises(ConfigError, match=message):
        made(store, **arguments)
    assert list(store.root.rglob("*")) == []


def test_without_mujoco_the_extra_is_named(
    store: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"distributed_privrl\[envs\]"):
        made(store, "walker2d-medium", steps=10)
    assert list(store.root.rglob("*")) == []


def test_an_untrained_recipe_says_so() -> None:
    recipe = RECIPES["pendulum-replay"]
    assert isinstance(recipe, ReplayRecipe)
    with pytest.raises(ConfigError, match="no policies yet"):
        recipe.trajectories(steps=1, options=ReplayOptions(), streams=None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_policies_go_from_random_to_expert(tmp_path: Path) -> None:
    info = collect(
        "pendulum-replay",
        dataset="a-v0",
        store=DatasetStore(tmp_path),
        options={"trajectories": 100, "training_steps": 8000},
    )
    earned = opened(info.metadata)["reference_returns"]
    assert earned["random"] < -1000
    assert earned["expert"] > -220
    assert earned["random"] + 200 < earned["behaviour"] < earned["expert"] - 200
