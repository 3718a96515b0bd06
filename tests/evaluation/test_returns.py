from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments import ReferenceReturns
from distributed_privrl.evaluation.returns import (
    LearningCurve,
    Returns,
    evaluate_policy,
    normalised,
)

COUNTING = "privrl-tests/Counting-v0"
ENDLESS = "privrl-tests/Endless-v0"


class Counting(gymnasium.Env[Any, Any]):
    """Pays the action; ends after a number of steps that the reset seed decides (3 to 8)."""

    observation_space = gymnasium.spaces.Dict(
        {"here": gymnasium.spaces.Box(-1, 9, (1,)), "length": gymnasium.spaces.Box(0, 9, (1,))}
    )
    action_space = gymnasium.spaces.Box(-1, 9, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(3, 9))
        self.here = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.here += 1
        done = self.here >= self.length
        return self._observe(), float(action[0]), done, False, {}

    def _observe(self) -> dict[str, Any]:
        return {
            "here": np.array([self.here], np.float32),
            "length": np.array([self.length], np.float32),
        }


for _name, _limit in ((COUNTING, 5), (ENDLESS, None)):
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=Counting, max_episode_steps=_limit)


class EchoPolicy:
    """Acts with its first observation, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        self.batches.append(len(observations))
        return observations[:, :1]


def test_returns_are_sums_of_rewards_over_whole_episodes() -> None:
    returns = evaluate_policy(EchoPolicy(), COUNTING, episodes=40, seed=0)
    # n steps pay 0 + 1 + .. + (n - 1); n = min(length, 5) with length 3 .. 8.
    assert set(returns.per_episode) == {3.0, 6.0, 10.0}
    assert returns.per_episode.count(10.0) > 15
    assert returns.mean == pytest.approx(np.mean(returns.per_episode))


def test_returns_do_not_depend_on_how_many_environments_step_together() -> None:
    policies = [EchoPolicy() for _ in range(3)]
    results = [
        evaluate_policy(policy, COUNTING, episodes=7, seed=3, environments=count)
        for policy, count in zip(policies, (1, 3, 16), strict=True)
    ]
    assert results[0] == results[1] == results[2]
    assert max(policies[0].batches) == 1
    assert policies[1].batches[0] == 3
    assert policies[2].batches[0] == 7
    assert evaluate_policy(EchoPolicy(), COUNTING, episodes=7, seed=4) != results[0]


def test_a_registered_environment_runs_to_its_time_limit() -> None:
    class Still:
        calls = 0

        def act(self, observations: NDArray[Any]) -> NDArray[Any]:
            self.calls += 1
            assert observations.shape == (2, 3)
            return np.zeros((len(observations), 1), np.float32)

    policy = Still()
    returns = evaluate_policy(policy, "Pendulum-v1", episodes=2, seed=0)
    assert policy.calls == 200
    assert len(returns.per_episode) == 2
    assert -3500 < returns.mean < -100


def test_an_action_that_is_not_finite_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its episode earns NaN; the other episodes earn what they would have."""

    class Spoiled(EchoPolicy):
        def act(self, observations: NDArray[Any]) -> NDArray[Any]:
            # In their third step, the episodes of four.
            spoiled = (observations[:, :1] == 2) & (observations[:, 1:] == 4)
            return np.where(spoiled, np.nan, observations[:, :1])

    taken: list[float] = []
    step = Counting.step

    def watched(self: Counting, action: Any) -> Any:
        taken.append(float(action[0]))
        return step(self, action)

    monkeypatch.setattr(Counting, "step", watched)
    right = evaluate_policy(EchoPolicy(), COUNTING, episodes=40, seed=0).per_episode
    found = evaluate_policy(Spoiled(), COUNTING, episodes=40, seed=0).per_episode
    assert np.isfinite(taken).all()
    expected = [np.nan if value == 6.0 else value for value in right]
    assert 0 < expected.count(np.nan) < 40
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("environment", "message"), [("Nothing-v0", "cannot be made"), (ENDLESS, "no time limit")]
)
def test_unusable_environments_are_refused(environment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate_policy(EchoPolicy(), environment, episodes=1, seed=0)


def test_normalised_by_hand() -> None:
    reference = ReferenceReturns(random=-10.0, planner=30.0)
    assert [normalised(value, reference) for value in (-10, 30, 0, 50)] == [0, 100, 25, 150]
    with pytest.raises(ConfigError, match="planner > random"):
        normalised(1.0, ReferenceReturns(random=1.0, planner=1.0))


def test_figure_is_the_mean_of_the_last_evaluations_not_the_best() -> None:
    curve = LearningCurve(
        steps=(1, 2, 3), returns=(Returns((90.0, 90.0)), Returns((10.0, 30.0)), Returns((40.0,)))
    )
    assert curve.figure(last=2) == 30
    assert curve.figure(last=1) == 40
    assert curve.figure(last=10) == 50
    with pytest.raises(ConfigError, match="no evaluation"):
        LearningCurve(steps=(), returns=()).figure()
