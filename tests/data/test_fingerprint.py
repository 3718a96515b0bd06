import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.fingerprint import inspect, share_rows
from distributed_privrl.data.trajectories import Transitions, single_steps
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


def test_neither_order_nor_declared_spaces_make_other_rows(store):
    """Discrete(S), Discrete(S + 1) and a Box of the same numbers got three budgets once."""
    rows = walk(discrete=True)
    spaces = [
        (Discrete(5, start=2), Discrete(3)),
        (Discrete(6, start=2), Discrete(4)),
        (Discrete(9), Discrete(3)),
    ]
    for i, (observations, actions) in enumerate(spaces):
        store.write_trajectories(
            f"d{i}-v0", rows, observation_space=observations, action_space=actions
        )
    steps = rows.transitions("trajectory")
    as_columns = replaced(
        steps,
        observations=steps.observations[:, None],
        next_observations=steps.next_observations[:, None],
        actions=steps.actions[:, None],
    )
    store.write_transitions(
        "d3-v0",
        as_columns.select(np.arange(len(steps))[::-1]),
        layout="transitions",
        observation_space=MultiDiscrete([9]),
        action_space=MultiDiscrete([3]),
    )
    store.write_transitions(
        "d4-v0",
        replaced(
            as_columns,
            observations=as_columns.observations.astype(np.float32),
            next_observations=as_columns.next_observations.astype(np.float32),
            actions=as_columns.actions.astype(np.float32),
        ),
        layout="transitions",
        observation_space=Box(0, 9, (1,)),
        action_space=Box(0, 9, (1,)),
    )
    store.write_trajectories("d5-v0", rows.select([2, 0, 1]), **DISCRETE_SPACES)
    assert len({inspect(store, f"d{i}-v0").fingerprint for i in range(6)}) == 1


def test_one_step_episodes_are_the_independent_rows(store):
    rows = random_walk(4, 5).transitions("transition")
    write(store, "a-v0", rows)
    store.write_trajectories("b-v0", single_steps(rows), **SPACES)
    store.write_trajectories("c-v0", single_steps(rows), layout="packed", **SPACES)
    assert len({inspect(store, f"{n}-v0").fingerprint for n in "abc"}) == 1


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize(
    "name", ["observations", "actions", "rewards", "next_observations", "terminated"]
)
def test_every_number_changes_the_fingerprint(store, name, width):
    rows = random_walk(3, 4, width=width).transitions("transition")
    spaces = SPACES | {"observation_space": Box(-np.inf, np.inf, (width,))}
    column = getattr(rows, name)
    found = set()
    for place in np.ndindex(*column.shape[1:]):
        changed = column.copy()
        at = (5, *place)
        changed[at] = ~changed[at] if column.dtype == bool else changed[at] + 1e-3
        dataset = f"b{'-'.join(map(str, place))}-v0"
        store.write_transitions(
            dataset, replaced(rows, **{name: changed}), layout="transitions", **spaces
        )
        found.add(inspect(store, dataset).fingerprint)
    store.write_transitions("a-v0", rows, layout="transitions", **spaces)
    assert inspect(store, "a-v0").fingerprint not in found
    assert len(found) == int(np.prod(column.shape[1:]))


def test_numbers_that_change_rows_change_the_fingerprint(store):
    """A sum over rows of anything that adds up over columns would not see it."""
    rows = random_walk(3, 4).transitions("transition")
    for name in ("observations", "actions", "rewards", "next_observations"):
        column = getattr(rows, name).copy()
        column[[2, 7]] = column[[7, 2]]
        write(store, f"{name.replace('_', '-')}-v0", replaced(rows, **{name: column}))
    write(store, "a-v0", rows)
    write(store, "twice-v0", Transitions.concatenate([rows, rows.select(slice(1))]))
    found = {inspect(store, dataset).fingerprint for dataset in store.ids()}
    assert len(found) == 6


