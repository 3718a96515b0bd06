"""Off-policy estimates: by hand, and against exact values of finite MDPs."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.problems import random_mdp
from distributed_privrl.environments.tabular import (
    TabularMdp,
    optimal_policy,
    policy_value,
    uniform_policy,
    with_horizon,
)
from distributed_privrl.evaluation.off_policy.estimators import (
    Episodes,
    doubly_robust,
    effective_episodes,
    importance_weights,
    normalised_weights,
    returns,
    weighted_importance_sampling,
)
from distributed_privrl.evaluation.off_policy.judge import Judge, Judgement, decided
from distributed_privrl.evaluation.off_policy.models import MOST_ACTIONS, Cells
from distributed_privrl.evaluation.off_policy.released import check_countable

HORIZON = 5
FITTED_Q, SAMPLING, ROBUST = "fitted Q", "weighted importance sampling", "doubly robust"

# Two episodes: two steps that end, and one step that ends.
TWO = Episodes(
    rewards=np.array([1.0, 2.0, 5.0]),
    offsets=np.array([0, 2, 3]),
    truncated=np.array([False, False]),
)
ONCE = np.ones(2)


def test_weights_multiply_within_an_episode_and_a_zero_ends_them() -> None:
    weights = importance_weights(np.array([2.0, 3.0, 0.5]), TWO)
    np.testing.assert_allclose(weights, [2.0, 6.0, 0.5])
    np.testing.assert_array_equal(importance_weights(np.array([0.0, 3.0, 0.5]), TWO), [0, 0, 0.5])
    huge = np.full(3, 1e250)
    assert np.isfinite(importance_weights(huge, TWO)).all()


def test_an_ended_episode_keeps_its_weight() -> None:
    shares = normalised_weights(np.array([2.0, 6.0, 0.5]), TWO, ONCE)
    np.testing.assert_allclose(shares, [2 / 2.5, 6 / 6.5, 0.5 / 2.5])
    np.testing.assert_allclose(
        normalised_weights(np.array([2.0, 6.0, 0.5]), TWO, np.array([1.0, 4.0])),
        [2 / 4, 6 / 8, 2 / 4],
    )
    assert weighted_importance_sampling(shares, TWO) == pytest.approx(
        1 * 2 / 2.5 + 2 * 6 / 6.5 + 5 * 0.5 / 2.5
    )


def test_doubly_robust_by_hand() -> None:
    shares = np.array([0.8, 0.9, 0.2])
    found = doubly_robust(
        shares,
        TWO,
        ONCE,
        action_values=np.array([3.0, 1.0, 4.0]),
        state_values=np.array([10.0, 20.0, 30.0]),
        tail_values=np.array([7.0, 0.0]),
    )
    rows = 0.8 * (1 - 3) + 0.5 * 10 + 0.9 * (2 - 1) + 0.8 * 20 + 0.2 * (5 - 4) + 0.5 * 30
    assert found == pytest.approx(rows + 0.9 * 7)
    zero = np.zeros(3)
    plain = doubly_robust(
        shares, TWO, ONCE, action_values=zero, state_values=zero, tail_values=np.zeros(2)
    )
    assert plain == pytest.approx(weighted_importance_sampling(shares, TWO))


def test_effective_episodes_are_those_that_carry_the_weight() -> None:
    assert effective_episodes(np.array([9.0, 3.0, 3.0]), TWO) == pytest.approx(2)
    assert effective_episodes(np.array([9.0, 3.0, 0.0]), TWO) == pytest.approx(1)
    assert effective_episodes(np.zeros(3), TWO) == 0


def test_returns_are_of_episodes() -> None:
    np.testing.assert_array_equal(returns(TWO), [3, 5])


@pytest.mark.parametrize(
    ("offsets", "rewards"), [([0, 2, 2], 2), ([0], 0), ([1, 2], 2), ([0, 2], 3)]
)
def test_episodes_that_do_not_fit_are_refused(offsets: list[int], rewards: int) -> None:
    with pytest.raises(ConfigError, match=r"must"):
        Episodes(
            rewards=np.zeros(rewards),
            offsets=np.array(offsets),
            truncated=np.zeros(len(offsets) - 1, bool),
        )


def _chain(lengths: list[int], *, terminated: bool = True) -> Trajectories:
    """Return walks 0, 1, 2, ... by action 0, each step earning the state's number plus one."""
    total = sum(lengths)
    starts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    states = np.arange(total) - starts
    ends = np.cumsum(lengths) - 1
    last = np.isin(np.arange(total), ends)
    return Trajectories(
        observations=np.concatenate([np.arange(length + 1) for length in lengths]),
        actions=np.zeros(total, np.int64),
        rewards=states + 1.0,
        terminated=last & terminated,
        truncated=last & ~np.bool_(terminated),
        offsets=np.array([0, *np.cumsum(lengths)]),
        unit_ids=np.arange(len(lengths), dtype=np.uint64),
    )


