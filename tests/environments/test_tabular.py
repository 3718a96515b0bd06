import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.problems import random_mdp
from distributed_privrl.environments.tabular import (
    TabularMdp,
    optimal_policy,
    policy_value,
    policy_values,
    uniform_policy,
    with_horizon,
)

STAY, GO = 0, 1


def chain(**changes: Any) -> TabularMdp:
    """State 0: staying earns 1/4, going arrives at 1 (earns 1, the end) in half of the cases."""
    transitions = np.zeros((1, 2, 2, 2))
    transitions[0, 0, STAY] = [1, 0]
    transitions[0, 0, GO] = [0.5, 0.5]
    transitions[0, 1, :, 1] = 1
    fields: dict[str, Any] = {
        "transitions": transitions,
        "rewards": [[[0.25, 0], [0, 0]]],
        "arrival_rewards": [0, 1],
        "initial": [1, 0],
        "terminal": [False, True],
        "horizon": 3,
        "behaviour": np.full((1, 2, 2), 0.5),
    }
    return TabularMdp(**{**fields, **changes})


def recursive_value(mdp: TabularMdp, policy: NDArray[Any], state: int, step: int) -> float:
    """The definition, written down without arrays."""
    if step == mdp.horizon or mdp.terminal[state]:
        return 0.0
    stage = min(step, len(mdp.transitions) - 1)
    total = 0.0
    for action, after in itertools.product(range(mdp.actions), range(mdp.states)):
        chance = policy[min(step, len(policy) - 1), state, action]
        chance = chance * mdp.transitions[stage, state, action, after]
        if chance:
            earned = mdp.rewards[stage, state, action] + mdp.arrival_rewards[after]
            total += chance * (earned + recursive_value(mdp, policy, after, step + 1))
    return float(total)


def small_mdp(seed: int = 0, **changes: Any) -> TabularMdp:
    mdp = random_mdp(3, 2, 3, np.random.default_rng(seed))
    return replace(mdp, arrival_rewards=np.array([0.0, 2.0, -1.0]), **changes)


def test_values_by_hand() -> None:
    mdp = chain()
    # always go: 1/2 at the last step, then 1/2 + 1/2 of the next value
    np.testing.assert_allclose(
        policy_values(mdp, np.array([[GO, GO]])), [[0.875, 0], [0.75, 0], [0.5, 0], [0, 0]]
    )
    np.testing.assert_allclose(
        policy_values(mdp, np.array([[STAY, STAY]]))[:, 0], [0.75, 0.5, 0.25, 0]
    )
    # two steps before the end: stay 1/4 + 1/2, go 1/2 + 1/4: a tie, and the first action is taken
    actions, values = optimal_policy(mdp)
    np.testing.assert_allclose(values, [[1.0, 0], [0.75, 0], [0.5, 0], [0, 0]])
    assert actions[:, 0].tolist() == [STAY, STAY, GO]
    assert actions.dtype == np.int64
    assert policy_value(mdp, actions) == 1.0


def test_an_arrival_is_paid_once_though_the_terminal_state_leads_to_itself() -> None:
    assert policy_value(chain(), np.array([[GO, GO]]), horizon=60) == pytest.approx(1.0)


@pytest.mark.parametrize("rules", [1, 2, 3])
def test_values_are_those_of_the_definition(rules: int) -> None:
    mdp = small_mdp()
    policy = np.random.default_rng(1).dirichlet(np.ones(2), size=(rules, 3))
    values = policy_values(mdp, policy)
    for step, state in itertools.product(range(3), range(3)):
        assert values[step, state] == pytest.approx(recursive_value(mdp, policy, state, step))
    expected = sum(mdp.initial[s] * recursive_value(mdp, policy, s, 0) for s in range(3))
    assert policy_value(mdp, policy) == pytest.approx(expected)


def test_actions_and_probabilities_say_the_same() -> None:
    mdp = small_mdp()
    actions = np.array([[0, 1, 1], [1, 0, 1]])
    np.testing.assert_allclose(
        policy_values(mdp, actions), policy_values(mdp, np.eye(2)[actions]), atol=1e-15
    )


def test_no_deterministic_policy_is_better_than_the_optimal_one() -> None:
    mdp = small_mdp(2)
    actions, values = optimal_policy(mdp)
    every = itertools.product((0, 1), repeat=9)
    best = max(policy_value(mdp, np.array(choice).reshape(3, 3)) for choice in every)
    assert best == pytest.approx(float(mdp.initial @ values[0]), abs=1e-12)
    np.testing.assert_allclose(policy_values(mdp, actions), values, atol=1e-14)


def test_a_shorter_horizon_keeps_the_first_steps() -> None:
    mdp = small_mdp()
    policy = np.random.default_rng(1).dirichlet(np.ones(2), size=(3, 3))
    cut = with_horizon(mdp, 2)
    assert cut.horizon == len(cut.transitions) == len(cut.rewards) == 2
    expected = sum(mdp.initial[s] * recursive_value(cut, policy, s, 0) for s in range(3))
    assert policy_value(mdp, policy, horizon=2) == pytest.approx(expected)
    assert len(optimal_policy(mdp, horizon=2)[0]) == 2


