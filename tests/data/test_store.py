import errno
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from minari.data_collector import EpisodeBuffer

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data import writing
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, Transitions
from tests.data.conftest import (
    ACTION_SPACE,
    DISCRETE_SPACES,
    OBSERVATION_SPACE,
    SPACES,
    assert_same,
    random_walk,
    walk,
)
from tests.worlds.opened import opened


def check_nothing_left(store):
    assert not store.root.exists() or not list(store.root.iterdir())


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("unit_column", [None, "patient_id"])
def test_trajectories_round_trip(store, discrete, unit_column):
    spaces = DISCRETE_SPACES if discrete else SPACES
    written = walk(discrete=discrete)
    parts = (written.select([k]) for k in range(3))
    store.write_trajectories("clinic/stays-v0", parts, unit_column=unit_column, **spaces)
    read = store.read_trajectories("clinic/stays-v0")
    assert_same(read, written, but=("unit_ids",))
    expected = written.unit_ids if unit_column else np.arange(3)
    np.testing.assert_array_equal(read.unit_ids, expected)


def test_info_of_trajectories(store):
    store.write_trajectories(
        "clinic/stays-v0",
        walk(),
        environment="CartPole-v1",
        unit_column="patient_id",
        metadata={"description": "stays", "privacy_certificate": {"epsilon": 1.5}},
        **SPACES,
    )
    info = store.info("clinic/stays-v0")
    assert (info.kind, info.layout) == ("trajectories", "episodes")
    assert (opened(info.total_steps), opened(info.total_trajectories)) == (8, 3)
    assert (info.environment, info.unit_column) == ("CartPole-v1", "patient_id")
    assert info.observation_space == OBSERVATION_SPACE
    assert info.action_space == ACTION_SPACE
    assert opened(info.metadata) == {
        "description": "stays",
        "privacy_certificate": {"epsilon": 1.5},
    }
    assert store.ids() == ["clinic/stays-v0"]


