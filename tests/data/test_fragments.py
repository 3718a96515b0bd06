"""Fragments: cut inside an episode, with its unit, the step before, a mask; one episode each."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder, FragmentLayout, load_fragments
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.shards import shard_of, shard_refs
from tests.data.conftest import (
    ACTION_SPACE,
    CATEGORIES,
    DISCRETE_SPACES,
    OBSERVATION_SPACE,
    SPACES,
    random_walk,
    walk,
)

TRANSITIONS = TransitionEncoder(
    OBSERVATION_SPACE, ACTION_SPACE, Scaling(offset=np.full(7, 0.5), scale=np.full(7, 0.5))
)


def encoder(horizon=3):
    return FragmentEncoder(TRANSITIONS, horizon)


def steps_of(trajectories):
    """Each step's transition and truncated bit, one after the other, by hand."""
    rows = TRANSITIONS.encode(trajectories.transitions("trajectory")).rows
    bits = np.where(trajectories.truncated, 1, -1)[:, None]
    return np.concatenate([rows, bits], axis=1, dtype=np.float32)


@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 100])
def test_fragments_are_cut_at_fixed_offsets_of_their_own_episode(horizon):
    trajectories = walk((3, 1, 4, 6, 9))
    own = encoder(horizon)
    fragments = own.encode(trajectories)
    condition, steps, mask = own.split(fragments.rows)
    rows = steps_of(trajectories)
    f = 0
    for k, length in enumerate(trajectories.lengths):
        episode = rows[trajectories.offsets[k] : trajectories.offsets[k + 1]]
        for start in range(0, length, horizon):
            real = episode[start : start + horizon]
            assert fragments.unit_ids[f] == trajectories.unit_ids[k]
            np.testing.assert_array_equal(steps[f, : len(real)], real)
            assert not steps[f, len(real) :, :-2].any()
            assert (steps[f, len(real) :, -2:] == episode[-1, -2:]).all()
            assert mask[f].tolist() == [1.0] * horizon
            link = episode[start - 1] if start else np.zeros(own.step_width)
            np.testing.assert_array_equal(condition[f], link)
            f += 1
    assert f == len(fragments.rows) == len(fragments.valid)
    assert fragments.valid.all()
    assert fragments.rows.dtype == np.float32
    assert fragments.rows.shape[1] == own.width == (horizon + 1) * 8 + horizon


def test_the_parts_are_views_of_arrays_and_of_tensors():
    rows = np.random.default_rng(0).normal(size=(4, encoder().width)).astype(np.float32)
    tensors = encoder().layout.split(torch.from_numpy(rows))
    for part, tensor in zip(encoder().split(rows), tensors, strict=True):
        assert np.shares_memory(part, rows)
        assert np.shares_memory(tensor.numpy(), rows)
        np.testing.assert_array_equal(part, tensor.numpy())
    layout = FragmentLayout(step_width=8, horizon=3)
    assert encoder().layout == pickle.loads(pickle.dumps(layout)) == layout


def test_an_episode_that_does_not_terminate_is_truncated_at_its_last_step():
    trajectories = random_walk(2, 5)
    steps = encoder(2).split(encoder(2).encode(trajectories).rows)[1]
    assert steps[..., -1].tolist() == [[-1, -1], [-1, -1], [1, 1]] * 2
    trajectories.terminated[4] = True
    steps = encoder(2).split(encoder(2).encode(trajectories).rows)[1]
    assert (steps[2, :, -2:] == [1, -1]).all()