def _judge(trajectories: Trajectories, states: int, actions: int, **options: Any) -> Judge:
    return Judge(
        trajectories,
        observation_space=Discrete(states),
        action_space=Discrete(actions),
        **options,
    )


def _figures(judgement: Judgement) -> dict[str, float]:
    return {name: one.value for name, one in judgement.estimates.items()}


def test_what_a_stopped_recording_missed_is_valued_by_the_model() -> None:
    walks = _chain([3, 3, 1], terminated=False)  # the third stopped after one of three steps
    judge = _judge(walks, 4, 1)
    assert judge.mean_return().value == pytest.approx((6 + 6 + 1) / 3)
    found = _figures(judge.who_acted())
    assert found[SAMPLING] == pytest.approx((6 + 6 + 1) / 3)
    assert found[FITTED_Q] == found[ROBUST] == pytest.approx(6)


def test_few_units_have_no_interval() -> None:
    judge = _judge(_chain([3] * 9), 4, 1)
    assert judge.mean_return().interval is None
    assert _judge(_chain([3] * 10), 4, 1, resamples=20).mean_return().interval is not None


@pytest.fixture(scope="module")
def mdp() -> TabularMdp:
    """Every action is taken in at least a sixth of the visits to a state."""
    drawn = random_mdp(6, 3, 1, Streams(0).numpy("mdp"))
    behaviour = 0.5 * drawn.behaviour + 0.5 / drawn.actions
    return with_horizon(replace(drawn, behaviour=behaviour), HORIZON)


def _collected(mdp: TabularMdp, episodes: int) -> Trajectories:
    drawn = sample_trajectories(mdp, trajectories=episodes, streams=Streams(3))
    return Trajectories.concatenate(list(drawn))


def _policies(mdp: TabularMdp) -> dict[str, Any]:
    best = np.eye(mdp.actions)[optimal_policy(mdp)[0][0]][None]
    return {"uniform": uniform_policy(mdp), "behaviour": mdp.behaviour, "optimal": best}


def test_intervals_contain_the_exact_value_and_not_others(mdp: TabularMdp) -> None:
    judge = _judge(_collected(mdp, 4000), mdp.states, mdp.actions)
    policies = _policies(mdp)
    truths = {name: policy_value(mdp, policy) for name, policy in policies.items()}
    assert truths["optimal"] - truths["uniform"] > 0.5
    for name, policy in policies.items():
        judgement = judge.judged(lambda states, policy=policy: policy[0][states])
        assert judgement.unseen == 0
        for estimator in (FITTED_Q, SAMPLING, ROBUST):
            estimate = judgement.estimates[estimator]
            interval = estimate.interval
            assert interval is not None
            assert interval.low <= truths[name] <= interval.high, (name, estimator)
            assert interval.low <= estimate.value <= interval.high
            if name == "optimal":
                assert interval.low > max(truths["uniform"], truths["behaviour"])
    interval = judge.mean_return().interval
    assert interval is not None
    assert interval.low <= truths["behaviour"] <= interval.high
    assert interval.high - interval.low < 0.1


def test_sampling_of_who_acted_is_the_mean_return(mdp: TabularMdp) -> None:
    judge = _judge(_collected(mdp, 200), mdp.states, mdp.actions, resamples=20)
    acted = judge.who_acted()
    assert acted.estimates[SAMPLING].value == pytest.approx(judge.mean_return().value)
    assert acted.effective_episodes == pytest.approx(200)
    assert acted.mean_weight == pytest.approx(1)
    gain = acted.estimates[SAMPLING].minus(judge.mean_return())
    np.testing.assert_allclose(gain.resampled, 0, atol=1e-9)  # the same resamples


def test_a_policy_that_nobody_followed_is_judged_as_who_acted() -> None:
    walks = _chain([3] * 12)
    judge = _judge(walks, 4, 2, resamples=20)
    found = judge.judged(lambda states: np.tile([0.0, 1.0], (len(states), 1)))
    assert found.unseen == 1
    assert _figures(found) == {name: pytest.approx(6) for name in (FITTED_Q, SAMPLING, ROBUST)}


