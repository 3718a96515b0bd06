import numpy as np
import pandas as pd
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.importing import import_file
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.schema import load_schema
from distributed_privrl.data.trajectories import hash_unit
from tests.worlds.opened import opened

STAYS = """\
columns:
  observation: [pulse, pressure]
  action: dose
  reward: gain
  terminated: died
  order: hour
  trajectory: stay
  unit: patient
spaces:
  observation: {type: box, low: 0, high: [300, .inf]}
  action: {type: discrete, n: 3}
environment: CartPole-v1
"""

# Rows out of order on purpose; stay a ends without dying, stay b dies, stay c has one row.
TABLE = """\
stay,patient,hour,pulse,pressure,dose,gain,died,unused
b,0070,10,20,21,1,3,True,x
a,7,2,11,12,2,1,False,x
a,7,1,10,11,0,0,False,x
b,0070,9,19,20,0,2,False,x
a,7,10,12,13,1,9,False,x
c,7,1,99,99,0,9,False,x
d,7,1,50,51,2,4,True,x
"""

ROWS = """\
columns:
  observation: [x]
  action: [u]
  next_observation: [y]
  reward: r
  terminated: end
  truncated: cut
  unit: who
spaces:
  observation: {type: box}
  action: {type: box, low: -1, high: 1}
"""


@pytest.fixture
def run(store, tmp_path):
    def run(schema, table, dataset="a-v0", name="table.csv"):
        (tmp_path / "schema.yaml").write_text(schema)
        path = tmp_path / name
        if isinstance(table, str):
            path.write_text(table)
        else:
            table.to_parquet(path)
        import_file(path, load_schema(tmp_path / "schema.yaml"), store, dataset)
        return store

    return run


def check_stays(store):
    read = store.read_trajectories("a-v0")
    # b (first in the file) dies: its last row keeps its step. a does not: its last row is its end.
    assert read.lengths.tolist() == [2, 2, 1]
    assert read.observations.tolist() == [
        *([19, 20], [20, 21], [20, 21]),
        *([10, 11], [11, 12], [12, 13]),
        *([50, 51], [50, 51]),
    ]
    assert read.actions.tolist() == [0, 1, 0, 2, 2]
    assert read.rewards.tolist() == [2, 3, 0, 1, 4]
    assert read.terminated.tolist() == [False, True, False, False, True]
    assert read.truncated.tolist() == [False, False, False, True, False]
    return read


def test_trajectories_of_a_csv_file(run):
    store = run(STAYS, TABLE)
    read = check_stays(store)
    assert read.unit_ids.tolist() == [hash_unit("70"), hash_unit("7"), hash_unit("7")]
    info = store.info("a-v0")
    assert (info.unit_column, info.environment) == ("patient", "CartPole-v1")
    assert info.observation_space.high.tolist() == [300, np.inf]
    rows = store.read_transitions("a-v0", unit="patient")
    assert (rows.unit_ids == hash_unit("7")).sum() == 3  # one patient, two stays


