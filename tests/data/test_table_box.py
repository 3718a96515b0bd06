"""A Box that holds categories beside numbers, which every method gets with the spaces."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds, bounded_columns, bounds_from_file
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding, RowLayout
from distributed_privrl.data.scaling import scaling_from_bounds
from distributed_privrl.data.spaces import (
    TableBox,
    groups_of,
    nearest_categories,
    same_form,
    space_from_json,
    space_to_json,
)
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.privorl.binning import row_bins

LOW, HIGH = np.array([0, 0, 0, 0, 0, -5], np.float32), np.array([90, 1, 1, 1, 1, 5], np.float32)
SPACE = TableBox(LOW, HIGH, [(1, 4), (4, 5)])
"""An age, a ward of three, a flag, and a level."""
ACTION = Discrete(2)
BOUNDS = Bounds(
    low=np.array([0.0, -5.0, 0.0]),
    high=np.array([90.0, 5.0, 1.0]),
    columns=("observation_0", "observation_5", "reward"),
)


def rows(observations, after=None):
    before = np.array(observations, np.float32)
    count = len(before)
    return Transitions(
        observations=before,
        actions=np.arange(count) % 2,
        rewards=np.zeros(count),
        next_observations=before if after is None else np.array(after, np.float32),
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        unit_ids=np.arange(count),
    )


def encoder(**coding):
    made = RowCoding(**coding)
    return TransitionEncoder(
        SPACE, ACTION, scaling_from_bounds(BOUNDS, SPACE, ACTION, coding=made), made
    )


GOOD = [[20, 0, 1, 0, 1, 2], [60, 1, 0, 0, 0, -1]]
AFTER = [[21, 0, 0, 1, 0, 2.5], [60, 1, 0, 0, 1, -3]]


@pytest.mark.parametrize("coding", ["absolute", "difference"])
def test_rows_survive_the_encoder_and_what_is_drawn_has_one_category(coding):
    made = encoder(next_observation=coding)
    encoded = made.encode(rows(GOOD, AFTER))
    assert encoded.valid.all()
    back = made.decode(encoded.rows)
    np.testing.assert_allclose(back.observations, GOOD, atol=1e-5)
    np.testing.assert_allclose(back.next_observations, AFTER, atol=1e-5)
    drawn = np.random.default_rng(1).standard_normal((500, made.width)).astype(np.float32)
    for part in (made.decode(drawn).observations, made.decode(drawn).next_observations):
        assert (part[:, 1:4].sum(axis=1) == 1).all()
        assert set(np.unique(part[:, 1:5])) == {0.0, 1.0}
        assert len(np.unique(part[:, 0])) > 50, "numbers stay numbers"


@pytest.mark.parametrize(
    "bad", [[0, 0, 0, 0], [1, 1, 0, 0], [0.5, 0.5, 0, 1], [np.nan] * 3 + [0], [0, 1, 0, 0.5]]
)
def test_a_row_with_no_category_or_several_is_a_null_row(bad):
    encoded = encoder().encode(rows([GOOD[0], [20, *bad, 2]]))
    assert encoded.valid.tolist() == [True, False]
    assert not encoded.rows[1].any()


def test_bounds_are_asked_of_numbers_alone(tmp_path):
    layout = RowLayout(SPACE, ACTION)
    assert bounded_columns(layout) == BOUNDS.columns
    assert np.flatnonzero(layout.binary).tolist() == [1, 2, 3, 4, 6, 7, 10, 11, 12, 13, 15]
    made = encoder()
    assert set(np.unique(made.encode(rows(GOOD)).rows[:, 1:5])) == {-1.0, 1.0}
    path = tmp_path / "bounds.yaml"
    path.write_text("observation: {low: [0, -5], high: [90, 5]}\nreward: [0, 1]\n")
    assert bounds_from_file(path, SPACE, ACTION).columns == BOUNDS.columns
    path.write_text("observation: {low: [0, 0, 0, 0, 0, -5], high: 90}\nreward: [0, 1]\n")
    with pytest.raises(ConfigError, match="low has 6 values, its space has 2 columns of numbers"):
        bounds_from_file(path, SPACE, ACTION)


def test_the_space_survives_json_and_is_a_box_to_minari():
    from minari.serialization import deserialize_space

    text = space_to_json(SPACE)
    assert space_from_json(text) == SPACE
    assert groups_of(space_from_json(text)) == ((1, 4), (4, 5))
    assert type(deserialize_space(text)) is Box
    again = TransitionEncoder.from_json(encoder().to_json())
    assert groups_of(again.observation_space) == SPACE.groups
    plain = Box(LOW, HIGH)
    assert not same_form(SPACE, plain)
    assert plain != SPACE
    assert same_form(SPACE, TableBox(LOW, HIGH, SPACE.groups))
    assert nearest_categories(plain, np.full((1, 6), 0.3)).tolist() == [[0.3] * 6]


@pytest.mark.parametrize("groups", [[(0, 1)], [(1, 3), (2, 4)], [(1, 1)], [(4, 7)]])
def test_categories_that_cannot_be_are_refused(groups):
    with pytest.raises(ConfigError, match="categor"):
        TableBox(LOW, HIGH, groups)


def test_autoregressive_models_have_one_variable_a_category():
    made = encoder(next_observation="difference")
    bins = row_bins(made, np.empty((0, made.width), np.float32), count=4, declared=True)
    kinds = [(one.start, one.kind, one.size) for one in bins.variables if one.part != "action"]
    before = [(0, "number", 4), (1, "one_hot", 3), (4, "level", 2), (5, "number", 4)]
    assert kinds[:4] == before
    after = [one for one in bins.variables if one.part == "next_observation"]
    assert [(one.start - 9, one.kind, one.size) for one in after] == before
