"""NPZ and HDF5 files in D4RL's form, in and out."""

import h5py
import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data import exporting
from distributed_privrl.data.exporting import export
from distributed_privrl.data.importing import import_file
from distributed_privrl.data.schema import load_schema
from distributed_privrl.data.trajectories import hash_unit
from tests.data.conftest import SPACES, assert_same, walk
from tests.worlds.array_files import (
    D4RL,
    SUCCESSORS,
    Trap,
    arrays_of,
    write_hdf5,
    write_npz,
)

WRITERS = {".npz": write_npz, ".hdf5": write_hdf5, ".h5": write_hdf5}


@pytest.fixture(params=list(WRITERS))
def run(request, store, tmp_path):
    def run(arrays, *, extra="", split="true", schema=D4RL, dataset="a-v0"):
        path = tmp_path / f"data{request.param}"
        WRITERS[request.param](path, arrays)
        (tmp_path / "schema.yaml").write_text(schema.format(extra=extra, split=split))
        import_file(path, load_schema(tmp_path / "schema.yaml"), store, dataset)
        return store

    return run


@pytest.mark.parametrize("layout", ["episodes", "packed"])
def test_known_successors_give_every_step_back(run, layout):
    written = walk((3, 1, 4))
    store = run(arrays_of(written), extra=SUCCESSORS, schema=D4RL + f"layout: {layout}\n")
    assert_same(store.read_trajectories("a-v0"), written, but=("unit_ids",))
    assert store.info("a-v0").layout == layout


def test_without_successors_a_timeout_gives_the_final_observation(run):
    """Trajectories of 3 (timeout), 1 (terminal) and 4 (timeout) rows, as in the CSV import."""
    arrays = arrays_of(walk((3, 1, 4)))
    del arrays["next_observations"]
    read = run(arrays).read_trajectories("a-v0")
    assert read.lengths.tolist() == [2, 1, 3]
    assert read.observations.tolist() == [
        *([0, 0], [0, 1], [0, 2]),
        *([1, 0], [1, 0]),
        *([2, 0], [2, 1], [2, 2], [2, 3]),
    ]
    assert read.terminated.tolist() == [False, False, True, False, False, False]
    assert read.truncated.tolist() == [False, True, False, False, False, True]


def test_rows_after_the_last_flag_are_a_trajectory(run):
    arrays = arrays_of(walk((3, 2)))
    arrays["terminals"] = arrays["terminals"] & (np.arange(5) < 4)
    read = run(arrays, extra=SUCCESSORS).read_trajectories("a-v0")
    assert read.lengths.tolist() == [3, 2]
    assert read.truncated.tolist() == [False, False, True, False, True]


def test_rows_stand_alone_without_split_at_flags(run):
    written = walk((3, 1, 4))
    store = run(arrays_of(written), extra=SUCCESSORS, split="false")
    assert store.info("a-v0").kind == "transitions"
    assert_same(
        store.read_transitions("a-v0", unit="transition"), written.transitions("transition")
    )


def test_units_and_trajectories_of_their_own_arrays(run):
    arrays = arrays_of(walk((2, 1, 1))) | {
        "patient": np.array(["p07", "p07", "7", "p07"]),
        "stay": np.array([[4], [4], [9], [1]]),
    }
    store = run(arrays, extra=f"{SUCCESSORS}\n  unit: patient\n  trajectory: stay", split="false")
    read = store.read_trajectories("a-v0")
    assert read.lengths.tolist() == [2, 1, 1]
    assert read.unit_ids.tolist() == [hash_unit("p07"), hash_unit("7"), hash_unit("p07")]


