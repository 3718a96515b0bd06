"""Columns that a configuration asks to count together: counted, first, and paid for as others."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.experiments.counted_section import _missed
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.asked import _listed, cliques_asked
from distributed_privrl.marginals.bins import Bins
from distributed_privrl.marginals.candidates import Candidates
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.tables import Clique, JointCount
from distributed_privrl.marginals.together import counted_together, from_tensors
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.evaluation.named import info_of
from tests.marginals.programs import chained
from tests.marginals.rows import ACTION, STATE, few_columns
from tests.worlds.intake import Intake

ASKED = {"training__together": [["observation_1", "reward"], ["action", "observation_0"]]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Intake:
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    return Intake(tmp_path).budget()


def counted(done: Any) -> list[tuple[str, ...]]:
    """Return the columns of each joint count of a finished run."""
    path = done.directory.checkpoint / "marginals.safetensors"
    tensors, _ = load_checkpoint(path, run_id=done.directory.run_id, stage="rounds")
    return [one.columns for one in from_tensors(tensors) or []]


@pytest.mark.parametrize("epsilon", [4.0, 24.0])
def test_what_is_asked_for_is_counted_first_whatever_the_counts_say(
    place: Intake, epsilon: float
) -> None:
    config = place.config(privacy__epsilon=epsilon, **ASKED)
    done = place.start(config, anyway=True, insecure_key=None)
    made = [set(one) for one in counted(done)]
    wanted = [{"observation_1", "reward"}, {"action", "observation_0"}]
    assert made[:2] == wanted
    assert len(made) == 3
    certificate = json.loads(done.directory.certificate.read_text())
    assert certificate["status"] == "valid"


def test_what_growth_asks_for_comes_next(place: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    def grown(bins: Bins, _: object) -> tuple[Clique, ...]:
        names = [column.name for column in bins.columns.columns]
        return ((names.index("observation_0"), names.index("observation_1")),)

    def charged(done: Any) -> list[Any]:
        stages = json.loads(done.directory.certificate.read_text())["stages"]
        return [stage["events"] for stage in stages]

    one = {"training__together": ASKED["training__together"][:1]}
    chosen = place.run("chosen", key=None, output__dataset="intake/chosen-v0")
    monkeypatch.setattr(belief, "asked_by_growth", grown)
    done = place.run("grown", key=None, output__dataset="intake/grown-v0", **one)
    made = [set(one) for one in counted(done)]
    assert made[:2] == [{"observation_1", "reward"}, {"observation_0", "observation_1"}]
    assert charged(done) == charged(chosen)


def test_it_is_charged_as_if_it_had_been_chosen(place: Intake) -> None:
    """The schedule is public and fixed: a choice that is not drawn is charged."""
    stages = []
    for name, changes in (("chosen", {}), ("asked", ASKED)):
        done = place.run(name, key=None, output__dataset=f"intake/{name}-v0", **changes)
        stages.append(json.loads(done.directory.certificate.read_text())["stages"])
    events = [[stage["events"] for stage in one] for one in stages]
    assert events[0] == events[1]


def test_more_than_are_made_or_what_is_no_column_is_refused_before_anything_is_charged(
    place: Intake,
) -> None:
    with pytest.raises(ConfigError, match=r"together names ward, which is no column of a row"):
        place.run(key=None, training__together=[["ward", "reward"]])
    with pytest.raises(ConfigError, match="each column once"):
        place.run(key=None, training__together=[["reward", "reward"]])
    names = ["observation_0", "observation_1", "action", "reward"]
    many = [[one, other] for one in names for other in names if one < other]
    with pytest.raises(ConfigError, match=r"asks for 6 joint counts, and 3 are made"):
        place.run(key=None, training__together=many)
    with pytest.raises(ConfigError, match="together"):
        place.config(training__together=[["reward"]])
    assert not place.ledger.entries()


def test_a_plan_refuses_what_is_no_column_of_a_dataset_that_is_here(place: Intake) -> None:
    config = place.config(training__together=[["ward", "reward"]])
    with pytest.raises(ConfigError, match=r"together names ward, which is no column of a row"):
        plan_run(config, place.store)
    assert plan_run(place.config(**ASKED), place.store).details["joint_counts"] == 3
    elsewhere = config.model_copy(
        update={"data": config.data.model_copy(update={"sensitive": "not/here-v0"})}
    )
    assert plan_run(elsewhere, place.store).details["joint_counts"] == 3


def test_names_are_those_of_the_table() -> None:
    table = DeclaredTable.model_validate(
        {"columns": {"observation": ["age"], "action": "dose", "reward": "gain"}}
    )
    info = info_of(STATE, ACTION, declared=table)
    columns = few_columns()
    found = cliques_asked(columns, info, [["gain", "age"], ["age", "dose", "gain"]])
    parts = [[columns[place].part for place in clique] for clique in found]
    assert parts == [["observation", "reward"], ["observation", "action", "reward"]]
    assert cliques_asked(columns, info, [["age", "dose"], ["dose", "age"]]) == (found[1][:2],)
    (following,) = cliques_asked(columns, info, [["next age", "age", "end"]])
    assert [columns[place].part for place in following] == [
        "observation",
        "next_observation",
        "end",
    ]
    with pytest.raises(ConfigError, match="there are age, dose, gain, next age, end"):
        cliques_asked(columns, info, [["age", "next dose"]])


def test_a_message_about_a_wide_table_tells_of_next_values_and_ends() -> None:
    own = [f"c{place}" for place in range(25)]
    listed = _listed([*own, "next c0", "next c1", "end"])
    assert listed == ", ".join(own[:20]) + " and 5 more, next NAME of what moves, end"
    assert _listed(own[:21]).endswith("c19 and 1 more")
    assert _listed(["age", "next age", "end"]) == "age, next age, end"


@pytest.mark.parametrize("unused", ["next_observation_0", "change_observation_0"])
def test_what_a_number_becomes_is_asked_for_as_it_is_told(unused: str) -> None:
    """As it is or as a change, as the released counts say; the report knows both by one name."""
    columns = few_columns(next_observation="counted")
    table = DeclaredTable.model_validate(
        {"columns": {"observation": ["age"], "action": "dose", "reward": "gain"}}
    )
    info = info_of(STATE, ACTION, declared=table)
    (asked,) = cliques_asked(columns, info, [["next age", "age"]])
    names = [column.name for column in columns.columns]
    drawn = replace(columns, unused=frozenset({names.index(unused)}))
    shapes = [
        ColumnShape(np.ones(one.size), np.arange(one.size), np.ones(one.size), 1.0, np.empty(0))
        for one in columns.columns
    ]
    ways = Candidates(
        Bins(drawn, shapes, 100.0), joint_deviation=0.1, most_cells=1000, asked=(asked,)
    )
    (other,) = {"next_observation_0", "change_observation_0"} - {unused}
    found = ways.asked([], [JointCount(one) for one in ways.weights])
    assert found is not None
    assert {names[place] for place in found.clique} == {"observation_0", other}
    made = counted_together(columns, found.clique, (4, 4), step=1, deviation=1.0)
    assert not _missed([made], [["age", "next age"]], info)
    assert _missed([made], [["age", "end"]], info)
