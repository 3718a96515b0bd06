import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.collection import RECIPES, collect
from distributed_privrl.collection.maze2d import Maze2DRecipe
from distributed_privrl.collection.recipes import MAZE2D_STEPS
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments import reference_returns
from distributed_privrl.environments.mazes import MAZES
from tests.worlds.opened import opened


@pytest.fixture
def store(tmp_path: Path) -> DatasetStore:
    return DatasetStore(tmp_path)


def _files(store: DatasetStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file()]


MAZES2D = [name for name in RECIPES if isinstance(RECIPES[name], Maze2DRecipe)]


@pytest.mark.parametrize("recipe", MAZES2D)
def test_a_recipe_writes_what_it_generates(recipe: str, store: DatasetStore) -> None:
    info = collect(recipe, dataset="maze/tiny-v0", store=store, seed=5, options={"trajectories": 2})
    chosen = RECIPES[recipe]
    options = chosen.options(trajectories=2)
    steps = chosen.total_steps(None, options)
    expected = Trajectories.concatenate(
        list(chosen.trajectories(steps=steps, options=options, streams=Streams(5)))
    )
    stored = store.read_trajectories("maze/tiny-v0")
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "offsets"):
        np.testing.assert_array_equal(getattr(stored, name), getattr(expected, name))
    assert (opened(info.total_steps), opened(info.total_trajectories)) == (steps, 2)
    assert info.environment == f"privrl/Maze2D-{recipe.removeprefix('maze2d-')}-v0"


def test_the_observations_fit_the_declared_space(store: DatasetStore) -> None:
    info = collect("maze2d-umaze", dataset="m-v0", store=store, steps=2000)
    stored = store.read_trajectories("m-v0")
    space = info.observation_space
    assert (stored.observations >= space.low).all()
    assert (stored.observations <= space.high).all()


def test_packed_runs_are_the_same_ones(store: DatasetStore) -> None:
    short: dict[str, object] = {"episode_steps": 30}
    for name, options in (("a-v0", short), ("b-v0", short | {"layout": "packed"})):
        info = collect("maze2d-umaze", dataset=name, store=store, steps=200, options=options)
        assert info.layout == options.get("layout", "episodes")
    apart, packed = store.read_trajectories("a-v0"), store.read_trajectories("b-v0")
    assert apart.lengths.tolist() == [30] * 6 + [20]
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "offsets"):
        np.testing.assert_array_equal(getattr(packed, name), getattr(apart, name))


def test_metadata_says_what_made_it_and_how_to_normalise_returns(store: DatasetStore) -> None:
    info = collect(
        "maze2d-umaze-dense", dataset="m-v0", store=store, steps=450, seed=3, options={"noise": 0}
    )
    assert opened(info.metadata)["collection"] == {
        "recipe": "maze2d-umaze-dense",
        "seed": 3,
        "steps": 450,
        "options": {
            "episode_steps": None,
            "trajectories": None,
            "noise": 0.0,
            "layout": "episodes",
        },
    }
    reference = reference_returns("privrl/Maze2D-umaze-dense-v0")
    assert opened(info.metadata)["reference_returns"] == {
        "random": reference.random,
        "planner": reference.planner,
        "episodes": 100,
    }


def test_plain_minari_reads_it_and_recovers_the_environment(
    store: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(store.root))
    collect("maze2d-open", dataset="maze/open-v0", store=store, options={"trajectories": 3})
    dataset = minari.load_dataset("maze/open-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 450)
    environment = dataset.recover_environment()
    episode = dataset[1]
    observation, _ = environment.reset(options={"state": episode.observations[0]})
    for action, following in zip(episode.actions, episode.observations[1:], strict=True):
        observation = environment.step(action)[0]
        np.testing.assert_array_equal(observation, following)


def test_progress_is_told_after_each_chunk(
    store: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_privrl.collection.runs.CHUNK_STEPS", 600)
    told: list[tuple[int, int]] = []
    collect(
        "maze2d-umaze",
        dataset="m-v0",
        store=store,
        steps=1000,
        progress=lambda *numbers: told.append(numbers),
    )
    assert told == [(600, 1000), (1000, 1000)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_nothing_behind(
    error: type[BaseException], store: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_privrl.collection.runs.CHUNK_STEPS", 300)

    def interrupt(done: int, total: int) -> None:
        if done >= 600:
            raise error

    with pytest.raises(error):
        collect("maze2d-umaze", dataset="m-v0", store=store, steps=1200, progress=interrupt)
    assert _files(store) == []
    assert store.ids() == []
    collect("maze2d-umaze", dataset="m-v0", store=store, steps=300)
    assert store.ids() == ["m-v0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"recipe": "hopper"},
            r"recipe 'hopper' is unknown \(known: maze2d-open, .*experts-hiv\)",
        ),
        ({"options": {"nois": 1}}, r"unknown key 'nois' \(known: episode_steps, trajectories, noi"),
        ({"options": {"noise": -1}}, "noise"),
        ({"options": {"noise": float("inf")}}, "noise"),
        ({"options": {"episode_steps": 0}}, "episode_steps"),
        ({"options": {"trajectories": 1}, "steps": 10}, "steps=10 and trajectories=1 exclude"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"dataset": "no version"}, "dataset must look like"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_written(
    arguments: dict[str, object], message: str, store: DatasetStore
) -> None:
    request = {"recipe": "maze2d-umaze", "dataset": "m-v0", "store": store, **arguments}
    with pytest.raises(ConfigError, match=message):
        collect(**request)
    assert _files(store) == []


def test_an_existing_dataset_is_refused_before_collecting(store: DatasetStore) -> None:
    collect("maze2d-umaze", dataset="m-v0", store=store, steps=10)
    before = {path: path.read_bytes() for path in _files(store)}

    def never(done: int, total: int) -> None:
        raise AssertionError("collected although the dataset exists")

    with pytest.raises(ConfigError, match="m-v0"):
        collect("maze2d-umaze", dataset="m-v0", store=store, steps=10, progress=never)
    assert {path: path.read_bytes() for path in _files(store)} == before


def test_default_steps_are_d4rls() -> None:
    million = 10**6
    sizes = {"umaze": million, "medium": 2 * million, "large": 4 * million}
    held_out = {f"eval-{maze}": steps for maze, steps in sizes.items()}
    assert {"open": million, **sizes, **held_out} == MAZE2D_STEPS
    for maze in MAZES:
        for suffix in ("", "-dense"):
            recipe = RECIPES[f"maze2d-{maze}{suffix}"]
            assert recipe.total_steps(None, recipe.options()) == MAZE2D_STEPS[maze]
            assert recipe.total_steps(7, recipe.options()) == 7


def test_listing_recipes_needs_no_mujoco() -> None:
    code = (
        "import sys, distributed_privrl.collection\n"
        "heavy = {'mujoco', 'gymnasium_robotics', 'gym', 'icu_sepsis', 'torch', 'ray'}\n"
        "assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