def test_categories_of_one_and_of_several_components(run):
    schema = D4RL.replace("{{type: box}}", "{{type: multi_discrete, n: [3, 5], start: [0, 1]}}")
    schema = schema.replace("{{type: box, low: -1, high: 1}}", "{{type: discrete, n: 4}}")
    arrays = arrays_of(walk((3, 2)))
    arrays["observations"] = np.array([[0, 1], [1, 2], [2, 3], [0, 4], [1, 2.5]])
    arrays["next_observations"] = arrays["observations"]
    arrays["actions"] = np.array([[0], [1], [2], [3], [np.nan]])
    store = run(arrays, extra=SUCCESSORS, split="false", schema=schema)
    info = store.info("a-v0")
    assert info.observation_space.nvec.tolist() == [3, 5]
    assert info.observation_space.start.tolist() == [0, 1]
    rows = store.read_transitions("a-v0", unit="transition")
    assert rows.observations.dtype == np.int64
    assert rows.observations[:4].tolist() == arrays["observations"][:4].tolist()
    assert not info.observation_space.contains(rows.observations[4])
    assert rows.actions[:4].tolist() == [0, 1, 2, 3]
    assert rows.actions[4] < 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": None}, r"no column actions; it has .*observations, rewards"),
        ({"actions": np.zeros((4, 1))}, "as many rows, got observations 8, actions 4"),
        ({"actions": np.zeros((8, 1, 2))}, r"'actions' must be \(N,\) or \(N, W\), got shape"),
        ({"rewards": np.zeros((8, 2))}, r"'rewards' must be one value a row, got shape \(8, 2\)"),
        ({"rewards": np.array(["a"] * 8)}, "'rewards' must hold numbers"),
        ({"terminals": np.full(8, 0.5)}, "'terminals' must be true or false"),
        ({"rewards": np.float64(3)}, "'rewards' must be one value a row"),
        ({"next_observations": np.zeros((8, 2))}, "is not the observation of the trajectory's"),
        ({"next_observations": np.zeros((8, 3))}, "next_observation has 3 columns, observation 2"),
    ],
)
def test_errors_are_one_line_and_leave_nothing_behind(run, store, change, message):
    arrays = arrays_of(walk()) | change
    arrays = {name: values for name, values in arrays.items() if values is not None}
    with pytest.raises(ConfigError, match=message) as caught:
        run(arrays, extra=SUCCESSORS)
    assert "\n" not in str(caught.value)
    assert not store.root.exists() or not list(store.root.iterdir())


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (D4RL.replace("{extra}", "trajectory: x"), "exclude each other"),
        (D4RL.replace("split_at_flags: {split}\n", ""), "next_observation must be named"),
        (D4RL.replace("{extra}", "order: x"), "order needs a trajectory column"),
        (
            D4RL.replace("{split}", "false\nlayout: packed").replace("{extra}", SUCCESSORS),
            "layout='packed': needs",
        ),
        (D4RL.replace("type: box}}", "type: multi_discrete, n: [2]}}"), "n has 1 values, its part"),
    ],
)
def test_schemas_that_contradict_themselves(run, schema, message):
    with pytest.raises(ConfigError, match=message):
        run(arrays_of(walk()), schema=schema)


@pytest.mark.parametrize("name", ["x.npz", "x.hdf5"])
def test_files_of_another_kind_are_refused(store, tmp_path, name):
    (tmp_path / "schema.yaml").write_text(D4RL.format(extra="", split="true"))
    (tmp_path / name).write_bytes(b"PK garbage")
    with pytest.raises(ConfigError, match=r"is no proper (npz|hdf5) file"):
        import_file(tmp_path / name, load_schema(tmp_path / "schema.yaml"), store, "a-v0")


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.hdf5"])
def test_a_file_under_a_wrong_name_is_known_by_its_content(store, tmp_path, name):
    (tmp_path / "schema.yaml").write_text(D4RL.format(extra="", split="true"))
    with (tmp_path / name).open("wb") as file:
        np.savez_compressed(file, rewards=np.linspace(0, 1, 100))
    with pytest.raises(ConfigError, match=r"content is a zip archive.* ends in \.npz"):
        import_file(tmp_path / name, load_schema(tmp_path / "schema.yaml"), store, "a-v0")


@pytest.mark.parametrize("only", [False, True])
def test_pickles_are_never_loaded(store, tmp_path, only):
    arrays = {name: values for name, values in arrays_of(walk()).items() if name != "actions"}
    path = tmp_path / "x.npz"
    if only:
        with path.open("wb") as file:
            np.save(file, np.array([Trap()], dtype=object), allow_pickle=True)
    else:
        np.savez(path, actions=np.array([Trap()] * 8, dtype=object), **arrays)
    (tmp_path / "schema.yaml").write_text(D4RL.format(extra="", split="true"))
    message = "is no proper npz file" if only else "array 'actions' holds pickled Python objects"
    with pytest.raises(ConfigError, match=message):
        import_file(path, load_schema(tmp_path / "schema.yaml"), store, "a-v0")
    assert store.ids() == []


