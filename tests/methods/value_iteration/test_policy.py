import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.methods.value_iteration.policy import GreedyPolicy

ACTIONS = np.array([[0, 1, 2], [2, 2, 0]])
VALUES = np.arange(9.0).reshape(3, 3)


def test_a_policy_acts_by_time_step_and_goes_on_with_its_last_rule():
    policy = GreedyPolicy(actions=ACTIONS, values=VALUES)
    assert policy.act([2, 0, 2], 0).tolist() == [2, 0, 2]
    assert policy.act(np.array([1]), 1).tolist() == policy.act(np.array([1]), 99).tolist() == [2]
    assert policy.act(np.empty(0, np.int64), 0).shape == (0,)
    assert (policy.horizon, policy.states) == (2, 3)


@pytest.mark.parametrize(("observations", "step"), [([3], 0), ([-1], 0), ([0.5], 0), ([0], -1)])
def test_what_is_no_state_or_step_is_refused(observations, step):
    with pytest.raises(ConfigError):
        GreedyPolicy(actions=ACTIONS, values=VALUES).act(observations, step)


@pytest.mark.parametrize(
    "optional",
    [
        {},
        {"penalties": np.ones((2, 3, 4))},
        {"known": np.arange(24).reshape(2, 3, 4) % 5 < 2, "count_noise": np.array(7.5)},
    ],
)
def test_a_policy_survives_its_file(tmp_path, optional):
    path = tmp_path / "policy.safetensors"
    # Not contiguous on purpose: a lifted policy is a selection of columns.
    policy = GreedyPolicy(actions=ACTIONS.T.copy().T, values=VALUES, **optional)
    policy.save(path)
    loaded = GreedyPolicy.load(path)
    assert np.array_equal(loaded.actions, ACTIONS)
    assert np.array_equal(loaded.values, VALUES)
    for name in ("penalties", "known", "count_noise"):
        found, given = getattr(loaded, name), optional.get(name)
        assert (found is None) == (given is None)
        assert given is None or (np.array_equal(found, given) and found.dtype == given.dtype)


def test_what_is_known_of_the_actions_that_are_taken():
    known = np.zeros((2, 3, 4), np.bool_)
    known[0, 1, 1] = known[1, 1, 0] = True  # taken, and not taken
    policy = GreedyPolicy(actions=ACTIONS, values=VALUES, known=known)
    assert policy.knows_taken.tolist() == [[False, True, False], [False, False, False]]
    assert GreedyPolicy(actions=ACTIONS, values=VALUES).knows_taken is None


@pytest.mark.parametrize(
    "changed",
    [
        {"actions": ACTIONS.astype(np.int32)},
        {"actions": ACTIONS[0]},
        {"actions": ACTIONS - 1},
        {"actions": np.empty((0, 3), np.int64)},
        {"values": VALUES[:2]},
        {"values": VALUES.astype(np.float32)},
        {"penalties": np.ones((2, 3))},
        {"penalties": np.ones((2, 3, 2))},
        {"penalties": np.ones((2, 2, 4))},
        {"known": np.ones((2, 3, 4))},
        {"known": np.ones((2, 3, 2), np.bool_)},
    ],
)
def test_parts_that_do_not_fit_are_refused(changed):
    with pytest.raises(ConfigError, match=next(iter(changed))):
        GreedyPolicy(**{"actions": ACTIONS, "values": VALUES, **changed})


def test_other_files_are_no_policies(tmp_path):
    import safetensors.numpy

    path = tmp_path / "other"
    with pytest.raises(StorageError, match="other"):
        GreedyPolicy.load(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(StorageError, match="greedy policy"):
        GreedyPolicy.load(path)
    path.write_bytes(safetensors.numpy.save({"actions": ACTIONS}))
    with pytest.raises(StorageError, match="values"):
        GreedyPolicy.load(path)