def test_an_episode_that_no_row_follows_leaves_sampling_unknown() -> None:
    walks = _chain([2] * 12)
    actions = np.array([[0, 1], [1, 0]] * 6).ravel()  # nobody takes 0 twice
    mixed = Trajectories(**{**vars(walks), "actions": actions})
    found = _judge(mixed, 3, 2, resamples=20).judged(
        lambda states: np.tile([1.0, 0.0], (len(states), 1))
    )
    assert found.effective_episodes == 0
    assert math.isnan(found.estimates[SAMPLING].value)
    assert found.estimates[SAMPLING].interval is None
    assert found.estimates[FITTED_Q].value == pytest.approx(3)
    again = Judgement.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert not again.estimates[SAMPLING].known
    assert again.estimates[FITTED_Q].interval == found.estimates[FITTED_Q].interval


def test_units_are_resampled_not_episodes(mdp: TabularMdp) -> None:
    """Ten copies of a person's episode say no more than one, if the unit says that it is one."""
    once = _collected(mdp, 60)
    ten = Trajectories.concatenate([once] * 10)
    apart = Trajectories(**{**vars(ten), "unit_ids": np.arange(600, dtype=np.uint64)})

    def width(trajectories: Trajectories) -> float:
        judge = _judge(trajectories, mdp.states, mdp.actions)
        interval = judge.judged(lambda states: uniform_policy(mdp)[0][states]).estimates[FITTED_Q]
        assert interval.interval is not None
        return interval.interval.high - interval.interval.low

    assert width(ten) > 0.75 * width(once)
    assert width(apart) < 0.6 * width(ten)


def test_observations_of_a_box_are_put_into_cells(mdp: TabularMdp) -> None:
    """A Box that is a noisy code of the state: cells find the states, and values agree."""
    discrete = _collected(mdp, 500)
    noise = Streams(0).numpy("noise").normal(size=(len(discrete.observations), 2)) * 0.01
    corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]])
    coded = (corners[discrete.observations] + noise).astype(np.float32)
    boxed = Trajectories(**{**vars(discrete), "observations": coded})
    space = Box(-9, 9, (2,), np.float32)
    cells = Cells.fit(space, coded, Streams(0))
    assert cells.number == 2500 // 100 + 5  # a hundred rows a cell: final observations count
    assert len(np.unique(cells.of(coded) + 1000 * discrete.observations)) <= cells.number
    judge = Judge(boxed, observation_space=space, action_space=Discrete(3), resamples=20)
    truth = policy_value(mdp, uniform_policy(mdp))
    found = judge.judged(lambda rows: np.full((len(rows), 3), 1 / 3))
    assert found.estimates[FITTED_Q].value == pytest.approx(truth, abs=0.1)


def test_actions_of_a_box_are_put_into_cells(mdp: TabularMdp) -> None:
    """A Box that is a noisy code of the action: cells find the actions, and values agree."""
    discrete = _collected(mdp, 500)
    noise = Streams(0).numpy("noise").normal(size=(len(discrete.actions), 2)) * 0.01
    corners = np.array([[0, 0], [0, 1], [1, 0]], np.float32)
    boxed = Trajectories(
        **{**vars(discrete), "actions": (corners[discrete.actions] + noise).astype(np.float32)}
    )
    judge = Judge(
        boxed,
        observation_space=Discrete(mdp.states),
        action_space=Box(-9, 9, (2,), np.float32),
        resamples=20,
    )
    assert judge.actions.number <= MOST_ACTIONS
    plain = Judge(
        discrete, observation_space=Discrete(mdp.states), action_space=Discrete(3), resamples=20
    )

    class Best:
        def act(self, observations: Any) -> Any:
            return optimal_policy(mdp)[0][0][observations]

    class Coded:
        def act(self, observations: Any) -> Any:
            return corners[Best().act(observations)]

    known = plain.judged(decided(Best(), plain.actions)).estimates[FITTED_Q].value
    found = judge.judged(decided(Coded(), judge.actions)).estimates[FITTED_Q].value
    assert found == pytest.approx(known, abs=0.15)


def test_actions_of_several_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match="Discrete and Box actions"):
        Judge(_chain([1]), observation_space=Discrete(2), action_space=MultiDiscrete([2, 2]))
    with pytest.raises(ConfigError, match="policy_value is for Discrete actions"):
        check_countable(Box(-1, 1, (1,)))


def test_no_episode_is_refused() -> None:
    with pytest.raises(ConfigError, match="no episode"):
        _judge(_chain([1]).select([]), 2, 1)


def test_a_policy_that_decides_takes_one_action() -> None:
    class Odd:
        def act(self, observations: Any) -> Any:
            return observations % 2 + 5

    found = decided(Odd(), Cells.discrete(Discrete(2, start=5)))(np.array([0, 1, 3]))
    np.testing.assert_array_equal(found, [[1, 0], [0, 1], [0, 1]])
