"""Marginals through the whole program: workers, crashes, resumes, and all that it can be told."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from distributed_privrl.core.errors import SpentError, UnsafeError
from distributed_privrl.core.interrupts import interrupt
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.marginals import belief, table_program
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.marginals.stage import CHECKPOINT
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds import round_server
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.round_server import RoundServer
from tests.gates.marginals import Seen, check_certified, watched
from tests.marginals.programs import chained
from tests.worlds.intake import (
    PATIENTS,
    SPACES,
    Intake,
    admission_store,
    admissions,
    public_admissions,
    write,
)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return admission_store(tmp_path_factory.mktemp("intake") / "datasets")


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


@pytest.fixture
def place(tmp_path: Path, master: DatasetStore) -> Intake:
    return Intake(tmp_path, master).budget()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have estimates take no time: chains of conditionals."""
    monkeypatch.setattr(belief, "estimated", chained)


def released(place: Intake, result: RunResult) -> Transitions:
    return place.store.read_transitions(str(result.released), unit="transition")


def kept(result: RunResult) -> dict[str, Any]:
    path = result.directory.checkpoint / CHECKPOINT
    tensors, _ = load_checkpoint(path, run_id=result.directory.run_id, stage="rounds")
    return {name: value.numpy() for name, value in tensors.items()}


