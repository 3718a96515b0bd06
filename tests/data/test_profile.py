"""What init takes the columns of real and made-up tables for."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data import profile as module
from distributed_privrl.data.profile import Profile, Roles, profile, profile_file
from tests.data.real_tables import panel_text
from tests.worlds.opened import opened


def real(name: str, folder: Path, **roles: Any) -> Profile:
    path = folder / "table.csv"
    path.write_text(panel_text(name))
    return profile_file(path, Roles(**roles))


def kinds(found: Profile) -> dict[str, str]:
    return {one.name: one.kind for one in found.columns}


def test_a_survey_has_people_of_one_row(tmp_path: Path) -> None:
    found = real("MASS/survey", tmp_path)
    assert kinds(found) == {
        "Unnamed: 0": "identifier",
        **dict.fromkeys(["Sex", "W.Hnd", "M.I", "Exer"], "flag"),
        **dict.fromkeys(["Fold", "Clap", "Smoke"], "category"),
        **dict.fromkeys(["Wr.Hnd", "NW.Hnd", "Height", "Age"], "number"),
        "Pulse": "whole number",
    }
    assert (found.units, found.trajectory, found.order) == ((), None, None)
    told = opened(found.found)
    assert "Pulse: whole number, 43 values, none in 45 rows" in told
    assert any("None and the like are no values" in line for line in told)  # as in Exer


def test_a_balanced_panel_tells_its_trajectories_and_their_order(tmp_path: Path) -> None:
    found = real("plm/Produc", tmp_path)
    assert (found.trajectory, found.order, found.units) == ("state", "year", ("state",))
    assert "rows of one state: 17 in the middle, 17 at most" in opened(found.found)
    alone = real("plm/Produc", tmp_path, trajectory="none")
    assert (alone.trajectory, alone.order) == (None, None)


def test_ids_that_begin_anew_in_each_centre_are_found(tmp_path: Path) -> None:
    found = real("HSAUR/respiratory", tmp_path)
    assert (found.units, found.trajectory) == (("id",), None)
    assert any("none of one center and id" in line for line in opened(found.found))
    frame = pd.read_csv(io.StringIO(panel_text("HSAUR/respiratory")))
    frame["patient"] = frame["center"].astype(str) + "/" + frame["id"].astype(str)
    joined = profile(frame, Roles())
    assert (joined.trajectory, joined.order, joined.units[0]) == ("patient", "visit", "patient")
    named = profile(frame, Roles(trajectory="id", order="visit"))
    assert "440 rows have the visit of another row of their id" in opened(named.found)


def stays(**changes: Any) -> pd.DataFrame:
    columns = {
        "patient_id": ["p1", "p1", "p1", "p2", "p2", "p3", "p3", "p3"],
        "stay_id": ["s1", "s1", "s2", "s3", "s3", "s4", "s4", "s4"],
        "hour": [0, 1, 0, 0, 1, 0, 1, 2],
        "code": ["007", "7", "07", "007", "7", "7", "7", "7"],
        "rate": [88.5, 92, 85, 97, 90, 110, 118, 131],
        "admitted": ["2020-01-01", "2020-01-01", "2020-02-01", *["2021-05-01"] * 5],
        "seen": ["2020-01-01T10:30", *["2020-01-01T11:00"] * 7],
        "died": [0, 0, 0, 0, 0, 0, 0, 1],
        "note": ["a text of many words, other in each row " + "x" * i for i in range(8)],
        "nothing": [None] * 8,
    }
    return pd.DataFrame(columns | changes)


def test_stays_of_patients_are_trajectories_of_units() -> None:
    found = profile(stays(), Roles())
    assert kinds(found) == {
        "patient_id": "identifier",
        "stay_id": "identifier",
        "hour": "whole number",
        "code": "category",
        "rate": "number",
        "admitted": "date",
        "seen": "date",
        "died": "flag",
        "note": "text",
        "nothing": "empty",
    }
    assert (found["admitted"].plain, found["seen"].plain, found["died"].plain) == (1, 0, 1)
    assert (found.trajectory, found.order) == ("stay_id", "hour")
    assert found.units == ("patient_id", "stay_id")
    mixed = profile(stays(patient_id=["p1", "p2"] * 4), Roles())
    assert "patient_id" not in mixed.units, "a stay of two patients cannot belong to one"
    tied = profile(stays(hour=[0] * 8), Roles())
    assert tied.trajectory is None


def test_a_row_a_person_is_a_unit_by_itself() -> None:
    found = profile(stays(patient_id=[f"p{i}" for i in range(8)]), Roles(trajectory="none"))
    assert found.one_each == "patient_id"
    assert profile(stays(), Roles()).one_each is None


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    frame = stays(
        admitted=pd.to_datetime(["2020-01-01"] * 8),
        died=[True, None] * 4,
        hour=[0, 1, None, *"0" * 0, 3, 4, 5, 6, 7],
    )
    frame.to_parquet(tmp_path / "table.parquet")
    found = profile_file(tmp_path / "table.parquet", Roles(trajectory="none"))
    assert (found["admitted"].kind, found["died"].kind) == ("date", "flag")
    assert found["hour"].kind == "whole number", "a gap makes no other kind"


def test_what_cannot_be_profiled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    for text, said in (
        ("a,b\n", "has no rows"),
        ("a,a\n1,2\n", "has several columns a"),
        ("a,b\n1\n", "line 2 has 1 field"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            profile_file(path, Roles())
    with pytest.raises(ConfigError, match=r"must end in \.csv or \.parquet"):
        profile_file(tmp_path / "table.npz", Roles())
    with pytest.raises(ConfigError, match="has no column weight; it has"):
        profile(stays(), Roles(unit="weight"))
    path.write_text("a,b\n" + "1,2\n" * 9)
    monkeypatch.setattr(module, "PROFILED_ROWS", 5)
    assert opened(profile_file(path, Roles()).found)[0] == (
        "5 rows were looked at, and there are more"
    )


def test_a_number_within_a_year_is_no_part_of_a_person() -> None:
    """As the stints of baseball players, who seldom have two a year."""
    years = [year for _ in range(4) for year in (*range(2000, 2006), 2005)]
    frame = pd.DataFrame(
        {
            "player_id": [f"p{i // 7}" for i in range(28)],
            "year": years,
            "stint": [1, 1, 1, 1, 1, 1, 2] * 4,
            "hits": range(28, 56),
        }
    )
    (said,) = [line for line in opened(profile(frame, Roles()).found) if "stint" in line][1:]
    assert said.startswith("some rows of one player_id have the same year, and stint tells them")
    assert said.endswith("draft with --trajectory player_id --order year")


def test_an_id_whose_name_is_one_word_is_a_unit_and_an_amount_paid_is_none() -> None:
    """As in the pupils of mlmRev's egsingle: childid and schoolid are whole numbers."""
    pupils, years = 60, 4
    of = np.repeat(np.arange(pupils), years)
    frame = pd.DataFrame(
        {
            "schoolid": 2020 + of % 6,
            "childid": 273_026_452 + 13 * of,
            "year": np.tile(np.arange(years), pupils),
            "paid": (7 * of + np.arange(len(of))) % 97,
        }
    )
    found = profile(frame, Roles())
    assert kinds(found) == {
        "schoolid": "identifier",
        "childid": "identifier",
        "year": "whole number",
        "paid": "whole number",
    }
    assert (found.units, found.trajectory) == (("childid", "schoolid"), "childid")
    assert found.order == "year"