@pytest.mark.parametrize("layout", ["episodes", "packed"])
def test_exported_arrays_are_those_of_d4rl_and_come_back(store, tmp_path, layout):
    written = walk((3, 1, 4))
    store.write_trajectories("a-v0", written, unit_column="p", layout=layout, **SPACES)
    export(store, "a-v0", "npz", tmp_path / "out.npz", chunk_rows=3)
    with np.load(tmp_path / "out.npz") as file:
        arrays = dict(file)
    expected = arrays_of(written) | {
        "trajectory": [0, 0, 0, 1, 2, 2, 2, 2],
        "step": [0, 1, 2, 0, 0, 1, 2, 3],
        "unit": written.unit_ids[[0, 0, 0, 1, 2, 2, 2, 2]],
    }
    del expected["infos/seed"]
    assert list(arrays) == [
        *("trajectory", "step", "observations", "actions", "rewards", "next_observations"),
        *("terminals", "timeouts", "unit"),
    ]
    for name, values in expected.items():
        np.testing.assert_array_equal(arrays[name], values, name)
    assert arrays["observations"].dtype == np.float32
    assert arrays["terminals"].dtype == np.bool_
    (tmp_path / "schema.yaml").write_text(D4RL.format(extra=SUCCESSORS, split="true"))
    import_file(tmp_path / "out.npz", load_schema(tmp_path / "schema.yaml"), store, "b-v0")
    assert_same(store.read_trajectories("b-v0"), written, but=("unit_ids",))


def test_export_of_arrays_leaves_nothing_else_behind(store, tmp_path, monkeypatch):
    rows = walk().transitions("transition")
    store.write_transitions("a-v0", rows, layout="transitions", **SPACES)
    export(store, "a-v0", "npz", tmp_path / "a.npz", chunk_rows=2)
    export(store, "a-v0", "npz", tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    monkeypatch.setattr(exporting.shutil, "copyfileobj", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(store, "a-v0", "npz", tmp_path / "c.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz", "datasets"]


def test_a_file_in_the_layout_of_d4rls_kitchen_is_read(store, tmp_path):
    """Wide rows, no successors, groups beside them that no schema names."""
    source = np.random.default_rng(0)
    timeouts = np.isin(np.arange(20), (6, 19))
    arrays = {
        "observations": source.normal(size=(20, 60)).astype(np.float32),
        "actions": source.uniform(-1, 1, (20, 9)).astype(np.float32),
        "rewards": source.integers(0, 4, 20).astype(np.float32),
        "terminals": np.zeros(20, bool),
        "timeouts": timeouts,
        "infos/goal": np.zeros((20, 30)),
        "metadata/algorithm": np.array(["relay"]),
    }
    write_hdf5(tmp_path / "kitchen.hdf5", arrays)
    (tmp_path / "schema.yaml").write_text(D4RL.format(extra="", split="true"))
    import_file(tmp_path / "kitchen.hdf5", load_schema(tmp_path / "schema.yaml"), store, "k-v0")
    read = store.read_trajectories("k-v0")
    assert read.lengths.tolist() == [6, 12]
    np.testing.assert_array_equal(read.observations, arrays["observations"])
    np.testing.assert_array_equal(read.actions, arrays["actions"][~timeouts])
    assert np.flatnonzero(read.truncated).tolist() == [5, 17]


MINARI = """\
columns:
  observation: {observation}
  action: actions
  reward: rewards
  terminated: terminations
  truncated: truncations
  next_observation: next_{observation}
  trajectory: episode
spaces:
  observation: {{type: box}}
  action: {{type: box, low: -1, high: 1}}
"""


@pytest.fixture
def minari(store, tmp_path):
    """Return what imports a copy of a stored dataset's file, changed or not."""

    def run(written, observation="observations", change=lambda file: None):
        store.write_trajectories("m-v0", written, **SPACES)
        path = tmp_path / "main_data.hdf5"
        path.write_bytes((store.folder("m-v0") / "data" / "main_data.hdf5").read_bytes())
        with h5py.File(path, "r+") as file:
            change(file)
        (tmp_path / "schema.yaml").write_text(MINARI.format(observation=observation))
        import_file(path, load_schema(tmp_path / "schema.yaml"), store, "a-v0")
        return store.read_trajectories("a-v0")

    return run


def test_minaris_file_comes_in_as_it_was_written(minari):
    written = walk(tuple(range(1, 13)))  # more than ten: episode_10 comes after episode_9
    assert_same(minari(written), written, but=("unit_ids",))


def test_observations_of_a_dictionary_are_named_by_their_paths(minari):
    written = walk((3, 1, 4))

    def change(file):
        for episode in file.values():
            values = episode["observations"][()]
            del episode["observations"]
            episode["observations/observation"] = values
            episode["observations/achieved_goal/kettle"] = np.zeros((len(values), 2))

    assert_same(minari(written, "observations/observation", change), written, but=("unit_ids",))


@pytest.mark.parametrize(
    ("rows", "said"),
    [(7, "episode_1/actions has 7 rows for 1 rewards"), (0, "episode_1/actions is not there")],
)
def test_an_episode_that_does_not_add_up_is_named(minari, rows, said):
    def change(file):
        del file["episode_1/actions"]
        if rows:
            file["episode_1/actions"] = np.zeros((rows, 1))

    with pytest.raises(ConfigError, match=said):
        minari(walk((3, 1, 4)), change=change)