def assert_same(one: Transitions, other: Transitions) -> None:
    for name in ("observations", "actions", "rewards", "next_observations", "terminated"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.mark.usefixtures("quick")
def test_workers_change_no_bit_of_what_is_released(place: Intake) -> None:
    """1, 2 and 4 workers, of rows that are drawn in two chunks; on Ray: tests/runtime."""
    found = []
    for workers in (1, 2, 4):
        name = f"run-{workers}"
        changes = {"runtime__workers": workers, "output__dataset": f"intake/{name}-v0"}
        result = place.run(name, privacy__delta=9e-5, **changes)
        assert result.certificate.status == "invalid"  # seeded noise
        found.append((released(place, result), kept(result)))
    (rows, tensors), *others = found
    assert len(rows) == 250
    for other, kept_there in others:
        assert_same(other, rows)
        assert tensors.keys() == kept_there.keys()
        for name, value in tensors.items():
            np.testing.assert_array_equal(kept_there[name], value, err_msg=name)
    check_rows(rows)


def check_rows(rows: Transitions) -> None:
    """Rows are of the spaces and of the grid, and go together about as the real ones do."""
    assert set(np.unique(rows.observations[:, 1])) <= {0, 1, 2, 3, 4}
    assert set(np.unique(rows.actions)) <= {1, 2, 3}
    assert rows.observations.min() >= 0
    assert rows.observations.max() <= 10
    real = admissions()
    for data in (rows, real):
        assert np.corrcoef(data.observations[:, 0], data.actions)[0, 1] > 0.4


Death = Callable[[pytest.MonkeyPatch], None]


def crash(place: Intake, at: Death, **changes: Any) -> None:
    """Run, and die there without a word: nothing more is written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundServer, "suspend", lambda _: None)
        at(patch)
        with pytest.raises(KeyboardInterrupt):
            place.run(key=None, **changes)


def before(owner: Any, name: str, call: int = 0) -> Death:
    """Die before a function is called again that was called so often."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right, calls = getattr(owner, name), []

        def dies(*arguments: Any, **keywords: Any) -> Any:
            calls.append(name)
            if len(calls) > call:
                raise KeyboardInterrupt
            return right(*arguments, **keywords)

        patch.setattr(owner, name, dies)

    return plant


def after_step(index: int) -> Death:
    """Die when a step is drawn, and its checkpoint is not written."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = MarginalsProgram.step

        def dies(self: MarginalsProgram, number: int, *rest: Any) -> None:
            right(self, number, *rest)
            if number == index:
                raise KeyboardInterrupt

        patch.setattr(MarginalsProgram, "step", dies)

    return plant


def entries(place: Intake) -> tuple[int, int]:
    """Return how many steps are reserved, and how many committed."""
    (one,) = place.ledger.entries()
    return one.reserved_rounds, one.committed_rounds


HARMLESS = {
    "before anything": before(MarginalsProgram, "prepare"),
    "before the columns are reserved": before(RoundServer, "_reserve_block"),
    "between checkpoint and commit": before(round_server.Ledger, "commit_rounds"),
    "while drawing rows": before(belief.TableModel, "transitions", call=1),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("when", HARMLESS)
def test_a_kill_where_nothing_is_lost_costs_nothing(place: Intake, when: str) -> None:
    with watched(place.ledger) as seen:
        crash(place, HARMLESS[when])
        result = place.run(key=None, resume=True)
        check_certified(place, result, seen)
    assert entries(place) == (3, 3)
    assert len(released(place, result)) == 250
    tables = [name for name in kept(result) if name.startswith("table.")]
    assert len(tables) == 3


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_interruption_waits_for_the_step_that_is_being_made(place: Intake, index: int) -> None:
    right = MarginalsProgram.step

    def interrupted(self: MarginalsProgram, number: int, *rest: Any) -> None:
        if number == index:
            interrupt()  # as the handler of Ctrl-C, SIGTERM and SIGHUP does
        right(self, number, *rest)

    with pytest.MonkeyPatch.context() as patch, watched(place.ledger) as seen:
        patch.setattr(MarginalsProgram, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            place.run(key=None)
        assert entries(place) == (index + 1, index + 1)
        patch.undo()
        result = place.run(key=None, resume=True)
        check_certified(place, result, seen)
    assert entries(place) == (3, 3)
    assert sum(name.startswith("table.") for name in kept(result)) == 3


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("index", [1, 2])
def test_a_lost_step_has_spent_its_entry_and_its_choices_are_not_made(
    place: Intake, index: int
) -> None:
    with watched(place.ledger) as seen:
        crash(place, after_step(index))
        assert entries(place) == (index + 1, index)
        result = place.run(key=None, resume=True)
        check_certified(place, result, seen)  # no entry is drawn by twice, all are certified
    assert entries(place) == (3, 2)
    made = 3 - (2, 1)[index - 1]
    assert sum(name.startswith("table.") for name in kept(result)) == made
    assert len(released(place, result)) == 250


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("draws", [1, 2])
def test_nothing_is_drawn_again_where_a_step_ends_between_a_choice_and_its_count(
    place: Intake, draws: int, killed: bool
) -> None:
    """By a kill, or by an interruption, after which what was released by then is kept."""
    death = before(IntegerGaussianRelease, "release", draws)
    with watched(place.ledger) as seen:
        if killed:
            crash(place, death)
        else:
            with pytest.MonkeyPatch.context() as patch:
                death(patch)
                with pytest.raises(KeyboardInterrupt):
                    place.run(key=None)
        assert entries(place)[0] == 2
        result = place.run(key=None, resume=True)
    steps = Counter((number, kind) for number, (kind, _) in seen.draws)
    assert steps[1, "choice"] == draws, "the last one's count was never drawn"
    assert steps[1, "release"] == draws - 1
    assert (steps[0, "release"], steps[2, "choice"], steps[2, "release"]) == (1, 1, 1)
    tables = [name for name in kept(result) if name.startswith("table.")]
    assert len(tables) == (1 if killed else draws)
    checked = verify_certificate(
        result.directory.certificate, ledger=place.ledger, outputs_root=place.store.root
    )
    (stage,) = checked.certificate.stages
    assert [one.count for one in stage.events] == [1, 3, 3], "all is charged"


@pytest.mark.usefixtures("quick")
def test_a_run_that_an_earlier_version_began_neither_goes_on_nor_draws(
    place: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(table_program, "_RULES", table_program._RULES - 1)
        crash(place, after_step(1))
    reserved = entries(place)
    with watched(place.ledger) as seen, pytest.raises(UnsafeError, match="start a new run"):
        place.run(key=None, resume=True)
    assert not seen.draws
    assert not seen.raw, "workers were asked"
    assert entries(place) == reserved


@pytest.mark.usefixtures("quick")
def test_where_the_columns_are_lost_the_next_entry_pays_for_them(place: Intake) -> None:
    with watched(place.ledger) as seen:
        crash(place, after_step(0))
        assert entries(place) == (1, 0)
        result = place.run(key=None, resume=True)
    (stage,) = verify_certificate(
        result.directory.certificate, ledger=place.ledger, outputs_root=place.store.root
    ).certificate.stages
    columns, _, tables = stage.events
    assert (columns.count, tables.count) == (1, 3)
    steps = Counter((number, kind) for number, (kind, _) in seen.draws)
    assert steps == {(0, "release"): 1, (1, "release"): 1, (2, "choice"): 1, (2, "release"): 1}
    (again,) = [spread for number, (_, spread) in seen.draws if number == 1]
    # All columns at the multiplier that the entry states for one joint count.
    multiplier = again / columns.sensitivity
    assert multiplier == pytest.approx(tables.noise_multiplier)
    assert kept(result)["columns"].tolist() == seen.noisy[1][0].tolist()
    cost = epsilon(stage.events, delta=stage.delta, relation=Relation(stage.relation))
    assert result.certificate.epsilon == pytest.approx(cost, rel=1e-6)


@pytest.mark.usefixtures("quick")
def test_more_kills_than_steps_end_the_run_in_words(place: Intake) -> None:
    for number in range(3):
        crash(place, after_step(0), **({"resume": True} if number else {}))
    assert entries(place) == (3, 0)
    with pytest.raises(SpentError, match="used up all steps before anything") as ended:
        place.run(key=None, resume=True)
    (note,) = ended.value.__notes__
    assert "stays charged and cannot go on" in note
    assert "--resume" not in note


def test_an_estimate_that_is_killed_is_made_again_and_nothing_is_drawn(place: Intake) -> None:
    """The model is estimated before a step is reserved, and after the last one."""
    for number, call in enumerate((0, 1)):
        crash(place, before(belief, "estimated", call), **({"resume": True} if number else {}))
        assert len(set(entries(place))) == 1
    with watched(place.ledger) as seen:
        result = place.run(key=None, resume=True)
    drawn = [number for number, _ in seen.draws]
    assert set(drawn) <= {2}
    assert entries(place) == (3, 3)
    assert result.certificate.status == "valid"


@pytest.mark.usefixtures("quick")
def test_a_finished_run_that_is_resumed_draws_nothing(place: Intake) -> None:
    first = place.run(key=None)
    rows = released(place, first)
    with watched(place.ledger) as seen:
        again = place.run(key=None, resume=True)
    assert seen == Seen()
    assert again.certificate == first.certificate
    assert_same(released(place, again), rows)


@pytest.mark.usefixtures("quick")
def test_the_number_of_units_and_bounds_may_be_found_with_noise(
    tmp_path: Path, master: DatasetStore
) -> None:
    place = Intake(tmp_path, master).budget()
    asked = {"epsilon": 20.0, "search": str(place.bounds), "parts": ["observation"]}
    with watched(place.ledger) as seen:
        result = place.run(
            key=None, data__units={"epsilon": 1.0}, data__bounds=asked, privacy__epsilon=26.0
        )
        stage = check_certified(place, result, seen)
    assert [one.name for one in result.certificate.stages] == ["count", "bounds", "marginals"]
    assert stage.units_source == "dp"
    assert result.certificate.epsilon is not None
    assert result.certificate.epsilon <= 26.0
    # A column whose bounds were found has no step any more: it has no more histograms than before.
    (first,) = [one for one in stage.events if one.count == 1]
    assert first.sensitivity == pytest.approx(UNIT_WEIGHT * 8**0.5)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_other_relations_are_charged_by_their_own_constants(
    tmp_path: Path, master: DatasetStore, relation: str
) -> None:
    place = Intake(tmp_path, master).budget(relation=Relation(relation))
    with watched(place.ledger) as seen:
        result = place.run(key=None, privacy__relation=relation)
        stage = check_certified(place, result, seen)
    assert stage.relation == relation
    columns, _, tables = stage.events
    contributions = 2 if relation == "replace_one" else 1
    expected = [UNIT_WEIGHT * (contributions * count) ** 0.5 for count in (8, 1)]
    assert [columns.sensitivity, tables.sensitivity] == pytest.approx(expected)


@pytest.mark.usefixtures("quick")
def test_without_privacy_counts_are_exact_and_the_result_is_private(place: Intake) -> None:
    result = place.run(key=None, privacy__epsilon=None)
    assert result.certificate.status == "non_private"
    assert place.ledger.entries() == []
    assert not (result.directory.path / "checkpoint" / CHECKPOINT).exists()
    assert list(result.directory.private.rglob(CHECKPOINT))


@pytest.mark.usefixtures("quick")
def test_bounds_of_a_public_dataset_will_do(place: Intake) -> None:
    rows = public_admissions(200)
    write(place.store, "intake/public-v0", rows, metadata={"declared_public": True})
    result = place.run(key=None, data__bounds="public", data__public=["intake/public-v0"])
    assert result.certificate.status == "valid"
    public = place.store.read_transitions("intake/public-v0", unit="transition").observations
    assert released(place, result).observations[:, 0].max() <= public[:, 0].max() + 1e-5


@pytest.mark.usefixtures("quick")
def test_relations_of_public_rows_stay_where_they_were_not_counted(place: Intake) -> None:
    rows = public_admissions(600)
    write(place.store, "intake/public-v0", rows, metadata={"declared_public": True})
    agree = {}
    for prior in (True, False):
        result = place.run(
            f"prior-{prior}",
            key=5,
            training__tables=1,
            data__public=["intake/public-v0"],
            model__public_prior=prior,
            output__dataset=f"intake/private-{prior}-v0".lower(),
        )
        found = released(place, result)
        numbers = np.column_stack([found.observations, found.actions, found.next_observations])
        agree[prior] = np.sort(np.abs(np.corrcoef(numbers.T))[np.triu_indices(5, 1)])
    assert agree[True].min() > 0.4
    assert agree[False][3] < 0.2, "one joint count tells three columns, and no more"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("observations", "actions"),
    [
        (Discrete(5, start=1), Discrete(3)),
        (MultiDiscrete([3, 4], start=[1, 0]), MultiDiscrete([2, 3])),
        (Box(0, 1, (1,)), Box(-1, 1, (2,))),
    ],
)
def test_all_kinds_of_spaces_run_and_rows_are_of_them(
    tmp_path: Path, observations: Any, actions: Any
) -> None:
    place = Intake(tmp_path)
    for space, seed in ((observations, 1), (actions, 2)):
        space.seed(seed)
    drawn = [np.array([space.sample() for _ in range(400)]) for space in (observations, actions)]
    rows = Transitions(
        observations=drawn[0],
        actions=drawn[1],
        rewards=np.random.default_rng(0).integers(0, 2, 400),
        next_observations=np.roll(drawn[0], 1, axis=0),
        terminated=np.arange(400) % 9 == 0,
        truncated=np.zeros(400, bool),
        unit_ids=np.arange(400) % PATIENTS,
    )
    spaces = {"observation_space": observations, "action_space": actions}
    write(place.store, "intake/other-v0", rows, **(SPACES | spaces))
    lines = ["reward: [0, 1]"]
    if isinstance(observations, Box):
        lines += ["observation: {low: 0, high: 1}", "action: {low: -1, high: 1}"]
    place.bounds.write_text("\n".join(lines))
    place.budget("intake/other-v0")
    result = place.run(key=None, data__sensitive="intake/other-v0")
    found = released(place, result)
    for part, space in (
        (found.observations, observations),
        (found.next_observations, observations),
        (found.actions, actions),
    ):
        assert all(space.contains(np.asarray(one, space.dtype)) for one in part[:50]), space
    assert result.certificate.status == "valid"
