"""What a report says was counted together: the released choices, by the names of the table."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.labels import part_names
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.experiments.counted_section import (
    TITLE,
    column_in_words,
    correlation_in_words,
    counted_sections,
    in_words,
    of_trajectories,
)
from distributed_privrl.experiments.reports import rebuild_report
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.correlations import (
    most_sums,
    questions_of,
    released_correlations,
)
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.marginals.stage import CHECKPOINT
from distributed_privrl.marginals.together import (
    CorrelatedColumns,
    CountedTogether,
    correlated_columns,
    correlated_from_tensors,
    correlated_to_tensors,
    from_tensors,
)
from distributed_privrl.privacy.metrics import ReleasedValue
from distributed_privrl.rounds.checkpoint import load_checkpoint, save_checkpoint
from distributed_privrl.rounds.round_server import RoundServer
from tests.evaluation.named import info_of
from tests.marginals.halves import Known, shapes_of, wide
from tests.marginals.programs import chained
from tests.worlds.intake import DATASET, RELEASED, Intake
from tests.worlds.shelf import BOUNDS, Shelf, loan_store

NAMED = DeclaredTable.model_validate(
    {
        "columns": {
            "observation": ["age", "ward", "smokes"],
            "action": "dose",
            "reward": "gain",
            "next_observation": ["later age", "later ward", "later smokes"],
        },
        "kinds": {
            "age": {"type": "number", "missing": "indicator"},
            "ward": {"type": "category", "values": ["A", "B", "C"]},
            "smokes": {"type": "flag", "values": ["no", "yes"]},
        },
    }
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have estimates take no time."""
    monkeypatch.setattr(belief, "estimated", chained)


def shown(path: Path) -> list[dict[str, Any]]:
    """Return the section's metrics in a public report; none: it has no such section."""
    report = json.loads(path.with_suffix(".json").read_text())
    return [
        metric for one in report["sections"] if one["title"] == TITLE for metric in one["metrics"]
    ]


@pytest.mark.parametrize("method", ["marginals", "pgm", "privsyn"])
def test_the_report_names_what_was_released_and_under_which_entry(
    method: str, tmp_path: Path
) -> None:
    place = Intake(tmp_path, method=method).budget()
    done = place.run(key=None)
    count, *lines = shown(done.directory.report)
    tensors, _ = load_checkpoint(
        done.directory.checkpoint / CHECKPOINT, run_id=done.directory.run_id, stage="rounds"
    )
    made = from_tensors(tensors)
    assert made is not None
    assert count["value"] == len(made) == len(lines) > 0
    info = place.store.info(str(done.released))
    assert [one["value"] for one in lines] == [in_words(one, info) for one in made]
    assert {one["ledger_entry"] for one in (count, *lines)} == {done.directory.run_id}
    assert "a unit is one value of patient" in count["explanation"]
    tables = [name.split(".")[3:] for name in tensors if name.startswith("table.")]
    if method == "marginals":
        sizes = [tensors[name].shape for name in tensors if name.startswith("table.")]
        assert [len(one.columns) for one in made] == [len(clique) for clique in tables]
        assert sorted(one.parts for one in made) == sorted(tuple(one) for one in sizes)
        assert [one.step for one in made] == [1, 1, 2]
    card = (place.store.folder(RELEASED) / "README.md").read_text()
    assert f"## {TITLE}" in card


def test_a_report_that_is_written_anew_says_the_same_without_the_rows(tmp_path: Path) -> None:
    place = Intake(tmp_path).budget()
    done = place.run(key=None)
    before = shown(done.directory.report)
    rebuild_report(done.directory.path, store=place.store, ledger_url=place.url)
    assert shown(done.directory.report) == before
    info = place.store.info(RELEASED)
    ask = done.directory.checkpoint, place.ledger
    assert counted_sections(*ask, done.directory.run_id, info, unit="patient")
    assert not counted_sections(*ask, "another-run", info, unit="patient")


def test_a_step_that_a_crash_lost_is_told_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Intake(tmp_path).budget()
    right = MarginalsProgram.step

    def dies(made: MarginalsProgram, number: int, *rest: Any) -> None:
        right(made, number, *rest)
        if number == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MarginalsProgram, "step", dies)
        patch.setattr(RoundServer, "suspend", lambda _: None)  # nothing more is written
        with pytest.raises(KeyboardInterrupt):
            place.run(key=None)
    count, lost, line = shown(place.run(key=None, resume=True).directory.report)
    assert (count["value"], lost["name"], lost["value"]) == (1, "steps lost", 1)
    assert "stay paid for" in lost["explanation"]
    assert "in step 2" in line["value"]


