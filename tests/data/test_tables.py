"""Tables as they are: kinds of columns, gaps, rows that nothing follows; in, and out again."""

import io
import json
import re
from dataclasses import fields
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data import csv_files, findings, sources
from distributed_privrl.data.declared import NumberKind
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.exporting import export
from distributed_privrl.data.importing import from_table, import_file
from distributed_privrl.data.labels import column_labels
from distributed_privrl.data.layout import RowLayout, grouped_columns
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.spaces import groups_of
from distributed_privrl.data.splitting import split
from distributed_privrl.data.values import decoded
from tests.data.conftest import assert_same
from tests.data.real_tables import NAMES, SURVEY, flights, panel, panel_text


def schema_of(text: str) -> ImportSchema:
    return validate(ImportSchema, yaml.safe_load(text), source="schema")


@pytest.fixture
def take(store, tmp_path):
    """Import a table, as CSV, and return what its owner was told."""

    def take(schema, table, dataset="a-v0"):
        path = tmp_path / f"{dataset}.csv"
        path.write_text(table if isinstance(table, str) else table.to_csv(index=False))
        told = import_file(path, schema_of(schema), store, dataset).open(Purpose.OWNER)
        return [line.removeprefix("note to the owner: ") for line in told]

    return take


def exported(store, tmp_path, dataset="a-v0", suffix="csv"):
    out = tmp_path / f"out-{len(list(tmp_path.glob('out-*')))}.{suffix}"
    export(store, dataset, suffix, out, chunk_rows=50)
    if suffix == "parquet":
        return pd.read_parquet(out)
    return pd.read_csv(out, keep_default_na=False, na_values=[""])


def test_a_survey_comes_in_as_it_is_and_goes_out_as_it_was(take, store, tmp_path):
    told = take(SURVEY, panel_text("MASS/survey"))
    info = store.info("a-v0")
    assert info.kind == "transitions"
    assert not info.has_successors
    assert groups_of(info.observation_space) == ((0, 3), (3, 6), (6, 9), (9, 14), (15, 16))
    assert info.action_space.nvec.tolist() == [4, 3]
    rows = store.read_transitions("a-v0", unit="transition")
    assert rows.terminated.all()
    assert np.array_equal(rows.observations, rows.next_observations)
    original = panel("MASS/survey")
    for suffix in ("csv", "parquet"):
        back = exported(store, tmp_path, suffix=suffix)
        assert list(back) == NAMES
        for name in NAMES:
            if name in ("Height", "Age", "Pulse"):
                np.testing.assert_allclose(back[name], original[name], rtol=1e-6)
            else:
                known = original[name].notna()
                assert (back[name].isna() == ~known).all(), name
                assert (back[name][known] == original[name][known]).all(), name
    gaps = original[NAMES].isna().sum()
    numbers = {line.partition(":")[0]: int(re.search(r"in (\d+) row", line)[1]) for line in told}
    assert numbers == {name: count for name, count in gaps.items() if count}
    assert all(" of " not in line.partition(";")[0] for line in told), "a row is a unit"


def test_rows_with_gaps_count_unless_nothing_is_declared_for_them(take, store):
    take(SURVEY, panel_text("MASS/survey"))
    info, rows = store.info("a-v0"), store.read_transitions("a-v0", unit="transition")
    width = 2 * 17 + 7 + 2
    unit = Scaling(offset=np.zeros(width), scale=np.ones(width))
    encoder = TransitionEncoder(info.observation_space, info.action_space, unit)
    lost = panel("MASS/survey")["Pulse"].isna()  # declared alone to be nothing
    assert (~encoder.encode(rows).valid == lost).all()
    assert lost.sum() > 40


def test_whole_numbers_are_rounded_and_gaps_stay_gaps():
    drawn = np.array([[2.6], [np.nan], [-1.2], [np.inf]], np.float32)
    assert decoded(drawn, NumberKind(whole=True)).tolist() == [3, pd.NA, -1, pd.NA]
    beside = np.array([[2.6, 0], [7, 1]], np.float32)
    kind = NumberKind(whole=True, missing="indicator")
    assert decoded(beside, kind).tolist() == [3, pd.NA]


