"""A rehearsal runs the very program, spends nothing, reads no sensitive row, and tells noise."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.metadata import PUBLIC_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.survival import Survived
from distributed_privrl.experiments import rehearsal
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.rehearsal import rehearse
from distributed_privrl.experiments.rehearsal_report import Rehearsal, write_rehearsal
from distributed_privrl.experiments.standin import KEEPS
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.stages.encoders import foreseen_columns
from tests.marginals.programs import chained
from tests.worlds import walks
from tests.worlds.intake import Intake, admissions, config_values, write


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


def rehearsed(place: Intake, name: str, **changes: Any) -> Rehearsal:
    options = {key: changes.pop(key) for key in ("rows", "units") if key in changes}
    config = parse_config(config_values(place.bounds, **changes), source="test")
    work = place.folder / name
    work.mkdir()
    return rehearse(
        config, LocalExecutor(), work=work, store=place.store, insecure_key=3, **options
    )


def kept(found: Rehearsal, title: str) -> float:
    (figures,) = (one for name, one in found.sections.items() if name.startswith(title))
    return float(np.mean([one.kept for one in figures]))


def test_much_survives_little_noise_and_little_survives_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Intake(tmp_path)

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a row of the sensitive dataset was read")

    for name in ("iter_transitions", "iter_trajectories"):
        monkeypatch.setattr(place.store, name, forbidden)
    size = {"data__units": 4000, "output__size": 4000, "model__draws": 4000}
    mild = rehearsed(place, "mild", privacy__epsilon=50.0, privacy__delta=1e-5, **size)
    harsh = rehearsed(place, "harsh", privacy__epsilon=0.003, privacy__delta=1e-9, **size)
    assert kept(mild, "columns") == 1.0
    assert kept(harsh, "columns") < 0.7
    assert kept(mild, "strongest pairs") > kept(harsh, "strongest pairs")
    assert kept(mild, "reward given") == 1.0
    assert [one.kept for one in mild.strengths][:1] == [True]
    assert not any(one.kept for one in harsh.strengths)
    assert "A rehearsal does not know how strong those of your table are" in harsh.text()
    assert mild.verdict is not None
    assert mild.verdict.startswith("fine")
    assert harsh.verdict is not None
    assert harsh.verdict.startswith("hopeless")  # and it was rehearsed all the same
    assert not place.ledger.accounts(), "nothing was spent, or held"
    assert list(place.store.ids()) == ["intake/admissions-v0"]
    write_rehearsal(mild, tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "rehearsal.json").read_text())
    assert facts["units"] == 4000
    assert facts["promise"] == mild.promise
    assert (tmp_path / "out" / "rehearsal.txt").read_text() == mild.text()
    made = DatasetStore(tmp_path / "mild" / "datasets")
    assert set(made.ids()) == {"rehearsal/admissions-v0", "rehearsal/private-v0"}


def test_public_rows_stand_in(tmp_path: Path) -> None:
    place = Intake(tmp_path)
    write(place.store, "open/stays-v0", admissions(seed=9), metadata={PUBLIC_KEY: True})
    found = rehearsed(place, "public", rows="open/stays-v0", data__units=100)
    assert (found.rows, found.units) == ("open/stays-v0", 100)
    stood_in = DatasetStore(tmp_path / "public" / "datasets")
    read = stood_in.read_transitions("rehearsal/admissions-v0", unit="patient")
    assert len(np.unique(read.unit_ids)) == 100
    with pytest.raises(UnsafeError, match="was not declared public"):
        rehearsed(place, "secret", rows="intake/admissions-v0")
    with pytest.raises(ConfigError, match=r"units, the configuration says 5000: give more"):
        rehearsed(place, "few", rows="open/stays-v0", data__units=5000)


def test_counted_units_are_to_be_expected(tmp_path: Path) -> None:
    place = Intake(tmp_path)
    with pytest.raises(ConfigError, match="say with --units how many you expect"):
        rehearsed(place, "none", data__units={"epsilon": 1.0})
    found = rehearsed(place, "some", data__units={"epsilon": 1.0}, units=300)
    assert found.units == 300


def test_trajectories_have_lengths(tmp_path: Path) -> None:
    store = walks.walk_store(tmp_path / "datasets")
    config = walks.marginals_config(output__size=200)
    (tmp_path / "work").mkdir()
    found = rehearse(config, LocalExecutor(), work=tmp_path / "work", store=store, insecure_key=3)
    assert "lengths" in found.sections
    assert "rehearsed on invented rows" in found.text()
    (acted,) = (one for name, one in found.sections.items() if name.startswith("actions and"))
    assert [one.name for one in acted] == ["action_0 and next action_0"]
    assert acted[0].before > 0.6


OF_WALKERS = {
    "data__unit": "walker",
    "data__max_length": None,
    "training__sampling__max_length": 24,
}


@pytest.mark.parametrize(
    ("declared", "trajectories", "lengths"),
    [
        ({}, 1, (12, 24)),
        ({"model__rows_per_unit": 6}, 1, (3, 9)),
        ({"model__rows_per_unit": 20}, 1, (16, 24)),
        ({"model__rows_per_unit": 1}, 1, (1, 1)),
        ({"model__trajectories_per_unit": 4, **OF_WALKERS}, 4, (12, 24)),
        ({"model__rows_per_unit": 30, "model__trajectories_per_unit": 6, **OF_WALKERS}, 6, (2, 8)),
        ({"model__rows_per_unit": 60, **OF_WALKERS}, 3, (16, 24)),
        ({"model__rows_per_unit": 60, **OF_WALKERS, "data__max_length": 48}, 2, (24, 24)),
    ],
)
def test_stand_ins_are_as_long_as_the_configuration_declares(
    tmp_path: Path, declared: dict[str, Any], trajectories: int, lengths: tuple[int, int]
) -> None:
    config = walks.marginals_config(data__units=300, **declared)
    stood_in = invented(config, tmp_path).read_trajectories(INVENTED)
    assert (np.bincount(stood_in.unit_ids.astype(int), minlength=300) == trajectories).all()
    assert (stood_in.lengths.min(), stood_in.lengths.max()) == lengths
    rows = declared.get("model__rows_per_unit")
    if rows is not None and config.data.max_length != 48:
        assert stood_in.lengths.sum() / 300 == pytest.approx(rows, rel=0.05)


INVENTED = "rehearsal/walks-v0"


def invented(config: Any, folder: Path) -> DatasetStore:
    """Return a store with the rows that stand in for a run's, and nothing else."""
    sensitive = walks.walk_store(folder / "sensitive")
    store = DatasetStore(folder / "invented")
    known = foreseen_columns(config.data, sensitive)
    assert known is not None
    bounds = rehearsal._bounds(config.data, sensitive, known)
    spaces = known.observation_space, known.action_space
    columns = step_columns(*spaces, bounds, next_observation="absolute", ends=3)
    rehearsal._invent(config, columns, store, INVENTED, None, units=config.data.units, whole=True)
    return store


