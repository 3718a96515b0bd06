"""An account belongs to rows and to whose they are: how a second one was got, and is not."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.importing import from_table, import_file
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.experiments.accounts import check_public, inspect_inputs
from distributed_privrl.experiments.kinship import with_declarations
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.events import GaussianEvent
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from tests.worlds.mazes import config
from tests.worlds.ward import NAME, STAYS, STEPS, Ward, cut_after, grid, stays


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


@pytest.mark.parametrize("unit", ["patient", "trajectory"])
def test_the_same_rows_as_other_peoples_are_refused(ward: Ward, unit: str) -> None:
    """Four patients of 100 stays; then each stay its own patient's, or each step its own stay."""
    ward.write(NAME, stays())
    ward.budget(NAME, unit=unit)
    ward.charge(NAME, unit)
    if unit == "patient":
        other = replace(stays(), unit_ids=np.arange(STAYS, dtype=np.uint64))
    else:
        cut, ends = stays(), np.zeros(STAYS * STEPS, bool)
        ends[1::STEPS] = True
        assert len(cut) == STAYS
        other = cut_after(cut, ends)
    ward.rewrite(NAME, other)
    with pytest.raises(UnsafeError, match=rf"as those of other units \({unit}\)"):
        ward.run(unit=unit)
    with pytest.raises(UnsafeError, match="as those of other units"):
        ward.budget(NAME, unit=unit)
    assert len(ward.ledger.entries()) == 1
    assert not (ward.folder / "run").exists()


def test_public_rows_that_are_relabelled_sensitive_ones_are_refused(
    ward: Ward, tmp_path: Path
) -> None:
    """As in D4RL's Kitchen: sets of the same demonstrations that differ in their rewards."""
    rows = stays().transitions("trajectory")
    ends = np.arange(1, len(rows) + 1) % STEPS == 0
    schema = {
        "columns": {
            "observation": "observations",
            "action": "actions",
            "reward": "rewards",
            "truncated": "timeouts",
        },
        "spaces": {"observation": {"type": "box"}, "action": {"type": "box"}},
        "split_at_flags": True,
    }
    for name, rewards in (("partial", rows.rewards), ("mixed", 1 - rows.rewards)):
        path = tmp_path / f"{name}.hdf5"
        with h5py.File(path, "w") as file:
            file["observations"], file["actions"] = rows.observations, rows.actions
            file["rewards"], file["timeouts"] = rewards, ends
        declared = validate(ImportSchema, schema | {"public": name == "mixed"}, source="schema")
        import_file(path, declared, ward.store, f"kitchen/{name}-v0")
    ward.budget("kitchen/partial-v0", unit="trajectory")
    with pytest.raises(UnsafeError, match="cannot be public"):
        check_public(ward.store, ward.ledger, ["kitchen/mixed-v0"])


