import pickle
import tracemalloc

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder, load_fragments
from distributed_privrl.data.hashing import mix
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.shards import (
    ShardRef,
    load_shard,
    load_trajectories,
    shard_of,
    shard_refs,
)
from tests.data.conftest import (
    ACTION_SPACE,
    DISCRETE_SPACES,
    OBSERVATION_SPACE,
    SPACES,
    assert_same,
    random_walk,
    walk,
)

ENCODER = TransitionEncoder(
    OBSERVATION_SPACE, ACTION_SPACE, Scaling(offset=np.zeros(7), scale=np.ones(7))
)


def by_unit(shards):
    """Each unit's rows, over all shards."""
    found = {}
    for shard in shards:
        for u, unit in enumerate(shard.unit_ids.tolist()):
            assert unit not in found
            rows = slice(shard.offsets[u], shard.offsets[u + 1])
            found[unit] = (shard.rows[rows].tolist(), shard.valid[rows].tolist())
    return found


def expected(store, dataset, unit):
    return expected_of(store.read_transitions(dataset, unit=unit))


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        ("trajectories", "transition"),
        ("trajectories", "trajectory"),
        ("trajectories", "patient_id"),
        ("transitions", "transition"),
        ("transitions", "patient_id"),
    ],
)
def test_shards_partition_the_units_whatever_their_number(store, kind, unit):
    written = random_walk(12, 3)
    written.unit_ids[:] = written.unit_ids[[0, 1, 2, 0, 1, 5, 6, 7, 0, 9, 10, 11]]  # spread units
    if kind == "trajectories":
        store.write_trajectories("a-v0", written, unit_column="patient_id", **SPACES)
    else:
        rows = written.transitions("patient_id")
        store.write_transitions(
            "a-v0", rows, layout="transitions", unit_column="patient_id", **SPACES
        )
    reference = expected(store, "a-v0", unit)
    for count in (1, 2, 5):
        refs = shard_refs(store, "a-v0", count=count, unit=unit)
        shards = [load_shard(pickle.loads(pickle.dumps(ref)), ENCODER) for ref in refs]
        assert by_unit(shards) == reference
        for index, shard in enumerate(shards):
            assert (shard_of(shard.unit_ids, count) == index).all()
            assert (np.diff(shard.unit_ids.astype(object)) > 0).all()
            assert shard.rows.dtype == np.float32


def test_shards_are_stable_across_versions():
    """Known values: a run that resumes after an upgrade finds its units where they were."""
    ids = np.array([0, 1, 2, 2**63, 2**64 - 1], dtype=np.uint64)
    assert hex(int(mix(ids)[0])) == "0xe220a8397b1dcdaf"
    assert shard_of(ids, 7).tolist() == [int(v) % 7 for v in mix(ids)]
    assert shard_of(ids, 4).tolist() == [3, 1, 2, 3, 0]


def test_units_are_balanced():
    for ids in (np.arange(100_000), np.arange(100_000) * 4, np.arange(100_000) << 32):
        counts = np.bincount(shard_of(ids.astype(np.uint64), 4), minlength=4)
        assert np.abs(counts - 25_000).max() < 5 * np.sqrt(100_000 * 3 / 16)


def test_null_rows_stay_with_their_unit(store):
    written = walk((3, 2))
    written.observations[1, 0] = np.nan
    store.write_trajectories("a-v0", written, **SPACES)
    (ref,) = shard_refs(store, "a-v0", count=1, unit="trajectory")
    shard = load_shard(ref, ENCODER)
    assert shard.valid.tolist() == [False, False, True, True, True]
    assert shard.offsets.tolist() == [0, 3, 5]
    assert not shard.rows[:2].any()


def test_the_cap_keeps_each_units_first_rows(store):
    store.write_trajectories("a-v0", walk((3, 1, 4)), **SPACES)
    (ref,) = shard_refs(store, "a-v0", count=1, unit="trajectory", max_rows_per_unit=2)
    shard = load_shard(ref, ENCODER)
    assert shard.offsets.tolist() == [0, 2, 3, 5]
    assert shard.rows[:, :2].tolist() == [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]]


