"""What other libraries get of a stored dataset: the rows as they are, and their successors."""

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from gymnasium.spaces import Discrete, MultiDiscrete

import distributed_privrl as pr
from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.data.exporting import export
from tests.data.conftest import DISCRETE_SPACES, SPACES, random_walk, walk


def test_frames_and_tables_are_those_of_the_export(store, tmp_path):
    store.write_trajectories("a-v0", walk(), **SPACES)
    export(store, "a-v0", "parquet", tmp_path / "a.parquet")
    expected = pd.read_parquet(tmp_path / "a.parquet")
    loaded = pr.load("a-v0")
    pd.testing.assert_frame_equal(loaded.to_pandas(), expected)
    pd.testing.assert_frame_equal(loaded.to_arrow().to_pandas(), expected)
    pd.testing.assert_frame_equal(pa.table(loaded).to_pandas(), expected)
    assert loaded.to_minari().total_steps == len(expected)


def test_rows_alone_have_neither_next_observations_nor_ends(store):
    store.write_trajectories("a-v0", walk(), **SPACES)
    loaded = pr.load("a-v0")
    rows = loaded.to_pandas(rows_only=True)
    left_out = ["next_observation_0", "next_observation_1", "terminated", "truncated"]
    pd.testing.assert_frame_equal(rows, loaded.to_pandas().drop(columns=left_out))
    pd.testing.assert_frame_equal(loaded.to_arrow(rows_only=True).to_pandas(), rows)
    pd.testing.assert_frame_equal(loaded.to_polars(rows_only=True).to_pandas(), rows)


def test_polars_gets_the_same_rows_and_gives_them_back(store):
    import polars as pl

    store.write_trajectories("a-v0", walk(discrete=True), **DISCRETE_SPACES)
    loaded = pr.load("a-v0")
    frame = loaded.to_polars()
    pd.testing.assert_frame_equal(frame.to_pandas(), loaded.to_pandas())
    assert frame.equals(pl.DataFrame(loaded))  # by Arrow's protocol, of which it knows nothing
    columns = {
        "observation": "observation",
        "action": "action",
        "reward": "reward",
        "next_observation": "next_observation",
        "terminated": "terminated",
        "truncated": "truncated",
        "trajectory": "stay",
        "order": "step",
    }
    sizes = {"observation": {"type": "discrete", "n": 5, "start": 2}}
    sizes["action"] = {"type": "discrete", "n": 3}
    stays = frame.rename({"trajectory": "stay"})
    pr.from_table(stays, {"columns": columns, "spaces": sizes}, dataset="b-v0")
    again = pr.load("b-v0").to_pandas().drop(columns="unit")
    pd.testing.assert_frame_equal(again, stays.to_pandas(), check_dtype=False)


@pytest.mark.parametrize(("library", "extra"), [("polars", "polars"), ("d3rlpy", "parity")])
def test_a_library_that_is_missing_is_named_with_its_extra(store, monkeypatch, library, extra):
    store.write_trajectories("a-v0", walk(), **SPACES)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{library} .*\[{extra}\]"):
        getattr(pr.load("a-v0"), f"to_{library}")()


def test_a_dataset_that_is_not_there_is_an_error(store):
    with pytest.raises(ConfigError, match="no dataset 'b-v0'"):
        pr.load("b-v0")


def picked(dataset):
    """Return the transitions that d3rlpy learns from: states, actions, rewards, next, ends."""
    from d3rlpy.dataset import BasicTransitionPicker

    found = [
        BasicTransitionPicker()(episode, index)
        for episode in dataset.episodes
        for index in range(episode.transition_count)
    ]
    names = ("observation", "action", "reward", "next_observation", "terminal")
    return {name: np.array([getattr(one, name) for one in found]) for name in names}


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["trajectories", "transitions"])
def test_d3rlpy_learns_from_the_very_transitions(store, kind):
    pytest.importorskip("d3rlpy")
    rows = walk((3, 1, 4, 2)).transitions("trajectory")
    if kind == "trajectories":
        store.write_trajectories("a-v0", walk((3, 1, 4, 2)), **SPACES)
    else:
        rows = random_walk(4, 3).transitions("transition")
        rows = replace(rows, terminated=rows.rewards > 0)
        store.write_transitions("a-v0", rows, layout="transitions", **SPACES)
    found = picked(pr.load("a-v0").to_d3rlpy())
    np.testing.assert_array_equal(found["observation"], rows.observations)
    np.testing.assert_array_equal(found["action"], rows.actions)
    np.testing.assert_array_equal(found["reward"][:, 0], rows.rewards)
    np.testing.assert_array_equal(found["terminal"], rows.terminated)
    going_on = ~rows.terminated
    assert going_on.any()
    assert not going_on.all()
    np.testing.assert_array_equal(
        found["next_observation"][going_on], rows.next_observations[going_on]
    )


@pytest.mark.parity
def test_d3rlpy_gets_categories_that_start_at_zero(store):
    d3rlpy = pytest.importorskip("d3rlpy")
    rows = replace(walk((3, 1), discrete=True), actions=np.array([2, 3, 4, 2]))
    spaces = DISCRETE_SPACES | {"action_space": Discrete(5, start=2)}
    store.write_trajectories("a-v0", rows, **spaces)
    dataset = pr.load("a-v0").to_d3rlpy()
    assert dataset.dataset_info.action_space == d3rlpy.ActionSpace.DISCRETE
    assert dataset.dataset_info.action_size == 5
    assert picked(dataset)["action"][:, 0].tolist() == [0, 1, 2, 0]


@pytest.mark.parity
def test_d3rlpy_is_given_nothing_that_it_cannot_take(store):
    pytest.importorskip("d3rlpy")
    rows = walk((3,)).transitions("transition")
    store.write_transitions("a-v0", rows, layout="transitions", has_successors=False, **SPACES)
    with pytest.raises(ConfigError, match="nothing follows the rows"):
        pr.load("a-v0").to_d3rlpy()
    pairs = replace(rows, actions=np.zeros((3, 2), np.int64))
    spaces = SPACES | {"action_space": MultiDiscrete([2, 2])}
    store.write_transitions("b-v0", pairs, layout="transitions", **spaces)
    with pytest.raises(ConfigError, match="several categories"):
        pr.load("b-v0").to_d3rlpy()
