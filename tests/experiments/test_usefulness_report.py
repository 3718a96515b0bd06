"""The private report of runs on real tables: red, with names, where a release is worth nothing."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from distributed_privrl.core.config import validate
from distributed_privrl.data.importing import import_file
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation import usefulness
from distributed_privrl.evaluation.judged import Judged
from distributed_privrl.experiments import usefulness_overview, usefulness_report
from distributed_privrl.experiments.samples import sampled_trajectories, sampled_units
from distributed_privrl.experiments.usefulness_overview import TITLE
from distributed_privrl.experiments.usefulness_report import usefulness_sections
from distributed_privrl.methods.privorl.config import PrivorlArConfig
from tests.data.real_tables import flights, panel
from tests.worlds.overrides import parsed
from tests.worlds.walks import SPACES, walks
from tests.worlds.world import World

TRIAL = """
columns:
  observation: [sex, age, before]
  action: treat
  reward: outcome
  terminated: last
  trajectory: patient
  order: visit
  unit: patient
kinds:
  sex: {type: flag, values: [F, M]}
  treat: {type: category, values: [A, P]}
  before: {type: flag}
spaces:
  observation: {type: box, low: [0], high: [100]}
"""
FLIGHTS = """
columns:
  observation: [hour, dep_delay, carrier]
  action: origin
  reward: distance
  terminated: last
  trajectory: tailnum
  order: time
  unit: tailnum
kinds:
  carrier:
    type: category
    values: [AA, B6, DL, EV, MQ, UA, US, WN, 9E, AS, F9, FL, HA, VX, YV, OO]
  dep_delay: {type: number, missing: indicator}
  origin: {type: category, values: [EWR, JFK, LGA]}
spaces:
  observation: {type: box, low: [0, -60], high: [24, 1440]}
