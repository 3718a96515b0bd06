import json
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import bounds_from_file
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding, RowLayout
from distributed_privrl.data.scaling import (
    Scaling,
    public_reward_levels,
    scaling_from_bounds,
    scaling_from_public,
)
from distributed_privrl.data.spaces import box_bounds
from distributed_privrl.data.trajectories import Transitions
from tests.data.conftest import ACTION_SPACE, CATEGORIES, OBSERVATION_SPACE, random_walk, walk


def identity(observation_space, action_space, **options):
    width = RowLayout(observation_space, action_space).width
    scaling = Scaling(offset=np.zeros(width), scale=np.ones(width))
    return TransitionEncoder(observation_space, action_space, scaling, **options)


def public_encoder(rows, observation_space=OBSERVATION_SPACE, action_space=ACTION_SPACE, **options):
    scaling = scaling_from_public({"p": [rows]}, observation_space, action_space, **options)
    return TransitionEncoder(observation_space, action_space, scaling, **options)


def test_row_layout_of_numbers_and_categories():
    encoder = identity(CATEGORIES, ACTION_SPACE)
    assert encoder.column_names == (
        *(f"observation_is_{i}" for i in range(2, 7)),
        "action_0",
        "reward",
        *(f"next_observation_is_{i}" for i in range(2, 7)),
        "terminal",
    )
    row = Transitions(
        observations=[3],
        actions=[[0.5]],
        rewards=[2.0],
        next_observations=[6],
        terminated=[True],
        truncated=[True],
        unit_ids=[0],
    )
    encoded = encoder.encode(row)
    assert encoded.rows.dtype == np.float32
    assert encoded.rows.tolist() == [[0, 1, 0, 0, 0, 0.5, 2, 0, 0, 0, 0, 1, 1]]


numbers = st.floats(-100, 100, width=32)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(numbers, numbers, st.floats(-1, 1, width=32), numbers, st.booleans()),
        min_size=1,
        max_size=8,
    ),
    st.floats(-50, 50),
    st.floats(0.25, 50),
    st.sampled_from(["absolute", "difference"]),
)
def test_decode_inverts_encode_up_to_one_rounding(values, offset, scale, next_observation):
    first, second, action, reward, terminal = map(np.array, zip(*values, strict=True))
    rows = Transitions(
        observations=np.stack([first, second], axis=1),
        actions=action[:, None],
        rewards=reward,
        next_observations=np.stack([second, first], axis=1),
        terminated=terminal,
        truncated=np.zeros(len(values), bool),
        unit_ids=np.arange(len(values)),
    )
    layout = RowLayout(
        OBSERVATION_SPACE, ACTION_SPACE, RowCoding(next_observation=next_observation)
    )
    scaling = Scaling(
        offset=np.r_[np.full(layout.width - 1, offset), 0.5],
        scale=np.r_[np.full(layout.width - 1, scale), 0.5],
    )
    encoder = TransitionEncoder(
        OBSERVATION_SPACE, ACTION_SPACE, scaling, RowCoding(next_observation=next_observation)
    )
    encoded = encoder.encode(rows)
    assert encoded.valid.all()
    decoded = encoder.decode(encoded.rows)
    assert decoded.terminated.tolist() == rows.terminated.tolist()
    tolerance = (100 + 100 + 50 + 100) * 2.0**-24 * 2
    for name in ("observations", "actions", "rewards", "next_observations"):
        np.testing.assert_allclose(
            getattr(decoded, name), getattr(rows, name), rtol=0, atol=tolerance, err_msg=name
        )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(numbers, st.floats(-1, 1, width=32), st.booleans()), min_size=1))
def test_decode_inverts_encode_exactly_without_scaling(values):
    first, action, terminal = map(np.array, zip(*values, strict=True))
    rows = Transitions(
        observations=np.stack([first, -first], axis=1),
        actions=action[:, None],
        rewards=first,
        next_observations=np.stack([first / 2, first], axis=1),
        terminated=terminal,
        truncated=np.zeros(len(values), bool),
        unit_ids=np.arange(len(values)),
    )
    encoder = identity(OBSERVATION_SPACE, ACTION_SPACE)
    decoded = encoder.decode(encoder.encode(rows).rows)
    for name in rows.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(decoded, name), getattr(rows, name), name)


