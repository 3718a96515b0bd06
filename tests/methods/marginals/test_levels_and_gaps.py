"""Numbers that may be missing, and levels so far: declared, counted, and in a release."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.importing import from_table
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.counted_section import _missed
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.asked import cliques_asked, levels_asked, names_asked
from distributed_privrl.marginals.together import counted_together, from_tensors
from distributed_privrl.methods.marginals.method import MarginalsMethod
from distributed_privrl.methods.marginals.trajectories import TrajectoryMarginalsMethod
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.marginals.programs import chained
from tests.worlds.world import World

PEOPLE, YEARS = 200, 4
TABLE, MADE = "panel/incomes-v0", "panel/made-v0"
SCHEMA: dict[str, Any] = {
    "columns": {
        "observation": ["born", "income", "married"],
        "action": "none",
        "reward": "none",
        "trajectory": "person",
        "order": "year",
        "terminated": "last",
        "unit": "person",
    },
    "kinds": {
        "born": {"type": "number", "whole": True, "lasting": True},
        "income": {"type": "number", "missing": "indicator"},
        "married": {"type": "flag"},
    },
    "spaces": {"observation": {"type": "box", "low": [1940, 5], "high": [2000, 50]}},
    "layout": "packed",
}
BOUNDS = "observation: {low: [1940, 5], high: [2000, 50]}\n"
INCOME, INDICATOR = 1, 2
"""Their places in an observation."""


def panel() -> pd.DataFrame:
    source = np.random.default_rng(0)
    person = np.repeat(np.arange(PEOPLE), YEARS)
    income = source.uniform(10, 40, PEOPLE)[person] + source.normal(0, 3, len(person))
    return pd.DataFrame(
        {
            "person": person,
            "year": np.tile(np.arange(YEARS), PEOPLE),
            "born": source.integers(1945, 1995, PEOPLE)[person],
            "income": np.where(source.random(len(person)) < 0.3, np.nan, income),
            "married": source.integers(0, 2, len(person)),
        }
    )


def config(
    tmp_path: Path,
    method: str = "marginals_j",
    *,
    sensitive: str = TABLE,
    tables: int = 3,
    together: Any = (),
    **model: Any,
) -> Any:
    bounds = tmp_path / "bounds.yaml"
    bounds.write_text(BOUNDS)
    whole = method == "marginals_j"
    training: dict[str, Any] = {"tables": tables, "together": together}
    if whole:
        training["sampling"] = {"max_length": YEARS}
    values = {
        "method": method,
        "data": {
            "sensitive": sensitive,
            "unit": "person",
            "units": PEOPLE,
            "max_length": YEARS,
            "bounds": str(bounds),
        },
        "privacy": {"epsilon": 8.0, "delta": 1e-4},
        "model": {"rows_per_unit": YEARS, **model},
        "training": training,
        "output": {"dataset": MADE, "size": 60 if whole else 240},
        "runtime": {"executor": "local", "workers": 1},
    }
    return parse_config(values, source="test")


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path)
    from_table(panel(), SCHEMA, dataset=TABLE, store=found.store)
    return found


@pytest.mark.parametrize("method", ["marginals", "marginals_j"])
def test_no_row_of_a_release_has_a_number_and_a_gap(
    method: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    memory = {"memory": ["income"]} if method == "marginals_j" else {}
    settings = config(tmp_path, method, **memory)
    done = world.afford(settings).start(settings, insecure_key=3, anyway=True)
    store = DatasetStore(world.store.root)
    rows = np.concatenate(
        [one.observations for one in store.iter_transitions(MADE, unit="transition")]
    )
    missing = rows[:, INDICATOR] == 1
    assert rows.shape[1] == 4, "a level is no part of a row"
    assert 0.15 < missing.mean() < 0.45
    assert (rows[missing, INCOME] == 5).all(), "the number of its range that is nearest to 0"
    assert (rows[~missing, INCOME] < 6).mean() < 0.05
    if memory:
        path = done.directory.checkpoint / "marginals.safetensors"
        tensors, _ = load_checkpoint(path, run_id=done.directory.run_id, stage="rounds")
        first = (from_tensors(tensors) or [])[0].columns
        assert first[1] == "memory_observation_1"
        assert first[0] in ("next_observation_1", "change_observation_1")


def test_levels_are_of_what_changes(world: World, tmp_path: Path) -> None:
    for name in ("born", "wage", "income: missing"):
        with pytest.raises(ConfigError, match=f"model.memory names {name}, which is no column"):
            plan_run(config(tmp_path, memory=[name]), world.store)
    with pytest.raises(ConfigError, match=r"such columns are: income, married$"):
        plan_run(config(tmp_path, memory=["wage"]), world.store)
    many = config(tmp_path, tables=1, together=[["born", "income"]], memory=["income"])
    with pytest.raises(
        ConfigError, match=r"2 joint counts with 1 of model\.memory, and 1 are made"
    ):
        plan_run(many, world.store)


def test_a_plan_pays_for_levels_whether_the_table_is_here_or_not(
    world: World, tmp_path: Path
) -> None:
    """Where nobody knows its names, any column stands for one that has a level."""
    columns = [
        TrajectoryMarginalsMethod(config(tmp_path, memory=memory)).columns(world.context(), None)
        for memory in ([], ["income"])
    ]
    assert columns[1].histograms == columns[0].histograms + 1
    elsewhere = config(tmp_path, sensitive="not/here-v0", memory=["income"])
    facts = plan_run(elsewhere, DatasetStore(tmp_path / "none")).facts()
    assert "1 for levels so far" in str(facts)
    too_many = config(tmp_path, sensitive="not/here-v0", memory=["a", "b", "c"])
    with pytest.raises(ConfigError, match=r"such columns are: observation_0, observation_1"):
        plan_run(too_many, DatasetStore(tmp_path / "none"))


def test_a_number_and_its_gaps_are_asked_for_by_either_name(world: World, tmp_path: Path) -> None:
    info = world.store.info(TABLE)
    columns = MarginalsMethod(config(tmp_path, "marginals")).columns(world.context(), None)
    one, other = (["born", "income"], ["born", "income: missing"])
    assert cliques_asked(columns, info, [one, other]) == cliques_asked(columns, info, [one])
    (both,) = cliques_asked(columns, info, [["born", "income", "income: missing"]])
    assert len(both) == 2
    with pytest.raises(ConfigError, match="each column once"):
        cliques_asked(columns, info, [["income", "income: missing"]])
    made = counted_together(columns, both, (4, 4), step=1, deviation=1.0)
    assert not _missed([made], [one, other], info)
    assert _missed([made], [["born", "next income: missing"]], info)
    levels = TrajectoryMarginalsMethod(config(tmp_path, memory=["income"]))
    columns = levels.columns(world.context(), None)
    (pair,) = levels_asked(columns)
    assert cliques_asked(columns, info, [["level income", "next income"]]) == (pair,)
    made = counted_together(columns, pair, (4, 4), step=1, deviation=1.0)
    asked = names_asked(config(tmp_path, together=[["born", "income"]], memory=["income"] * 2))
    assert asked == [("level income", "next income"), ("born", "income")]
    assert _missed([made], asked, info) == ["born, income"]


def test_the_level_of_changes_takes_no_name_of_the_column_beside(
    world: World, tmp_path: Path
) -> None:
    """A first row has none, and yet no indicator says so."""
    schema = {**SCHEMA, "columns": {**SCHEMA["columns"], "observation": ["year", "married"]}}
    schema |= {"kinds": {"married": {"type": "flag"}}}
    schema |= {"spaces": {"observation": {"type": "box", "low": [0], "high": [9]}}}
    from_table(panel(), schema, dataset="panel/years-v0", store=world.store)
    method = TrajectoryMarginalsMethod(
        config(tmp_path, sensitive="panel/years-v0", memory=["year", "married"])
    )
    (tmp_path / "bounds.yaml").write_text("observation: {low: [0], high: [9]}\n")
    columns = method.columns(world.context(), None)
    year, married = columns.of("memory")
    assert columns[year].difference
    info = world.store.info("panel/years-v0")
    (asked,) = cliques_asked(columns, info, [["level married", "married"]])
    assert asked == (1, married)
