import pandas as pd
import pytest

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data import exporting
from distributed_privrl.data.declared import ColumnsSchema, DeclaredTable
from distributed_privrl.data.exporting import export
from distributed_privrl.data.importing import import_file
from distributed_privrl.data.schema import load_schema
from distributed_privrl.data.trajectories import hash_unit
from tests.data.conftest import DISCRETE_SPACES, SPACES, assert_same, random_walk, walk

SCHEMA = """\
columns:
  observation: [observation_0, observation_1]
  action: [action_0]
  next_observation: [next_observation_0, next_observation_1]
  reward: reward
  terminated: terminated
  truncated: truncated
  {extra}
spaces:
  observation: {{type: box}}
  action: {{type: box, low: -1, high: 1}}
"""


def reimport(store, tmp_path, path, extra):
    schema = tmp_path / "schema.yaml"
    schema.write_text(SCHEMA.format(extra=extra))
    import_file(path, load_schema(schema), store, "again-v0")


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_trajectories_survive_export_and_import_bit_by_bit(store, tmp_path, file_format):
    written = random_walk(5, 7)
    written.truncated[6::7] = True
    store.write_trajectories("a-v0", written, unit_column="patient", **SPACES)
    out = tmp_path / f"out.{file_format}"
    export(store, "a-v0", file_format, out, chunk_rows=4)
    reimport(store, tmp_path, out, "trajectory: trajectory\n  order: step\n  unit: unit")
    assert_same(store.read_trajectories("again-v0"), written, but=("unit_ids",))
    assert [hash_unit(str(unit)) for unit in written.unit_ids] == store.read_trajectories(
        "again-v0"
    ).unit_ids.tolist()


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_transitions_survive_export_and_import_bit_by_bit(store, tmp_path, file_format):
    rows = random_walk(5, 7).transitions("transition")
    store.write_transitions("a-v0", rows, layout="transitions", **SPACES)
    out = tmp_path / f"out.{file_format}"
    export(store, "a-v0", file_format, out)
    reimport(store, tmp_path, out, "")
    assert_same(store.read_transitions("again-v0", unit="transition"), rows)


def test_a_table_has_the_names_of_the_schema_it_came_with(store, tmp_path):
    store.write_trajectories("a-v0", walk((2, 1)), **SPACES)
    columns = ColumnsSchema(
        observation=("x", "y"),
        action=("push",),
        reward="r",
        terminated="over",
        trajectory="stay",
        order="hour",
    )
    plain, named = tmp_path / "plain.csv", tmp_path / "named.csv"
    export(store, "a-v0", "csv", plain)
    export(store, "a-v0", "csv", named, declared=DeclaredTable(columns=columns), chunk_rows=2)
    left, right = pd.read_csv(plain), pd.read_csv(named)
    expected = ["stay", "step", "x", "y", "push", "r", "next_x", "next_y", "over", "truncated"]
    assert list(right) == expected
    assert right.to_numpy().tolist() == left.to_numpy().tolist()


ROW = ["stay", "step", "x", "y", "push", "r"]


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, ROW),
        ({"terminated": "last"}, ROW),
        ({"terminated": "over"}, [*ROW, "over"]),
        ({"next_observation": ("x2", "y2"), "truncated": "cut"}, [*ROW, "x2", "y2", "cut"]),
    ],
)
def test_rows_only_leaves_out_what_the_table_had_no_columns_of(store, tmp_path, more, names):
    store.write_trajectories("a-v0", walk((2, 1)), **SPACES)
    columns = ColumnsSchema(
        observation=("x", "y"), action="push", reward="r", trajectory="stay", **more
    )
    declared = DeclaredTable(columns=columns)
    whole, rows = tmp_path / "whole.csv", tmp_path / "rows.csv"
    export(store, "a-v0", "csv", whole, declared=declared)
    export(store, "a-v0", "csv", rows, declared=declared, rows_only=True, chunk_rows=2)
    found = pd.read_csv(rows)
    assert list(found) == names
    pd.testing.assert_frame_equal(found, pd.read_csv(whole)[names])


def test_rows_only_of_no_table_and_of_arrays(store, tmp_path):
    store.write_trajectories("a-v0", walk((2, 1)), **SPACES)
    export(store, "a-v0", "parquet", tmp_path / "rows.parquet", rows_only=True)
    names = ["trajectory", "step", "observation_0", "observation_1", "action_0", "reward"]
    assert list(pd.read_parquet(tmp_path / "rows.parquet")) == names
    with pytest.raises(ConfigError, match="rows alone are columns of csv and parquet"):
        export(store, "a-v0", "npz", tmp_path / "rows.npz", rows_only=True)