"""


def take(store: DatasetStore, dataset: str, schema: str, frame: Any, folder: Path) -> None:
    path = folder / "table.csv"
    frame.to_csv(path, index=False)
    import_file(path, validate(ImportSchema, yaml.safe_load(schema), source="s"), store, dataset)


def trial() -> Any:
    """Return the respiratory trial: an outcome follows the one before it."""
    frame = panel("geepack/respiratory")
    frame["patient"] = frame["center"] * 100 + frame["id"]
    frame = frame.sort_values(["patient", "visit"], ignore_index=True)
    earlier = frame.groupby("patient")["outcome"].shift().fillna(frame["baseline"])
    return frame.assign(before=earlier.astype(int))


def report_of(folder: Path) -> tuple[dict[str, Any], str]:
    return json.loads((folder / "report.json").read_text()), (folder / "report.html").read_text()


def metrics(report: Mapping[str, Any], title: str) -> dict[str, Any]:
    (found,) = (section for section in report["sections"] if section["title"] == title)
    return {metric["name"]: metric for metric in found["metrics"]}


@pytest.mark.told_apart
def test_a_release_that_learned_nothing_is_red_and_names_what_is_lost(tmp_path: Path) -> None:
    world = World(tmp_path, bounds="observation: {low: [0], high: [100]}\nreward: [0, 1]\n")
    take(world.store, "trial/people-v0", TRIAL, trial(), tmp_path)
    config = parsed(
        {
            "method": "privorl_ar",
            "data": {
                "sensitive": "trial/people-v0",
                "unit": "patient",
                "units": 111,
                "max_length": 4,
                "bounds": str(world.bounds),
            },
            "privacy": {"epsilon": 5.0, "delta": 1e-4},
            "model": {"bins": 8, "hidden": [8], "reward_levels": [0, 1]},
            "training": {"rounds": 3, "expected_batch_size": 20, "pretraining": {"steps": 0}},
            "output": {"dataset": "trial/private-v0", "size": 400},
            "runtime": {"executor": "local", "workers": 1},
        },
        PrivorlArConfig,
    )
    result = world.afford(config).start(config)
    report, page = report_of(result.directory.private)
    assert report["certificate"]["status"] == "valid"
    assert report["sections"][0]["title"] == TITLE
    lost = report["not_useful_for"]
    first = report["sections"][0]["explanation"]
    assert first.startswith("Not good for everything: ")
    assert "Above all before: 1 and outcome" in first
    assert not re.search(r"variation|Kolmogorov|classifier|area|splits|associat", first), "jargon"
    assert report["sections"][0]["metrics"], "figures come after it"
    assert any(text.startswith("how before: 1 and outcome go together: 0.5") for text in lost)
    assert any(
        text.startswith("learning outcome from sex: M, age, before: 1 and treat: they explain")
        for text in lost
    )
    assert not re.search(r"\bstates?\b", json.dumps(report["sections"])), "a table"
    assert any(text.startswith("what depends on next sex: M given sex: M: ") for text in lost)
    rule = metrics(report, "Exact rules")["next sex: M given sex: M"]
    assert rule["explanation"] == "sex: M tells next sex: M"
    assert rule["value"] < 0.9 < 0.995 <= rule["reference"]
    assert "<span>for what is named below</span>" in page
    assert '<b class="valid">valid</b>' in page
    assert '<b class="broken">not useful</b>' in page
    pair = metrics(report, "The worst pairs")["before: 1 and outcome"]
    assert pair["value"] > pair["reference"] + 0.2
    public, shown = report_of(result.directory.path)
    assert "not_useful_for" not in public
    facts = {name: one["value"] for name, one in metrics(public, "What was public before").items()}
    assert facts["units"] == 111
    assert facts["bounds of the columns"] == "declared"
    assert facts["column sex: M"] == facts["column before: 1"] == "yes or no"
    assert facts["column age"] == "number from 0 to 100"
    assert facts["column treat"] == "one of 2: A, P"
    assert facts["column outcome"] == "number from 0 to 1"
    assert "not useful" not in shown
    assert "Exact rules" not in shown


@pytest.mark.told_apart
def test_real_rows_beside_real_rows_are_not_red(tmp_path: Path) -> None:
    store, frame = DatasetStore(tmp_path / "datasets"), flights(2000)
    frame["time"] = frame["day"] * 24 + frame["hour"]
    planes = np.sort(frame["tailnum"].unique())
    for dataset, some in (("t/one-v0", planes[::2]), ("t/other-v0", planes[1::2])):
        take(store, dataset, FLIGHTS, frame[frame["tailnum"].isin(some)], tmp_path)
    sections = usefulness_sections(store, real="t/one-v0", synthetic="t/other-v0")
    assert [text for section in sections for text in section.not_useful] == []
    assert sections[0].explanation.startswith("Good as far as these checks go: none")
    assert "Lost are" not in sections[0].explanation
    rows = sampled_units(store, "t/one-v0")
    assert rows.state == ("hour", "dep_delay", "dep_delay: missing", "carrier")
    mixed = frame.assign(distance=np.random.default_rng(0).permutation(frame["distance"]))
    take(store, "t/mixed-v0", FLIGHTS, mixed, tmp_path)
    sections = usefulness_sections(store, real="t/one-v0", synthetic="t/mixed-v0")
    named = [text for section in sections for text in section.not_useful]
    assert any(text.startswith("how carrier and distance go together: 0.") for text in named)


def test_a_relation_that_fades_is_not_counted_as_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures of a run at epsilon 1, which said that all relations were kept."""
    pair = Judged(
        name="semesters and department",
        value=0.188,
        reference=0.037,
        lowest=0.019,
        highest=0.067,
        real=0.225,
        synthetic=0.056,
    )
    store = DatasetStore(tmp_path / "datasets")
    take(store, "t/one-v0", TRIAL, trial(), tmp_path)
    for name in ("_areas", "_taught", "_chosen"):
        monkeypatch.setattr(usefulness, name, lambda *_: ())

    def faded(*rows: Any) -> usefulness.Usefulness:
        found = usefulness.usefulness(*rows)
        assert not isinstance(found, str)
        return dataclasses.replace(found, pairs=(pair,))

    monkeypatch.setattr(usefulness_report, "usefulness", faded)
    sections = usefulness_sections(store, real="t/one-v0", synthetic="t/one-v0")
    (kept,) = [one for one in sections[0].metrics if one.name == "relations that are kept"]
    assert kept.value == "0 of 1"
    assert "less than half of it left" in kept.explanation
    assert "semesters and department (0.23, 0.06)" in kept.explanation
    assert "; lost" not in kept.explanation
    assert not any("semesters" in text for one in sections for text in one.not_useful)


