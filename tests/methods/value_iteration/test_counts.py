"""What a worker counts, and what leaves no trace."""

import pickle

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.value_iteration.counts import REWARD_UNIT, CountLayout
from distributed_privrl.methods.value_iteration.rows import StoredTrajectories
from tests.methods.value_iteration.tabular_data import RandomProblem, start, trajectories_of


def layout(**changed) -> CountLayout:
    return CountLayout(
        **{"states": 3, "actions": 2, "horizon": 2, "terminal": np.zeros(3, bool), **changed}
    )


def table(trajectories, of: CountLayout, step: int, workers: int = 1) -> dict:
    """Return the non-zero counts by (state, action, successor), summed over workers."""
    found: dict[tuple[int, int, int], int] = {}
    for answer in start(trajectories, of, workers).call("counts", {"step": step}):
        assert answer.cells.dtype == answer.counts.dtype == np.int64
        assert (np.diff(answer.cells) > 0).all()
        for cell, count in zip(answer.cells.tolist(), answer.counts.tolist(), strict=True):
            pair, successor = divmod(cell, of.successors)
            key = (*divmod(pair, of.actions), successor)
            found[key] = found.get(key, 0) + count
    return found


def rewards(trajectories, of: CountLayout, step: int) -> dict:
    (answer,) = start(trajectories, of).call("counts", {"step": step})
    return {
        divmod(pair, of.actions): total * REWARD_UNIT
        for pair, total in zip(answer.pairs.tolist(), answer.reward_sums.tolist(), strict=True)
    }


PATHS = [
    ([(0, 1, 0.5), (1, 0, 0.25), (2, 0, 1.0)], 0, False),  # one step beyond the horizon
    ([(0, 1, 1.0)], 2, True),  # ends early
    ([], 1, False),
    ([(0, 1, 0.0), (2, 1, 0.0)], 1, False),
]


def test_counts_by_time_step():
    data = trajectories_of(PATHS)
    assert table(data, layout(), 0) == {(0, 1, 1): 1, (0, 1, 2): 2}
    assert table(data, layout(), 1) == {(1, 0, 2): 1, (2, 1, 1): 1}
    assert table(data, layout(horizon=3), 2) == {(2, 0, 0): 1}
    pooled = {(0, 1, 1): 1, (0, 1, 2): 2, (1, 0, 2): 1, (2, 1, 1): 1}
    assert table(data, layout(pooled=True), 0) == pooled
    with pytest.raises(ConfigError, match="step"):
        table(data, layout(), 2)
    with pytest.raises(ConfigError, match="step"):
        table(data, layout(pooled=True), 1)


def test_terminated_steps_have_a_successor_of_their_own_unless_terminal_states_are_declared():
    data = trajectories_of(PATHS)
    assert table(data, layout(terminal=None), 0) == {(0, 1, 1): 1, (0, 1, 2): 1, (0, 1, 3): 1}


def test_clusters_count_together():
    data = trajectories_of(PATHS)
    of = layout(clusters=np.array([0, 1, 0]))
    assert table(data, of, 0) == {(0, 1, 1): 1, (0, 1, 0): 2}
    assert table(data, of, 1) == {(1, 0, 0): 1, (0, 1, 1): 1}


TWICE = [
    ([(0, 1, 0.25), (1, 0, 0.5), (0, 1, 1.0)], 2, False),  # another successor the second time
    ([(0, 1, 0.5), (0, 1, 1.0)], 1, False),
]


def test_first_visits_are_each_trajectorys_own():
    of = layout(pooled=True, visits="first", horizon=3, estimate_reward=True)
    data = trajectories_of(TWICE)
    assert table(data, of, 0) == {(0, 1, 1): 1, (1, 0, 0): 1, (0, 1, 0): 1}
    assert rewards(data, of, 0) == {(0, 1): pytest.approx(0.75), (1, 0): pytest.approx(0.5)}
    # Of one unit or of two, a trajectory counts by itself.
    both = layout(pooled=True, visits="first", horizon=3, max_trajectories_per_unit=2)
    assert table(trajectories_of(TWICE, unit_ids=[7, 7]), both, 0) == table(data, of, 0)


def test_first_visits_are_to_pairs_of_clusters():
    of = layout(pooled=True, visits="first", horizon=3, clusters=np.array([0, 0, 1]))
    data = trajectories_of([([(0, 1, 0.0), (1, 1, 0.0), (1, 0, 0.0)], 2, False)])
    assert table(data, of, 0) == {(0, 1, 0): 1, (0, 0, 1): 1}


def test_a_visit_that_does_not_count_is_not_the_first():
    of = layout(pooled=True, visits="first", horizon=3)
    data = trajectories_of([([(0, 1, np.nan), (0, 1, 0.0), (0, 1, 0.0)], 2, False)])
    assert table(data, of, 0) == {(0, 1, 0): 1}


def test_first_visits_do_not_depend_on_the_number_of_workers():
    data = RandomProblem.draw(3, 2, 4, seed=0).sample(200, seed=1)
    of = layout(pooled=True, visits="first", horizon=4, estimate_reward=True)
    whole = table(data, of, 0)
    assert whole == table(data, of, 0, workers=3)
    assert 200 < sum(whole.values()) < 800
    assert max(whole.values()) <= 200


