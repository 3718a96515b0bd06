"""Rows under the names that their table has, by units."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from distributed_privrl.core.config import validate
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.layout import category_of, grouped_columns
from distributed_privrl.data.named_rows import is_category, named_rows
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Transitions
from tests.evaluation.named import info_of, rows_of

NAN = float("nan")
TABLE = {
    "columns": {"observation": ["ward", "age", "sex"], "action": "dose", "reward": "gain"},
    "kinds": {
        "ward": {"type": "category", "values": ["A", "it is B"], "missing": "own"},
        "age": {"type": "number", "missing": "indicator"},
        "sex": {"type": "flag", "values": ["female", "male"]},
        "dose": {"type": "category", "values": ["low", "high"]},
    },
}


def transitions(observations: object, actions: object, rewards: list[float]) -> Transitions:
    count = len(rewards)
    return Transitions(
        observations=np.asarray(observations),
        actions=np.asarray(actions),
        rewards=np.asarray(rewards),
        next_observations=np.asarray(observations),
        terminated=np.arange(count) == count - 1,
        truncated=np.zeros(count, bool),
        unit_ids=np.arange(count),
    )


def test_columns_have_the_names_and_values_of_their_table() -> None:
    low, high = np.zeros(6, np.float32), np.array([1, 1, 1, 120, 1, 1], np.float32)
    space = TableBox(low, high, [(0, 3), (4, 5), (5, 6)])
    table = validate(DeclaredTable, TABLE, source="here")
    rows = transitions(
        [[1, 0, 0, 7.0, 0, 1], [0, 1, 0, 0.0, 1, 0], [0, 0, 1, 9.0, 0, 0.5], [1, 1, 0, 8.0, 0, 1]],
        [0, 1, 1, 5],
        [1.0, np.inf, NAN, 2.0],
    )
    found = named_rows(rows, np.ones(4, bool), info_of(space, Discrete(2), declared=table))
    frame = found.frame
    assert found.state == ("ward", "age", "age: missing", "sex: male")
    assert (found.action, found.reward, found.end) == (("dose",), "gain", "terminal")
    assert frame["ward"].tolist()[:3] == ["A", "it is B", "missing"]
    assert pd.isna(frame["ward"][3]), "two categories are none"
    assert frame["age"].fillna(-1).tolist() == [7, -1, 9, 8], (
        "the indicator says that it is missing"
    )
    assert frame["age: missing"].tolist() == ["no", "yes", "no", "no"]
    assert frame["sex: male"].astype(object).fillna("?").tolist() == ["yes", "no", "?", "yes"]
    assert frame["dose"].astype(object).fillna("?").tolist() == ["low", "high", "high", "?"]
    assert frame["gain"].fillna(-1).tolist() == [1, -1, -1, 2]
    assert frame["next ward"].notna().tolist() == [True, True, True, False], "nothing after an end"
    assert found.successor == tuple(f"next {name}" for name in found.state)
    assert is_category(frame["terminal"])


def test_rows_of_no_table_and_rows_that_nothing_follows() -> None:
    rows = transitions([[2, 7], [1, 9]], np.zeros((2, 1), np.float32), [0.0, 1.0])
    spaces = MultiDiscrete([3, 4], start=[0, 6]), Box(-1, 1, (1,))
    found = named_rows(rows, np.ones(2, bool), info_of(*spaces, has_successors=False))
    assert (found.successor, found.end) == ((), None)
    assert list(found.frame) == ["observation_0", "observation_1", "action_0", "reward"]
    assert found.frame["observation_1"].tolist() == ["7", "9"]


def test_a_column_with_two_roles_has_two_names() -> None:
    table = {"columns": {"observation": "dose", "action": "dose", "reward": "dose"}}
    declared = validate(DeclaredTable, table, source="here")
    box = Box(0, 1, (1,))
    rows = transitions(np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32), [3.0, 3.0])
    found = named_rows(rows, np.ones(2, bool), info_of(box, box, declared=declared))
    assert found.own == ("dose", "action dose", "reward dose", "terminal")
    assert found.frame["reward dose"].tolist() == [3, 3]


def test_a_value_may_hold_what_stands_between_column_and_value() -> None:
    assert category_of("ward is it is B") == ("ward", "it is B")
    assert category_of("action_0_is_3") == ("action_0", "3")
    assert grouped_columns(["ward is A", "ward is it is B", "age"]) == [
        ("ward", slice(0, 2)),
        ("age", slice(2, 3)),
    ]


def test_halves_share_no_unit_and_keep_whole_ones() -> None:
    rows = rows_of(80, np.random.default_rng(0))
    one, other = rows.halves(np.random.default_rng(1))
    assert len(one) == len(other) == 40
    assert not set(one.units) & set(other.units)
    some = rows.part(10, np.random.default_rng(2))
    assert len(some) == 12, "three units of four rows"
    assert some.ends.sum() == 3
    assert len(rows.part(1000, np.random.default_rng(2))) == 80
    alone = replace(rows, ends=np.ones(80, bool)).part(40, np.random.default_rng(2))
    assert len(alone) == 40
    assert len(np.unique(alone.units)) > 15, "some rows of nearly all of the twenty units"
    assert len(rows.sample(7, np.random.default_rng(2))) == 7


@pytest.mark.parametrize("category", [True, False])
def test_kinds_of_columns(category: bool) -> None:
    column = pd.Series(["a"]).astype("category" if category else object)
    assert is_category(column) is category
