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
from distributed_privrl.data.kept import Order, in_order, kept_in_rows, kept_in_trajectories
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
    orders = [Order(lower=0, upper=1)]
    kept = kept_in_trajectories(made, [1], orders)
    assert kept.observations.tolist() == [[3, 4], [4, 4], [4, 4]]
    rows = kept_in_rows(made.transitions("trajectory"), [1], orders)
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
    assert replace(info, declared=None).rising == ()
    assert replace(info, has_successors=False).rising == ()