def test_households_are_taken_for_units_before_the_number_of_a_purchase() -> None:
    frame = pd.DataFrame(
        {
            "Tuna.hid": [i // 3 for i in range(300)],
            "Tuna.id": [i % 3 for i in range(300)],
            "price": [i / 7 for i in range(300)],
        }
    )
    found = profile(frame, Roles())
    assert found["Tuna.hid"].kind == "identifier"
    assert found.units[0] == "Tuna.hid"


def purchases(**changes: Any) -> pd.DataFrame:
    """Return rows of 40 households, as many as 2 to 5 of one, in their order."""
    rows = [(hid, number) for hid in range(40) for number in range(1, 3 + hid % 4)]
    columns = {
        "hid": [100 + 7 * hid for hid, _ in rows],
        "id": [number for _, number in rows],
        "price": [number / 7 + hid for hid, number in rows],
    }
    return pd.DataFrame(columns | changes)


def test_a_number_that_begins_anew_with_each_household_sorts_its_rows() -> None:
    found = profile(purchases(), Roles())
    assert (found.units, found.trajectory, found.order) == (("hid",), "hid", "id")
    renamed = profile(purchases().rename(columns={"id": "number"}), Roles())
    assert (renamed.trajectory, renamed.order) == ("hid", "number"), "whatever it is called"
    turned = profile(purchases().iloc[::-1], Roles())
    assert (turned.trajectory, turned.order) == ("hid", "id"), "in whatever order the file is"
    gaps = profile(purchases().drop(index=[0, 9, 22]), Roles())
    assert (gaps.trajectory, gaps.order) == ("hid", "id"), "a few rows are missing"


def test_what_numbers_the_rows_is_no_unit_and_told_in_the_draft() -> None:
    alone = profile(purchases(), Roles(trajectory="none"))
    assert (alone.units, alone["id"].counted) == (("hid",), "the rows of each hid")
    asked = profile(purchases(), Roles(unit="id", trajectory="none"))
    assert (asked.units, asked["id"].counted) == (("hid", "id"), None), "its owner says so"
    rows = len(purchases())
    every = profile(purchases(row=range(rows)), Roles())
    assert (every.order, every["row"].counted) == ("id", "the rows")


def test_what_each_has_once_is_no_number_of_rows() -> None:
    frame = purchases()
    seen = {"doctor_id": [(3 * i * i + i) % 89 for i in range(len(frame))]}
    found = profile(purchases(**seen).drop(columns="id"), Roles())
    assert (found.trajectory, found["doctor_id"].counted) == (None, None)
    ranks = frame.groupby("hid")["id"].transform(lambda column: column.to_numpy()[::-1])
    ranked = profile(frame.assign(choice=ranks).drop(columns="id"), Roles())
    assert ranked.trajectory is None, "places that do not rise say nothing of time"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([*range(20, 90), 999, 999, 9999], ["999, in 2 rows", "9999, in 1 row"]),
        ([1, 2, 3, 4, 5, -9, -9, -8], ["-9, in 2 rows", "-8, in 1 row"]),
        ([*range(11), 98, 98, 99], ["98, in 2 rows", "99, in 1 row"]),
        ([*range(11), 97, 997, 998], ["97, in 1 row", "997, in 1 row", "998, in 1 row"]),
        ([1.5, 2.25, 3.0, -999.0], ["-999, in 1 row"]),
        ([*range(20, 90), 99], []),  # somebody may be as old
        ([1, 2, 3, 4, 5, 9], []),
        ([*range(10)], []),
        ([999] * 5, []),
    ],
)
def test_a_number_far_from_all_others_may_stand_for_no_answer(
    values: list[float], said: list[str]
) -> None:
    found = opened(profile(pd.DataFrame({"age": values}), Roles()).found)
    told = [line for line in found if "far from every other" in line]
    assert len(told) == len(said)
    assert all(any(part in line for line in told) for part in said)