def test_other_people_are_refused_on_resume(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed_privrl.experiments import run as program

    class StoppedError(Exception):
        pass

    class Charging:
        @staticmethod
        def run(config: Any, context: Any) -> None:
            ward.charge(NAME)
            raise StoppedError

    monkeypatch.setattr(program, "method_named", lambda _: Charging)
    ward.write(NAME, stays())
    ward.budget(NAME)
    with pytest.raises(StoppedError):
        ward.run()
    ward.rewrite(NAME, replace(stays(), unit_ids=np.arange(STAYS, dtype=np.uint64)))
    with pytest.raises(UnsafeError, match="as those of other units"):
        ward.run(resume=True)


def test_other_names_for_the_same_people_are_no_other_people(ward: Ward) -> None:
    ward.write(NAME, stays())
    ward.budget(NAME)
    ward.charge(NAME)
    named = replace(stays(), unit_ids=np.array([7, 2**63, 0, 9], np.uint64)[np.arange(STAYS) % 4])
    ward.rewrite(NAME, named.select(np.random.default_rng(0).permutation(STAYS)), layout="episodes")
    ward.budget(NAME)
    about = {"sensitive": NAME, "public": [], "unit": "patient", "units": 4}
    inspect_inputs(config(data=about), ward.store, ward.ledger)


def test_units_may_be_mended_while_nothing_is_spent(ward: Ward) -> None:
    ward.write(NAME, stays())
    ward.budget(NAME)
    ward.rewrite(NAME, stays(patients=40))
    with pytest.raises(UnsafeError, match="as those of other units"):
        ward.run()
    ward.budget(NAME)
    ward.charge(NAME)


def test_declared_spaces_give_no_fresh_budget(ward: Ward) -> None:
    """Discrete(S), Discrete(S + 1), Discrete(S + 2): three accounts, and public under a fourth."""
    for extra in range(3):
        ward.write(f"toy/grid{extra}-v0", **grid(states=5 + extra))
    ward.budget("toy/grid0-v0")
    for extra in (1, 2):
        with pytest.raises(
            UnsafeError, match=r"already have a budget as toy/grid0-v0.*use that id"
        ):
            ward.budget(f"toy/grid{extra}-v0")
    with pytest.raises(UnsafeError, match=r"cannot be public: its id or its rows"):
        check_public(ward.store, ward.ledger, ["toy/grid2-v0"])
    assert len(ward.ledger.accounts()) == 1


def every_second_row(rows: Trajectories) -> Trajectories:
    """Return a table without every second row: what follows a row is another row now."""
    count = len(rows.unit_ids)

    def thinned(part: Any, steps: int) -> Any:
        by_stay = part.reshape(count, steps, *part.shape[1:])[:, ::2][:, : steps // 2]
        return by_stay.reshape(-1, *part.shape[1:])

    parts = {name: thinned(getattr(rows, name), STEPS) for name in EACH_STEP}
    observations = thinned(rows.observations, STEPS + 1)
    offsets = np.arange(count + 1) * (STEPS // 2)
    return replace(rows, observations=observations, offsets=offsets, **parts)


EACH_STEP = ("actions", "rewards", "terminated", "truncated")
PARTS: dict[str, Callable[[Trajectories], Trajectories]] = {
    "every second row": every_second_row,
    "half of it": lambda rows: rows.select(range(STAYS // 2)),
    "all but one stay": lambda rows: rows.select(range(1, STAYS)),
    "a fiftieth, other rewards, among others": lambda rows: Trajectories.concatenate(
        [
            replace(rows.select(range(8)), rewards=np.zeros(8 * STEPS, np.float32)),
            stays(seed=9, count=2000),
        ]
    ),
    "it, among ten times as many others": lambda rows: Trajectories.concatenate(
        [stays(seed=9, count=10 * STAYS), rows]
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_part_of_a_dataset_is_not_another_one(ward: Ward, part: str) -> None:
    ward.write(NAME, stays())
    ward.budget(NAME)
    ward.write("ward/part-v0", PARTS[part](stays()), metadata={"declared_public": False})
    message = f"^use {NAME}, or.* If nobody is in both.*of the rows of {NAME}, which has a budget"
    with pytest.raises(UnsafeError, match=message):
        ward.budget("ward/part-v0")
    with pytest.raises(UnsafeError, match=message):
        ward.run(sensitive="ward/part-v0")
    with pytest.raises(UnsafeError, match=f"cannot be public.*{NAME} ... --unrelated-to ward/part"):
        check_public(ward.store, ward.ledger, ["ward/part-v0"])
    assert [one.dataset for one in ward.ledger.accounts()] == [NAME]


def other_people(seed: int) -> Trajectories:
    """Return stays of patients whom no other seed has."""
    return replace(stays(seed), unit_ids=stays(seed).unit_ids + np.uint64(1000 * seed))


def test_other_rows_of_the_same_kind_have_their_own_account(ward: Ward) -> None:
    for seed in (1, 2):
        ward.write(f"ward/stays{seed}-v0", other_people(seed))
        ward.budget(f"ward/stays{seed}-v0")
    ward.write("ward/public-v0", other_people(3), metadata={"declared_public": True})
    check_public(ward.store, ward.ledger, ["ward/public-v0"])


KINDS: dict[str, dict[str, Any]] = {
    "gaps of their own": {"kinds": {"pulse": {"type": "number", "missing": "indicator"}}},
    "another origin of dates": {
        "kinds": {"day": {"type": "date", "unit": "days", "origin": "2001-01-01"}}
    },
    "columns in another order": {"observation": ["day", "pulse"]},
    "a column less": {"observation": ["day"]},
    "another column as action": {"observation": ["day", "dose"], "action": ["pulse"]},
}


def visits_table(seed: int, *, named: str = "patient {}") -> pd.DataFrame:
    """Return visits of 50 patients, three each."""
    source, count = np.random.default_rng(seed), 150
    return pd.DataFrame(
        {
            "patient": [named.format(i // 3) for i in range(count)],
            "day": [f"2020-01-{1 + i % 3:02}" for i in range(count)],
            "pulse": source.uniform(50, 150, count),
            "dose": source.uniform(0, 1, count),
            "outcome": source.uniform(0, 1, count),
        }
    )


def import_visits(ward: Ward, name: str, table: pd.DataFrame, *, unit: str, **changes: Any) -> None:
    """Import the table; ``unit``: whether patients are its units or its trajectories alone."""
    columns = {
        "observation": changes.get("observation", ["pulse", "day"]),
        "action": changes.get("action", ["dose"]),
        "reward": "outcome",
        "trajectory": "patient",
        "terminated": "never",
    }
    columns |= {"unit": "patient"} if unit == "patient" else {}
    kinds = {
        "day": {"type": "date", "unit": "days", "origin": "2020-01-01"},
        **changes.get("kinds", {}),
    }
    spaces = {"observation": {"type": "box"}, "action": {"type": "box"}}
    schema = {"columns": columns, "kinds": kinds, "spaces": spaces}
    from_table(table, schema, dataset=name, store=ward.store)


@pytest.mark.parametrize("unit", ["patient", "trajectory"])
@pytest.mark.parametrize("change", KINDS)
def test_the_same_people_under_other_columns_get_no_second_budget(
    ward: Ward, change: str, unit: str
) -> None:
    """Every number of theirs may be another one: their names are the same."""
    import_visits(ward, "clinic/visits-v0", visits_table(1), unit=unit)
    import_visits(ward, "clinic/again-v0", visits_table(1), unit=unit, **KINDS[change])
    ward.budget("clinic/visits-v0", unit=unit)
    with pytest.raises(
        UnsafeError, match=r"^if nobody is in both, declare it.*use clinic/visits-v0,"
    ):
        ward.budget("clinic/again-v0", unit=unit)
    with pytest.raises(UnsafeError, match=r"cannot be public"):
        check_public(ward.store, ward.ledger, ["clinic/again-v0"])
    assert len(ward.ledger.accounts()) == 1


@pytest.mark.parametrize("spelt", ["{}.0", " {}", "00{}"])
def test_the_same_people_in_another_spelling_get_no_second_budget(ward: Ward, spelt: str) -> None:
    """As numbers of a column with gaps are written."""
    import_visits(ward, "clinic/visits-v0", visits_table(1, named="9{}"), unit="patient")
    again = visits_table(2, named=spelt.format("9{}"))
    import_visits(ward, "clinic/again-v0", again, unit="patient")
    ward.budget("clinic/visits-v0")
    with pytest.raises(UnsafeError, match="100 % of the units, by their names"):
        ward.budget("clinic/again-v0")


def test_what_can_be_done_depends_on_whether_anything_was_charged(ward: Ward) -> None:
    import_visits(ward, "clinic/visits-v0", visits_table(1), unit="patient")
    changes = KINDS["a column less"]
    import_visits(ward, "clinic/again-v1", visits_table(1), unit="patient", **changes)
    ward.budget("clinic/visits-v0")
    with pytest.raises(UnsafeError, match=r"withdraw clinic/visits-v0"):
        ward.budget("clinic/again-v1")
    ward.charge("clinic/visits-v0")
    with pytest.raises(UnsafeError) as refused:
        ward.budget("clinic/again-v1")
    assert "withdraw" not in str(refused.value)
    (account,) = ward.ledger.accounts()
    assert f"use clinic/visits-v0 as it was imported, which has {account.left} left" in str(
        refused.value
    )
    assert "no other import of the same people can share it" in str(refused.value)


def test_names_that_both_tables_count_need_a_declaration(ward: Ward) -> None:
    for seed in (1, 2):
        import_visits(ward, f"clinic/{seed}-v0", visits_table(seed, named="{}"), unit="patient")
    ward.budget("clinic/1-v0")
    with pytest.raises(UnsafeError) as refused:
        ward.budget("clinic/2-v0")
    to_do, rest = str(refused.value).split(". If ")
    otherwise, why = rest.split(". ")
    assert to_do == (
        "if nobody is in both, declare it: `privrl ledger budget clinic/2-v0 ... --unrelated-to"
        ' clinic/1-v0 --why "REASON"`'
    )
    assert otherwise.startswith("somebody is, use clinic/1-v0, or `privrl ledger withdraw")
    assert "100 % of the units, by their names, of clinic/1-v0" in why
    assert "numbers such as 1, 2, 3 may name different people" in why
    with pytest.warns(UserWarning, match="declared unrelated: two hospitals"):
        ward.budget("clinic/2-v0", unrelated_to=["clinic/1-v0"], why="two hospitals")


def test_simulated_people_have_no_names(ward: Ward) -> None:
    for seed in (1, 2):
        ward.write(f"ward/{seed}-v0", stays(seed), metadata={"collection": {"seed": seed}})
        ward.budget(f"ward/{seed}-v0")
    assert len(ward.ledger.accounts()) == 2


def test_categories_need_a_declaration_which_is_shown(ward: Ward) -> None:
    ward.write("toy/one-v0", **grid(states=5, seed=1))
    ward.write("toy/two-v0", **grid(states=5, seed=2))
    ward.budget("toy/one-v0")
    with pytest.raises(
        UnsafeError, match=r"^if nobody.*--unrelated-to toy/one-v0 --why.*equal by chance"
    ):
        ward.budget("toy/two-v0")
    with pytest.raises(ConfigError, match="needs --why"):
        ward.budget("toy/two-v0", unrelated_to=["toy/one-v0"])
    with pytest.raises(ConfigError, match="the dataset itself"):
        ward.budget("toy/two-v0", unrelated_to=["toy/two-v0"], why="x")
    with pytest.raises(ConfigError, match="no dataset"):
        ward.budget("toy/two-v0", unrelated_to=["toy/three-v0"], why="x")
    assert ward.ledger.register.declarations() == []
    with pytest.warns(UserWarning, match="declared unrelated: two simulations"):
        ward.budget("toy/two-v0", unrelated_to=["toy/one-v0"], why="two simulations")
    (declared,) = ward.ledger.register.declarations()
    assert (declared.dataset, declared.other) == ("toy/two-v0", "toy/one-v0")
    for name in ("toy/one-v0", "toy/two-v0"):
        with pytest.warns(UserWarning, match="declared unrelated: two simulations"):
            ward.budget(name)
    stage = Stage(
        name="counts",
        dataset="toy/one-v0",
        unit="patient",
        relation=Relation.REPLACE_WITH_NULL,
        units=500,
        units_source="declared",
        accountant="pld",
        delta=1e-5,
        assumptions=("one",),
        events=(GaussianEvent(noise_multiplier=1.0, count=1),),
    )
    for name, other in (("toy/one-v0", "toy/two-v0"), ("toy/two-v0", "toy/one-v0")):
        (stated,) = with_declarations([stage], ward.ledger, [name])
        line = f"{name} declared unrelated to {other}: two simulations"
        assert stated.assumptions == ("one", line)


def test_a_declaration_is_for_these_rows(ward: Ward) -> None:
    """Other rows under a declared id were not declared."""
    ward.write(NAME, stays())
    ward.budget(NAME)
    ward.write("ward/public-v0", stays().select(range(40)))
    with pytest.raises(UnsafeError, match="cannot be public"):
        check_public(ward.store, ward.ledger, ["ward/public-v0"])
    ward.budget(NAME, unrelated_to=["ward/public-v0"], why="made by us")
    with pytest.warns(UserWarning, match="declared unrelated: made by us"):
        check_public(ward.store, ward.ledger, ["ward/public-v0"])
    ward.rewrite("ward/public-v0", stays().select(range(200)))
    with pytest.raises(UnsafeError, match="cannot be public"):
        check_public(ward.store, ward.ledger, ["ward/public-v0"])


def test_an_account_whose_rows_nobody_looked_at_stops_others(ward: Ward) -> None:
    ward.write(NAME, stays())
    budget = PrivacyBudget(epsilon=5.0, delta=1e-5, unit="patient")
    ward.ledger.set_budget(dataset="ward/unseen-v0", fingerprint="f:p", budget=budget)
    with pytest.raises(UnsafeError, match="nothing in the ledger says which rows it has"):
        ward.budget(NAME)


def test_neither_keys_nor_rows_lie_in_the_database(ward: Ward) -> None:
    ward.write(NAME, stays())
    ward.budget(NAME)
    path = ward.ledger.register.key_path
    assert path.parent == ward.folder
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() not in (ward.folder / "ledger.sqlite").read_bytes()
    assert ward.ledger.register.key() == path.read_bytes()


@pytest.mark.parametrize("content", [None, bytes(32), b"short"])
def test_without_its_key_a_ledger_answers_nothing(ward: Ward, content: bytes | None) -> None:
    from distributed_privrl.core.errors import StorageError

    ward.write(NAME, stays())
    ward.budget(NAME)
    path = ward.ledger.register.key_path
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StorageError, match="must hold the key of this ledger"):
        ward.budget(NAME)
    assert path.exists() == (content is not None)


@pytest.mark.parametrize("written", [None, 1, 3])
def test_runs_of_other_versions_are_refused_in_one_line(ward: Ward, written: int | None) -> None:
    from distributed_privrl.core.errors import StorageError
    from distributed_privrl.experiments.audit import audit_run
    from distributed_privrl.experiments.directory import RunDirectory
    from distributed_privrl.experiments.reports import rebuild_report

    ward.write(NAME, stays())
    values = config(data={"sensitive": NAME, "public": [], "unit": "patient", "units": 4})
    directory = RunDirectory.create(
        ward.folder / "run", values, resume=False, noise_source="float64_lattice"
    )
    directory.certificate.write_text("{}")
    path = directory.checkpoint / "run.json"
    facts = json.loads(path.read_text())
    directory.check_format()
    facts.pop("format")
    path.write_text(json.dumps(facts if written is None else facts | {"format": written}))
    message = f"has format {written or 1}, this program knows 2"
    with pytest.raises(StorageError, match=message):
        ward.run(resume=True)
    with pytest.raises(StorageError, match=message):
        rebuild_report(directory.path, store=ward.store, ledger_url=ward.url)
    with pytest.raises(StorageError, match=message):
        audit_run(directory.path, held_out=NAME, out=ward.folder / "audit", store=ward.store)
