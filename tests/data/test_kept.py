"""Numbers that are declared to be never above others: checked, told of, and kept by releases."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gymnasium.spaces import Box

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.importing import from_table
from distributed_privrl.data.kept import (
    Kept,
    Order,
    in_order,
    kept_in_rows,
    kept_in_trajectories,
    largest_so_far,
)
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.marginals import belief
from tests.evaluation.named import info_of
from tests.marginals.programs import chained
from tests.marginals.rows import ACTION
from tests.worlds.world import World

PLAYERS = 200
TABLE, MADE = "games/seasons-v0", "games/made-v0"
SCHEMA: dict[str, Any] = {
    "columns": {
        "observation": ["home", "hits", "tries"],
        "action": "none",
        "reward": "none",
        "next_observation": "none",
    },
    "kinds": {
        "home": {"type": "number", "whole": True, "at_most": "hits", "missing": "indicator"},
        "hits": {"type": "number", "whole": True, "at_most": "tries"},
        "tries": {"type": "number", "whole": True},
    },
    "spaces": {"observation": {"type": "box", "low": [0, 0, 0], "high": [60, 200, 600]}},
}
"""A column whose limit stands behind it, and has a limit itself."""


def declared(kinds: dict[str, Any], **columns: Any) -> DeclaredTable:
    about = {"observation": ["one", "two", "three"], "action": "act", "reward": "gain"}
    return validate(
        DeclaredTable, {"columns": {**about, **columns}, "kinds": kinds}, source="schema"
    )


def test_a_number_above_its_limit_is_lowered_after_that_limit_was() -> None:
    table = declared(
        {
            "one": {"type": "number", "at_most": "two", "missing": "indicator"},
            "two": {"type": "number", "at_most": "three"},
        }
    )
    orders = table.orders(held=True)
    assert list(orders) == ["two", "one"]
    assert orders["one"] == Order(lower=0, upper=2, gaps=(1,))
    rows = np.array([[9.0, 0, 8, 5], [9, 1, 8, 5], [1, 0, 2, 3]])
    lowered = in_order(rows, list(orders.values()))
    assert lowered.tolist() == [[5, 0, 5, 5], [9, 1, 5, 5], [1, 0, 2, 3]], "a gap has no order"
    assert table.orders(held=False)["two"] == Order(lower=1, upper=2)
    assert in_order(rows, ()) is rows


LATE = {"type": "date", "unit": "hours"}


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"gain": {"type": "number", "at_most": "one"}}, "both must be columns of the obs"),
        ({"one": {"type": "number", "at_most": "gain"}}, "both must be columns of the obs"),
        (
            {
                "one": {"type": "number", "at_most": "two"},
                "two": {"type": "category", "values": ["a", "b"]},
            },
            "another kind",
        ),
        ({"one": {"type": "date", "at_most": "two"}, "two": LATE}, "dates of one unit"),
        (
            {"one": {"type": "number", "at_most": "two", "whole": True}},
            "only one of both is whole",
        ),
        ({"one": {"type": "number", "at_most": "one"}}, "in a circle: one, one"),
        (
            {
                "one": {"type": "number", "at_most": "two"},
                "two": {"type": "number", "at_most": "one"},
            },
            "in a circle",
        ),
        ({"one": {"type": "number", "at_most": "two", "lasting": True}}, "it would change with"),
    ],
)
def test_what_has_no_order_is_refused(kinds: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declared(kinds)


def test_what_lasts_goes_on_and_what_is_below_it_follows() -> None:
    """A number below a lasting one is lowered to the value that lasts, not to one that goes."""
    made = Trajectories(
        observations=np.array([[3.0, 4], [9, 8], [5, 2]]),
        actions=np.zeros((2, 1)),
        rewards=np.zeros(2),
        terminated=np.zeros(2, bool),
        truncated=np.zeros(2, bool),
        offsets=np.array([0, 2]),
        unit_ids=np.arange(1),
    )
    about = Kept(lasting=[1], orders=[Order(lower=0, upper=1)])
    kept = kept_in_trajectories(made, about)
    assert kept.observations.tolist() == [[3, 4], [4, 4], [4, 4]]
    rows = kept_in_rows(made.transitions("trajectory"), about)
    assert rows.observations.tolist() == [[3, 4], [8, 8]]
    assert rows.next_observations.tolist() == [[4, 4], [5, 8]]


def seasons() -> pd.DataFrame:
    random = np.random.default_rng(0)
    tries = random.integers(0, 600, PLAYERS)
    hits = random.binomial(np.minimum(tries, 200), 0.5)
    return pd.DataFrame({"home": random.binomial(hits, 0.3), "hits": hits, "tries": tries})


def test_the_owner_is_told_where_real_rows_break_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = seasons()
    table.loc[[3, 5], "hits"] = table.loc[[3, 5], "tries"] + 1
    from_table(table, SCHEMA, dataset=TABLE, store=DatasetStore(tmp_path / "datasets"))
    said = capsys.readouterr().err
    assert "hits: above its at_most in 2 rows" in said
    assert "home" not in said


def test_a_limit_below_all_that_a_number_may_be_is_refused(tmp_path: Path) -> None:
    """A lowered number would lie outside its space."""
    lows = {"observation": SCHEMA["spaces"]["observation"] | {"low": [0, 10, 0]}}
    store = DatasetStore(tmp_path / "datasets")
    with pytest.raises(ConfigError, match="hits has at_most, and its space begins at 10, that of"):
        from_table(seasons(), SCHEMA | {"spaces": lows}, dataset=TABLE, store=store)
    assert TABLE not in store.ids()


@pytest.mark.parametrize("method", ["marginals", "privsyn"])
def test_every_released_row_keeps_to_it(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    world = World(tmp_path)
    from_table(seasons(), SCHEMA, dataset=TABLE, store=world.store)
    bounds = tmp_path / "bounds.yaml"
    bounds.write_text("observation: {low: [0, 0, 0], high: [60, 200, 600], step: 1}")
    settings = parse_config(
        {
            "method": method,
            "data": {
                "sensitive": TABLE,
                "unit": "transition",
                "units": PLAYERS,
                "bounds": str(bounds),
            },
            "privacy": {"epsilon": 0.5, "delta": 1e-4},
            "output": {"dataset": MADE, "size": 500},
            "runtime": {"executor": "local", "workers": 1},
        },
        source="test",
    )
    world.afford(settings).start(settings, insecure_key=3, anyway=True)
    info = world.store.info(MADE)
    orders = info.orders
    assert len(orders) == 2
    rows = world.store.read_transitions(MADE, unit="transition").observations
    known = rows[:, 1] == 0
    assert (rows[:, 2] <= rows[:, 3]).all()
    assert (rows[known, 0] <= rows[known, 2]).all()
    met = float((rows[known, 0] == rows[known, 2]).mean())
    assert 0.01 < met < 0.9, "some had to be lowered, at such a noise, and not all"


def test_the_column_that_orders_rows_never_falls() -> None:
    """By the schema alone: a number of the observation that has no gaps, and no other next one."""
    ward = {"one": {"type": "category", "values": ["a", "b", "c"]}}
    about: dict[str, Any] = {"trajectory": "person", "order": "two"}
    table = declared(ward, **about)
    assert table.rising(held=True) == (3,)
    assert table.rising(held=False) == (1,)
    assert declared(ward).rising(held=True) == ()
    assert declared({}, **about | {"order": "when"}).rising(held=True) == ()
    gaps = {"two": {"type": "date", "missing": "indicator"}}
    assert declared(gaps, **about).rising(held=True) == ()
    named = about | {"next_observation": ["one", "two", "three"]}
    assert declared({}, **named).rising(held=True) == ()
    space = Box(0, 1, (3,))
    info = info_of(space, ACTION, declared=declared({}, **about))
    assert info.rising == (1,)
    assert info.kept.rising == (1,), "as what is declared to rise, by every release"
    assert replace(info, declared=None).rising == ()
    assert replace(info, has_successors=False).rising == ()


def test_numbers_that_are_declared_to_rise_do_so_beside_the_one_that_orders_rows() -> None:
    about: dict[str, Any] = {"trajectory": "person", "order": "three"}
    kinds = {"one": {"type": "date", "rising": True}}
    assert declared(kinds, **about).rising(held=True) == (0, 2)
    named = about | {"next_observation": ["one", "two", "three"]}
    assert declared(kinds, **named).rising(held=True) == (0,), "what is declared holds there, too"
    assert list(declared(kinds, **about).rising_by_name(held=True)) == ["one"]


RISES: dict[str, Any] = {"type": "number", "rising": True}


@pytest.mark.parametrize(
    ("kinds", "columns", "message"),
    [
        ({"gain": RISES}, {}, "gain is rising, which only a column of the observation can be"),
        ({"one": RISES}, {"next_observation": "none"}, "nothing follows a row"),
        ({"one": RISES | {"lasting": True}}, {}, "it never changes: leave rising out"),
        ({"one": RISES | {"missing": "indicator"}}, {}, "whether it falls across a gap"),
        ({"one": RISES | {"at_most": "two"}}, {}, "declare two as rising or lasting, too"),
        ({"one": {"type": "flag", "rising": True}}, {}, "rising"),
    ],
)
def test_what_cannot_rise_is_refused(
    kinds: dict[str, Any], columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        declared(kinds, **columns)


def test_the_largest_so_far_is_that_of_one_trajectory_alone() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 9, 40)
    numbers = random.normal(size=lengths.sum()).round(1)
    parts = np.split(numbers, np.cumsum(lengths)[:-1])
    aim = np.concatenate([np.maximum.accumulate(part) for part in parts])
    assert np.array_equal(largest_so_far(numbers, lengths), aim)
    assert largest_so_far(numbers.astype(np.float32), lengths).dtype == np.float32


def test_what_rises_does_so_below_a_limit_that_rises() -> None:
    """In trajectories and in rows: neither the number nor its limit falls."""
    random = np.random.default_rng(1)
    lengths = np.full(30, 5)
    made = Trajectories(
        observations=random.integers(0, 9, (int((lengths + 1).sum()), 2)).astype(float),
        actions=np.zeros((150, 1)),
        rewards=np.zeros(150),
        terminated=np.zeros(150, bool),
        truncated=np.zeros(150, bool),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        unit_ids=np.arange(30),
    )
    about = Kept(rising=[0, 1], orders=[Order(lower=0, upper=1)])
    rows = made.transitions("trajectory")
    whole = kept_in_trajectories(made, about).transitions("trajectory")
    for before, found in ((rows, kept_in_rows(rows, about)), (rows, whole)):
        assert (before.next_observations < before.observations).any(axis=0).all()
        assert (found.next_observations >= found.observations).all()
        assert (found.observations[:, 0] <= found.observations[:, 1]).all()
        assert (found.next_observations[:, 0] <= found.next_observations[:, 1]).all()
        assert (found.next_observations > found.observations).any(axis=0).all(), "still they rise"


CAREERS: dict[str, Any] = {
    "columns": {
        "observation": ["age", "wage"],
        "action": "none",
        "reward": "none",
        "trajectory": "person",
        "unit": "person",
        "order": "year",
        "terminated": "last",
    },
    "kinds": {
        "age": {"type": "number", "whole": True, "rising": True},
        "wage": {"type": "number", "whole": True},
    },
    "spaces": {"observation": {"type": "box", "low": [16, 0], "high": [80, 100]}},
}


def careers() -> pd.DataFrame:
    random = np.random.default_rng(2)
    person, year = np.repeat(np.arange(PLAYERS), 4), np.tile(np.arange(4), PLAYERS)
    age = np.repeat(random.integers(20, 60, PLAYERS), 4) + year
    wage = random.integers(0, 100, 4 * PLAYERS)
    return pd.DataFrame({"person": person, "year": year, "age": age, "wage": wage})


def test_the_owner_is_told_where_a_rising_number_falls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = careers()
    table.loc[[2, 7], "age"] = 17
    from_table(table, CAREERS, dataset=TABLE, store=DatasetStore(tmp_path / "datasets"))
    said = capsys.readouterr().err
    assert "age: falls, and is declared to be rising in 2 rows" in said
    assert "wage" not in said


@pytest.mark.parametrize("method", ["marginals", "marginals_j", "privsyn"])
def test_no_released_number_falls_that_is_declared_to_rise(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At an epsilon that leaves nothing but noise, where ages fall half of the time without it."""
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    fell: dict[bool, float] = {}
    for rising in (True, False):
        world = World(tmp_path / str(rising))
        kinds = CAREERS["kinds"] | {"age": CAREERS["kinds"]["age"] | {"rising": rising}}
        from_table(careers(), CAREERS | {"kinds": kinds}, dataset=TABLE, store=world.store)
        bounds = tmp_path / "bounds.yaml"
        bounds.write_text("observation: {low: [16, 0], high: [80, 100], step: 1}")
        sizes = {"size": 300}
        settings = parse_config(
            {
                "method": method,
                "data": {
                    "sensitive": TABLE,
                    "unit": "person",
                    "units": PLAYERS,
                    "max_length": 4,
                    "bounds": str(bounds),
                },
                "training": {"sampling": {"max_length": 4}} if method == "marginals_j" else {},
                "privacy": {"epsilon": 0.1, "delta": 1e-4},
                "output": {"dataset": MADE, **sizes},
                "runtime": {"executor": "local", "workers": 1},
            },
            source="test",
        )
        world.afford(settings).start(settings, insecure_key=3, anyway=True)
        unit = "trajectory" if method == "marginals_j" else "transition"
        rows = world.store.read_transitions(MADE, unit=unit)
        fell[rising] = float((rows.next_observations[:, 0] < rows.observations[:, 0]).mean())
    assert fell[True] == 0
    assert fell[False] > 0.01
