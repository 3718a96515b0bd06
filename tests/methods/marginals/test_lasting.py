"""What a person keeps: declared in a schema, counted once, and kept by every release."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.importing import from_table
from distributed_privrl.data.kept import Kept, kept_in_rows, kept_in_trajectories
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.rehearsal import rehearse
from distributed_privrl.marginals import belief
from distributed_privrl.methods.marginals.method import MarginalsMethod
from tests.marginals.programs import chained
from tests.worlds.world import World

PEOPLE, YEARS = 200, 4
TABLE = "panel/people-v0"
SCHEMA: dict[str, Any] = {
    "columns": {
        "observation": ["sex", "born", "wage"],
        "action": "works",
        "reward": "gain",
        "trajectory": "person",
        "order": "year",
    },
    "kinds": {
        "sex": {"type": "category", "values": ["f", "m", "x"], "lasting": True},
        "born": {"type": "number", "whole": True, "lasting": True},
        "works": {"type": "flag"},
    },
    "spaces": {"observation": {"type": "box", "low": [1940, 0], "high": [2000, 50]}},
}
BOUNDS = """observation: {low: [1940, 0], high: [2000, 50]}
reward: [0, 1]
"""


def panel() -> pd.DataFrame:
    source = np.random.default_rng(0)
    person = np.repeat(np.arange(PEOPLE), YEARS)
    count = len(person)
    return pd.DataFrame(
        {
            "person": person,
            "year": np.tile(np.arange(YEARS), PEOPLE),
            "sex": np.array(["f", "m", "x"])[source.choice(3, PEOPLE, p=[0.5, 0.4, 0.1])][person],
            "born": source.integers(1945, 1995, PEOPLE)[person],
            "wage": source.uniform(5, 40, count),
            "works": source.integers(0, 2, count),
            "gain": source.uniform(0, 1, count),
        }
    )


def config(tmp_path: Path, method: str, **model: Any) -> Any:
    bounds = tmp_path / "bounds.yaml"
    bounds.write_text(BOUNDS)
    whole = method == "marginals_j"
    training: dict[str, Any] = {"tables": 2}
    if whole:
        training["sampling"] = {"max_length": YEARS}
    if method == "privorl_ar":
        training = {"rounds": 3, "expected_batch_size": 20, "pretraining": {"steps": 0}}
        model = {"bins": 4, "hidden": [4], **model}
    values = {
        "method": method,
        "data": {
            "sensitive": TABLE,
            "unit": "person",
            "units": PEOPLE,
            "max_length": YEARS,
            "bounds": str(bounds),
        },
        "privacy": {"epsilon": 1.0, "delta": 1e-4},
        "model": model,
        "training": training,
        "output": {"dataset": "panel/made-v0", "size": 50 if whole else 120},
        "runtime": {"executor": "local", "workers": 1},
    }
    return parse_config(values, source="test")


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path)
    from_table(panel(), SCHEMA, dataset=TABLE, store=found.store)
    return found


def test_nothing_is_counted_of_what_stays(world: World, tmp_path: Path) -> None:
    for method in ("marginals", "marginals_j"):
        declared = MarginalsMethod(config(tmp_path, method))
        columns = declared.columns(world.context(), None)
        after = [columns[place].place for place in columns.of("next_observation")]
        assert set(after) == {4}, "sex takes three numbers of the box, born one"
        assert len(columns.of("observation")) == 3


@pytest.mark.parametrize("method", ["marginals", "marginals_j", "privorl_ar"])
def test_every_release_keeps_it(
    method: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    settings = config(tmp_path, method)
    world.afford(settings).start(settings, insecure_key=3, anyway=True)
    store = DatasetStore(world.store.root)
    seen = 0
    if method == "marginals_j":
        made = store.read_trajectories("panel/made-v0")
        for one in made.by_unit():
            seen += len(one.rewards)
            assert (one.observations[:, :4] == one.observations[:1, :4]).all()
            changed = len(one.rewards) > 1 and (np.diff(one.observations[:, 4]) != 0).any()
            assert changed or len(one.rewards) == 1, "wages move"
    else:
        for rows in store.iter_transitions("panel/made-v0", unit="transition"):
            seen += len(rows)
            np.testing.assert_array_equal(rows.observations[:, :4], rows.next_observations[:, :4])
            assert (rows.observations[:, 4] != rows.next_observations[:, 4]).any()
    assert seen >= 50


def test_the_owner_is_told_where_it_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = panel()
    table.loc[[1, 2, 6], "sex"] = "x"
    table.loc[[0, 3, 4, 5, 7], "sex"] = "f"
    from_table(table, SCHEMA, dataset=TABLE, store=DatasetStore(tmp_path / "datasets"))
    said = capsys.readouterr().err
    assert "sex: changes, and is declared to be lasting in 4 rows of 2 trajectories" in said
    assert "born" not in said


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            {"gain": {"type": "number", "lasting": True}},
            "is lasting, which only a column of the obs",
        ),
        (
            {name: {"type": "number", "lasting": True} for name in ("sex", "born", "wage")},
            "nothing would ever change",
        ),
    ],
)
def test_what_cannot_last_is_refused(kinds: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(ImportSchema, {**SCHEMA, "kinds": kinds}, source="schema")


def test_numbers_are_kept_row_by_row_and_trajectory_by_trajectory() -> None:
    made = Trajectories(
        observations=np.arange(20.0).reshape(10, 2),
        actions=np.zeros((8, 1)),
        rewards=np.zeros(8),
        terminated=np.zeros(8, bool),
        truncated=np.zeros(8, bool),
        offsets=np.array([0, 3, 8]),
        unit_ids=np.arange(2),
    )
    kept = kept_in_trajectories(made, Kept(lasting=[1]))
    assert kept.observations[:, 1].tolist() == [1.0] * 4 + [9.0] * 6
    np.testing.assert_array_equal(kept.observations[:, 0], made.observations[:, 0])
    rows = made.transitions("trajectory")
    following = kept_in_rows(rows, Kept(lasting=[0])).next_observations
    np.testing.assert_array_equal(following[:, 0], rows.observations[:, 0])
    np.testing.assert_array_equal(following[:, 1], rows.next_observations[:, 1])
    assert kept_in_rows(rows, Kept()) is rows
    assert kept_in_trajectories(made, Kept()) is made


def test_a_rehearsal_counts_once_what_stays(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy goes together with itself at any noise, and would stand for relations that survive."""
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    (tmp_path / "work").mkdir()
    found = rehearse(
        config(tmp_path, "marginals_j"),
        LocalExecutor(),
        work=tmp_path / "work",
        store=world.store,
        insecure_key=3,
    )
    names = [one.name for figures in found.sections.values() for one in figures]
    assert {"sex", "born", "next wage"} <= set(names)
    assert not any("next sex" in name or "next born" in name for name in names)
    assert "sex and next sex" not in found.text()