def test_every_failed_check_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 63 failed checks of a table of people 16 were red lines, and 28 stood nowhere."""
    store = DatasetStore(tmp_path / "datasets")
    take(store, "t/one-v0", TRIAL, trial(), tmp_path)
    failed = [f"check {number} failed" for number in range(63)]
    for name in ("_areas", "_taught", "_chosen"):
        monkeypatch.setattr(usefulness, name, lambda *_: ())
    monkeypatch.setattr(usefulness_overview, "problems_of", lambda _: failed)
    sections = usefulness_sections(store, real="t/one-v0", synthetic="t/one-v0")
    assert [text for one in sections for text in one.not_useful] == failed
    assert sections[0].explanation.startswith("Not good for everything: 63 checks failed")


def test_a_report_says_how_many_people_and_rows_it_rests_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DatasetStore(tmp_path / "datasets")
    schema = TRIAL.replace("  terminated: last\n  trajectory: patient\n  order: visit\n", "")
    schema = schema.replace("  reward: outcome", "  reward: outcome\n  next_observation: none")
    take(store, "t/one-v0", schema, trial(), tmp_path)
    for name in ("_areas", "_taught", "_chosen"):
        monkeypatch.setattr(usefulness, name, lambda *_: ())

    def told() -> tuple[dict[str, Any], str]:
        sections = usefulness_sections(store, real="t/one-v0", synthetic="t/one-v0")
        compared = {one.name: (one.value, one.explanation) for one in sections[0].metrics}
        return compared, sections[1].explanation

    compared, columns = told()
    assert compared["real units compared"] == (111, "all")
    assert compared["real rows compared"][0] == 444
    assert "all of the 444 real rows of 111 units" in columns
    monkeypatch.setattr(usefulness, "MOST_JUDGED", 100)
    compared, columns = told()
    units, words = compared["real units compared"]
    assert 80 < units <= 111
    assert words == "of which some rows are compared"
    assert 120 < compared["real rows compared"][0] <= 200
    assert compared["real rows compared"][1].startswith("of 444, beside ")


def test_an_end_that_no_column_says_is_called_so(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path / "data")
    take(store, "clinic/trial-v0", TRIAL, trial(), tmp_path)
    found = sampled_units(store, "clinic/trial-v0")
    assert found.end == "end"
    assert "end" in found.frame
    assert "terminal" not in found.frame


def test_samples_are_random_whole_units(tmp_path: Path) -> None:
    """The first trajectories of the store are long: the first ones would tell another length."""
    store, made = DatasetStore(tmp_path), walks(900, seed=0)
    order = np.argsort(-made.lengths, kind="stable")
    store.write_trajectories("walk/sorted-v0", made.select(order), **SPACES)
    some = sampled_trajectories(store, "walk/sorted-v0", 300)
    assert 230 < len(some) < 370
    assert some.lengths.mean() == pytest.approx(made.lengths.mean(), rel=0.1)
    assert made.lengths[order][:300].mean() > 1.3 * made.lengths.mean()
    assert len(sampled_trajectories(store, "walk/sorted-v0", 1000)) == 900
    rows = sampled_units(store, "walk/sorted-v0", 3000)
    units, counts = np.unique(rows.units, return_counts=True)
    assert 2000 < len(rows) < 4000
    assert (counts == made.lengths[order][units.astype(int)]).all(), "whole trajectories"
    assert rows.ends.sum() == len(units)
    assert len(np.unique(sampled_units(store, "walk/sorted-v0", 20).units)) >= 32