def test_an_empty_shard_is_empty(store):
    store.write_trajectories("a-v0", walk((2,)), **SPACES)
    shards = [
        load_shard(ref, ENCODER) for ref in shard_refs(store, "a-v0", count=3, unit="trajectory")
    ]
    assert sorted(len(shard.unit_ids) for shard in shards) == [0, 0, 1]
    empty = next(shard for shard in shards if len(shard.unit_ids) == 0)
    assert empty.rows.shape == (0, 7)
    assert empty.offsets.tolist() == [0]


@pytest.mark.parametrize("kind", ["trajectories", "transitions"])
def test_a_worker_holds_its_own_shard_and_a_chunk(store, kind):
    written = random_walk(200, 500)
    if kind == "trajectories":
        store.write_trajectories("a-v0", written, **SPACES)
    else:
        rows = written.transitions("transition")
        chunks = (rows.select(slice(i, i + 2_000)) for i in range(0, 100_000, 2_000))
        store.write_transitions("a-v0", chunks, layout="transitions", **SPACES)
        del rows
    whole = 100_000 * 7 * 4
    del written
    ref = ShardRef(root=str(store.root), dataset="a-v0", index=0, count=20, unit="transition")
    load_shard(ref, ENCODER, chunk_rows=2_000)
    tracemalloc.start()
    shard = load_shard(ref, ENCODER, chunk_rows=2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 4_000 < len(shard.rows) < 6_000
    assert peak < 0.6 * whole


@pytest.mark.parametrize("layout", ["packed", "episodes"])
def test_rows_beyond_the_cap_need_no_memory(store, layout):
    """Whether a worker runs out of memory would tell of one person's rows."""
    steps = 50_000
    written = random_walk(3, steps)
    store.write_trajectories("a-v0", written, layout=layout, **SPACES)
    del written
    (ref,) = shard_refs(store, "a-v0", count=1, unit="trajectory", max_rows_per_unit=9)
    load_shard(ref, ENCODER, chunk_rows=1_000)
    tracemalloc.start()
    shard = load_shard(ref, ENCODER, chunk_rows=1_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert shard.offsets.tolist() == [0, 9, 18, 27]
    assert peak < 0.3 * (3 * steps * 7 * 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count must be at least 1"),
        ({"unit": "doctor_id"}, "has no unit 'doctor_id'"),
        ({"max_rows_per_unit": 0}, "max_rows_per_unit must be"),
        ({"dataset": "b-v0"}, "no dataset 'b-v0'"),
    ],
)
def test_bad_references_are_refused(store, options, message):
    store.write_trajectories("a-v0", walk(), **SPACES)
    chosen = {"dataset": "a-v0", "count": 2, "unit": "trajectory", **options}
    with pytest.raises(ConfigError, match=message):
        shard_refs(store, chosen.pop("dataset"), **chosen)
    with pytest.raises(ConfigError, match="index must lie in"):
        ShardRef(root="", dataset="a-v0", index=2, count=2, unit="trajectory")


def all_trajectories(store, count, **caps):
    rows = caps.pop("max_rows_per_unit", None)
    refs = shard_refs(store, "a-v0", count=count, unit="patient_id", max_rows_per_unit=rows)
    return [load_trajectories(pickle.loads(pickle.dumps(ref)), **caps) for ref in refs]


def by_patient(shards):
    """The trajectories of each unit, over all shards, in order."""
    found = {}
    for shard in shards:
        for unit in np.unique(shard.unit_ids).tolist():
            assert unit not in found
            own = shard.select(np.flatnonzero(shard.unit_ids == unit))
            names = sorted(set(own.__dataclass_fields__) - {"unit_ids"})
            found[unit] = [getattr(own, name).tolist() for name in names]
    return found


@pytest.fixture(params=["episodes", "packed"])
def patients(store, request):
    """14 trajectories of 7 patients, of 1 to 5 steps."""
    written = walk((3, 1, 4, 2, 5, 1, 2, 2, 3, 1, 5, 4, 1, 2))
    written.unit_ids[:] = np.array([3, 9, 3, 4, 9, 3, 2**64 - 1, 8, 8, 3, 1, 0, 0, 9], np.uint64)
    store.write_trajectories(
        "a-v0", written, layout=request.param, unit_column="patient_id", **SPACES
    )
    return written


@pytest.mark.parametrize("most", [1, 2, 9])
@pytest.mark.parametrize("most_rows", [None, 1, 3, 4, 100])
def test_shards_of_trajectories_hold_each_units_first(store, patients, most, most_rows):
    expected = {}
    for unit in np.unique(patients.unit_ids).tolist():
        own = np.flatnonzero(patients.unit_ids == unit)[:most].tolist()
        parts, left = [], most_rows or 10_000
        for k in own:
            length = min(left, int(patients.lengths[k]))
            left -= length
            if length:
                parts.append(patients.select([k]).cut(np.array([length])))
        expected |= by_patient([type(patients).concatenate(parts)])
    for count in (1, 2, 4):
        for chunk_rows in (2, 7, 1_000):
            options = {"max_trajectories_per_unit": most, "chunk_rows": chunk_rows}
            shards = all_trajectories(store, count, max_rows_per_unit=most_rows, **options)
            assert by_patient(shards) == expected
            for index, shard in enumerate(shards):
                assert (shard_of(shard.unit_ids, count) == index).all()


def test_caps_bound_what_a_unit_contributes_and_other_units_stay(store, patients):
    """The privacy sentence of load_trajectories: own rows alone, at most the caps."""
    (before,) = all_trajectories(store, 1, max_rows_per_unit=3, max_trajectories_per_unit=2)
    _, counts = np.unique(before.unit_ids, return_counts=True)
    steps = [before.lengths[before.unit_ids == unit].sum() for unit in np.unique(before.unit_ids)]
    assert counts.max() == 2
    assert max(steps) == 3
    neighbour = patients.select(np.flatnonzero(patients.unit_ids != 9))
    store.write_trajectories("b-v0", neighbour, unit_column="patient_id", **SPACES)
    (ref,) = shard_refs(store, "b-v0", count=1, unit="patient_id", max_rows_per_unit=3)
    after = load_trajectories(ref, max_trajectories_per_unit=2)
    assert_same(after, before.select(np.flatnonzero(before.unit_ids != 9)))


def test_a_cut_trajectory_keeps_its_next_observation_and_is_truncated(store):
    store.write_trajectories("a-v0", walk((3, 4)), layout="packed", **SPACES)
    (ref,) = shard_refs(store, "a-v0", count=1, unit="trajectory", max_rows_per_unit=2)
    read = load_trajectories(ref)
    assert read.observations.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert read.truncated.tolist() == [False, True, False, True]
    assert not read.terminated.any()
    assert read.unit_ids.tolist() == [0, 1]


@pytest.mark.parametrize("discrete", [False, True])
def test_an_empty_shard_of_trajectories_has_the_types_of_the_others(store, discrete):
    spaces = DISCRETE_SPACES if discrete else SPACES
    store.write_trajectories("a-v0", walk((2,), discrete=discrete), layout="packed", **spaces)
    refs = shard_refs(store, "a-v0", count=3, unit="trajectory")
    shards = sorted(map(load_trajectories, refs), key=len)
    assert [len(shard) for shard in shards] == [0, 0, 1]
    for name in ("observations", "actions", "rewards", "terminated", "unit_ids"):
        empty, full = getattr(shards[0], name), getattr(shards[2], name)
        assert (empty.dtype, empty.shape[1:]) == (full.dtype, full.shape[1:])


def test_loading_trajectories_refuses_what_it_cannot_do(store):
    rows = walk().transitions("transition")
    store.write_trajectories("a-v0", walk(), layout="packed", **SPACES)
    store.write_transitions("b-v0", rows, layout="transitions", **SPACES)
    (ref,) = shard_refs(store, "a-v0", count=1, unit="trajectory")
    with pytest.raises(ConfigError, match="max_trajectories_per_unit must be at least 1, got 0"):
        load_trajectories(ref, max_trajectories_per_unit=0)
    (ref,) = shard_refs(store, "a-v0", count=1, unit="transition")
    with pytest.raises(ConfigError, match="unit of whole trajectories must be trajectory"):
        load_trajectories(ref)
    (ref,) = shard_refs(store, "b-v0", count=1, unit="transition")
    with pytest.raises(ConfigError, match="independent transitions"):
        load_trajectories(ref)


def test_a_worker_holds_its_own_trajectories_and_a_chunk(store):
    store.write_trajectories("a-v0", random_walk(10_000, 10), layout="packed", **SPACES)
    whole = 10_000 * (11 * 8 + 10 * 10 + 8)
    ref = ShardRef(root=str(store.root), dataset="a-v0", index=0, count=20, unit="trajectory")
    load_trajectories(ref, chunk_rows=2_000)
    tracemalloc.start()
    shard = load_trajectories(ref, chunk_rows=2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 400 < len(shard) < 600
    assert peak < 0.4 * whole


@pytest.mark.parametrize("layout", ["episodes", "packed"])
@pytest.mark.parametrize("chunk_rows", [1, 7, 65_536])
def test_each_units_first_trajectories_can_be_left_to_something_else(store, layout, chunk_rows):
    """Pools by index: what one part reads, the other does not, whatever the chunks."""
    written = random_walk(12, 3)
    units = np.array([5, 1, 5, 5, 1, 8, 5, 8, 1, 9, 5, 1], np.uint64)
    written.unit_ids[:] = units
    store.write_trajectories("a-v0", written, unit_column="patient_id", layout=layout, **SPACES)
    later = np.array([3, 6, 8, 10, 11])  # the third and later ones of units 5, 1, 5, 5, 1
    kept = expected_of(written.select(later).transitions("patient_id"))
    kept |= dict.fromkeys((8, 9), null_unit())  # of whom no trajectory is left
    for count in (1, 3):
        refs = shard_refs(store, "a-v0", count=count, unit="patient_id", skip_trajectories=2)
        shards = [load_shard(ref, ENCODER, chunk_rows=chunk_rows) for ref in refs]
        assert by_unit(shards) == kept
    (capped,) = shard_refs(
        store, "a-v0", count=1, unit="patient_id", skip_trajectories=2, max_rows_per_unit=2
    )
    cut = {unit: (rows[:2], valid[:2]) for unit, (rows, valid) in kept.items()}
    assert by_unit([load_shard(capped, ENCODER)]) == cut


def expected_of(rows):
    encoded = ENCODER.encode(rows)
    return {
        int(u): (
            encoded.rows[rows.unit_ids == u].tolist(),
            encoded.valid[rows.unit_ids == u].tolist(),
        )
        for u in np.unique(rows.unit_ids)
    }


def null_unit():
    return [[0.0] * ENCODER.width], [False]


@pytest.mark.parametrize("unit", ["trajectory", "patient_id"])
def test_a_unit_without_rows_is_null_and_keeps_its_place(store, unit):
    """Its neighbours' coins, places and shapes are those that they have beside its rows."""
    store.write_trajectories(
        "a-v0", walk((3, 0, 2)), unit_column="patient_id", layout="episodes", **SPACES
    )
    for count in (1, 2):
        refs = shard_refs(store, "a-v0", count=count, unit=unit)
        found = by_unit([load_shard(ref, ENCODER) for ref in refs])
        assert sorted(len(rows) for rows, _ in found.values()) == [1, 2, 3]
        assert [one for one in found.values() if len(one[0]) == 1] == [null_unit()]
    fragments = load_fragments(
        shard_refs(store, "a-v0", count=1, unit=unit)[0], FragmentEncoder(ENCODER, 8), 3
    )
    assert fragments.offsets.tolist() == [0, 1, 2, 3]
    assert sorted(fragments.valid.tolist()) == [False, True, True]


def test_what_is_left_out_is_named_in_the_reference(store):
    with pytest.raises(ConfigError, match="skip_trajectories must be at least 0, got -1"):
        ShardRef(root="r", dataset="a-v0", index=0, count=1, unit="x", skip_trajectories=-1)
    rows = random_walk(3, 3).transitions("patient_id")
    store.write_transitions("a-v0", rows, layout="transitions", unit_column="patient_id", **SPACES)
    (ref,) = shard_refs(store, "a-v0", count=1, unit="patient_id", skip_trajectories=1)
    with pytest.raises(ConfigError, match="holds independent transitions"):
        load_shard(ref, ENCODER)