def test_flags_dates_and_texts_of_flights_come_back(take, store, tmp_path):
    schema = """
    columns:
      observation: [carrier, time_hour, late]
      action: origin
      reward: distance
      terminated: over
      trajectory: tailnum
      order: time_hour
      unit: tailnum
    kinds:
      carrier:
        type: category
        values: [AA, B6, DL, EV, MQ, UA, US, WN, 9E, AS, F9, FL, HA, VX, YV, OO]
      time_hour: {type: date, unit: hours, origin: 2013-01-01}
      late: {type: flag, values: [false, true]}
      over: {type: flag}
      origin: {type: category, values: [EWR, JFK, LGA]}
      distance: {type: number, whole: true}
    layout: packed
    """
    table = flights(400).sort_values("time_hour", kind="stable")
    table = table.assign(late=table["dep_delay"] > 15, over=0)
    assert {line.partition(":")[0] for line in take(schema, table)} == {"last rows"}
    back = exported(store, tmp_path)
    assert list(back) == [
        *("step", "carrier", "time_hour", "late", "origin", "distance"),
        *("next_carrier", "next_time_hour", "next_late", "over", "truncated", "tailnum"),
    ]
    kept = table[table.duplicated("tailnum", keep="last")]  # the last row is its final observation
    first = table["tailnum"].drop_duplicates().tolist()
    expected = kept.sort_values("tailnum", key=lambda c: c.map(first.index), kind="stable")
    for name in ("carrier", "late", "origin", "distance"):
        assert back[name].tolist() == expected[name].tolist(), name
    assert set(back["over"]) == {0}
    assert back["over"].dtype == back["distance"].dtype == np.int64
    times = [text.removesuffix("Z") for text in expected["time_hour"]]
    assert back["time_hour"].str.replace(" ", "T").tolist() == times
    assert len(back) > 20


@pytest.mark.parametrize(
    ("kind", "values", "numbers"),
    [
        ("{type: date, origin: 2020-01-01}", ["2020-01-03", "2019-12-31"], [2, -1]),
        ("{type: date, origin: 2020-01-01}", ["2020-01-03T23:59", "2020-02-01"], [2, 31]),
        ("{type: date, unit: minutes, origin: '2020-01-01 06:00'}", ["2020-01-01 07:30"], [90]),
        ("{type: date, unit: seconds, origin: 2020-01-01}", ["2020-01-01T02:00:01+02:00"], [1]),
        ("{type: flag}", ["1", "0", "true", "False"], [1, 0, 1, 0]),
        ("{type: flag, values: [no, yes]}", ["True", "false"], [1, 0]),  # YAML's no and yes
        ("{type: flag, values: ['no', 'yes']}", ["no", "yes"], [0, 1]),
        ("{type: flag, values: [1, 2]}", ["2", "1.0"], [1, 0]),
    ],
)
def test_values_as_numbers(take, store, kind, values, numbers):
    schema = (
        "columns: {observation: x, action: u, reward: r, next_observation: none}\n"
        f"kinds: {{x: {kind}}}\n"
        "spaces: {observation: {type: box}, action: {type: box}}\n"
    )
    assert take(schema, "x,u,r\n" + "".join(f"{value},0,0\n" for value in values)) == []
    read = store.read_transitions("a-v0", unit="transition").observations
    assert read.tolist() == [[number] for number in numbers]


