"""Parts of a dataset are found by samples of keyed hashes."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.errors import StorageError
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.sketch import MOST_HASHES, Sketch, compare
from distributed_privrl.data.trajectories import Transitions
from tests.data.conftest import random_walk

KEY = bytes(range(32))
SPACES = {"observation_space": Box(-9, 9, (2,)), "action_space": Box(-9, 9, (1,))}


def rows_of(count, seed, **changes):
    rows = random_walk(1, count, seed=seed).transitions("t")
    fields = {name: getattr(rows, name) for name in rows.__dataclass_fields__}
    return Transitions(**(fields | changes))


def sketch(store, name, rows, *, key=KEY, spaces=SPACES):
    store.write_transitions(name, rows, layout="transitions", **spaces)
    return inspect(store, name, key=key).sketch


@pytest.mark.parametrize("count", [2_000, 60_000])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.03, 1.0])
def test_shared_rows_are_found_on_either_side(store, count, share):
    mine, part = rows_of(count, 1), int(share * count)
    few = Transitions.concatenate([mine.select(slice(part)), rows_of(count // 20, 2)])
    found = compare(sketch(store, "a-v0", mine), sketch(store, "b-v0", few))
    assert found.suspicious == (share > 0)
    sampled = share * MOST_HASHES / 2.2 if count > MOST_HASHES else share * count
    assert found.mine == pytest.approx(share, abs=4 * share / max(1, sampled) ** 0.5)
    theirs = part / (part + count // 20)
    assert found.theirs == pytest.approx(theirs, abs=4 * theirs / max(1, sampled) ** 0.5)


def test_less_than_a_hundredth_of_both_is_no_part(store):
    mine = rows_of(30_000, 1)
    other = Transitions.concatenate([mine.select(slice(100)), rows_of(30_000, 2)])
    found = compare(sketch(store, "a-v0", mine), sketch(store, "b-v0", other))
    assert 0 < found.mine < 0.01
    assert not found.suspicious


def test_a_sketch_is_small_and_survives_storage(store):
    mine = sketch(store, "a-v0", rows_of(60_000, 1))
    assert MOST_HASHES / 2.2 < len(mine.rows.entries) <= MOST_HASHES
    again = Sketch.from_bytes(mine.to_bytes())
    assert again.to_bytes() == mine.to_bytes()
    assert compare(mine, again).mine == 1.0
    for data in (b"", b"x" * 40, mine.to_bytes()[:-1]):
        with pytest.raises(StorageError, match="damaged"):
            Sketch.from_bytes(data)


def test_rewards_order_and_ends_hide_nothing(store):
    mine = rows_of(3_000, 1)
    changed = rows_of(3_000, 1, rewards=np.zeros(3_000), terminated=np.ones(3_000, bool)).select(
        np.arange(3_000)[::-1]
    )
    assert compare(sketch(store, "a-v0", mine), sketch(store, "b-v0", changed)).mine == 1.0


def test_another_key_samples_and_says_something_else(store):
    rows = rows_of(60_000, 1)
    mine = sketch(store, "a-v0", rows)
    other = inspect(store, "a-v0", key=b"another").sketch
    assert not np.isin(mine.rows.entries["hash"], other.rows.entries["hash"]).any()


def toy(count, seed, *, whole):
    """Rows of a world with few states."""
    source = np.random.default_rng(seed)
    states = (
        source.integers(0, 5, (count + 1, 2)) * 1.0
        if whole
        else source.integers(1, 6, (count + 1, 2)) * 0.1
    )
    return rows_of(
        count,
        seed,
        observations=states[:-1].astype(np.float32),
        next_observations=states[1:].astype(np.float32),
        actions=source.integers(0, 2, (count, 1)).astype(np.float32),
    )


def test_where_most_rows_are_everybody_s_a_declaration_is_asked_for(store):
    """No share could rise above that of a dataset's own halves: copies would not be seen."""
    found = compare(
        sketch(store, "a-v0", toy(20_000, 1, whole=False)),
        sketch(store, "b-v0", toy(20_000, 2, whole=False)),
    )
    assert found.mine > 0.9
    assert found.suspicious
    assert found.discrete


def test_whole_numbers_may_be_categories_and_say_so(store):
    box = sketch(store, "a-v0", toy(5_000, 1, whole=True))
    found = compare(box, sketch(store, "b-v0", toy(5_000, 2, whole=True)))
    assert found.suspicious
    assert found.discrete
    assert not compare(box, sketch(store, "c-v0", toy(5_000, 3, whole=False))).suspicious


def test_categories_and_numbers_are_compared(store):
    source = np.random.default_rng(0)
    states, actions = source.integers(0, 9_000, 401), source.integers(0, 3, 400)
    common = rows_of(400, 1)
    rows = {name: getattr(common, name) for name in common.__dataclass_fields__}
    rows |= {"observations": states[:-1], "next_observations": states[1:], "actions": actions}
    spaces = {"observation_space": Discrete(9_000), "action_space": Discrete(3)}
    mine = sketch(store, "a-v0", Transitions(**rows), spaces=spaces)
    for name in ("observations", "next_observations", "actions"):
        rows[name] = rows[name].astype(np.float32)[:, None]
    box = {"observation_space": Box(0, 9_000, (1,)), "action_space": Box(0, 3, (1,))}
    other = sketch(store, "b-v0", Transitions(**rows).select(slice(100)), spaces=box)
    found = compare(mine, other)
    assert found.theirs == 1.0
    assert found.mine == pytest.approx(0.25, abs=0.01)  # some are equal by chance
    assert found.suspicious