def test_a_linking_step_tells_the_time_in_place_of_its_truncated_bit():
    trajectories = random_walk(2, 7)
    timed, plain = FragmentEncoder(TRANSITIONS, 2, time_limit=6), encoder(2)
    rows, expected = timed.encode(trajectories).rows, plain.encode(trajectories).rows
    clock = timed.split(rows)[0][:, -1]
    np.testing.assert_allclose(clock, [0, -1 / 3, 1 / 3, 1] * 2, atol=1e-6)
    assert plain.split(expected)[0][:, -1].tolist() == [0, -1, -1, -1] * 2
    timed.split(rows)[0][:, -1] = plain.split(expected)[0][:, -1]
    np.testing.assert_array_equal(rows, expected)
    assert timed.clock(1000) == 1
    assert FragmentEncoder.from_json(timed.to_json()).time_limit == 6
    with pytest.raises(ConfigError, match="time_limit must be at least 1, got 0"):
        FragmentEncoder(TRANSITIONS, 2, time_limit=0)


def test_episodes_do_not_meet():
    """The privacy sentence: whatever happens to one episode, the others' fragments stay."""
    trajectories = random_walk(6, 7)
    before = encoder().encode(trajectories)
    own = np.arange(len(before.rows)) // 3 == 2
    changed = replace(trajectories, observations=trajectories.observations * 1)
    changed.observations[2 * 8 : 3 * 8] = np.nan
    poisoned = encoder().encode(changed)
    np.testing.assert_array_equal(poisoned.rows[~own], before.rows[~own])
    assert poisoned.valid.tolist() == (~own).tolist()
    for left in (
        encoder().encode(trajectories.select([0, 1, 3, 4, 5])),
        encoder().encode(trajectories.cut(np.array([7, 7, 0, 7, 7, 7]))),
    ):
        np.testing.assert_array_equal(left.rows, before.rows[~own])
        np.testing.assert_array_equal(left.unit_ids, before.unit_ids[~own])


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_fragment_with_an_improper_step_or_link_is_null(value):
    trajectories = walk((9,))
    trajectories.rewards[2] = value  # the last of fragment 0, the link of fragment 1
    fragments = encoder().encode(trajectories)
    assert fragments.valid.tolist() == [False, False, True]
    assert not fragments.rows[:2].any()
    assert fragments.rows[2].any()
    assert np.isfinite(fragments.rows).all()


@pytest.mark.parametrize("discrete", [False, True])
def test_steps_are_decoded_to_the_transitions_they_came_from(discrete):
    trajectories = walk((3, 1, 4), discrete=discrete)
    transitions = TRANSITIONS
    if discrete:
        width = 2 * int(CATEGORIES.n) + 3 + 2
        scaling = Scaling(offset=np.full(width, 0.5), scale=np.full(width, 0.5))
        spaces = DISCRETE_SPACES["observation_space"], DISCRETE_SPACES["action_space"]
        trajectories.observations[:] = 2 + trajectories.observations % 5
        transitions = TransitionEncoder(*spaces, scaling)
    own = FragmentEncoder(transitions, 3)
    read = FragmentEncoder.from_json(own.to_json())
    assert read.layout == own.layout
    _, steps, _ = read.split(read.encode(trajectories).rows)
    real = np.abs(steps[..., :-2]).any(axis=2)
    decoded, truncated = read.decode_steps(steps[real])
    expected = trajectories.transitions("trajectory")
    for name in ("observations", "actions", "rewards", "next_observations", "terminated"):
        np.testing.assert_allclose(
            getattr(decoded, name), getattr(expected, name), atol=1e-6, err_msg=name
        )
    np.testing.assert_array_equal(truncated, trajectories.truncated)
    np.testing.assert_array_equal(decoded.truncated, trajectories.truncated)


@pytest.mark.parametrize("horizon", [1, 3, 5, 100])
def test_own_steps_are_all_but_the_absorbing_ones(horizon):
    trajectories, own = walk((3, 1, 4, 6, 9)), encoder(horizon)
    last = trajectories.offsets[1:] - 1
    trajectories.terminated[last[::2]] = True
    trajectories.truncated[last] = ~trajectories.terminated[last]
    chunks = [trajectories.select([0, 1]), trajectories.select([2, 3, 4])]
    np.testing.assert_array_equal(own.own_steps(own.proper(chunks)), steps_of(trajectories))