@pytest.mark.parametrize("discrete", [False, True])
def test_plain_minari_reads_trajectories(store, discrete):
    spaces = DISCRETE_SPACES if discrete else SPACES
    written = walk(discrete=discrete)
    store.write_trajectories(
        "clinic/stays-v0", written, environment="CartPole-v1", unit_column="patient_id", **spaces
    )
    dataset = minari.load_dataset("clinic/stays-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 8)
    assert dataset.env_spec.id == "CartPole-v1"
    assert dataset.observation_space == spaces["observation_space"]
    for k, episode in enumerate(dataset.iterate_episodes()):
        own = written.select([k])
        np.testing.assert_array_equal(episode.observations, own.observations)
        np.testing.assert_array_equal(episode.actions, own.actions)
        np.testing.assert_array_equal(episode.rewards, own.rewards)
        np.testing.assert_array_equal(episode.terminations, own.terminated)
        np.testing.assert_array_equal(episode.truncations, own.truncated)
        assert dataset.observation_space.contains(episode.observations[0])
        assert repr(episode)
    attributes = list(dataset.storage.get_episode_metadata(range(3)))
    assert [int(a["unit_id"]) for a in attributes] == written.unit_ids.tolist()
    assert [int(a["total_steps"]) for a in attributes] == [3, 1, 4]
    assert "clinic/stays-v0" in minari.list_local_datasets()


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("layout", ["transitions", "episodes"])
@pytest.mark.parametrize("unit_column", [None, "patient_id"])
def test_transitions_round_trip(store, discrete, layout, unit_column):
    spaces = DISCRETE_SPACES if discrete else SPACES
    rows = walk(discrete=discrete).transitions("patient_id")
    chunks = (rows.select(slice(i, i + 3)) for i in range(0, 9, 3))
    store.write_transitions("a-v0", chunks, layout=layout, unit_column=unit_column, **spaces)
    info = store.info("a-v0")
    assert (info.kind, info.layout, opened(info.total_steps)) == ("transitions", layout, 8)
    assert opened(info.total_trajectories) == 0
    assert_same(
        store.read_transitions("a-v0", unit=unit_column or "transition"),
        rows,
        but=() if unit_column else ("unit_ids",),
    )
    assert store.read_transitions("a-v0", unit="transition").unit_ids.tolist() == list(range(8))


@pytest.mark.parametrize("discrete", [False, True])
def test_plain_minari_finds_known_successors_in_every_layout(store, discrete):
    spaces = DISCRETE_SPACES if discrete else SPACES
    rows = walk(discrete=discrete).transitions("transition")
    store.write_transitions("packed-v0", rows, layout="transitions", **spaces)
    store.write_transitions("single-v0", rows, layout="episodes", **spaces)

    (packed,) = minari.load_dataset("packed-v0").iterate_episodes()
    np.testing.assert_array_equal(packed.observations[:-1], rows.observations)
    np.testing.assert_array_equal(packed.observations[-1], rows.next_observations[-1])
    np.testing.assert_array_equal(packed.infos["next_observation"], rows.next_observations)
    np.testing.assert_array_equal(packed.actions, rows.actions)
    np.testing.assert_array_equal(packed.terminations, rows.terminated)
    metadata = minari.load_dataset("packed-v0").storage.metadata
    assert "infos['next_observation'][t]" in metadata["description"]
    assert metadata["distributed_privrl"]["next_observation"] == "infos/next_observation"

    single = minari.load_dataset("single-v0")
    assert (single.total_episodes, single.total_steps) == (8, 8)
    for i, episode in enumerate(single.iterate_episodes()):
        np.testing.assert_array_equal(episode.observations[0], rows.observations[i])
        np.testing.assert_array_equal(episode.observations[1], rows.next_observations[i])
        np.testing.assert_array_equal(episode.actions[0], rows.actions[i])
        assert bool(episode.terminations[0]) != bool(episode.truncations[0])


def test_parquet_has_the_columns_rllib_reads(store):
    import pyarrow.parquet as pq

    rows = walk().transitions("patient_id")
    store.write_transitions("a-v0", rows, layout="transitions", unit_column="p", **SPACES)
    (path,) = (p for p in store.files("a-v0") if p.name == "transitions.parquet")
    table = pq.read_table(path)
    assert table.column_names == [
        *("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds", "unit")
    ]
    assert table["new_obs"].to_pylist() == rows.next_observations.tolist()


@pytest.mark.parametrize("kind", ["trajectories", "transitions", "single"])
@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 5, 100])
def test_chunks_hold_the_rows_in_order(store, kind, chunk_rows):
    written = walk((3, 1, 4))
    rows = written.transitions("patient_id")
    if kind == "trajectories":
        store.write_trajectories("a-v0", written, unit_column="patient_id", **SPACES)
    else:
        layout = "episodes" if kind == "single" else "transitions"
        store.write_transitions("a-v0", rows, layout=layout, unit_column="patient_id", **SPACES)
    for unit in ("patient_id", "transition"):
        chunks = list(store.iter_transitions("a-v0", unit=unit, chunk_rows=chunk_rows))
        assert max(map(len, chunks)) <= chunk_rows
        joined = Transitions.concatenate(chunks)
        assert_same(joined, written.transitions(unit))
        for wanted in joined.unit_ids:
            kept = list(
                store.iter_transitions(
                    "a-v0", unit=unit, chunk_rows=chunk_rows, keep=lambda ids, w=wanted: ids == w
                )
            )
            assert_same(Transitions.concatenate(kept), joined.select(joined.unit_ids == wanted))


def plain_minari(dataset, observation_space, observations, infos=None, steps=3):
    buffers = [
        EpisodeBuffer(
            observations=observations(k),
            actions=np.full((steps, 1), k, dtype=np.float32),
            rewards=[float(k)] * steps,
            terminations=[False] * (steps - 1) + [True],
            truncations=[False] * steps,
            infos={} if infos is None else infos(k),
        )
        for k in range(2)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            dataset,
            buffers,
            observation_space=observation_space,
            action_space=ACTION_SPACE,
            data_format="hdf5",
        )


def test_foreign_minari_sets_are_read(store):
    space = Box(-10, 10, (2,), np.float64)
    plain_minari("far/away-v0", space, lambda k: np.array([[k, t] for t in range(4)], float))
    info = store.info("far/away-v0")
    assert (info.kind, opened(info.total_steps), opened(info.total_trajectories)) == (
        "trajectories",
        6,
        2,
    )
    rows = store.read_transitions("far/away-v0", unit="trajectory")
    assert rows.observations.tolist() == [[k, t] for k in range(2) for t in range(3)]
    assert rows.next_observations.tolist() == [[k, t + 1] for k in range(2) for t in range(3)]
    assert rows.unit_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert rows.terminated.tolist() == [False, False, True] * 2
    assert store.read_trajectories("far/away-v0").lengths.tolist() == [3, 3]