@pytest.mark.parametrize(
    ("kind", "table", "told"),
    [
        ("{type: category, values: [a, b]}", "a c b", "x: a value that is not declared in 1 row;"),
        (
            "{type: flag, values: [no, yes]}",
            "no yes no",
            "x: a value that is not declared (the schema's yes and no without quotes are true and"
            " false) in 3 rows;",
        ),
        ("{type: date}", "2020-01-01 9999-01-01 ?", None),
        ("{type: number}", "1 inf 3", "x: infinite in 1 row;"),
        ("{type: number}", "1 11 -3", "x: outside 0 to 10 in 2 rows;"),
        ("{type: number}", "1 11 ", "x: outside 0 to 10 in 1 row;"),
        ("{type: number, missing: refuse}", "1 NA 3", None),
        ("{type: flag, missing: refuse}", "1 NA 0", None),
    ],
)
def test_what_an_owner_is_told_or_refused(take, store, kind, table, told):
    schema = (
        "columns: {observation: x, action: u, reward: r, next_observation: none}\n"
        f"kinds: {{x: {kind}}}\n"
        "spaces: {observation: {type: box, low: 0, high: 10}, action: {type: box}}\n"
    )
    schema = schema.replace("low: 0, high: 10", "low: [], high: []") if "values" in kind else schema
    schema = schema.replace("low: 0, high: 10", "low: [], high: []") if "flag" in kind else schema
    rows = "x,u,r\n" + "".join(f"{value},0,0\n" for value in table.split(" "))
    if told is None:
        with pytest.raises(ConfigError, match=r"column 'x' (has rows without|must hold dates)"):
            take(schema, rows)
        assert not store.ids()
        return
    assert any(line.startswith(told) for line in take(schema, rows))


