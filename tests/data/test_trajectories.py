import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.trajectories import (
    Trajectories,
    Transitions,
    hash_unit,
    single_steps,
)
from tests.data.conftest import assert_same, walk


def test_transitions_have_their_own_successors_not_the_next_trajectorys():
    rows = walk((2, 1)).transitions("trajectory")
    assert rows.observations.tolist() == [[0, 0], [0, 1], [1, 0]]
    assert rows.next_observations.tolist() == [[0, 1], [0, 2], [1, 1]]
    assert rows.terminated.tolist() == [False, False, True]
    assert rows.truncated.tolist() == [False, True, False]


def test_unit_ids_of_rows():
    trajectories = walk((2, 1))
    assert trajectories.transitions("transition", first_row=10).unit_ids.tolist() == [10, 11, 12]
    first, second = trajectories.unit_ids.tolist()
    assert trajectories.transitions("patient_id").unit_ids.tolist() == [first, first, second]


def test_units_are_hashed_stably():
    assert hash_unit("") == 0xE3B0C44298FC1C14  # SHA-256 of nothing starts with these bytes


@pytest.mark.parametrize("discrete", [False, True])
def test_select_and_concatenate_are_inverse(discrete):
    whole = walk((3, 1, 4), discrete=discrete)
    parts = [whole.select([k]) for k in range(3)]
    assert_same(Trajectories.concatenate(parts), whole)
    rows = whole.transitions("trajectory")
    assert_same(Transitions.concatenate([rows.select(slice(0, 3)), rows.select(slice(3, 8))]), rows)
    assert_same(
        whole.select([2, 0]).transitions("x"),
        Transitions.concatenate([parts[2].transitions("x"), parts[0].transitions("x")]),
    )


def test_single_steps_keep_rows_and_end_each():
    rows = walk((3,)).transitions("transition")
    single = single_steps(rows)
    assert_same(single.transitions("trajectory"), rows, but=("truncated",))
    assert (single.truncated | single.terminated).all()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("offsets", [0, 5, 3], "never fall"),
        ("offsets", [1, 3], "start at 0"),
        ("rewards", np.zeros(7), "rewards has 7 rows, not 8"),
        ("rewards", np.zeros((8, 1)), "one axis"),
        ("unit_ids", [1], "unit_ids has 1 rows, not 3"),
        ("observations", np.zeros((8, 2)), "observations has 8 rows, not 11"),
        ("actions", np.zeros(8), "actions must be"),
        ("actions", np.array(["a"] * 8), "actions must be"),
    ],
)
def test_inconsistent_trajectories_are_refused(field, value, message):
    good = {name: getattr(walk(), name) for name in walk().__dataclass_fields__}
    with pytest.raises(ConfigError, match=message):
        Trajectories(**{**good, field: value})


def test_inconsistent_transitions_are_refused():
    rows = walk().transitions("trajectory")
    good = {name: getattr(rows, name) for name in rows.__dataclass_fields__}
    with pytest.raises(ConfigError, match="terminated has 2 rows"):
        Transitions(**{**good, "terminated": [True, False]})
    with pytest.raises(ConfigError, match="next_observations has rows of shape"):
        Transitions(**{**good, "next_observations": np.zeros((8, 3))})
    with pytest.raises(ConfigError, match="at least one"):
        Transitions.concatenate([])