def test_trajectories_of_a_parquet_file_sorted_by_time(run, tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    frame = pd.read_csv(tmp_path / "t.csv")
    frame["hour"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(frame["hour"], unit="h")
    frame["patient"] = frame["patient"].astype(float)
    read = check_stays(run(STAYS, frame, name="table.parquet"))
    assert set(read.unit_ids.tolist()) == {hash_unit("7"), hash_unit("70")}


def test_times_in_a_csv_file_are_times(run):
    table = TABLE.replace(",9,19", ",2020-01-01 09:00,19").replace(
        "0070,10,", "0070,2020-01-01 10:00,"
    )
    for hour in (1, 2, 10):
        table = table.replace(f",7,{hour},", f",7,2020-01-01 {hour:02}:00,")
    check_stays(run(STAYS, table))


def test_known_successors_end_a_trajectory(run):
    schema = STAYS.replace("  reward:", "  next_observation: [pulse2, pressure2]\n  reward:")
    table = (
        "stay,patient,hour,pulse,pressure,dose,gain,died,pulse2,pressure2\n"
        "a,7,1,1,2,0,0,0,3,4\n"
        "a,7,2,3,4,1,1,0,5,6\n"
    )
    read = run(schema, table).read_trajectories("a-v0")
    assert read.observations.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert read.truncated.tolist() == [False, True]
    with pytest.raises(ConfigError, match="is not the observation of the trajectory's next row"):
        run(schema, table.replace("3,4\n", "3,5\n", 1), dataset="b-v0")


def test_independent_rows(run):
    store = run(ROWS, "x,u,y,r,end,cut,who\n1,0.5,2,3,1,0,p\n5,-0.5,6,7,0,1,q\n")
    info = store.info("a-v0")
    assert (info.kind, info.layout, opened(info.total_steps)) == ("transitions", "transitions", 2)
    rows = store.read_transitions("a-v0", unit="who")
    assert rows.observations.tolist() == [[1], [5]]
    assert rows.next_observations.tolist() == [[2], [6]]
    assert rows.actions.tolist() == [[0.5], [-0.5]]
    assert rows.terminated.tolist() == [True, False]
    assert rows.truncated.tolist() == [False, True]
    assert rows.unit_ids.tolist() == [hash_unit("p"), hash_unit("q")]


@pytest.mark.parametrize("bad", ["", "nan", "inf", "1e300", "2.5", "-1"])
def test_bad_values_are_imported_and_become_null_rows(run, bad):
    store = run(STAYS, TABLE.replace("19,20,0,2", f"19,20,{bad},2"))
    info = store.info("a-v0")
    width = 2 + 3 + 1 + 2 + 1
    encoder = TransitionEncoder(
        info.observation_space,
        info.action_space,
        Scaling(offset=np.zeros(width), scale=np.ones(width)),
    )
    encoded = encoder.encode(store.read_transitions("a-v0", unit="transition"))
    assert encoded.valid.tolist() == [False, True, True, True, True]
    store = run(STAYS, TABLE.replace("19,20,0", f"{bad or 'nan'},20,0"), dataset="b-v0")
    assert opened(store.info("b-v0").total_steps) == 5


@pytest.mark.parametrize(
    ("schema", "table", "message"),
    [
        (STAYS.replace("gain", "gains"), TABLE, "no column gains; it has stay, patient, hour"),
        (STAYS, TABLE.replace(",10,11,0,", ",ten,11,0,"), "'pulse' must hold numbers"),
        (STAYS, TABLE.replace("False", "maybe"), "'died' must"),
        (
            STAYS,
            TABLE.replace("1,False", "1,2").replace("True", "0").replace("False", "0"),
            "'died' must",
        ),
        (STAYS, TABLE.replace("True", "").replace("False", "0"), "'died' must be true or false"),
        (STAYS, TABLE.replace("0070", ""), "'patient' has rows without a value"),
        (STAYS, TABLE.replace("a,7,1", ",7,1"), "'stay' has rows without a value"),
        (STAYS, TABLE.replace("a,7,1", "a,8,1"), "rows of several units"),
        (STAYS, TABLE.replace("a,7,1", "a,7,noon"), "'hour' must hold numbers or ISO 8601 times"),
        (STAYS, TABLE.splitlines()[0] + "\n", "has no rows"),
        (STAYS, "", "is no proper csv file"),
        (STAYS, TABLE + 'e,"unclosed\n', "is no proper csv file"),
        (STAYS.replace("[300, .inf]", "[1, 2, 3]"), TABLE, "high has 3 values"),
        (STAYS.replace("low: 0, high: [300, .inf]", "low: 2, high: 1"), TABLE, "low must not be"),
        (STAYS.replace("dose", "[dose, gain]"), TABLE, "must name one column"),
        (STAYS.replace("n: 3", "n: 0"), TABLE, "greater than 0"),
        (STAYS.replace("discrete", "text"), TABLE, "spaces.action"),
        (STAYS.replace("  trajectory: stay\n", ""), TABLE, "next_observation must be named"),
        (ROWS.replace("unit: who", "order: r"), "", "order needs a trajectory"),
        (STAYS.replace("unit: patient", "unit: trajectory"), TABLE, "rename it"),
        (STAYS.replace("columns:", "colums:"), TABLE, "unknown key 'colums'"),
    ],
)
def test_errors_are_one_line_and_leave_nothing_behind(run, store, schema, table, message):
    with pytest.raises(ConfigError, match=message) as caught:
        run(schema, table)
    assert "\n" not in str(caught.value)
    assert not store.root.exists() or not list(store.root.iterdir())


EIGHT = "\n".join(line.removesuffix(",x").removesuffix(",unused") for line in TABLE.splitlines())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (EIGHT.replace("10,11,0", "10,5,0"), None),
        # a decimal comma: pandas took the first of nine fields for an index, and shifted the rest
        (EIGHT.replace("a,7,1,10,11", "a,7,1,10,5,3"), "line 4 has 9 fields, the header 8.*3.5"),
        (EIGHT.replace("a,7,1,10,11", "a,7,1,10,5,3").replace("\n", "\r\n"), "line 4 has 9"),
        (EIGHT.replace("pulse,", "pulse,,"), "line 2 has 8 fields, the header 9: complete it"),
        (
            "".join(f"{line},\n" for line in EIGHT.splitlines()).replace("died,", "died"),
            "comma sta",
        ),
        (EIGHT.replace("d,7,1,50,51,2,4,True", "d,7,1,50"), "line 8 has 4 fields, the header 8"),
        (
            EIGHT.replace(",", ";").replace("a;7;", "a;7,5;"),
            "read as separated by commas, and its header is separated by semicolons",
        ),
        (EIGHT + "\nd", "line 9 has 1 field, the header 8"),
        (EIGHT.replace(",False", ""), "line 3 has 7 fields, the header 8: complete it"),
        (EIGHT.replace("a,7,2", '"a\nb,c",7,2').replace("a,7,10,", "a,7,10,,"), "line 7 has 9"),
        (EIGHT.replace("stay,patient", "stays,patient"), "has no column stay"),
        (TABLE.replace("unused", "gain"), "several columns gain"),
        (EIGHT.replace("0070", '"0"07'), "no proper csv file: line 2"),
        (EIGHT.replace(",", ";"), "write `separator: semicolon` into its schema"),
        (EIGHT.replace(",", "\t"), "write `separator: tab` into its schema"),
        (
            EIGHT.replace(",", ";").replace("hour", "hour, 1 to 24"),
            "write `separator: semicolon` into its schema",
        ),
        (EIGHT.replace("10,11", '"10,5",11'), "'pulse' has numbers with a comma: .*3.5, not 3,5"),
    ],
)
def test_every_line_has_as_many_fields_as_the_header(run, store, table, message):
    if message is None:
        assert opened(run(STAYS, table).info("a-v0").total_steps) == 5
        return
    with pytest.raises(ConfigError, match=message):
        run(STAYS, table)
    assert not store.root.exists() or not list(store.root.iterdir())