def test_known_fingerprint(store):
    """A ledger's accounts outlive an upgrade: what names given rows may not change."""
    store.write_trajectories("a-v0", walk(), unit_column="patient_id", **SPACES)
    found = inspect(store, "a-v0", unit="patient_id")
    rows = "334114f8cb1d1bb5c047a35d5c8d2563230685b1a0d5b804ea5a37788b18dd8c"
    units = "591872b4cd9858315551a8b0dcd032d11150e0294f55fefd5a4cb50c58bfa30a"
    assert (found.fingerprint, found.partition) == (rows, units)
    assert found.identity == f"{rows}:{units}"


def of_units(store, ids, *, order=None, name="a-v0"):
    """The partition of twelve rows by ``ids``."""
    rows = replaced(random_walk(3, 4).transitions("t"), unit_ids=np.array(ids, dtype=np.uint64))
    if order is not None:
        rows = rows.select(order)
    write(store, name, rows, unit_column="patient_id")
    found = inspect(store, name, unit="patient_id", chunk_rows=5)
    return found.fingerprint, found.partition


def test_units_are_compared_up_to_their_names(store):
    ids = np.arange(12) // 3
    mine = of_units(store, ids)
    names = np.array([2**64 - 1, 0, 7, 2**40], dtype=np.uint64)[ids]
    assert of_units(store, names, name="b-v0") == mine
    assert of_units(store, ids, order=np.arange(12)[::-1], name="c-v0") == mine
    shuffled = np.random.default_rng(0).permutation(12)
    assert of_units(store, names, order=shuffled, name="d-v0") == mine


@pytest.mark.parametrize(
    "other",
    [
        np.arange(12),
        np.zeros(12),
        np.arange(12) // 4,
        np.arange(12) % 4,
        [0, 0, 1, 0, 1, 1, 2, 2, 2, 3, 3, 3],  # two rows change hands
    ],
)
def test_other_units_are_seen(store, other):
    mine = of_units(store, np.arange(12) // 3)
    theirs = of_units(store, other, name="b-v0")
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1]


def test_trajectories_are_units_in_any_order_and_layout(store):
    walked = random_walk(6, 4)
    store.write_trajectories("a-v0", walked, **SPACES)
    store.write_trajectories("b-v0", walked.select([5, 0, 3, 1, 2, 4]), layout="packed", **SPACES)
    store.write_trajectories("c-v0", single_steps(walked.transitions("t")), **SPACES)
    found = {
        name: inspect(store, f"{name}-v0", unit="trajectory", chunk_rows=rows).partition
        for name, rows in (("a", 1000), ("b", 7), ("c", 5))
    }
    assert found["a"] == found["b"] != found["c"]


def test_many_units_are_held_whatever_their_ids(store):
    """More than the table of units begins with, and ids that collide in it."""
    count = 20_000
    rows = random_walk(1, count).transitions("t")
    ids = (np.arange(count) % 9_000).astype(np.uint64)
    for name, named in (("a", ids), ("b", ids << np.uint64(40)), ("c", ids + np.uint64(1))):
        write(store, f"{name}-v0", replaced(rows, unit_ids=named), unit_column="who")
    write(store, "d-v0", replaced(rows, unit_ids=np.roll(ids, 1)), unit_column="who")
    found = [inspect(store, f"{name}-v0", unit="who").partition for name in "abcd"]
    assert found[0] == found[1] == found[2] != found[3]


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


def test_a_copy_of_rows_that_nothing_follows_is_overlap_whatever_follows_it(store):
    """The next observation of such rows is made up: a copy with trajectories has another one."""
    rows = random_walk(5, 10).transitions("transition")
    alone = replaced(rows, next_observations=rows.observations, terminated=np.ones(len(rows), bool))
    write(store, "alone-v0", alone, has_successors=False)
    write(store, "copy-v0", rows)
    write(store, "other-v0", random_walk(5, 10, seed=3).transitions("transition"))
    assert inspect(store, "alone-v0", public_ids=["copy-v0"]).overlap
    assert inspect(store, "copy-v0", public_ids=["alone-v0"]).overlap
    assert not inspect(store, "alone-v0", public_ids=["other-v0"]).overlap
    assert share_rows(store, "alone-v0", "copy-v0")
    assert not share_rows(store, "alone-v0", "other-v0")


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