@pytest.mark.parametrize(
    ("first", "names"),
    [
        ("x", ["person", "step", "x", "y"]),
        ("year", ["person", "step", "year", "y"]),
        ("step", ["person", "step_number", "step", "y"]),
    ],
)
def test_no_number_of_a_step_is_called_as_the_column_that_sorted_the_rows(
    store, tmp_path, first, names
):
    rows = walk((2, 1))
    rows.observations[:, 0] += 1980
    store.write_trajectories("a-v0", rows, **SPACES)
    columns = ColumnsSchema(
        observation=(first, "y"), action="push", reward="r", trajectory="person", order="year"
    )
    export(store, "a-v0", "csv", tmp_path / "out.csv", declared=DeclaredTable(columns=columns))
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found)[:4] == names
    assert found[names[1]].tolist() == [0, 1, 0]
    assert (found[first] > 1970).all(), "what was observed has its own values"


def test_a_column_that_is_unit_and_trajectory_is_written_once(store, tmp_path):
    store.write_trajectories("a-v0", walk((2, 1)), unit_column="patient", **SPACES)
    columns = ColumnsSchema(
        observation=("x", "y"),
        action=("push",),
        reward="r",
        terminated="over",
        trajectory="patient",
        order="hour",
        unit="patient",
    )
    export(store, "a-v0", "csv", tmp_path / "named.csv", declared=DeclaredTable(columns=columns))
    found = pd.read_csv(tmp_path / "named.csv")
    assert list(found.columns).count("patient") == 1
    assert found["patient"].nunique() == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation": ("x",)}, "names 1 columns of observation, the dataset has 2"),
        ({"observation": ("x", "reward"), "reward": "reward"}, "two columns would be called rew"),
    ],
)
def test_a_schema_of_other_columns_is_refused(store, tmp_path, changes, message):
    store.write_trajectories("a-v0", walk((2, 1)), **SPACES)
    names = {"observation": ("x", "y"), "action": "push", "reward": "r", "terminated": "over"}
    columns = ColumnsSchema(**(names | changes))
    with pytest.raises(ConfigError, match=message):
        export(store, "a-v0", "csv", tmp_path / "out.csv", declared=DeclaredTable(columns=columns))
    assert list(tmp_path.glob("out*")) == []
    with pytest.raises(ConfigError, match="not npz's arrays"):
        export(store, "a-v0", "npz", tmp_path / "out.npz", declared=DeclaredTable(columns=columns))


def test_columns_of_a_table(store, tmp_path):
    written = walk((2, 1), discrete=True)
    store.write_trajectories("a-v0", written, unit_column="patient_id", **DISCRETE_SPACES)
    export(store, "a-v0", "csv", tmp_path / "out.csv")
    table = pd.read_csv(tmp_path / "out.csv")
    assert list(table.columns) == [
        *("trajectory", "step", "observation", "action", "reward", "next_observation"),
        *("terminated", "truncated", "unit"),
    ]
    assert table["trajectory"].tolist() == [0, 0, 1]
    assert table["step"].tolist() == [0, 1, 0]
    assert table["next_observation"].tolist() == [3, 4, 3]
    assert table["unit"].tolist() == written.unit_ids[[0, 0, 1]].tolist()


def test_a_suffix_of_another_format_is_refused(store, tmp_path):
    store.write_trajectories("a-v0", walk(), **SPACES)
    with pytest.raises(ConfigError, match=r"format is csv, and .*out\.npz ends in \.npz"):
        export(store, "a-v0", "csv", tmp_path / "out.npz")
    export(store, "a-v0", "csv", tmp_path / "out.data")
    assert [path.name for path in tmp_path.glob("out*")] == ["out.data"]


def test_nothing_is_overwritten_and_nothing_half_written(store, tmp_path, monkeypatch):
    store.write_trajectories("a-v0", walk(), **SPACES)
    out = tmp_path / "out.csv"
    out.write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        export(store, "a-v0", "csv", out)
    assert out.read_text() == "mine"
    with pytest.raises(ConfigError, match="format must be one of csv, parquet, npz, got 'x'"):
        export(store, "a-v0", "x", tmp_path / "x.npz")
    with pytest.raises(ConfigError, match="no dataset 'b-v0'"):
        export(store, "b-v0", "csv", tmp_path / "x.csv")

    def full(frames, path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "_write_csv", full)
    with pytest.raises(StorageError, match="No space left"):
        export(store, "a-v0", "csv", tmp_path / "x.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["datasets", "out.csv"]


def test_the_step_counter_crosses_chunks(store):
    import numpy as np

    counter = exporting._StepCounter()
    steps = [
        counter.number(np.array(chunk, dtype=np.uint64)).tolist()
        for chunk in ([0, 0], [0], [0, 1], [2, 2], [2, 3])
    ]
    assert steps == [[0, 1], [2], [3, 0], [0, 1], [2, 0]]