def test_a_code_below_zero_is_told_where_no_other_value_is() -> None:
    def told(*values: float) -> list[str]:
        found = opened(profile(pd.DataFrame({"drinks": values}), Roles()).found)
        return [line for line in found if "below 0" in line]

    assert told(*range(49), -9, -9) == [
        "drinks: -9, in 2 rows, is below 0, as no other value is: if it means that there is none,"
        " leave the field empty in the file, else it counts as a number"
    ]
    assert told(*range(-20, 30)) == []
    assert told(*range(49), -5) == []


def test_a_number_that_may_name_the_row_is_told_to_the_owner() -> None:
    def told(values: list[float]) -> bool:
        found = opened(profile(pd.DataFrame({"seqn": values}), Roles()).found)
        return any(line.startswith("seqn: another number in each row") for line in found)

    assert told([233, 235, 244, 245, 9000])
    assert not told([233, 235, 244, 245, 245])
    assert not told([233.5, 235, 244, 245, 9000]), "measured, as a weight"
    assert not told([1, 2, 3, 4, 5]), "an identifier, which is left out anyway"


def test_an_identifier_with_gaps_is_no_unit_and_the_owner_is_told() -> None:
    found = profile(stays(patient_id=["p1", None, "p1", *["p2", "p3"] * 2, "p3"]), Roles())
    assert "patient_id" not in found.units
    assert any(line.startswith("patient_id: is taken for no unit") for line in opened(found.found))
    assert not any("taken for no unit" in line for line in opened(profile(stays(), Roles()).found))


def test_dates_whose_year_is_last_are_no_ids_and_the_owner_is_told() -> None:
    for dates in (["31.12.2020", "01.02.2021"] * 4, ["12/31/20"] * 8, [" 3-4-2020"] * 8):
        found = profile(stays(admitted=dates), Roles())
        assert found["admitted"].kind == "unclear date"
        assert "admitted" not in found.units
        assert any("write them as 2024-05-31" in line for line in opened(found.found))


def test_rows_with_a_gap_anywhere_are_counted_once() -> None:
    """Each column's gaps are few; together they may be most of the rows."""

    def told(**columns: list[float | None]) -> list[str]:
        found = opened(profile(pd.DataFrame(columns), Roles()).found)
        return [line for line in found if "one column or another" in line]

    hits, walks, runs = [1.0, None, 3.5, 4.5], [None, None, 3.5, 4.5], [1.0, 2.0, 3.5, 4.5]
    (line,) = told(hits=hits, walks=walks, runs=runs)
    assert line.startswith("2 of 4 rows have no value in one column or another: ")
    assert not told(hits=hits, runs=runs), "its own line says so"


def test_the_owner_is_told_what_keeps_last_rows_whole(tmp_path: Path) -> None:
    found = opened(real("plm/Produc", tmp_path).found)
    (line,) = [line for line in found if "are the last of their state" in line]
    assert line.startswith("48 rows are the last of their state: terminated: last keeps them whole")
