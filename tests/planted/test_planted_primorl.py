"""A run of PriMORL does what it certifies, and every bug planted into it is seen."""

from pathlib import Path

import pytest

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.store import DatasetStore
from tests.gates.primorl import gate_certified_run
from tests.planted import primorl_bugs, run_bugs
from tests.planted.round_bugs import Plant
from tests.worlds.swings import swing_store

CASES: dict[str, tuple[Plant, str]] = {
    "clip x 10": (run_bugs.workers_clip_at(10), "workers clip at 0.05"),
    "q x 2": (run_bugs.coins_at_twice, "coins are thrown at 0.4"),
    "trajectories are units": (
        run_bugs.trajectories_are_units,
        "units are cut by trajectory",
    ),
    "no cap on a unit": (run_bugs.no_cap_on_a_unit, "units are cut after None rows"),
    "count left out": (primorl_bugs.count_left_out, "count: charged, and of no stage"),
    "bounds left out": (primorl_bugs.bounds_left_out, "certified as .'count', 'ensemble'"),
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return swing_store(tmp_path_factory.mktemp("swings"))


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


def test_a_run_does_what_it_certifies(tmp_path: Path, master: DatasetStore) -> None:
    gate_certified_run(tmp_path, master)


@pytest.mark.parametrize("name", CASES)
def test_the_gate_sees_the_bug(
    name: str, tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, what_it_says = CASES[name]
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, UnsafeError), match=what_it_says):
            gate_certified_run(tmp_path, master)
