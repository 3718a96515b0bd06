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
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.rehearsal import Rehearsal, rehearse, write_rehearsal
from distributed_privrl.marginals import belief
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
    assert mild.verdict is not None
    assert mild.verdict.startswith("fine")
    assert harsh.verdict is not None
    assert harsh.verdict.startswith("hopeless")  # and it was rehearsed all the same
    assert not place.ledger.accounts(), "nothing was spent, or held"
    assert list(place.store.ids()) == ["intake/admissions-v0"]
    write_rehearsal(mild, tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "rehearsal.json").read_text())
    assert facts["units"] == 4000
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