def test_units_are_counted_across_chunks(take, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK_ROWS", 2)
    schema = (
        "columns: {observation: x, action: u, reward: r, next_observation: none, unit: who}\n"
        "spaces: {observation: {type: box}, action: {type: box}}\n"
    )
    table = "x,u,r,who\n1,0,0,p\n,0,0,p\n,0,0,q\n,0,0,p\n2,0,0,q\n"
    assert take(schema, table)[0].startswith(
        "x: no value in 3 rows of 2 values of who; these are null rows"
    )


def test_values_that_nobody_declared_are_named_to_the_owner(take, store, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK_ROWS", 3)
    schema = (
        "columns: {observation: x, action: u, reward: r, next_observation: none}\n"
        "kinds: {x: {type: category, values: [never, former]}}\n"
        "spaces: {action: {type: discrete, n: 2}}\n"
    )
    odd = ["Former"] * 3 + ["never", "former", "n/k", "a\tb", "c" * 50, "d", "e", "f"]
    rows = "x,u,r\n" + "".join(f"{value},{7 * (value == 'd')},0\n" for value in odd)
    (where,) = [line for line in take(schema, rows) if line.startswith("x: ")]
    assert where == (
        "x: a value that is not declared in 9 rows; these are null rows, which methods leave out:"
        " 'Former' (3), 'n/k' (1), 'a\\tb' (1), '" + "c" * 37 + "...' (1), 'd' (1), 2 more"
    )
    (place,) = [line for line in take(schema, rows, "b-v0") if line.startswith("u: ")]
    assert place.endswith("methods leave out: '7' (1)")
    assert "Former" not in store.metadata_file("a-v0").read_text()


def test_of_very_many_values_the_first_are_remembered(monkeypatch):
    monkeypatch.setattr(findings, "_REMEMBERED", 6)
    found = findings.Findings("who")
    every = np.ones(9, dtype=bool)
    for _ in range(2):
        found.add("x: strange", "gone", every, None, map(str, range(9)))
    (line,) = found.lines()
    assert line.endswith("in 18 rows; gone: '0' (2), '1' (2), '2' (2), '3' (2), '4' (2), more")


TRIPS = (
    "columns: {observation: [x, day], action: u, reward: r, trajectory: t, order: day{extra}}\n"
    "spaces: {observation: {type: box}, action: {type: box}}\n"
)
ROWS = "t,day,x,u,r\na,1,10,0,1\nb,5,20,0,2\na,1,11,0,3\na,0,12,0,4\n"


def test_rows_of_one_time_stay_in_the_order_of_the_file(take, store):
    told = take(TRIPS.replace("{extra}", ""), ROWS)
    tied = "day: the same as in another row of its trajectory in 2 rows of 1 trajectory; these stay"
    assert told[0] == tied + " in the order of the file"
    read = store.read_trajectories("a-v0")
    assert read.observations[:, 0].tolist() == [12, 10, 11, 20][:3]  # b has nothing but one row
    assert read.rewards.tolist() == [4, 1]
    with pytest.raises(ConfigError, match="'day' has rows without a value to sort by"):
        take(TRIPS.replace("{extra}", ""), ROWS.replace("b,5", "b,"), "b-v0")


def test_last_rows_are_kept_where_a_trajectory_is_complete(take, store):
    told = take(TRIPS.replace("{extra}", ", terminated: last"), ROWS)
    assert [line.partition(":")[0] for line in told] == ["day"]
    read = store.read_trajectories("a-v0")
    assert read.rewards.tolist() == [4, 1, 3, 2]
    assert read.terminated.tolist() == [False, False, True, True]
    take(TRIPS.replace("{extra}", ", terminated: never"), ROWS, "b-v0")
    never = store.read_trajectories("b-v0")
    assert not never.terminated.any()
    assert never.truncated.tolist() == [False, True]


def test_a_column_of_order_may_be_observed(take, store, tmp_path):
    take(TRIPS.replace("{extra}", ", terminated: last"), ROWS)
    back = exported(store, tmp_path)
    assert back["day"].tolist() == [0, 1, 1, 5]
    assert back["step"].tolist() == [0, 1, 2, 0]
    assert list(back)[:4] == ["t", "step", "x", "day"]


def test_a_trial_with_one_outcome_goes_in_and_comes_out(take, store, tmp_path):
    """All but the outcome is lasting, which has gaps; the visit is both action and reward."""
    schema = """
columns: {observation: [arm, score], action: month, reward: month, trajectory: patient,
          order: month, terminated: last, unit: patient}
kinds:
  arm: {type: flag, values: [placebo, active], lasting: true}
  score: {type: number, whole: true, missing: indicator}
  month: {type: number, whole: true}
spaces: {observation: {type: box, low: [1], high: [5]}}
"""
    rows = "patient,month,arm,score\n1,1,active,4\n1,3,active,\n2,3,placebo,2\n2,1,placebo,5\n"
    take(schema, rows)
    back = exported(store, tmp_path)
    assert back["arm"].tolist() == ["active"] * 2 + ["placebo"] * 2
    assert back["month"].tolist() == back["reward"].tolist() == [1, 3, 1, 3]
    assert back["score"].fillna(0).tolist() == [4, 0, 5, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("next_observation: none", "trajectory: who, next_observation: none"), "leave out traj"),
        (("next_observation: none", "terminated: last, next_observation: [y]"), "needs a traj"),
        (("x: {type: number}", "who: {type: flag}"), "who is no observation, action, reward"),
        (("x: {type: number}", "r: {type: category, values: [1, 2]}"), "r is the reward"),
        (("x: {type: number}", "x: {type: number, missing: own}"), "missing"),
        (("x: {type: number}", "x: {type: category, values: [a, a]}"), "a stands there twice"),
        (("x: {type: number}", "x: {type: category}"), "values"),
        (("observation: {type: box}, ", ""), None),
        (("action: {type: box}", ""), "action must be given"),
        (("action: {type: box}", "action: {type: discrete}"), "n must be given, or the values"),
        (("{type: box}}", "{type: discrete, n: 3}}"), None),
        (("x: {type: number}", "u: {type: flag, missing: own}"), "n is 2, and kinds declare 3"),
    ],
)
def test_schemas_that_do_not_fit_say_what_to_do(take, store, change, message):
    schema = (
        "columns: {observation: x, action: u, reward: r, next_observation: none}\n"
        "kinds: {x: {type: number}}\n"
        "spaces: {observation: {type: box}, action: {type: box}}\n"
    )
    if message is not None and message.startswith("n is"):
        schema = schema.replace("action: {type: box}", "action: {type: discrete, n: 2}")
    table = "x,u,r,who,y\n1,1,1,1,1\n"
    if message is None:
        take(schema.replace(*change), table)
        return
    with pytest.raises(ConfigError, match=message) as caught:
        take(schema.replace(*change), table)
    assert "\n" not in str(caught.value)