def test_foreign_dictionaries_are_flattened_as_gymnasium_does(store):
    space = Dict(z=Box(-10, 10, (1,), np.float64), a=Box(-10, 10, (2,), np.float64))
    plain_minari(
        "goal-v0",
        space,
        lambda k: {
            "z": np.array([[100 + t] for t in range(4)], float),
            "a": np.array([[k, t] for t in range(4)], float),
        },
    )
    sample = {"z": np.array([100.0]), "a": np.array([1.0, 0.0])}
    rows = store.read_transitions("goal-v0", unit="transition")
    assert store.info("goal-v0").observation_space.shape == (3,)
    stored = minari.load_dataset("goal-v0").observation_space
    np.testing.assert_array_equal(rows.observations[3], gymnasium.spaces.flatten(stored, sample))


def test_packed_rows_that_went_through_minari_keep_their_successors(store):
    plain_minari(
        "again-v0",
        OBSERVATION_SPACE,
        lambda k: np.zeros((4, 2), np.float32),
        infos=lambda k: {"next_observation": np.array([[k, 9 + t] for t in range(3)])},
    )
    for chunk_rows in (2, 100):
        chunks = store.iter_transitions("again-v0", unit="transition", chunk_rows=chunk_rows)
        rows = Transitions.concatenate(list(chunks))
        assert rows.next_observations.tolist() == [[k, 9 + t] for k in range(2) for t in range(3)]
    with pytest.raises(ConfigError, match="independent transitions, not trajectories"):
        store.read_trajectories("again-v0")
    # Minari's own infos have one row more, for the reset: not successors.
    plain_minari(
        "infos-v0",
        OBSERVATION_SPACE,
        lambda k: np.full((4, 2), 5, np.float32),
        infos=lambda k: {"next_observation": np.zeros((4, 2))},
    )
    assert store.read_transitions("infos-v0", unit="transition").next_observations.min() == 5


BAD_IDS = [
    "",
    "a",
    "a-v",
    "../a-v0",
    "a/../../b-v0",
    "a//b-v0",
    "/a-v0",
    "a b-v0",
    "a-v0/",
    ".a-v0",
]


@pytest.mark.parametrize("dataset", BAD_IDS)
def test_bad_ids_leave_nothing_behind(store, dataset):
    rows = walk().transitions("transition")
    for write in (
        lambda: store.write_trajectories(dataset, walk(), **SPACES),
        lambda: store.write_transitions(dataset, rows, layout="transitions", **SPACES),
        lambda: store.info(dataset),
    ):
        with pytest.raises(ConfigError, match="must look like"):
            write()
    check_nothing_left(store)


def test_existing_ids_are_kept_as_they_are(store):
    store.write_trajectories("a-v0", walk((2,)), **SPACES)
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="exists already"):
        store.write_trajectories("a-v0", walk(), **SPACES)
    with pytest.raises(ConfigError, match="would lie inside the dataset 'a-v0'"):
        store.write_trajectories("a-v0/b-v0", walk(), **SPACES)
    after = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    assert before == after


def test_missing_datasets_are_named_with_near_ones(store):
    with pytest.raises(ConfigError, match=r"the folder holds none; .* set MINARI_DATASETS_PATH"):
        store.info("clinic/stays-v0")
    store.write_trajectories("clinic/stays-v0", walk(), **SPACES)
    with pytest.raises(ConfigError, match="it has clinic/stays-v0, other data"):
        store.info("clinic/stay-v0")


def broken_chunks():
    yield walk()
    raise RuntimeError("the source broke")


def wrong_chunks():
    yield walk()
    yield random_walk(1, 3, width=5)


@pytest.mark.parametrize(
    ("chunks", "error", "message"),
    [
        (broken_chunks, RuntimeError, "the source broke"),
        (wrong_chunks, ConfigError, r"observations has rows of shape \(5,\)"),
        (lambda: iter(()), ConfigError, "no steps"),
        (lambda: iter([walk((0, 0))]), ConfigError, "no steps"),
    ],
)
@pytest.mark.parametrize("kind", ["trajectories", "transitions", "episodes"])
def test_failures_leave_nothing_behind(store, chunks, error, message, kind):
    source, write, options = chunks(), store.write_trajectories, SPACES
    if kind != "trajectories":
        source = (chunk.transitions("transition") for chunk in source)
        write, options = store.write_transitions, {**SPACES, "layout": kind}
    with pytest.raises(error, match=message):
        write("space/a-v0", source, **options)
    check_nothing_left(store)


