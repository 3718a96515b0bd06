"""Runs of marginals that are measured at once: workers, crashes, resumes, samples, tables."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.experiments.sampling import finished_config, sample_run
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.stage import CHECKPOINT
from distributed_privrl.marginals.table_program import TableProgram
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.round_server import RoundServer
from tests.gates.marginals import Seen, check_certified, watched
from tests.gates.one_shot import METHODS
from tests.marginals.programs import chained
from tests.worlds.intake import Intake, admission_store, admissions

BOTH = pytest.mark.parametrize("method", METHODS)
STEPS = {"pgm": 2, "privsyn": 3}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return admission_store(tmp_path_factory.mktemp("intake") / "datasets")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have estimates take no time, and write no reports."""
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


@pytest.fixture
def at(tmp_path: Path, master: DatasetStore) -> Callable[[str], Intake]:
    return lambda method: Intake(tmp_path, master, method).budget()


def released(place: Intake, result: RunResult) -> Transitions:
    return place.store.read_transitions(str(result.released), unit="transition")


def kept(result: RunResult) -> dict[str, Any]:
    path = result.directory.checkpoint / CHECKPOINT
    tensors, _ = load_checkpoint(path, run_id=result.directory.run_id, stage="rounds")
    return {name: value.numpy() for name, value in tensors.items()}


@BOTH
def test_workers_change_no_bit_of_what_is_released(
    method: str, at: Callable[[str], Intake]
) -> None:
    place, found = at(method), []
    for workers in (1, 2, 4):
        name = f"run-{workers}"
        changes = {"runtime__workers": workers, "output__dataset": f"intake/{name}-v0"}
        result = place.run(name, privacy__delta=9e-5, **changes)
        assert result.certificate.status == "invalid"  # seeded noise
        found.append((released(place, result), kept(result)))
    (rows, tensors), *others = found
    assert len(rows) == 250
    for other, kept_there in others:
        for part in ("observations", "actions", "rewards", "next_observations", "terminated"):
            np.testing.assert_array_equal(getattr(other, part), getattr(rows, part), err_msg=part)
        assert tensors.keys() == kept_there.keys()
        for name, value in tensors.items():
            np.testing.assert_array_equal(kept_there[name], value, err_msg=name)
    assert set(np.unique(rows.observations[:, 1])) <= {0, 1, 2, 3, 4}
    assert set(np.unique(rows.actions)) <= {1, 2, 3}
    if method == "privsyn":  # the tiny set of pgm does not have every strong pair
        for data in (rows, admissions()):
            assert np.corrcoef(data.observations[:, 0], data.actions)[0, 1] > 0.4


def crash(place: Intake, step: int) -> None:
    """Run, and die without a word when a step is drawn, and its checkpoint is not written."""
    right = TableProgram.step

    def dies(self: Any, number: int, *rest: Any) -> None:
        right(self, number, *rest)
        if number == step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundServer, "suspend", lambda _: None)
        patch.setattr(TableProgram, "step", dies)
        with pytest.raises(KeyboardInterrupt):
            place.run(key=None)


@pytest.mark.parametrize(
    ("method", "lost", "left"),
    [
        ("pgm", 0, {"columns"}),
        ("pgm", 1, {"columns"}),
        ("privsyn", 0, {"columns", "tables"}),
        ("privsyn", 1, {"columns", "tables"}),
        ("privsyn", 2, {"columns", "scores"}),
    ],
)
def test_a_lost_step_has_spent_its_entry_and_the_rest_is_released(
    method: str, lost: int, left: set[str], at: Callable[[str], Intake]
) -> None:
    place = at(method)
    with watched(place.ledger) as seen:
        crash(place, lost)
        result = place.run(key=None, resume=True)
        if lost:  # else the next entry's noise counts the columns, which have another sensitivity
            check_certified(place, result, seen)
    verify_certificate(
        result.directory.certificate, ledger=place.ledger, outputs_root=place.store.root
    )
    (entry,) = place.ledger.entries()
    assert (entry.reserved_rounds, entry.committed_rounds) == (STEPS[method], STEPS[method] - 1)
    tensors = kept(result)
    told = json.loads(tensors["together"].tobytes())
    assert {name.partition(".")[0] for name in tensors} - {"digest", "together"} == left
    assert bool(told) == ("tables" in left), "what was lost is not told of"
    assert len(released(place, result)) == 250


@BOTH
def test_a_finished_run_that_is_resumed_draws_nothing_and_gives_further_samples(
    method: str, at: Callable[[str], Intake]
) -> None:
    place = at(method)
    first = place.run(key=None)
    rows = released(place, first)
    with watched(place.ledger) as seen:
        again = place.run(key=None, resume=True)
        more = sample_run(
            first.directory.path,
            finished_config(first.directory.path, 40, "intake/more-v0"),
            LocalExecutor(),
            store=place.store,
            ledger_url=place.url,
        )
    assert seen == Seen()
    assert again.certificate == first.certificate
    np.testing.assert_array_equal(released(place, again).observations, rows.observations)
    assert more.certificate.stages == first.certificate.stages
    sample = place.store.read_transitions("intake/more-v0", unit="transition")
    assert len(sample) == 40
    assert not np.array_equal(sample.observations, rows.observations[:40])


@BOTH
def test_without_privacy_counts_are_exact_and_the_result_is_private(
    method: str, at: Callable[[str], Intake]
) -> None:
    place = at(method)
    result = place.run(key=None, privacy__epsilon=None)
    assert result.certificate.status == "non_private"
    assert place.ledger.entries() == []
    assert not (result.directory.path / "checkpoint" / CHECKPOINT).exists()
