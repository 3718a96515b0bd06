import json
import tracemalloc

import minari
import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data.exporting import export
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.packing import pack_rows, unpack_rows
from distributed_privrl.data.shards import load_trajectories, shard_refs
from distributed_privrl.data.trajectories import Trajectories, Transitions
from tests.data.conftest import DISCRETE_SPACES, SPACES, assert_same, random_walk, walk
from tests.worlds.opened import opened

LAYOUTS = ("episodes", "packed")


def joined(chunks):
    return Trajectories.concatenate(list(chunks))


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("unit_column", [None, "patient_id"])
def test_packed_trajectories_round_trip(store, discrete, unit_column):
    spaces = DISCRETE_SPACES if discrete else SPACES
    written = walk((3, 1, 4, 1), discrete=discrete)
    parts = (written.select([k]) for k in range(4))
    store.write_trajectories("a-v0", parts, layout="packed", unit_column=unit_column, **spaces)
    info = store.info("a-v0")
    assert (info.kind, info.layout) == ("trajectories", "packed")
    assert (opened(info.total_steps), opened(info.total_trajectories)) == (9, 4)
    assert info.unit_column == unit_column
    read = store.read_trajectories("a-v0")
    assert_same(read, written, but=("unit_ids",))
    expected = written.unit_ids if unit_column else np.arange(4)
    np.testing.assert_array_equal(read.unit_ids, expected)


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("unit", ["transition", "trajectory", "patient_id"])
def test_both_layouts_give_the_same_rows_and_trajectories(store, unit, chunk_rows):
    written = walk((3, 1, 4, 2))
    written.unit_ids[3] = written.unit_ids[0]  # one person, two trajectories
    for layout in LAYOUTS:
        store.write_trajectories(
            f"{layout}-v0", written, layout=layout, unit_column="patient_id", **SPACES
        )
    rows = store.read_transitions("episodes-v0", unit=unit)
    for wanted in (None, *np.unique(rows.unit_ids)):
        keep = None if wanted is None else lambda ids, w=wanted: ids == w
        options = {"unit": unit, "chunk_rows": chunk_rows, "keep": keep}
        read = {
            layout: Transitions.concatenate(list(store.iter_transitions(f"{layout}-v0", **options)))
            for layout in LAYOUTS
        }
        chosen = slice(None) if wanted is None else rows.unit_ids == wanted
        for layout in LAYOUTS:
            assert_same(read[layout], rows.select(chosen))
        if unit == "transition":
            continue
        units = written.unit_ids if unit == "patient_id" else np.arange(4)
        kept = np.arange(4) if wanted is None else np.flatnonzero(units == wanted)
        for layout in LAYOUTS:
            whole = joined(store.iter_trajectories(f"{layout}-v0", **options))
            assert_same(whole, written.select(kept), but=("unit_ids",))
            assert whole.unit_ids.tolist() == units[kept].tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_of_trajectories_are_whole_and_about_the_size_asked_for(store, layout):
    store.write_trajectories("a-v0", random_walk(40, 5), layout=layout, **SPACES)
    sizes = [
        len(chunk.rewards)
        for chunk in store.iter_trajectories("a-v0", unit="trajectory", chunk_rows=23)
    ]
    assert sum(sizes) == 200
    assert all(size % 5 == 0 for size in sizes)
    assert max(sizes) <= 23 + 5
    assert len(sizes) <= 10
    (long,) = store.iter_trajectories("a-v0", unit="trajectory", keep=lambda ids: ids == 7)
    assert long.unit_ids.tolist() == [7]


def test_units_that_no_trajectory_can_have_are_refused(store):
    store.write_trajectories("a-v0", walk(), layout="packed", unit_column="p", **SPACES)
    rows = walk().transitions("transition")
    store.write_transitions("b-v0", rows, layout="transitions", **SPACES)
    store.check_unit("a-v0", "trajectory")
    with pytest.raises(ConfigError, match="unit of whole trajectories must be trajectory or p"):
        store.iter_trajectories("a-v0", unit="transition")
    with pytest.raises(ConfigError, match="knows transition, trajectory, p"):
        store.iter_trajectories("a-v0", unit="doctor")
    with pytest.raises(ConfigError, match="independent transitions"):
        store.iter_trajectories("b-v0", unit="trajectory")
    with pytest.raises(ConfigError, match="chunk_rows must be at least 1, got 0"):
        store.iter_trajectories("a-v0", unit="p", chunk_rows=0)
    for layout in ("transitions", "x"):
        with pytest.raises(ConfigError, match="layout of trajectories must be episodes or packed"):
            store.write_trajectories("c-v0", walk(), layout=layout, **SPACES)
    with pytest.raises(ConfigError, match="layout of transitions must be transitions or episodes"):
        store.write_transitions("c-v0", rows, layout="packed", **SPACES)


def test_the_last_step_is_always_flagged(store):
    written = random_walk(3, 2)  # no step is flagged
    written.terminated[3] = True
    store.write_trajectories("a-v0", written, layout="packed", **SPACES)
    read = store.read_trajectories("a-v0")
    assert read.terminated.tolist() == [False, False, False, True, False, False]
    assert read.truncated.tolist() == [False, True, False, False, False, True]
    assert not written.truncated.any()  # the caller's rows stay as they are


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_trajectories_that_cannot_be_told_apart_again_are_refused(store, flag):
    written = walk((3, 2))
    getattr(written, flag)[1] = True
    with pytest.raises(ConfigError, match="stop where they are terminated or truncated"):
        store.write_trajectories("a-v0", written, layout="packed", **SPACES)
    with pytest.raises(ConfigError, match="without steps"):
        store.write_trajectories("a-v0", walk((3, 0, 2)), layout="packed", **SPACES)
    assert store.ids() == []