def test_categories_are_recovered_exactly():
    rows = walk((4, 2), discrete=True).transitions("transition")
    encoder = public_encoder(rows, CATEGORIES, Discrete(3))
    decoded = encoder.decode(encoder.encode(rows).rows + np.float32(0.4))
    np.testing.assert_array_equal(decoded.observations, rows.observations)
    np.testing.assert_array_equal(decoded.actions, rows.actions)
    np.testing.assert_array_equal(decoded.next_observations, rows.next_observations)
    binary = encoder.layout.binary
    assert set(np.unique(encoder.encode(rows).rows[:, binary])) == {-1.0, 1.0}


def test_decode_clips_to_finite_bounds_within_the_space():
    space = Box(np.array([-0.1, -np.inf]), np.array([0.1, np.inf]), dtype=np.float64)
    encoder = identity(space, ACTION_SPACE)
    rows = np.full((2, encoder.width), 7.0)
    rows[1] = -7.0
    decoded = encoder.decode(rows)
    assert all(space.contains(row.astype(np.float64)) for row in decoded.observations)
    assert decoded.observations[:, 1].tolist() == [7, -7]
    assert decoded.actions.tolist() == [[1], [-1]]
    assert not decoded.truncated.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, 1e5])
@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "next_observations"])
@pytest.mark.parametrize("next_observation", ["absolute", "difference"])
def test_bad_rows_become_null_silently_and_change_no_other(bad, field, next_observation):
    rows = random_walk(4, 3).transitions("transition")
    encoder = public_encoder(rows, coding=RowCoding(next_observation=next_observation))
    clean = encoder.encode(rows)
    column = getattr(rows, field).copy()
    column[5] = bad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        broken = {name: getattr(rows, name) for name in rows.__dataclass_fields__}
        encoded = encoder.encode(Transitions(**{**broken, field: column}))
    assert encoded.valid.tolist() == [i != 5 for i in range(12)]
    assert not encoded.rows[5].any()
    others = np.arange(12) != 5
    np.testing.assert_array_equal(encoded.rows[others], clean.rows[others])


@pytest.mark.parametrize("bad", [1, 7, -(2**63), 2**62])
def test_categories_outside_their_space_become_null(bad):
    rows = walk((4,), discrete=True).transitions("transition")
    encoder = public_encoder(rows, CATEGORIES, Discrete(3))
    broken = rows.observations.copy()
    broken[1] = bad
    encoded = encoder.encode(
        Transitions(
            **{
                **{name: getattr(rows, name) for name in rows.__dataclass_fields__},
                "observations": broken,
            }
        )
    )
    assert encoded.valid.tolist() == [True, False, True, True]
    assert not encoded.rows[1].any()


@pytest.mark.parametrize("next_observation", ["absolute", "difference"])
def test_json_round_trip_is_exact(next_observation):
    rows = random_walk(20, 5).transitions("transition")
    encoder = public_encoder(rows, coding=RowCoding(next_observation=next_observation))
    again = TransitionEncoder.from_json(encoder.to_json())
    np.testing.assert_array_equal(again.scaling.offset, encoder.scaling.offset)
    np.testing.assert_array_equal(again.scaling.scale, encoder.scaling.scale)
    assert again.observation_space == encoder.observation_space
    assert again.action_space == encoder.action_space
    assert again.coding.next_observation == next_observation
    discrete = identity(CATEGORIES, Discrete(3))
    assert TransitionEncoder.from_json(discrete.to_json()).observation_space == CATEGORIES
    for text in ("{}", "no", json.dumps({"offset": [1], "scale": [0]})):
        with pytest.raises(ConfigError):
            TransitionEncoder.from_json(text)


def test_slices_of_wide_rows_change_nothing(monkeypatch):
    rows = random_walk(10, 5).transitions("transition")
    encoder = public_encoder(rows)
    whole = encoder.encode(rows).rows
    monkeypatch.setattr("distributed_privrl.data.layout._MOST_NUMBERS", 21)
    np.testing.assert_array_equal(encoder.encode(rows).rows, whole)


def test_spaces_that_are_not_supported_are_refused():
    with pytest.raises(
        ConfigError, match="observation_space must be a Box, Discrete or MultiDiscrete space"
    ):
        identity(MultiBinary(3), ACTION_SPACE)
    with pytest.raises(ConfigError, match="needs a Box"):
        RowLayout(CATEGORIES, ACTION_SPACE, RowCoding(next_observation="difference"))
    with pytest.raises(ConfigError, match="scaling has 3 columns, the rows have 7"):
        TransitionEncoder(OBSERVATION_SPACE, ACTION_SPACE, Scaling(np.zeros(3), np.ones(3)))
    with pytest.raises(ConfigError, match="rows of shape"):
        identity(OBSERVATION_SPACE, ACTION_SPACE).encode(
            walk((2,), discrete=True).transitions("transition")
        )
    flat = identity(Dict(goal=Box(-1, 1, (2,)), position=Box(-1, 1, (3,))), ACTION_SPACE)
    assert flat.width == 2 * 5 + 1 + 2