def test_what_was_asked_for_and_not_counted_is_named(tmp_path: Path) -> None:
    place = Intake(tmp_path).budget()
    info = place.store.info(DATASET)
    (severity, ward), (dose,) = (part_names(info, part) for part in ("observation", "action"))
    asked = [[dose, ward], [severity, dose, ward]]
    done = place.run(key=None, training__together=asked, model__cells=30)
    counts, missed, *lines = shown(done.directory.report)
    assert missed["name"] == "asked for, and not counted"
    assert missed["value"] == f"{severity}, {dose}, {ward}", "it has too many combinations"
    assert {one["ledger_entry"] for one in (counts, missed)} == {done.directory.run_id}
    assert all(name in lines[0]["value"] for name in (ward, dose)), "the pair was counted first"
    assert "too many combinations" in missed["explanation"]


def test_where_all_was_counted_no_reason_is_given(tmp_path: Path) -> None:
    place = Intake(tmp_path).budget()
    (_, ward), (dose,) = (
        part_names(place.store.info(DATASET), part) for part in ("observation", "action")
    )
    done = place.run(key=None, training__together=[[dose, ward]])
    missed = shown(done.directory.report)[1]
    assert missed["value"] == "none"
    assert "explanation" not in missed


def test_a_run_of_an_earlier_version_has_no_such_section(tmp_path: Path) -> None:
    place = Intake(tmp_path).budget()
    done = place.run(key=None)
    path, run = done.directory.checkpoint / CHECKPOINT, done.directory.run_id
    tensors, state = load_checkpoint(path, run_id=run, stage="rounds")
    del tensors["together"]
    save_checkpoint(path, tensors, state)
    rebuild_report(done.directory.path, store=place.store, ledger_url=place.url)
    assert shown(done.directory.report) == []


def test_what_a_model_pre_trains_on_is_told_under_its_own_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    (tmp_path / "bounds.yaml").write_text(BOUNDS)
    monkeypatch.chdir(tmp_path)
    place = Shelf(tmp_path, loan_store(tmp_path / "loans")).budget()
    done = place.run(key=None)
    info, run = place.store.info(str(done.released)), done.directory.run_id
    ask = done.directory.checkpoint, place.ledger, run, info
    (section,) = counted_sections(*ask, unit="transition")
    assert len(section.metrics) > 1
    for metric in section.metrics:
        assert isinstance(metric.value, ReleasedValue)
        assert metric.value.ledger_entry == f"{run}/marginals"
        assert metric.value.ledger_entry in done.certificate.ledger_entries


def test_without_privacy_nothing_of_it_may_leave(tmp_path: Path) -> None:
    place = Intake(tmp_path)
    done = place.run(privacy__epsilon=None)
    assert shown(done.directory.report) == []


def test_columns_have_the_names_of_their_table() -> None:
    low = np.array([0, 0, 0, 0, 0, 0], np.float32)
    high = np.array([90, 1, 1, 1, 1, 1], np.float32)
    info = info_of(TableBox(low, high, [(2, 5), (5, 6)]), Discrete(3), declared=NAMED)
    named = {
        "observation_0": "age",
        "observation_1": "age: missing",
        "observation_2": "ward",
        "change_next_observation_0": "change of age",
        "change_observation_0": "change of age",
        "next_observation_5": "next smokes",
        "previous_action": "dose of the step before",
        "action": "dose",
        "reward": "gain",
        "end": "end",
        "time": "step of the trajectory",
        "rows_of_unit": "how many rows its unit has",
    }
    assert {name: column_in_words(name, info) for name in named} == named


def test_columns_of_no_table_have_the_names_of_their_layout() -> None:
    info = info_of(MultiDiscrete([3, 4]), Box(0, 1, (2,)))
    names = ["observation_1", "action_1", "reward"]
    assert [column_in_words(name, info) for name in names] == names


def test_a_line_by_hand() -> None:
    one = CountedTogether(columns=("action", "reward"), parts=(3, 8), step=2, noise_units=4.25)
    info = info_of(Discrete(2), Discrete(3))
    assert in_words(one, info) == (
        "action (3 parts), reward (8 parts): in step 2, noise of 4.25 units a cell"
    )