def test_an_action_stays_as_often_as_the_page_says(tmp_path: Path) -> None:
    config = walks.marginals_config(data__units=2000)
    store = invented(config, tmp_path)
    walked = store.read_trajectories(INVENTED)
    assert len(walked) == 2000
    rows = walked.transitions("trajectory")
    follows = rows.unit_ids[1:] == rows.unit_ids[:-1]
    same = (rows.actions[1:] == rows.actions[:-1]).all(axis=1)[follows]
    assert same.mean() == pytest.approx(KEEPS, abs=0.02)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["0.65 and more, numbers: 8 of 8", "0.15 to 0.35, categories: 1 of 4"],
            "pairs that are kept: 0.65 and more, numbers: 8 of 8; 0.15 to 0.35, categories: 1 of 4",
        ),
        ([], "nothing is said of relations"),
    ],
)
def test_a_rehearsal_counts_what_is_kept_and_promises_no_more(names: list[str], said: str) -> None:
    strengths = [Survived(name=name, before=1.0, after=1.0, kept=True) for name in names]
    about: dict[str, Any] = {"rows": "invented rows", "units": 9, "epsilon": 1.0, "verdict": None}
    found = Rehearsal(**about, sections={}, strengths=strengths)
    assert said in found.promise
    assert "survive" not in found.promise
    assert found.text().endswith(f"{found.promise}\n")
