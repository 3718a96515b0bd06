"""Numbers outside the declared bounds: their owner is told, and nobody else."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from distributed_privrl.data.bounds import bounds_from_file
from distributed_privrl.data.importing import from_table
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.experiments import reports
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.outside_bounds import TITLE, outside_section
from distributed_privrl.experiments.reports import write_reports
from distributed_privrl.experiments.samples import sampled_rows
from distributed_privrl.methods.marginals.config import MarginalsConfig
from distributed_privrl.privacy.ledger import Ledger
from tests.worlds.certified import certify
from tests.worlds.ledgers import url_of
from tests.worlds.overrides import parsed

PEOPLE = 200
REAL, MADE = "survey/people-v0", "survey/private-v0"
BOUNDS = """
observation: {low: [0, 18, 0], high: [30, 99, 0.1], step: 0}
reward: [0, 10]
"""
SCHEMA = {
    "columns": {
        "observation": ["drinks", "age", "share"],
        "action": "smoker",
        "reward": "health",
        "next_observation": "none",
    },
    "kinds": {
        "smoker": {"type": "category", "values": ["no", "yes"]},
        "age": {"type": "number", "missing": "indicator"},
    },
}


def survey(**columns: object) -> pd.DataFrame:
    """Return answers of people, all of them within the bounds but for what is given."""
    places = np.arange(PEOPLE)
    frame = pd.DataFrame(
        {
            "drinks": places % 30,
            "age": 18.0 + places % 60,
            "share": 0.1,
            "smoker": np.where(places % 3, "no", "yes"),
            "health": places % 11,
        }
    )
    return frame.assign(**columns)


def stored(folder: Path, frame: pd.DataFrame, dataset: str = REAL) -> DatasetStore:
    store = DatasetStore(folder / "datasets")
    if not store.holds(dataset):
        from_table(frame, ImportSchema.model_validate(SCHEMA), dataset=dataset, store=store)
    (folder / "bounds.yaml").write_text(BOUNDS)
    return store


def found(folder: Path, frame: pd.DataFrame) -> Section:
    store = stored(folder, frame)
    info: DatasetInfo = store.info(REAL)
    bounds = bounds_from_file(folder / "bounds.yaml", info.observation_space, info.action_space)
    return outside_section(sampled_rows(store, REAL), info, bounds)


def drinks(code: float, people: int) -> np.ndarray:
    return np.where(np.arange(PEOPLE) < people, code, np.arange(PEOPLE) % 30)


def test_a_code_for_no_answer_is_named_with_its_share_and_what_it_counts_as(tmp_path: Path) -> None:
    section = found(tmp_path, survey(drinks=drinks(-9, 24)))
    (note,) = section.notes
    assert note.startswith("drinks: -9 is 12.00% of the numbers, lies below 0 and is taken for 0.")
    assert "leave the field empty" in note
    assert "without a look at the rows" in note
    (metric,) = section.metrics
    assert (metric.name, metric.value) == ("drinks", pytest.approx(0.12))


def test_several_values_on_both_sides_are_shares_and_the_frequent_one_is_named(
    tmp_path: Path,
) -> None:
    values = drinks(-9, 24)
    values[[30, 31, 32, 33]] = [-1, 40, 50, 60]
    below, above = found(tmp_path, survey(drinks=values)).notes
    assert "12.50% of the numbers lie below 0" in below
    assert "most often -9 (12.00%)" in below
    assert "1.50% of the numbers lie above 30" in above
    assert "most often" not in above


def test_bounds_themselves_and_missing_numbers_lie_within(tmp_path: Path) -> None:
    gaps = np.where(np.arange(PEOPLE) % 4, 18.0, np.nan)
    section = found(tmp_path, survey(age=gaps))  # float32 of .1 is more than .1
    assert section.notes == []
    assert section.metrics == [Metric(name="columns with such numbers", value=0)]


def test_the_owner_s_report_has_the_notes_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "render", lambda *_: b"<svg/>")
    monkeypatch.setattr(reports, "usefulness_sections", lambda *_, **__: [])
    seen = []
    for number, frame in enumerate((survey(), survey(drinks=drinks(-9, 24)))):
        folder = tmp_path / str(number)
        folder.mkdir()
        store = stored(folder, frame)
        stored(folder, survey(drinks=drinks(3, 50)), MADE)
        config = parsed(
            {
                "method": "marginals",
                "data": {
                    "sensitive": REAL,
                    "unit": "transition",
                    "units": PEOPLE,
                    "bounds": str(folder / "bounds.yaml"),
                },
                "privacy": {"epsilon": 4.0, "delta": 1e-4},
                "output": {"dataset": MADE, "size": PEOPLE},
            },
            MarginalsConfig,
        )
        run = RunDirectory(folder / "run")
        certificate = certify(store, MADE, method="marginals")
        RunDirectory.create(run.path, config, resume=False, noise_source="float64_lattice")
        ledger = Ledger(url_of(folder))
        write_reports(config, store, run, certificate, trials=[], ledger=ledger)
        public = json.loads((run.path / "report.json").read_text())
        private = json.loads((run.private / "report.json").read_text())
        page = (run.private / "report.html").read_text()
        assert TITLE in [section["title"] for section in private["sections"]]
        assert "failed: " not in json.dumps(private)
        assert page.index("NOT FOR RELEASE") < page.index("What is guaranteed")
        seen.append((public, private.get("notes"), page))
    (public, none, _), (same, (note,), page) = seen
    for one in (public, same):
        one["certificate"].pop("digest")
    assert public == same
    assert "notes" not in public
    assert none is None
    assert "-9 is 12.00% of the numbers" in note
    assert page.index("Notes to the owner of the rows") < page.index("Where the budget went")