def test_sides_of_a_split_keep_what_was_declared(take, store):
    take(SURVEY, panel_text("MASS/survey"))
    whole = store.info("a-v0")
    for side in split(store, "a-v0", held_out_share=0.5, seed=1):
        assert side.declared == whole.declared
        assert not side.has_successors
        assert side.observation_space == whole.observation_space


def test_what_is_declared_is_stored_and_what_was_found_is_not(take, store):
    told = take(SURVEY, panel_text("MASS/survey"))
    values = json.loads(store.metadata_file("a-v0").read_text())
    kept = values["distributed_privrl"]["declared"]
    assert kept == schema_of(SURVEY).declared.model_dump(mode="json")
    text = json.dumps(values)
    assert told
    assert not any(line.partition(":")[2][:20] in text for line in told)


class Streamed:
    """A table of another library, of which nothing is known but Arrow's stream protocol."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("chunk_rows", [7, 2**18])
def test_tables_of_pandas_and_arrow_are_read_as_files_are(
    take, store, tmp_path, monkeypatch, capsys, chunk_rows
):
    monkeypatch.setattr(sources, "CHUNK_ROWS", chunk_rows)
    told = take(SURVEY, panel_text("MASS/survey"))
    frame = panel("MASS/survey")
    arrow = pa.Table.from_pandas(frame)
    tables = {
        "pandas": frame,
        "arrow": arrow,
        "dictionaries": frame.astype({"Smoke": "category", "Clap": "category"}),
        "views": arrow.set_column(1, "Sex", arrow.column("Sex").cast(pa.string_view())),
        "streamed": Streamed(arrow),
        "batches": pa.RecordBatchReader.from_batches(
            arrow.schema, arrow.to_batches(max_chunksize=5)
        ),
        "mapping": {name: arrow.column(name) for name in NAMES},
    }
    expected = store.read_transitions("a-v0", unit="transition")
    for name, table in tables.items():
        info = from_table(table, yaml.safe_load(SURVEY), dataset=f"{name}-v0", store=store)
        said = capsys.readouterr().err.splitlines()
        assert sorted(said) == sorted(f"note to the owner: {line}" for line in told), name
        assert_same(store.read_transitions(info.id, unit="transition"), expected)
    path = tmp_path / "survey.parquet"
    frame.set_index("Sex").to_parquet(path)  # an index is a column like any other
    import_file(path, schema_of(SURVEY), store, "file-v0")
    assert_same(store.read_transitions("file-v0", unit="transition"), expected)


def test_what_is_no_table_is_refused(store):
    for table, message in (
        ([1, 2], "must be of pandas, Polars or Arrow"),
        (pd.DataFrame({"x": [object()]}), "the pandas table cannot be read as Arrow columns"),
        (pd.DataFrame({"x": [1]}), "the pandas table has no column Sex, W.Hnd"),
        (panel("MASS/survey").head(0), "has no rows"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_table(table, yaml.safe_load(SURVEY), dataset="a-v0", store=store)
    assert not store.ids()


def test_chunks_of_trajectories_are_one_table(take, store, monkeypatch):
    table = panel("Ecdat/Males").head(200).sample(frac=1.0, random_state=1)
    schema = """
    columns: {observation: [school, union], action: occupation, reward: wage, trajectory: nr,
              order: year, unit: nr}
    kinds:
      union: {type: flag, values: ['no', 'yes']}
      occupation: {type: category, values: [Service_Workers, "Craftsmen, Foremen_and_kindred"]}
    spaces: {observation: {type: box, low: 0, high: 20}}
    """
    told = take(schema, table)
    monkeypatch.setattr(sources, "CHUNK_ROWS", 9)
    monkeypatch.setattr("distributed_privrl.data.importing.CHUNK_ROWS", 20)
    assert take(schema, table, "b-v0") == told
    one, other = (store.read_trajectories(f"{name}-v0") for name in "ab")
    for field in fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))
    assert len(one) == table["nr"].nunique()


def test_absent_values_of_csv_files_are_those_of_pandas():
    everything = io.StringIO("x\n" + "".join(f'"{text}"\n' for text in sorted(csv_files._ABSENT)))
    assert pd.read_csv(everything, skip_blank_lines=False)["x"].isna().all()
    assert len(csv_files._ABSENT) == 19


def test_columns_of_reports_have_the_names_and_values_of_the_table(take, store):
    take(SURVEY, panel_text("MASS/survey"))
    info = store.info("a-v0")
    labels = column_labels(info)
    assert labels[:7] == (
        *("Sex is Female", "Sex is Male", "Sex is missing"),
        *("W.Hnd is Left", "W.Hnd is Right", "W.Hnd is missing", "Exer is Freq"),
    )
    assert labels[14:18] == ("Height", "Height: missing", "Age", "Clap is Left")
    assert labels[24:26] == ("Pulse", "next Sex is Female")
    assert len(labels) == RowLayout(info.observation_space, info.action_space).width
    panels = [name for name, _ in grouped_columns(labels)]
    assert panels[:9] == [*NAMES[:5], "Height: missing", "Age", "Clap", "Fold"]
    take(TRIPS.replace("{extra}", ", terminated: last"), ROWS, "b-v0")
    assert column_labels(store.info("b-v0")) == (
        *("x", "day", "u", "r", "next x", "next day", "terminal"),
    )
    flags = "columns: {observation: x, action: u, reward: r, next_observation: none}\n"
    flags += "kinds: {x: {type: flag}, u: {type: flag, values: ['no', 'yes']}}\n"
    take(flags + "spaces: {observation: {type: box}}", "x,u,r\n1,no,2\n", "c-v0")
    assert column_labels(store.info("c-v0"))[:4] == ("x: 1", "u is no", "u is yes", "r")


# Whose rows they are

PEOPLE = """
columns: {observation: [x], action: a, reward: r, next_observation: [x], unit: who}
spaces: {observation: {type: box}, action: {type: discrete, n: 2}}
"""
SPELT = ["7", "7.0", " 7", "007", "\uff17", "7\u200b", "8", "p7", "P7 ", "caf\u00e9", "cafe\u0301"]


def people(names):
    rows = {"x": np.arange(len(names)) / 9, "a": 0, "r": 0.0}
    return pd.DataFrame(rows | {"who": names})


def test_a_person_is_one_unit_however_their_name_is_spelt(take, store):
    (told,) = take(PEOPLE, people(SPELT))
    ids = store.read_transitions("a-v0", unit="who").unit_ids
    assert len(np.unique(ids[:6])) == 1
    assert len(np.unique(ids)) == 5
    assert ids[9] == ids[10]
    assert "the same as another but for its case in 2 rows of 2 values of who" in told
    with pytest.raises(ConfigError, match="'who' has rows without a value"):
        take(PEOPLE, people(["7", "\u00a0"]), dataset="blank-v0")


def test_names_that_are_decimals_or_numbers_stay_apart_and_are_those_of_texts(store):
    found = []
    numbers = [2**53 + i for i in range(6)]
    decimals = pa.array(map(Decimal, numbers), pa.decimal128(20, 0))
    for place, names in enumerate((numbers, decimals, [f"{one}.0" for one in numbers])):
        table = pa.table({**people(numbers).drop(columns="who"), "who": names})
        from_table(table, schema_of(PEOPLE), store=store, dataset=f"n{place}-v0")
        found.append(store.read_transitions(f"n{place}-v0", unit="who").unit_ids)
    assert len(np.unique(found[0])) == 6
    np.testing.assert_array_equal(found, [found[0]] * 3)
