"""Which declared values no row of a release has: told in the report that may leave, and why."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.unseen_values import TITLE, unseen_sections, unseen_values
from distributed_privrl.marginals import belief
from tests.marginals.programs import chained
from tests.worlds.intake import DATASET, RELEASED, SPACES, Intake, admissions

MADE = "ward/made-v0"
TABLE = DeclaredTable.model_validate(
    {
        "columns": {"observation": ["ward", "age", "smokes"], "action": "dose", "reward": "gain"},
        "kinds": {
            "ward": {"type": "category", "values": ["A", "B", "ICU"], "missing": "own"},
            "age": {"type": "number", "missing": "indicator"},
            "smokes": {"type": "flag", "values": ["no", "yes"]},
            "dose": {"type": "category", "values": ["low", "high"]},
        },
    }
)


def ward_store(root: Path, wards: list[int], *, gap: bool, smoker: bool) -> DatasetStore:
    """Write rows of these wards, all of the low dose, in whose age there is a gap or none."""
    count = len(wards)
    numbers = np.zeros((count, 7))
    numbers[np.arange(count), wards] = 1
    numbers[:, 4] = 50
    numbers[-1, 5], numbers[0, 6] = gap, smoker
    rows = Transitions(
        observations=numbers,
        actions=np.zeros(count, np.int64),
        rewards=np.zeros(count),
        next_observations=numbers,
        terminated=np.ones(count, bool),
        truncated=np.zeros(count, bool),
        unit_ids=np.arange(count),
    )
    high = np.array([1, 1, 1, 1, 120, 1, 1], np.float32)
    store = DatasetStore(root)
    store.write_transitions(
        MADE,
        rows,
        layout="transitions",
        observation_space=TableBox(np.zeros(7, np.float32), high, [(0, 4), (5, 6), (6, 7)]),
        action_space=Discrete(2),
        declared=TABLE,
    )
    return store


def test_values_gaps_and_flags_that_no_row_has_are_named(tmp_path: Path) -> None:
    store = ward_store(tmp_path, [0, 0, 2], gap=False, smoker=False)
    assert unseen_values(store, MADE) == {
        "ward": ["B", "missing"],
        "age": ["missing"],
        "smokes": ["yes"],
        "dose": ["high"],
    }
    (section,) = unseen_sections(store, Sourced.private(MADE))
    told = {one.name: (one.value, one.explanation) for one in section.metrics}
    assert told["declared values that no row has"][0] == 5
    assert str(told["declared values that no row has"][1]).startswith("of 9, ")
    assert told["column ward"] == ("B, missing", "2 of 4 declared values")
    assert told["column age"] == ("missing", "the gap that is declared")


def test_a_column_whose_values_all_are_there_is_not_listed(tmp_path: Path) -> None:
    store = ward_store(tmp_path, [0, 1, 2, 3], gap=True, smoker=True)
    assert unseen_values(store, MADE) == {"dose": ["high"]}
    (section,) = unseen_sections(store, Sourced.private(MADE))
    assert [one.value for one in section.metrics] == [1, "high"]


def test_a_table_without_categories_has_no_such_section(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    columns: dict[str, Any] = {"observation": ["one", "two"], "action": "dose", "reward": "gain"}
    spaces = {"observation_space": Box(0, 10, (2,)), "action_space": Discrete(3, start=1)}
    table = DeclaredTable.model_validate({"columns": columns})
    store.write_transitions(MADE, admissions(), layout="transitions", declared=table, **spaces)
    assert unseen_sections(store, Sourced.private(MADE)) == []
    store.remove(MADE)
    store.write_transitions(MADE, admissions(), layout="transitions", declared=None, **spaces)
    assert unseen_sections(store, Sourced.private(MADE)) == []


def test_the_report_that_may_leave_and_the_card_say_so_as_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    place = Intake(tmp_path)
    kinds = {"dose": {"type": "category", "values": [1, 2, 3]}}
    columns = {"observation": ["severity", "ward"], "action": "dose", "reward": "gain"}
    table = DeclaredTable.model_validate({"columns": columns, "kinds": kinds})
    place.store.remove(DATASET)
    place.store.write_transitions(
        DATASET, admissions(), layout="transitions", unit_column="patient", declared=table, **SPACES
    )
    done = place.budget().run(key=None)
    report = json.loads(done.directory.report.with_suffix(".json").read_text())
    (section,) = (one for one in report["sections"] if one["title"] == TITLE)
    made = unseen_values(place.store, RELEASED)
    assert section["metrics"][0]["value"] == sum(map(len, made.values()))
    assert section["metrics"][0]["ledger_entry"] == done.directory.run_id
    assert f"## {TITLE}" in (place.store.folder(RELEASED) / "README.md").read_text()
