import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.fingerprint import inspect, share_rows
from distributed_privrl.data.trajectories import Transitions
from tests.data.conftest import DISCRETE_SPACES, SPACES, random_walk, walk


def replaced(rows, **changes):
    return Transitions(
        **{**{name: getattr(rows, name) for name in rows.__dataclass_fields__}, **changes}
    )


def write(store, dataset, rows, layout="transitions", **options):
    store.write_transitions(dataset, rows, layout=layout, **SPACES, **options)


def test_the_fingerprint_is_of_the_content_alone(store):
    written = random_walk(6, 4)
    rows = written.transitions("patient_id")
    store.write_trajectories("a-v0", written, **SPACES)
    store.write_trajectories("b-v0", written, unit_column="patient_id", **SPACES)
    write(store, "c-v0", rows)
    write(store, "d-v0", (rows.select(slice(i, i + 5)) for i in range(0, 24, 5)), layout="episodes")
    found = {
        inspect(store, dataset, chunk_rows=chunk_rows).fingerprint
        for dataset in ("a-v0", "b-v0", "c-v0", "d-v0")
        for chunk_rows in (1, 7, 1000)
    }
    assert len(found) == 1
    assert len(found.pop()) == 64


@pytest.mark.parametrize(
    "name", ["observations", "actions", "rewards", "next_observations", "terminated", "truncated"]
)
def test_every_column_and_the_order_change_the_fingerprint(store, name):
    rows = random_walk(3, 4).transitions("transition")
    column = getattr(rows, name).copy()
    column[5] = ~column[5] if column.dtype == bool else column[5] + 1e-3
    write(store, "a-v0", rows)
    write(store, "b-v0", replaced(rows, **{name: column}))
    write(store, "c-v0", rows.select(np.arange(12)[::-1]))
    assert len({inspect(store, f"{n}-v0").fingerprint for n in "abc"}) == 3


def test_known_fingerprint(store):
    """A ledger's accounts outlive an upgrade: the fingerprint of given rows may not change."""
    store.write_trajectories("a-v0", walk(), **SPACES)
    known = "8efea8bd3a09ff9c94070cb5c1b7baad0cbacdba88dab22de03705096506ae0e"
    assert inspect(store, "a-v0").fingerprint == known


@pytest.mark.parametrize("shared", [0, 1])
def test_one_shared_row_is_overlap(store, shared):
    sensitive = random_walk(5, 10, seed=1).transitions("transition")
    public = random_walk(5, 10, seed=2).transitions("transition")
    public = Transitions.concatenate([public, sensitive.select(slice(17, 17 + shared))])
    write(store, "sensitive-v0", sensitive)
    write(store, "other-v0", random_walk(5, 10, seed=3).transitions("transition"))
    write(store, "public-v0", public)
    found = inspect(store, "sensitive-v0", public_ids=["other-v0", "public-v0"], chunk_rows=9)
    assert found.overlap == bool(shared)
    assert not inspect(store, "sensitive-v0", public_ids=["other-v0"]).overlap
    assert found.fingerprint == inspect(store, "sensitive-v0").fingerprint


def test_a_relabelled_copy_is_overlap_and_a_near_copy_is_none(store):
    rows = random_walk(5, 10).transitions("transition")
    write(store, "a-v0", rows)
    write(store, "b-v0", replaced(rows, rewards=rows.rewards + 1, terminated=~rows.terminated))
    write(store, "c-v0", replaced(rows, observations=np.nextafter(rows.observations, 9)))
    assert inspect(store, "a-v0", public_ids=["b-v0"]).overlap
    assert not inspect(store, "a-v0", public_ids=["c-v0"]).overlap


def test_rows_that_are_not_finite_are_allowed_in_the_sensitive_set_only(store):
    rows = random_walk(2, 3).transitions("transition")
    rows.observations[1, 1] = np.nan
    write(store, "a-v0", rows)
    write(store, "b-v0", random_walk(2, 3, seed=4).transitions("transition"))
    assert not inspect(store, "a-v0", public_ids=["b-v0"]).overlap
    with pytest.raises(ConfigError, match=r"public dataset 'a-v0'.*observation_1"):
        inspect(store, "b-v0", public_ids=["a-v0"])


@pytest.mark.parametrize("shared", [0, 1])
def test_rows_of_any_kind_are_shared_or_not(store, shared):
    mine = random_walk(5, 10, seed=1).transitions("transition")
    mine.observations[17, 1] = np.nan
    theirs = random_walk(5, 10, seed=2).transitions("transition")
    theirs.observations[3, 0] = np.inf
    write(store, "a-v0", mine)
    joined = [theirs, mine.select(slice(17, 17 + shared))]
    write(store, "b-v0", Transitions.concatenate(joined))
    assert share_rows(store, "a-v0", "b-v0") == share_rows(store, "b-v0", "a-v0") == bool(shared)


def test_public_sets_of_other_spaces_are_refused(store):
    store.write_trajectories("a-v0", walk(), **SPACES)
    store.write_trajectories("b-v0", walk(discrete=True), **DISCRETE_SPACES)
    with pytest.raises(ConfigError, match="observation has rows of shape"):
        inspect(store, "a-v0", public_ids=["b-v0"])
    assert inspect(store, "b-v0", public_ids=["b-v0"]).overlap
