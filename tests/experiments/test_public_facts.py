"""What a report says was public before: what is declared and chosen, and nothing that is found."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from distributed_privrl.core.config import DataConfig, OutputConfig
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.experiments.public_facts import (
    facts_section,
    facts_sections,
    public_ranges,
)
from distributed_privrl.experiments.reports import rebuild_report
from distributed_privrl.marginals import belief
from distributed_privrl.privacy.metrics import PublicValue
from tests.evaluation.named import info_of
from tests.marginals.programs import chained
from tests.worlds.intake import DATASET, Intake, admissions, public_admissions, write

OUTPUT = OutputConfig(dataset="some/private-v0", size=500)


def facts(data: DataConfig, info: Any, ranges: Bounds | None = None) -> dict[str, Any]:
    metrics = facts_section(data, OUTPUT, info, ranges).metrics
    assert all(type(metric.value) is PublicValue for metric in metrics)
    return {metric.name: metric.value.value for metric in metrics}  # type: ignore[union-attr]


def data_of(**values: Any) -> DataConfig:
    return DataConfig(sensitive="some/rows-v0", unit="patient", **values)


def test_columns_of_spaces_are_told_with_their_ranges() -> None:
    info = info_of(MultiDiscrete([3, 40]), Box(-1.0, 2.5, (2,)))
    found = facts(data_of(units=70, bounds="environment", max_length=9), info)
    assert found["column observation_0"] == "one of 3: 0, 1, 2"
    assert found["column observation_1"].endswith("11, ...")
    assert found["column action_1"] == "number from -1 to 2.5"
    assert (found["unit"], found["units"], found["rows of a unit"]) == ("patient", 70, 9)
    assert found["bounds of the columns"] == "environment"
    assert found["rows"] == 500
    assert "public datasets" not in found


@pytest.mark.parametrize(
    ("values", "units", "bounds"),
    [
        ({"units": {"epsilon": 0.1}}, "counted with noise", "environment"),
        ({"public": ["a-v0", "b-v0"]}, "not declared", "public"),
        ({"bounds": "somewhere.yaml"}, "not declared", "declared"),
        ({"bounds": {"epsilon": 0.1, "search": "s.yaml"}}, "not declared", "found with noise"),
    ],
)
def test_what_was_found_with_noise_is_not_called_declared(
    values: dict[str, Any], units: str, bounds: str
) -> None:
    found = facts(data_of(**values), info_of(Discrete(2), Discrete(2)))
    assert (found["units"], found["bounds of the columns"]) == (units, bounds)
    assert found.get("public datasets") == (
        ", ".join(values["public"]) if "public" in values else None
    )


UNBOUNDED = TableBox(
    np.array([-np.inf, 0, 0, 0, -np.inf], np.float32),
    np.array([np.inf, 1, 1, 1, np.inf], np.float32),
    [(1, 3), (3, 4)],
)


def test_declared_bounds_stand_where_spaces_have_none() -> None:
    info = info_of(UNBOUNDED, Discrete(2))
    columns = ("observation_0", "observation_4", "reward")
    ranges = Bounds(low=np.array([0.0, -2, -1]), high=np.array([90.0, 4, 1]), columns=columns)
    found = facts(data_of(bounds="bounds.yaml"), info, ranges)
    assert found["column observation_0"] == "number from 0 to 90"
    assert found["column observation_3"] == "yes or no"
    assert found["column observation_4"] == "number from -2 to 4"
    assert found["column reward"] == "number from -1 to 1"
    searched = {"epsilon": 0.1, "search": "s.yaml", "parts": ["observation"]}
    found = facts(data_of(bounds=searched), info, ranges)
    assert found["column observation_4"] == "number from -2 to 4, in which bounds were searched"
    assert found["column reward"] == "number from -1 to 1"
    assert facts(data_of(), info)["column observation_0"] == "number"


FREE = {"observation_space": Box(-np.inf, np.inf, (2,)), "action_space": Discrete(3, start=1)}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Intake:
    """Return admissions whose spaces declare no bounds; their model is not estimated."""
    monkeypatch.setattr(belief, "estimated", chained)
    made = Intake(tmp_path)
    made.store.remove(DATASET)
    write(made.store, DATASET, admissions(), **FREE)
    return made


def sections(place: Intake, **changes: Any) -> list[dict[str, Any]]:
    """Return the names and values of each section, for a run that the ledger does not know."""
    info = place.store.info(DATASET)
    config = place.config(**changes)
    ranges = public_ranges(config, place.store)
    found = facts_sections(config, ranges, place.ledger, "run", info)
    return [{one.name: one.value for one in section.metrics} for section in found]


def test_a_report_has_the_bounds_of_the_file_or_of_public_rows(place: Intake) -> None:
    (found,) = sections(place)
    assert found["column observation_0"] == PublicValue("number from 0 to 10")
    assert found["column reward"] == PublicValue("number from 0 to 1")
    write(place.store, "intake/public-v0", public_admissions(50), **FREE)
    (found,) = sections(place, data__bounds="public", data__public=["intake/public-v0"])
    assert found["column observation_0"].value.endswith(" in the public datasets")
    place.bounds.unlink()
    (found,) = sections(place)
    assert found["column observation_0"] == PublicValue("number")


def test_bounds_that_were_paid_for_are_shown_as_released(place: Intake) -> None:
    place.budget()
    asked = {"epsilon": 20.0, "search": str(place.bounds), "parts": ["observation"]}
    changes: dict[str, Any] = {"data__bounds": asked, "privacy__epsilon": 24.0}
    (unknown,) = sections(place, **changes)
    assert unknown["column observation_1"].value == (
        "number from 0 to 4, in which bounds were searched"
    )
    done = place.run(key=None, **changes)
    report = json.loads(done.directory.report.with_suffix(".json").read_text())
    public, paid = report["sections"][-2:]
    assert public["title"] == "What was public before"
    assert paid["title"] == "Bounds that were found with noise"
    entry = f"{done.directory.run_id}/bounds"
    shown = {one["name"]: one["value"] for one in paid["metrics"]}
    answer = place.ledger.answer(entry)["answer"]
    assert shown == {
        f"column observation_{i}": f"{low:g} to {high:g}" for i, (low, high) in enumerate(answer)
    }
    assert {one["ledger_entry"] for one in paid["metrics"]} == {entry}


def test_a_report_that_is_written_anew_has_the_bounds_that_the_run_used(place: Intake) -> None:
    place.budget()
    done = place.run(key=None)
    place.bounds.write_text(place.bounds.read_text().replace("10", "11"))
    rebuild_report(done.directory.path, store=place.store, ledger_url=place.url)
    report = json.loads(done.directory.report.with_suffix(".json").read_text())
    (facts,) = [one for one in report["sections"] if one["title"] == "What was public before"]
    shown = {one["name"]: one["value"] for one in facts["metrics"]}
    assert shown["column observation_0"] == "number from 0 to 10"
