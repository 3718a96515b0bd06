"""Columns that a configuration asks to count together: counted, first, and paid for as others."""

import json
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.asked import cliques_asked
from distributed_privrl.marginals.together import from_tensors
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
    with pytest.raises(ConfigError, match="there are age, dose, gain"):
        cliques_asked(columns, info, [["age", "next age"]])
