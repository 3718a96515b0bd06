"""MultiDiscrete spaces: integers in rows and files, one-hot components in encoded rows."""

import minari
import numpy as np
import pandas as pd
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.exporting import export
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.layout import RowCoding, RowLayout
from distributed_privrl.data.scaling import scaling_from_public
from distributed_privrl.data.spaces import part_width, space_from_json, space_to_json
from distributed_privrl.data.trajectories import Trajectories, Transitions
from tests.data.conftest import ACTION_SPACE, OBSERVATION_SPACE, assert_same

OBSERVATIONS = MultiDiscrete([3, 2], start=[5, -1])
ACTIONS = MultiDiscrete([[2, 4]])
SPACES = {"observation_space": OBSERVATIONS, "action_space": ACTIONS}


def categories(space, count, generator):
    low = space.start.reshape(-1)
    return generator.integers(low, low + space.nvec.reshape(-1), (count, low.size))


def trajectories(count=3, length=4, seed=0):
    generator = np.random.default_rng(seed)
    steps = count * length
    ends = np.arange(steps) % length == length - 1
    return Trajectories(
        observations=categories(OBSERVATIONS, steps + count, generator),
        actions=categories(ACTIONS, steps, generator),
        rewards=generator.standard_normal(steps),
        terminated=ends,
        truncated=np.zeros(steps, bool),
        offsets=np.arange(count + 1) * length,
        unit_ids=np.arange(count),
    )


def encoder_of(rows):
    scaling = scaling_from_public({"p": [rows]}, **SPACES)
    return TransitionEncoder(OBSERVATIONS, ACTIONS, scaling)


def test_each_component_is_one_hot():
    layout = RowLayout(OBSERVATIONS, ACTIONS)
    observation = ["0_is_5", "0_is_6", "0_is_7", "1_is_-1", "1_is_0"]
    assert layout.column_names == (
        *(f"observation_{name}" for name in observation),
        *("action_0_is_0", "action_0_is_1"),
        *(f"action_1_is_{i}" for i in range(4)),
        "reward",
        *(f"next_observation_{name}" for name in observation),
        "terminal",
    )
    assert part_width(OBSERVATIONS) == 5
    assert layout.binary.tolist() == [True] * 11 + [False] + [True] * 6
    row = Transitions(
        observations=[[6, -1]],
        actions=[[1, 2]],
        rewards=[0.5],
        next_observations=[[7, 0]],
        terminated=[False],
        truncated=[False],
        unit_ids=[0],
    )
    rows, valid = layout.to_rows(row)
    assert rows.tolist() == [[0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0.5, 0, 0, 1, 0, 1, 0]]
    assert valid.all()
    assert_same(layout.from_rows(rows), row)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_decode_inverts_encode_even_with_some_noise(seed):
    rows = trajectories(seed=seed).transitions("transition")
    encoder = encoder_of(rows)
    encoded = encoder.encode(rows)
    assert encoded.valid.all()
    noise = np.random.default_rng(seed).uniform(-0.9, 0.9, encoded.rows.shape)
    decoded = encoder.decode(encoded.rows + noise * encoder.layout.binary)
    assert_same(decoded, rows, but=("rewards", "truncated"))
    assert decoded.observations.dtype == np.int64


@pytest.mark.parametrize(("component", "value"), [(0, 4), (0, 8), (1, -2), (1, 1)])
def test_a_category_outside_its_component_makes_its_row_null_alone(component, value):
    rows = trajectories().transitions("transition")
    encoder = encoder_of(rows)
    before = encoder.encode(rows)
    rows.observations[2, component] = value
    after = encoder.encode(rows)
    assert np.flatnonzero(~after.valid).tolist() == [2]
    others = np.arange(len(rows)) != 2
    np.testing.assert_array_equal(before.rows[others], after.rows[others])
    assert not after.rows[2].any()


@pytest.mark.parametrize("layout", ["episodes", "packed"])
def test_stored_and_read_by_plain_minari(store, layout):
    written = trajectories()
    store.write_trajectories("a-v0", written, layout=layout, unit_column="p", **SPACES)
    assert_same(store.read_trajectories("a-v0"), written)
    rows = written.transitions("p")
    assert_same(store.read_transitions("a-v0", unit="p"), rows)
    dataset = minari.load_dataset("a-v0")
    assert (dataset.observation_space, dataset.action_space) == (OBSERVATIONS, ACTIONS)
    episode = dataset[0]
    assert OBSERVATIONS.contains(episode.observations[0])
    assert episode.actions[0].shape == (1, 2)
    info = store.info("a-v0")
    assert (info.observation_space, info.action_space) == (OBSERVATIONS, ACTIONS)


@pytest.mark.parametrize("layout", ["transitions", "episodes"])
def test_independent_rows_and_their_fingerprint(store, layout, tmp_path):
    rows = trajectories().transitions("transition")
    store.write_transitions("a-v0", rows, layout=layout, **SPACES)
    assert_same(
        store.read_transitions("a-v0", unit="transition"),
        rows,
        but=("truncated",) if layout == "episodes" else (),
    )
    store.write_trajectories("b-v0", trajectories(), **SPACES)
    assert inspect(store, "a-v0").fingerprint == inspect(store, "b-v0").fingerprint
    export(store, "a-v0", "csv", tmp_path / "out.csv")
    table = pd.read_csv(tmp_path / "out.csv")
    assert table[["action_0", "action_1"]].to_numpy().tolist() == rows.actions.tolist()


def test_spaces_survive_json():
    for space in (OBSERVATIONS, ACTIONS):
        assert space_from_json(space_to_json(space)) == space
    encoder = encoder_of(trajectories().transitions("transition"))
    again = TransitionEncoder.from_json(encoder.to_json())
    assert (again.observation_space, again.action_space) == (OBSERVATIONS, ACTIONS)


def test_what_cannot_be_is_refused(store):
    with pytest.raises(ConfigError, match="needs a Box"):
        RowLayout(OBSERVATIONS, ACTIONS, RowCoding(next_observation="difference"))
    written = trajectories()
    with pytest.raises(ConfigError, match=r"actions has rows of shape \(2,\)"):
        store.write_trajectories(
            "a-v0", written, observation_space=OBSERVATIONS, action_space=ACTION_SPACE
        )
    numbers = Box(-9, 9, (2,))
    store.write_trajectories("a-v0", written, observation_space=numbers, action_space=ACTIONS)
    read = store.read_trajectories("a-v0")  # whole numbers are numbers in a Box
    assert read.observations.dtype == np.float32
    with pytest.raises(ConfigError, match=r"float32 numbers, but its space .* needs integers"):
        store.write_trajectories("b-v0", read, **SPACES)
    assert store.ids() == ["a-v0"]


def test_an_agent_that_knows_none_says_so():
    from distributed_privrl.agents.iql import IQL
    from distributed_privrl.agents.training import train_agent
    from distributed_privrl.core.random import Streams

    rows = trajectories().transitions("transition")
    for spaces, part in (
        ((OBSERVATIONS, ACTION_SPACE), "observation"),
        ((OBSERVATION_SPACE, ACTIONS), "action"),
    ):
        with pytest.raises(ConfigError, match=f"{part} space must be a Box"):
            train_agent(
                IQL(),
                rows,
                observation_space=spaces[0],
                action_space=spaces[1],
                steps=1,
                streams=Streams(0),
            )
