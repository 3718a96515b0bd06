"""Drafts say what the columns are, hold no value of a row, and are files that work once filled."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.yaml_files import parse_yaml, read_yaml
from distributed_privrl.data.importing import from_table
from distributed_privrl.data.profile import Roles, profile
from distributed_privrl.data.schema import load_schema
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.drafts import AskedRoles, Draft, drafted
from distributed_privrl.experiments.registry import load_config, plan_run
from tests.data.real_tables import panel_text

FOLDER = Path("clinic")
SOURCE = Path("stays.csv")


def stays(word: str = "Q", number: float = 0.0, gap: bool = False) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "patient_id": [f"{word}p{i // 4}" for i in range(40)],
            "hour": [i % 4 for i in range(40)],
            "age, years": [number + i * 1.5 for i in range(40)],
            "ward": [f"{word}ward{i % 3}" for i in range(40)],
            "sex": [f"{word}m", f"{word}f"] * 20,
            "admitted": pd.date_range("2031-07-13" if number else "2019-03-11", periods=40).astype(
                str
            ),
            "remark": [f"{word} some words, never the same {i}" for i in range(40)],
            "dose": [int(number) + i % 5 for i in range(40)],
            "gain": [number - i / 8 for i in range(40)],
        }
    )
    if gap:
        frame.loc[[3, 7], ["age, years", "ward", "gain"]] = None
    return frame


def draft_of(frame: pd.DataFrame, roles: Roles | None = None, **asked: Any) -> Draft:
    roles = roles or Roles()
    found = profile(frame, roles)
    return drafted(found, AskedRoles(rows=roles, **asked), source=SOURCE, dataset="clinic/stays-v0")


def test_no_value_of_a_row_changes_a_draft() -> None:
    one = draft_of(stays()).files(FOLDER)
    other = draft_of(stays("Zyx", 7_654_321.0, gap=True)).files(FOLDER)
    assert one == other
    assert set(one) == {"schema.yaml", "bounds.yaml", "config.yaml"}
    numbers = {word for text in one.values() for word in re.findall(r"\d[\d.e-]*", text)}
    assert numbers <= {"0", "1", "0.1", "0.15", "0.5", "0]", "-v0"} | set("01"), numbers


def filled(text: str, values: dict[str, Any]) -> str:
    """Return a draft with its blanks filled in; each is named by its key or comment."""
    lines = []
    for line in text.splitlines():
        blank = re.fullmatch(r"(\s*)(?:(\w+):|-)(\s*)(#.*)?", line)
        a_list = blank and blank[2] in ("low", "high") and blank[4]
        if blank and not a_list and (blank[2] in values or blank[2] is None):
            name = blank[2] or f"- {blank[4][2:]}".split(", in ")[0]
            key = f"{blank[2]}:" if blank[2] else "-"
            value = values[name].pop(0) if isinstance(values[name], list) else values[name]
            line = f"{blank[1]}{key} {value}"
        lines.append(line)
    return "\n".join(lines)


def test_a_draft_that_is_filled_in_is_imported_and_planned(tmp_path: Path) -> None:
    draft = draft_of(stays(gap=True))
    assert (draft.method, draft.unit, draft.trajectory, draft.order) == (
        "marginals_j",
        "patient_id",
        "patient_id",
        "hour",
    )
    assert (draft.action, draft.reward, draft.left_out) == (("dose",), "gain", ("remark",))
    assert "a release has their places" in draft.files(tmp_path)["schema.yaml"]
    answers = {
        "values": ["[Qward0, Qward1, Qward2]", "[Qm, Qf]"], "n": 5, "start": 0,
        "- age, years": [0, 120], "- admitted": [0, 30000], "low": -10, "high": 10,
        "units": 1000, "delta": "1e-5", "rows_per_unit": 4, "max_length": 4, "size": 50,
    }  # fmt: skip
    for name, text in draft.files(tmp_path).items():
        with pytest.raises(ConfigError, match=r"has blanks, fill in .* \(line \d+\)"):
            parse_yaml(text, source=name)
        (tmp_path / name).write_text(filled(text, answers))
    store = DatasetStore(tmp_path / "datasets")
    schema = load_schema(tmp_path / "schema.yaml")
    info = from_table(stays(gap=True), schema, dataset="clinic/stays-v0", store=store)
    assert (info.kind, info.layout) == ("trajectories", "packed")
    config = load_config(tmp_path / "config.yaml")
    assert config.output.dataset == "clinic/stays-private-v0"
    assert config.model.trajectories_per_unit == 1  # type: ignore[attr-defined]
    assert config.data.max_length == 4, "the most rows that count, for the classes of units"
    assert config.runtime.executor == "local"
    assert "columns" in plan_run(config, store).facts()
    assert read_yaml(tmp_path / "bounds.yaml")["observation"]["step"] == [0, 1]
    path = tmp_path / "config.yaml"
    named = path.read_text().replace("  # together: [[A, B]]", "  together: [[dose, gain]]")
    path.write_text(named.replace("  # memory: ", "  memory: "))
    assert load_config(path).model.memory  # type: ignore[attr-defined]
    plan_run(load_config(path), store)
    assert load_config(path).training.together == (("dose", "gain"),)  # type: ignore[attr-defined]


def test_trajectories_that_may_go_on_after_an_end_are_drafted_as_episodes() -> None:
    frame = stays()
    frame["died"] = np.arange(len(frame)) % 7 == 0
    draft = draft_of(frame)
    assert draft.terminated == "died"
    assert "layout" not in draft.files(FOLDER)["schema.yaml"]


def test_rows_on_their_own_are_a_table_of_people() -> None:
    roles = Roles(unit="transition", trajectory="none")
    frame = stays().drop(columns=["patient_id", "hour"])
    draft = draft_of(frame, roles)
    assert (draft.method, draft.unit) == ("marginals", "transition")
    files = draft.files(FOLDER)
    assert "next_observation: none" in files["schema.yaml"]
    assert "rows_per_unit" not in files["config.yaml"]
    assert "max_length" not in files["config.yaml"]
    assert "\ntraining:\n  correlations_share: 0  #" in files["config.yaml"]
    assert "\n  # together: [[A, B]]\noutput:" in files["config.yaml"]
    unknown = draft_of(frame, Roles(trajectory="none"))
    with pytest.raises(ConfigError, match=r"data\.unit \(line 9\)"):
        parse_yaml(unknown.files(FOLDER)["config.yaml"], source="config.yaml")


@pytest.mark.parametrize(("more", "share"), [(1, "0"), (2, "0.15"), (34, "0.15"), (35, "0")])
def test_pairs_are_measured_where_there_are_many_and_not_too_many(more: int, share: str) -> None:
    frame = stays().assign(**{f"test {i}": np.arange(40) % 7 + i / 2 for i in range(more)})
    config = draft_of(frame).files(FOLDER)["config.yaml"]
    assert f"\ntraining:\n  correlations_share: {share}  #" in config


def test_roles_that_are_named_are_taken() -> None:
    draft = draft_of(stays(), action=("sex", "ward"), reward="age, years")
    assert (draft.action, draft.reward) == (("sex", "ward"), "age, years")
    assert "gain" in draft.observation
    text = draft.files(FOLDER)["schema.yaml"]
    columns = yaml.safe_load(text)["columns"]
    assert columns["reward"] == "age, years"
    assert columns["action"] == ["sex", "ward"]
    assert "none: no column" not in text
    neither = draft_of(stays(), action=("none",), reward="none")
    assert (neither.action, neither.reward, neither.unnamed) == ((), None, ())
    assert {"dose", "gain"} < set(neither.observation)
    for asked, said in (
        ({"reward": "ward"}, "--reward ward holds a category: a reward is a number, flag or date"),
        ({"action": ("remark",)}, "--action remark holds"),
        ({"action": ("nothing",)}, "has no column nothing"),
    ):
        with pytest.raises(ConfigError, match=said):
            draft_of(stays(), **asked)


def test_a_category_sorts_no_rows() -> None:
    with pytest.raises(ConfigError, match="--order ward holds a category: rows are sorted by num"):
        draft_of(stays(), Roles(trajectory="patient_id", order="ward"))


def test_a_table_without_anything_to_observe_says_what_is_needed() -> None:
    few = stays()[["dose", "gain", "remark"]]
    with pytest.raises(
        ConfigError, match=r"needs a column to observe.* it has dose \(whole number"
    ):
        draft_of(few, Roles(unit="transition"))
    kept = draft_of(stays()[["ward", "remark"]], Roles(unit="transition"))
    assert (kept.observation, kept.action, kept.reward) == (("ward",), (), None)


def test_names_that_yaml_would_misread_are_quoted() -> None:
    frame = stays().rename(columns={"dose": "no", "ward": "a: b #c", "gain": "12"})
    draft = draft_of(frame, action=("no",), reward="12")
    columns = yaml.safe_load(draft.files(FOLDER)["schema.yaml"])["columns"]
    assert (columns["action"], columns["reward"]) == (["no"], "12")
    assert "a: b #c" in columns["observation"]


def test_what_no_column_is_called_is_not_there() -> None:
    frame = stays().rename(columns={"dose": "level", "gain": "score"})
    draft = draft_of(frame)
    assert (draft.action, draft.reward, draft.unnamed) == ((), "score", ("action",))
    text = draft.files(FOLDER)["schema.yaml"]
    assert yaml.safe_load(text)["columns"]["action"] == "none"
    assert "none: no column that changes is called so. If one is the action, draft" in text
    assert "anew with --action COLUMN;" in text
    draft = draft_of(frame.rename(columns={"score": "result"}))
    assert (draft.action, draft.reward) == ((), None)
    files = draft.files(FOLDER)
    assert yaml.safe_load(files["schema.yaml"])["columns"]["reward"] == "none"
    assert "--action COLUMN and --reward COLUMN" in files["schema.yaml"]
    assert "reward:" not in files["bounds.yaml"]
    assert {"level", "result"} < set(draft.observation)


def test_what_a_person_keeps_is_observed_whatever_it_is_called() -> None:
    """The arm of a trial is no decision that was taken at each visit."""
    frame = stays().rename(columns={"dose": "level"})
    frame["treatment"] = [f"t{i // 8 % 2}" for i in range(40)]
    draft = draft_of(frame)
    assert draft.action == ()
    assert "treatment" in draft.observation
    frame["treatment"] = [f"t{i % 2}" for i in range(40)]
    assert draft_of(frame).action == ("treatment",)


def test_wages_of_people_do_not_choose_who_is_black() -> None:
    frame = pd.read_csv(io.StringIO(panel_text("Ecdat/Wages"))).drop(columns="Unnamed: 0")
    frame.insert(0, "person", [f"p{i // 7}" for i in range(len(frame))])
    frame.insert(1, "year", [i % 7 for i in range(len(frame))])
    draft = draft_of(frame)
    assert (draft.trajectory, draft.action, draft.reward) == ("person", (), None)
    assert {"black", "lwage", "union"} < set(draft.observation)


def test_a_unit_that_is_not_called_like_a_person_is_a_guess() -> None:
    frame = stays().rename(columns={"patient_id": "id"})
    draft = draft_of(frame)
    assert (draft.unit, draft.unit_guessed) == ("id", True)
    assert "# GUESSED: unit, because" in draft.files(FOLDER)["schema.yaml"]
    for certain in (draft_of(frame, Roles(unit="id")), draft_of(stays())):
        assert not certain.unit_guessed
        assert "GUESSED: unit" not in certain.files(FOLDER)["schema.yaml"]
    alone = draft_of(frame, Roles(unit="transition", trajectory="none"))
    assert not alone.unit_guessed


def test_a_draft_says_why_what_numbers_rows_is_left_out() -> None:
    frame = stays().drop(columns=["hour", "admitted"])
    frame["id"], frame["line"] = [1 + i % 4 for i in range(40)], range(40)
    draft = draft_of(frame, Roles(trajectory="none"))
    assert draft.unit == "patient_id"
    text = draft.files(FOLDER)["schema.yaml"]
    assert "id (it numbers the rows of each patient_id, and names nobody)" in text
    assert "line (it numbers the rows, and names nobody)" in text


def test_households_of_a_real_panel_are_trajectories_in_the_order_of_their_purchases() -> None:
    frame = pd.read_csv(io.StringIO(panel_text("Ecdat/Tuna"))).drop(columns="Unnamed: 0")
    draft = draft_of(frame)
    assert (draft.method, draft.unit) == ("marginals_j", "Tuna.hid")
    schema = yaml.safe_load(draft.files(FOLDER)["schema.yaml"])["columns"]
    assert (schema["trajectory"], schema["order"]) == ("Tuna.hid", "Tuna.id")
    assert "next_observation" not in schema