@pytest.mark.parametrize("next_observation", ["absolute", "difference"])
def test_public_scaling_gives_zero_mean_and_unit_variance(next_observation):
    rows = random_walk(200, 10).transitions("transition")
    shifted = Transitions(
        **{
            **{name: getattr(rows, name) for name in rows.__dataclass_fields__},
            "rewards": rows.rewards * 30 + 500,
        }
    )
    chunks = [
        shifted.select(slice(0, 7)),
        shifted.select(slice(7, 7)),
        shifted.select(slice(7, None)),
    ]
    scaling = scaling_from_public(
        {"a": chunks[:1], "b": chunks[1:]},
        OBSERVATION_SPACE,
        ACTION_SPACE,
        coding=RowCoding(next_observation=next_observation),
    )
    encoder = TransitionEncoder(
        OBSERVATION_SPACE, ACTION_SPACE, scaling, RowCoding(next_observation=next_observation)
    )
    encoded = encoder.encode(shifted).rows.astype(np.float64)
    np.testing.assert_allclose(encoded[:, :-1].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(encoded[:, :-1].std(axis=0), 1, rtol=1e-5)
    assert set(encoded[:, -1]) == {-1.0}


def test_constant_public_column_keeps_scale_one():
    rows = random_walk(5, 4).transitions("transition")
    constant = Transitions(
        **{
            **{name: getattr(rows, name) for name in rows.__dataclass_fields__},
            "rewards": np.full(20, 0.1, dtype=np.float32),
        }
    )
    scaling = scaling_from_public({"p": [constant]}, OBSERVATION_SPACE, ACTION_SPACE)
    assert scaling.scale[3] == 1
    assert scaling.offset[3] == np.float32(0.1)


def test_bad_public_values_name_dataset_and_column():
    rows = random_walk(5, 4).transitions("transition")
    rows.next_observations[3, 1] = np.inf
    with pytest.raises(ConfigError, match=r"'maze-v0'.* next_observation_1"):
        scaling_from_public({"maze-v0": [rows]}, OBSERVATION_SPACE, ACTION_SPACE)
    with pytest.raises(ConfigError, match="no rows"):
        scaling_from_public({"maze-v0": []}, OBSERVATION_SPACE, ACTION_SPACE)
    categories = walk((4,), discrete=True).transitions("transition")
    categories.actions[0] = 9
    with pytest.raises(ConfigError, match="a column of categories"):
        scaling_from_public({"m": [categories]}, CATEGORIES, Discrete(3))


def test_scaling_from_bounds_gives_uniform_columns_unit_variance(tmp_path):
    path = tmp_path / "bounds.yaml"
    path.write_text(
        "observation: {low: [0, -4], high: [2, 4]}\naction: {low: -1, high: 1}\nreward: [3, 3]\n"
    )
    bounds = bounds_from_file(path, OBSERVATION_SPACE, ACTION_SPACE)
    scaling = scaling_from_bounds(bounds, OBSERVATION_SPACE, ACTION_SPACE)
    third = 1 / np.sqrt(3)
    np.testing.assert_allclose(scaling.offset, [1, 0, 0, 3, 1, 0, 0.5])
    np.testing.assert_allclose(scaling.scale, [third, 4 * third, third, 1, third, 4 * third, 0.5])
    difference = scaling_from_bounds(
        bounds, OBSERVATION_SPACE, ACTION_SPACE, coding=RowCoding(next_observation="difference")
    )
    np.testing.assert_allclose(difference.offset[4:6], 0)
    np.testing.assert_allclose(difference.scale[4:6], [2 / np.sqrt(6), 8 / np.sqrt(6)])
    with pytest.raises(ConfigError, match="the dataset's columns are action_0, reward"):
        scaling_from_bounds(bounds, CATEGORIES, ACTION_SPACE)


@pytest.mark.parametrize(
    ("offset", "scale", "message"),
    [([0], [0], "above zero"), ([np.nan], [1], "finite"), ([0, 1], [1], r"must be \(D,\)")],
)
def test_improper_scalings_are_refused(offset, scale, message):
    with pytest.raises(ConfigError, match=message):
        Scaling(offset=np.array(offset), scale=np.array(scale))


CODED = RowCoding(next_observation="difference", reward_levels=(-1.0, 0.0, 5.0), action_margin=0.5)


def coded_encoder(rows):
    scaling = scaling_from_public({"p": [rows]}, OBSERVATION_SPACE, ACTION_SPACE, coding=CODED)
    return TransitionEncoder(OBSERVATION_SPACE, ACTION_SPACE, scaling, CODED)


def some_rows(rewards, actions):
    count = len(rewards)
    states = np.linspace(-1, 1, 2 * count, dtype=np.float32).reshape(count, 2)
    return Transitions(
        observations=states,
        actions=np.asarray(actions, dtype=np.float32),
        rewards=np.asarray(rewards, dtype=np.float32),
        next_observations=states + 0.1,
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        unit_ids=np.arange(count),
    )


def test_rewards_of_few_levels_and_clipped_actions_come_back_exactly():
    low, high = (float(side[0]) for side in box_bounds(ACTION_SPACE))
    width = len(box_bounds(ACTION_SPACE)[0])
    middle = (low + high) / 2
    actions = np.full((4, width), middle)
    actions[:, 0] = low, high, middle, np.nextafter(np.float32(high), np.float32(low))
    rows = some_rows([-1.0, 0.0, 5.0, 0.0], actions)
    encoder = coded_encoder(rows)
    encoded = encoder.encode(rows)
    assert encoded.valid.all()
    reward = encoder.layout.blocks["reward"]
    np.testing.assert_array_equal(encoded.rows[:, reward][:, 0], [-1, 0, 1, 0])
    decoded = encoder.decode(encoded.rows)
    np.testing.assert_array_equal(decoded.rewards, rows.rewards)
    np.testing.assert_array_equal(decoded.actions[:2], rows.actions[:2])
    np.testing.assert_allclose(decoded.actions, rows.actions, atol=1e-6)
    assert TransitionEncoder.from_json(encoder.to_json()).coding == CODED


def test_generated_numbers_between_the_codes_become_the_nearest_level_or_bound():
    low, high = (float(side[0]) for side in box_bounds(ACTION_SPACE))
    half = (high - low) / 2
    rows = some_rows([-1.0, 0.0, 5.0], np.zeros((3, len(box_bounds(ACTION_SPACE)[0]))))
    layout = coded_encoder(rows).layout
    raw = layout.to_rows(rows)[0]
    raw[:, layout.blocks["reward"]] = [[-0.51], [0.49], [9.0]]
    action = layout.blocks["action"].start
    # Coded bounds lie at .5 half-ranges beyond: nearer than .25 to the bound means inside it.
    raw[:, action] = high + 0.2 * half, high + 0.3 * half, low - 7 * half
    decoded = layout.from_rows(raw)
    np.testing.assert_array_equal(decoded.rewards, np.float32([-1.0, 0.0, 5.0]))
    np.testing.assert_allclose(decoded.actions[:, 0], [high - 0.2 * half, high, low], rtol=1e-6)


def test_a_reward_between_levels_is_coded_as_the_nearest_and_a_bad_one_is_null():
    rows = some_rows([-0.6, 2.6, np.nan], np.zeros((3, len(box_bounds(ACTION_SPACE)[0]))))
    layout = RowLayout(OBSERVATION_SPACE, ACTION_SPACE, CODED)
    raw, valid = layout.to_rows(rows)
    assert raw[:2, layout.blocks["reward"]][:, 0].tolist() == [-1.0, 1.0]
    assert valid.tolist() == [True, True, False]


def test_levels_are_public_only_where_there_are_few():
    width = len(box_bounds(ACTION_SPACE)[0])

    def levels(*rewards):
        chunks = [some_rows(part, np.zeros((len(part), width))) for part in rewards]
        return public_reward_levels({"p": chunks})

    assert levels([0.0, 1.0], [1.0, -2.5]) == (-2.5, 0.0, 1.0)
    assert levels([3.0, 3.0]) == ()
    assert levels([0.0, np.inf]) == ()
    assert levels(list(range(8))) == tuple(range(8))
    assert levels(list(range(8)), [8.0]) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"reward_levels": (1.0,)},
        {"reward_levels": (1.0, 0.0)},
        {"reward_levels": tuple(range(9))},
        {"reward_levels": (0.0, np.nan)},
        {"action_margin": -0.1},
        {"next_observation": "ratio"},
    ],
)
def test_codings_that_say_nothing_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RowCoding(**wrong)