def test_improper_fragments_are_left_out():
    trajectories, own = walk((3, 1)), encoder()
    trajectories.rewards[0] = np.nan
    np.testing.assert_array_equal(own.proper([trajectories]), own.encode(trajectories).rows[1:])
    assert own.proper([]).shape == (0, own.width)


def test_no_trajectories_make_no_fragments():
    none = encoder().encode(walk().select([]))
    assert none.rows.shape == (0, encoder().width)
    assert [part.shape for part in encoder().split(none.rows)] == [(0, 8), (0, 3, 8), (0, 3)]


@pytest.fixture
def patients(store):
    """14 trajectories of 7 patients, of 1 to 11 steps."""
    written = walk((3, 11, 4, 2, 5, 1, 2, 2, 3, 1, 8, 4, 1, 2))
    written.unit_ids[:] = np.array([3, 9, 3, 4, 9, 3, 2**64 - 1, 8, 8, 3, 1, 0, 0, 9], np.uint64)
    store.write_trajectories("a-v0", written, unit_column="patient_id", **SPACES)
    return written


def by_unit(shards):
    found = {}
    for shard in shards:
        for u, unit in enumerate(shard.unit_ids.tolist()):
            assert unit not in found, "a unit's fragments are split between shards"
            found[unit] = shard.rows[shard.offsets[u] : shard.offsets[u + 1]].tolist()
    return found


@pytest.mark.parametrize("most", [1, 2, 3, 50])
@pytest.mark.parametrize("most_rows", [None, 4])
def test_shards_hold_each_units_first_fragments_together(store, patients, most, most_rows):
    own, expected = encoder(), {}
    for unit in np.unique(patients.unit_ids).tolist():
        left, parts = most_rows or 10_000, []
        for k in np.flatnonzero(patients.unit_ids == unit).tolist():
            length = min(left, int(patients.lengths[k]))
            left -= length
            parts += own.encode(patients.select([k]).cut(np.array([length]))).rows.tolist()
        expected[unit] = parts[:most]
    for count in (1, 2, 5):
        refs = shard_refs(
            store, "a-v0", count=count, unit="patient_id", max_rows_per_unit=most_rows
        )
        for chunk_rows in (2, 1_000):
            shards = [load_fragments(ref, own, most, chunk_rows=chunk_rows) for ref in refs]
            assert by_unit(shards) == expected
            for index, shard in enumerate(shards):
                assert (shard_of(shard.unit_ids, count) == index).all()
                assert np.diff(shard.offsets).max(initial=0) <= most
                assert shard.valid.all()


def test_removing_a_unit_changes_no_other_units_fragments(store, patients):
    left = patients.select(np.flatnonzero(patients.unit_ids != 9))
    store.write_trajectories("b-v0", left, unit_column="patient_id", **SPACES)
    before, after = (
        by_unit(
            [load_fragments(ref, encoder(), 3) for ref in shard_refs(store, name, count=2, unit=u)]
        )
        for name, u in (("a-v0", "patient_id"), ("b-v0", "patient_id"))
    )
    del before[9]
    assert after == before


def test_what_cannot_be_is_refused(store, patients):
    with pytest.raises(ConfigError, match="horizon must be at least 1, got 0"):
        encoder(0)
    with pytest.raises(ConfigError, match=r"steps must be \(N, 8\), got \(2, 7\)"):
        encoder().decode_steps(np.zeros((2, 7)))
    for text in ("{}", '{"horizon": 2}', '{"horizon": "x", "transitions": "{}"}', "[1]"):
        with pytest.raises(ConfigError, match="no encoder"):
            FragmentEncoder.from_json(text)
    (ref,) = shard_refs(store, "a-v0", count=1, unit="patient_id")
    with pytest.raises(ConfigError, match="max_fragments_per_unit must be at least 1, got 0"):
        load_fragments(ref, encoder(), 0)
    (ref,) = shard_refs(store, "a-v0", count=1, unit="transition")
    with pytest.raises(ConfigError, match="unit of whole trajectories"):
        load_fragments(ref, encoder(), 2)