@pytest.mark.parametrize(
    "target",
    [
        "distributed_privrl.data.episode_writer.EpisodeWriter.write",
        "distributed_privrl.data.episode_writer.EpisodeWriter.__exit__",
        "distributed_privrl.data.transaction.os.rename",
        "distributed_privrl.data.transaction.os.fsync",
        "pathlib.Path.write_text",
    ],
)
def test_a_full_disk_leaves_nothing_behind(store, monkeypatch, target):
    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(target, full)
    with pytest.raises(StorageError, match="free some space"):
        store.write_trajectories("a-v0", walk(), **SPACES)
    check_nothing_left(store)


def test_a_full_disk_while_writing_transitions_leaves_nothing_behind(store, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("distributed_privrl.data.table.pq.ParquetWriter.write_table", full)
    rows = walk().transitions("transition")
    with pytest.raises(StorageError, match="No space left"):
        store.write_transitions("a-v0", rows, layout="transitions", **SPACES)
    check_nothing_left(store)


def test_the_episodes_layout_is_refused_above_its_limit(store, monkeypatch):
    monkeypatch.setattr(writing, "MOST_EPISODES", 7)
    rows = walk().transitions("transition")
    with pytest.raises(ConfigError, match="at most 7 rows, got at least 8: use layout"):
        store.write_transitions("a-v0", rows, layout="episodes", **SPACES)
    check_nothing_left(store)


def test_metadata_is_updated_in_place(store):
    store.write_trajectories("a-v0", walk(), metadata={"note": 1}, **SPACES)
    hashed = [path.read_bytes() for path in store.files("a-v0")]
    store.update_metadata("a-v0", {"privacy_certificate": {"epsilon": 2.0}})
    assert opened(store.info("a-v0").metadata)["privacy_certificate"] == {"epsilon": 2.0}
    assert opened(store.info("a-v0").metadata)["note"] == 1
    assert [path.read_bytes() for path in store.files("a-v0")] == hashed
    loaded = minari.load_dataset("a-v0").storage.metadata
    assert loaded["privacy_certificate"] == {"epsilon": 2.0}
    with pytest.raises(ConfigError, match="metadata keys total_steps are set by the writer"):
        store.update_metadata("a-v0", {"total_steps": 1})
    with pytest.raises(ConfigError, match="must be JSON values"):
        store.write_trajectories("b-v0", walk(), metadata={"x": np.zeros(2)}, **SPACES)
    assert store.ids() == ["a-v0"]


def test_units_that_the_dataset_does_not_know_are_refused(store):
    store.write_trajectories("a-v0", walk(), unit_column="patient_id", **SPACES)
    rows = walk().transitions("transition")
    store.write_transitions("b-v0", rows, layout="transitions", **SPACES)
    with pytest.raises(ConfigError, match="knows transition, trajectory, patient_id"):
        store.iter_transitions("a-v0", unit="doctor_id")
    with pytest.raises(ConfigError, match="has no unit 'trajectory': it knows transition"):
        store.iter_transitions("b-v0", unit="trajectory")
    with pytest.raises(ConfigError, match="independent transitions"):
        store.read_trajectories("b-v0")
    with pytest.raises(ConfigError, match="unit_column must be a column's name"):
        store.write_trajectories("c-v0", walk(), unit_column="trajectory", **SPACES)


@pytest.mark.parametrize("damage", ["no file", "no group", "garbage", "short", "metadata"])
def test_damage_is_a_storage_error(store, damage):
    store.write_trajectories("a-v0", walk(), **SPACES)
    (path,) = store.files("a-v0")
    if damage == "no file":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(b"garbage")
    elif damage == "metadata":
        (path.parent / "metadata.json").write_text("{")
    else:
        with h5py.File(path, "a") as file:
            if damage == "no group":
                del file["episode_1"]
            else:
                del file["episode_1/observations"]
                file["episode_1/observations"] = np.zeros((1, 2), np.float32)
    with pytest.raises(StorageError, match=r"damaged|cannot read"):
        store.read_transitions("a-v0", unit="transition")


def test_a_damaged_table_is_a_storage_error(store):
    rows = walk().transitions("transition")
    store.write_transitions("a-v0", rows, layout="transitions", **SPACES)
    (path,) = (p for p in store.files("a-v0") if p.suffix == ".parquet")
    path.write_bytes(b"garbage")
    with pytest.raises(StorageError, match="damaged"):
        store.read_transitions("a-v0", unit="transition")


def test_other_formats_are_refused_in_one_line(store):
    store.write_trajectories("a-v0", walk(), **SPACES)
    path = store.root / "a-v0" / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_format": "arrow"}))
    with pytest.raises(ConfigError, match="is stored as arrow"):
        store.info("a-v0")


def test_boxes_of_several_axes_are_flat_in_rows_and_shaped_for_minari(store):
    space = Box(-1, 1, (2, 3), np.float32)
    written = random_walk(2, 3, width=6)
    store.write_trajectories("a-v0", written, observation_space=space, action_space=ACTION_SPACE)
    assert_same(store.read_trajectories("a-v0"), written, but=("unit_ids",))
    episode = minari.load_dataset("a-v0")[0]
    assert episode.observations.shape == (4, 2, 3)


def test_values_that_are_not_finite_survive(store):
    written = walk()
    written.observations[2, 0], written.rewards[3] = np.nan, np.inf
    store.write_trajectories("a-v0", written, **SPACES)
    assert_same(store.read_trajectories("a-v0"), written, but=("unit_ids",))
    rows = written.transitions("transition")
    store.write_transitions("b-v0", rows, layout="transitions", **SPACES)
    assert_same(store.read_transitions("b-v0", unit="transition"), rows)


def test_the_default_root_is_minaris(monkeypatch, tmp_path):
    monkeypatch.delenv("MINARI_DATASETS_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert DatasetStore().root == tmp_path / ".minari" / "datasets"
    assert DatasetStore(tmp_path / "x").root == tmp_path / "x"
    assert not list(tmp_path.iterdir())


def test_one_step_episodes_stay_small(store):
    """A one-step episode costs below 5 KB (Minari's own writer: 14 KB)."""
    rows = random_walk(100, 5).transitions("transition")
    store.write_transitions("a-v0", rows, layout="episodes", **SPACES)
    (path,) = (p for p in store.files("a-v0") if p.suffix == ".hdf5")
    assert path.stat().st_size < 5_000 * 500


@pytest.mark.parametrize("layout", ["episodes", "packed"])
def test_no_array_of_a_file_has_the_time_when_it_was_written(store, layout):
    """HDF5 knows seconds: the same rows, a second later, are the same bytes."""
    contents = []
    for dataset in ("test/first-v0", "test/second-v0"):
        store.write_trajectories(dataset, random_walk(2, 3), layout=layout, **SPACES)
        contents.append((store.root / dataset / "data/main_data.hdf5").read_bytes())
        time.sleep(1.01)
    assert contents[0] == contents[1]


def test_trajectories_without_steps_are_read_back(store):
    written = walk((2, 0, 1))
    store.write_trajectories("a-v0", written, unit_column="p", **SPACES)
    assert_same(store.read_trajectories("a-v0"), written)
    assert isinstance(store.read_trajectories("a-v0"), Trajectories)
    assert_same(store.read_transitions("a-v0", unit="p"), written.transitions("p"))


FULL_DISK = """
import resource, sys
from pathlib import Path
from distributed_privrl.core.errors import StorageError
from distributed_privrl.data.store import DatasetStore
from tests.data.conftest import SPACES, random_walk

store, written = DatasetStore(Path(sys.argv[1])), random_walk(300, 20)
rows = written.transitions("transition")
for limit in (1_000, 60_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for write in (
        lambda: store.write_trajectories("a-v0", written, **SPACES),
        lambda: store.write_transitions("b-v0", rows, layout="transitions", **SPACES),
        lambda: store.write_transitions("c-v0", rows, layout="episodes", **SPACES),
    ):
        try:
            write()
        except StorageError:
            continue
        sys.exit("written beyond the limit")
"""


def test_writes_that_really_fail_do_not_end_the_process(store):
    """HDF5 itself crashes the process when a write fails."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(store.root)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    check_nothing_left(store)