@pytest.mark.parametrize(("horizon", "message"), [(4, "at most 3"), (0, "at least 1")])
def test_a_horizon_that_the_mdp_does_not_know_is_refused(horizon: int, message: str) -> None:
    with pytest.raises(ConfigError, match=f"horizon must be {message}.*got {horizon}"):
        policy_value(small_mdp(), uniform_policy(small_mdp()), horizon=horizon)


@pytest.mark.parametrize("horizon", [1, 3])
def test_one_state_and_one_step_are_problems_too(horizon: int) -> None:
    mdp = TabularMdp(
        transitions=np.ones((1, 1, 2, 1)),
        rewards=np.array([[[-3.0, 5.0]]]),
        initial=np.ones(1),
        horizon=horizon,
        behaviour=np.array([[[0.5, 0.5]]]),
    )
    assert policy_value(mdp, uniform_policy(mdp)) == horizon
    assert optimal_policy(mdp)[1][0, 0] == 5 * horizon
    assert mdp.reward_range == (-3.0, 5.0)


def test_single_precision_is_summed_in_double() -> None:
    mdp = small_mdp()
    single = replace(mdp, transitions=mdp.transitions.astype(np.float32))
    assert single.transitions.dtype == np.float32
    values = policy_values(single, uniform_policy(mdp))
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, policy_values(mdp, uniform_policy(mdp)), atol=1e-6)


def test_arrays_are_read_only_and_the_callers_are_not() -> None:
    transitions = np.ones((1, 1, 1, 1))
    mdp = TabularMdp(
        transitions=transitions,
        rewards=np.zeros((1, 1, 1)),
        initial=np.ones(1),
        horizon=1,
        behaviour=np.ones((1, 1, 1)),
    )
    with pytest.raises(ValueError, match="read-only"):
        mdp.transitions[0, 0, 0, 0] = 2
    transitions[0, 0, 0, 0] = 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"transitions": np.ones((2, 2))}, r"transitions must be \(T, S, A, S\)"),
        ({"transitions": np.ones((1, 2, 2, 2), dtype=int)}, "float32 or float64, got int64"),
        ({"transitions": np.full((2, 2, 2, 2), 0.5)}, "T = 1 or horizon = 3"),
        ({"rewards": np.zeros((1, 2, 3))}, r"rewards must have shape \(1, 2, 2\), got \(1, 2, 3\)"),
        ({"rewards": [[[np.nan, 0], [0, 0]]]}, "rewards must be finite"),
        ({"initial": [0.5, 0.4]}, "initial must sum to 1, got 0.9"),
        ({"initial": [1.5, -0.5]}, "initial must be probabilities >= 0, got .*-0.5"),
        ({"initial": [0.5, 0.5]}, "initial must give terminal states 0, got 0.5"),
        ({"behaviour": np.full((2, 2, 2), 0.5)}, "T' = 1 or horizon = 3"),
        ({"behaviour": np.full((1, 2, 2), 0.4)}, r"behaviour\[0, 0\] must sum to 1, got 0.8"),
        ({"arrival_rewards": [1.0]}, r"arrival_rewards must have shape \(2,\)"),
        ({"terminal": [False]}, r"terminal must have shape \(2,\)"),
        ({"rewards": [[[0, 0], [0, 1]]]}, "terminal state 1 must have rewards 0"),
        ({"features": np.zeros((2, 3, 4))}, r"features must have shape \(2, 2, 4\)"),
        ({"features": np.zeros((2, 4))}, r"features must be \(S, A, d\)"),
        ({"features": np.full((2, 2, 4), 0.6)}, "features must have L2 norms <= 1, got 1.2"),
    ],
)
def test_a_malformed_mdp_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chain(**changes)


def test_a_terminal_state_that_goes_on_is_refused() -> None:
    transitions = chain().transitions.copy()
    transitions[0, 1, GO] = [1, 0]
    with pytest.raises(ConfigError, match="terminal state 1 must lead to terminal states alone"):
        chain(transitions=transitions)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (np.zeros((1, 3), dtype=int), r"policy must be integers \(H', 2\)"),
        (np.zeros(2, dtype=int), "policy must be integers"),
        (np.ones((1, 2, 2), dtype=bool), "got bool"),
        (np.zeros((0, 2), dtype=int), "at least one rule"),
        (np.array([[0, 2]]), "actions 0 to 1, got 0 to 2"),
        (np.array([[-1, 0]]), "actions 0 to 1, got -1 to 0"),
        (np.full((1, 2, 2), 0.4), "must sum to 1, got 0.8"),
    ],
)
def test_a_malformed_policy_is_refused(policy: NDArray[Any], message: str) -> None:
    calls: list[Callable[..., Any]] = [policy_values, policy_value]
    for call in calls:
        with pytest.raises(ConfigError, match=message):
            call(chain(), policy)