def test_rows_beyond_a_units_cap_do_not_count():
    steps = [(0, 0, 0.0), (1, 0, 0.0), (2, 0, 0.0)]
    paths = [(steps, 0, False), ([(0, 1, 0.0)] * 2, 0, False), (steps, 0, False)]
    data = trajectories_of(paths, unit_ids=[5, 9, 5])
    of = layout(horizon=3, pooled=True, max_trajectories_per_unit=2, max_rows_per_unit=4)
    assert table(data, of, 0) == {(0, 0, 1): 2, (1, 0, 2): 1, (2, 0, 0): 1, (0, 1, 0): 2}
    one = layout(horizon=3, max_trajectories_per_unit=2, max_rows_per_unit=1)
    assert [table(data, one, t) for t in range(3)] == [{(0, 0, 1): 1, (0, 1, 0): 1}, {}, {}]


def test_rewards_are_clipped_and_scaled():
    data = trajectories_of(
        [([(0, 1, 5.0)], 0, False), ([(0, 1, -7.0)], 0, False), ([(0, 1, 1.0)], 0, False)]
    )
    of = layout(estimate_reward=True, reward_range=(-1.0, 3.0))
    assert rewards(data, of, 0) == {(0, 1): pytest.approx(1 + 0 + 0.5, abs=1e-9)}
    assert rewards(data, of, 1) == {}
    assert rewards(data, layout(), 0) == {}


BAD_ROWS = [(-1, 0, 0.0), (3, 0, 0.0), (0, -1, 0.0), (0, 2, 0.0), (0, 0, np.nan), (0, 0, np.inf)]


@pytest.mark.parametrize("bad", BAD_ROWS)
@pytest.mark.parametrize("estimate_reward", [False, True])
def test_malformed_rows_leave_no_trace(bad, estimate_reward, caplog, capfd):
    of = layout(estimate_reward=estimate_reward)
    good = [([(1, 1, 0.5), (2, 0, 0.5)], 0, False)]
    alone = trajectories_of(good)
    with_bad = trajectories_of([*good, ([bad], 1, False)])
    for step in range(2):
        assert table(with_bad, of, step) == table(alone, of, step)
        assert rewards(with_bad, of, step) == rewards(alone, of, step)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_malformed_successor_leaves_no_trace_and_later_rows_keep_their_time():
    data = trajectories_of([([(1, 1, 0.5), (9, 0, 0.5), (2, 1, 0.5)], 0, False)])
    of = layout(horizon=3)
    assert [table(data, of, step) for step in range(3)] == [{}, {}, {(2, 1, 0): 1}]


def test_only_a_units_first_trajectories_count():
    paths = [([(s, 0, 0.0)], 0, False) for s in (0, 1, 2, 2)]
    data = trajectories_of(paths, unit_ids=[5, 9, 5, 5])
    assert table(data, layout(), 0) == {(0, 0, 0): 1, (1, 0, 0): 1}
    two = layout(max_trajectories_per_unit=2)
    assert table(data, two, 0) == {(0, 0, 0): 1, (1, 0, 0): 1, (2, 0, 0): 1}


def test_workers_and_empty_shards_add_up():
    problem = RandomProblem.draw(3, 2, 2, seed=0)
    data = problem.sample(200, seed=1)
    for step in range(2):
        whole = table(data, layout(), step)
        assert sum(whole.values()) == 200
        assert whole == table(data, layout(), step, workers=3)
    assert table(trajectories_of([]), layout(), 0, workers=2) == {}


def test_boxes_are_no_states():
    box = Trajectories(
        observations=np.zeros((2, 1)),
        actions=np.zeros(1, np.int64),
        rewards=np.zeros(1),
        terminated=np.zeros(1, bool),
        truncated=np.ones(1, bool),
        offsets=np.array([0, 1]),
        unit_ids=np.zeros(1),
    )
    with pytest.raises(ConfigError, match="Discrete"):
        start(box, layout())


def test_a_stored_source_is_a_reference():
    from distributed_privrl.data.shards import ShardRef

    ref = ShardRef(root="/nowhere", dataset="a/b-v0", index=0, count=1, unit="trajectory")
    source = StoredTrajectories(ref=ref, max_trajectories_per_unit=2)
    assert pickle.loads(pickle.dumps(source)) == source


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"states": 0}, "states"),
        ({"horizon": 0}, "horizon"),
        ({"max_trajectories_per_unit": 0}, "max_trajectories_per_unit"),
        ({"max_rows_per_unit": 0}, "max_rows_per_unit"),
        ({"visits": "first"}, "pooled"),
        ({"visits": "last", "pooled": True}, "visits"),
        ({"reward_range": (1.0, 1.0)}, "reward_range"),
        ({"reward_range": (0.0, np.inf)}, "reward_range"),
        ({"terminal": np.zeros(2, bool)}, "terminal"),
        ({"terminal": np.ones(3, bool)}, "terminal"),
        ({"clusters": np.array([0, 1])}, "clusters"),
        ({"clusters": np.array([0.0, 1.0, 1.0])}, "clusters"),
        ({"clusters": np.array([0, 2, 2])}, "clusters"),
        ({"clusters": np.array([-1, 0, 1])}, "clusters"),
        ({"clusters": np.array([0, 1, 1]), "terminal": np.array([0, 0, 1], bool)}, "clusters"),
    ],
)
def test_impossible_layouts_are_refused(changed, named):
    with pytest.raises(ConfigError, match=named):
        layout(**changed)