def test_what_lines_say_of_later_and_of_last_rows_is_told_where_there_are_any() -> None:
    """Next values of last rows are invented, and whoever reads a line of them should know."""
    kept = CountedTogether(
        columns=("observation_0", "next_observation_0"), parts=(2, 2), step=1, noise_units=1.0
    )
    alone = CountedTogether(
        columns=("observation_0", "observation_1"), parts=(2, 2), step=1, noise_units=1.0
    )
    space = Box(0.0, 1.0, (2,), np.float32)
    panel = DeclaredTable.model_validate(
        {"columns": {"observation": ["age", "pay"], "action": "none", "reward": "none"}}
    )
    info = info_of(space, Discrete(1), declared=panel)
    copied = replace(info, kind="trajectories")
    assert copied.last_rows_copied
    both = of_trajectories([kept, alone], copied)
    assert "Rows after the first" in both
    assert "What follows a last row is in no table" in both
    assert "What follows a last row" not in of_trajectories([alone], copied)
    seen = replace(copied, declared=NAMED)
    assert not seen.last_rows_copied
    assert "What follows a last row" not in of_trajectories([kept], seen)
    assert of_trajectories([kept], replace(info, kind="transitions")) == ""


def test_how_columns_go_together_is_told_by_questions_that_a_reader_can_ask() -> None:
    space = TableBox(
        np.zeros(6, np.float32), np.array([99, 1, 1, 1, 1, 1], np.float32), ((1, 2), (2, 5), (5, 6))
    )
    info = info_of(space, Box(0, 9, (1,)), declared=NAMED)

    def line(one: str, first: tuple[str, float], other: str, second: tuple[str, float]) -> str:
        told = CorrelatedColumns(
            columns=(one, other),
            asked=(first, second),
            value=-0.2149,
            deviation=0.0062,
            follows=False,
        )
        return correlation_in_words(told, info)

    assert line("observation_0", ("above", 41.0), "observation_2", ("is", 2.0)) == (
        "age is 41 or more, and ward is C: -0.21, give or take 0.012"
    )
    assert line("observation_0", ("missing", 0.0), "observation_5", ("is", 1.0)) == (
        "age is missing, and smokes is yes: -0.21, give or take 0.012"
    )
    assert line("action", ("above", 12345.5), "reward", ("is", 1.0)) == (
        "dose is 12,345.5 or more, and gain is category 1: -0.21, give or take 0.012"
    )
    assert line("observation_2", ("is", 2.0), "next_observation_2", ("is", 0.0)) == (
        "ward is C, and next ward is A: -0.21, give or take 0.012"
    )
    assert line("action", ("above", 2.0), "change_next_observation_2", ("is", 0.0)) == (
        "dose is 2 or more, and ward stays: -0.21, give or take 0.012"
    )
    assert line("action", ("above", 2.0), "change_next_observation_2", ("is", 3.0)) == (
        "dose is 2 or more, and ward becomes C: -0.21, give or take 0.012"
    )
    assert line("observation_0", ("above", 2.0), "change_next_observation_0", ("above", 1.0)) == (
        "age is 2 or more, and change of age is 1 or more: -0.21, give or take 0.012"
    )
    assert line("observation_0", ("above", 2.0), "end", ("is", 1.0)) == (
        "age is 2 or more, and the trajectory terminates: -0.21, give or take 0.012"
    )


def test_questions_are_told_as_they_were_asked_and_kept() -> None:
    columns = wide()
    shapes = shapes_of(columns, {0: [3, 1, 1, 1, 4], 2: [5, 1, 9, 0.01, 2, 1, 0]})
    asked = questions_of(columns, shapes)
    known = Known(columns, shapes, 100.0, 100.0)
    sums = 3 * np.arange(most_sums(columns)) - 20
    found = released_correlations(asked, sums, 1.0, known)
    told = correlated_columns(columns, shapes, found)
    names = {one for pair in told for one in zip(pair.columns, pair.asked, strict=True)}
    assert {
        ("observation_0", ("above", 1.0)),
        ("observation_0", ("missing", 0.0)),
        ("action", ("is", 2.0)),
        ("action", ("is", 0.0)),
    } < names
    sizes = [abs(one.value) for one in told]
    assert sizes == sorted(sizes, reverse=True)
    assert correlated_from_tensors(correlated_to_tensors(told)) == told
    assert correlated_from_tensors({}) == []