@pytest.mark.parametrize(
    "table",
    [
        TABLE.replace("\n", "\r\n"),
        "\ufeff" + TABLE,
        TABLE + "\n\n   \n",
        "\n" + TABLE.removesuffix("\n"),
        TABLE.replace("unused", '"un,used"').replace(",x", ',"x, ""y""\nz"'),
        "".join(f"{line},\n" for line in TABLE.splitlines()),
        TABLE.replace(",x", ","),
    ],
)
def test_what_is_no_ragged_table(run, table):
    check_stays(run(STAYS, table))


@pytest.mark.parametrize(("name", "mark"), [("semicolon", ";"), ("tab", "\t"), ("bar", "|")])
def test_a_schema_declares_what_separates_fields(run, name, mark):
    schema = f"separator: {name}\n{STAYS}"
    table = TABLE.replace(",", mark).replace("unused", "not, or un;used\t|".replace(mark, ""))
    check_stays(run(schema, table))
    for wrong, message in (
        (TABLE, f"separated by {name}s, and its header is separated by commas"),
        (table.replace(f"{mark}False", ""), "line 3 has 8 fields, the header 9: complete it"),
        (table.replace(f"2{mark}11", f"2{mark}11{mark}0"), f"put texts with {name}s in quotes"),
        (table.replace(f"{mark}11{mark}", f"{mark}11,5{mark}"), "has numbers with a comma"),
        ("unused\n1\n", "has no column"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(schema, wrong, dataset="b-v0")


def test_files_that_are_not_there_or_of_another_kind(run, tmp_path, store):
    schema = tmp_path / "s.yaml"
    schema.write_text(STAYS)
    with pytest.raises(ConfigError, match="no file at"):
        import_file(tmp_path / "none.csv", load_schema(schema), store, "a-v0")
    with pytest.raises(ConfigError, match=r"must end in .csv, .parquet, .npz"):
        run(STAYS, TABLE, name="table.xlsx")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ConfigError, match="is no proper parquet file"):
        import_file(tmp_path / "bad.parquet", load_schema(schema), store, "a-v0")


def test_public_is_what_the_schema_declares(run):
    assert not run(STAYS, TABLE).info("a-v0").may_leave
    info = run("public: true\n" + STAYS, TABLE, dataset="b-v0").info("b-v0")
    assert opened(info.metadata)["declared_public"] is True
    assert info.may_leave