@pytest.mark.parametrize("discrete", [False, True])
def test_plain_minari_opens_it_and_is_told_that_it_is_packed(store, discrete):
    spaces = DISCRETE_SPACES if discrete else SPACES
    written = walk(discrete=discrete)
    rows = pack_rows(written)
    store.write_trajectories("a-v0", written, layout="packed", unit_column="p", **spaces)
    dataset = minari.load_dataset("a-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (1, 8)
    assert dataset.observation_space == spaces["observation_space"]
    (episode,) = dataset.iterate_episodes()
    np.testing.assert_array_equal(episode.observations[:-1], rows.observations)
    np.testing.assert_array_equal(episode.infos["next_observation"], rows.next_observations)
    np.testing.assert_array_equal(episode.infos["unit_id"], rows.unit_ids)
    np.testing.assert_array_equal(
        episode.terminations | episode.truncations, rows.terminated | rows.truncated
    )
    description = dataset.storage.metadata["description"]
    assert "Trajectories packed in one episode" in description
    assert "infos['next_observation'][t]" in description


def test_fingerprint_and_export_do_not_depend_on_the_layout(store, tmp_path):
    for layout in LAYOUTS:
        store.write_trajectories(f"{layout}-v0", walk(), layout=layout, unit_column="p", **SPACES)
        export(store, f"{layout}-v0", "csv", tmp_path / f"{layout}.csv", chunk_rows=3)
    prints = {inspect(store, f"{layout}-v0", chunk_rows=3).fingerprint for layout in LAYOUTS}
    assert len(prints) == 1
    assert (tmp_path / "packed.csv").read_text() == (tmp_path / "episodes.csv").read_text()
    assert inspect(store, "packed-v0", public_ids=["episodes-v0"]).overlap


def test_rows_that_never_end_are_damage(store):
    rows = pack_rows(walk())
    with pytest.raises(StorageError, match="last trajectory does not end"):
        list(unpack_rows([rows.select(slice(5)), rows.select(slice(5, 7))], "a-v0"))
    store.write_trajectories("a-v0", walk(), layout="packed", **SPACES)
    next(path for path in store.files("a-v0") if path.suffix == ".parquet").unlink()
    with pytest.raises(StorageError, match="cannot read"):
        store.read_trajectories("a-v0")


def test_sets_of_an_earlier_version_count_their_trajectories(store):
    store.write_trajectories("a-v0", walk(), **SPACES)
    store.write_transitions(
        "b-v0", walk().transitions("transition"), layout="transitions", **SPACES
    )
    for dataset, expected in (("a-v0", 3), ("b-v0", 0)):
        path = store.root / dataset / "data" / "metadata.json"
        values = json.loads(path.read_text())
        del values["distributed_privrl"]["total_trajectories"]
        path.write_text(json.dumps(values))
        assert opened(store.info(dataset).total_trajectories) == expected


def test_many_short_trajectories_are_written_and_read_as_a_stream(store):
    """Memory is that of a few chunks, and a trajectory costs below 1 KB of disk."""

    def parts():
        for seed in range(20):
            yield random_walk(500, 9, seed=seed)

    chunk = 500 * 10 * (2 * 4 + 4 + 4 + 2 + 8 + 2 * 4)
    tracemalloc.start()
    store.write_trajectories("a-v0", parts(), layout="packed", **SPACES)
    total = sum(
        len(part) for part in store.iter_trajectories("a-v0", unit="trajectory", chunk_rows=4_500)
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 10_000
    assert peak < 10 * chunk
    assert sum(path.stat().st_size for path in store.files("a-v0")) < 10_000 * 1_000


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("most", [1, 2, 3, 6, 100])
def test_trajectories_are_cut_while_they_are_read(store, layout, chunk_rows, most):
    """It is the same as to read them whole and to cut them."""
    written = walk((3, 7, 1, 6, 2))
    store.write_trajectories("a-v0", written, layout=layout, unit_column="p", **SPACES)
    for keep in (None, lambda ids: ids != written.unit_ids[1]):
        whole = joined(store.iter_trajectories("a-v0", unit="p", keep=keep))
        read = joined(
            store.iter_trajectories(
                "a-v0", unit="p", chunk_rows=chunk_rows, keep=keep, most_rows=most
            )
        )
        assert_same(read, whole.cut(np.full(len(whole), most)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_beyond_the_cap_need_no_memory(store, layout):
    """Whether a worker runs out of memory would tell of one person's trajectory."""
    peaks = []
    for name, steps in (("a-v0", 20_000), ("b-v0", 60_000)):
        long = random_walk(1, steps)
        store.write_trajectories(name, long, layout=layout, unit_column="p", **SPACES)
        (ref,) = shard_refs(store, name, count=1, unit="p", max_rows_per_unit=10)
        tracemalloc.start()
        read = load_trajectories(ref, chunk_rows=1000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert_same(read, long.cut(np.array([10])))
    assert peaks[1] < 1.2 * peaks[0]
