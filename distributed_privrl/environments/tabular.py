"""Finite MDPs with a horizon, and the exact values of policies in them by dynamic programming."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distributed_privrl.core.errors import ConfigError

Policy = NDArray[np.floating[Any]] | NDArray[np.integer[Any]]
"""Probabilities ``(H', S, A)`` or actions ``(H', S)``, H' rules, the last of which goes on."""

_STAGED = ("transitions", "rewards", "behaviour")

_TOLERANCE = 1e-6
"""How far from one a row of probabilities may sum, which float32 needs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TabularMdp:
    """A finite MDP with a horizon, and the policy that collects its data.

    A step from s by a to s' earns ``rewards[t, s, a] + arrival_rewards[s']``. All arrays become
    read-only views; those of one stage (T or T' of 1) are the same at every step.

    Args:
        transitions: ``(T, S, A, S)`` probabilities of s', float32 or float64, T = 1 or horizon.
        rewards: ``(T, S, A)`` reward of (s, a) on average over whatever else is random.
        initial: ``(S,)`` probabilities of the first state.
        horizon: steps H of an episode at most.
        behaviour: ``(T', S, A)`` probabilities of the policy that collects data, T' = 1 or horizon.
        arrival_rewards: ``(S,)`` further reward for arriving in s'; None: zeros.
        terminal: ``(S,)`` bool: an episode ends on arrival, and nothing is earned after it. These
            states lead to terminal states alone and have rewards 0. None: no state is terminal.
        features: ``(S, A, d)`` public feature map, L2 norms at most 1, if there is one.

    Raises:
        ConfigError: the arrays do not fit together, probabilities are negative or do not sum to 1,
            a number is not finite, a terminal state goes on or earns, or a feature is longer
            than 1.
    """

    transitions: NDArray[np.floating[Any]]
    rewards: NDArray[np.float64]
    initial: NDArray[np.float64]
    horizon: int
    behaviour: NDArray[np.float64]
    arrival_rewards: NDArray[np.float64] = None  # type: ignore[assignment]
    terminal: NDArray[np.bool_] = None  # type: ignore[assignment]
    features: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ConfigError(f"horizon must be at least 1, got {self.horizon}")
        transitions = np.asarray(self.transitions)
        if transitions.ndim != 4 or transitions.dtype not in (np.float32, np.float64):
            raise ConfigError(
                "transitions must be (T, S, A, S) float32 or float64,"
                f" got {transitions.dtype} {transitions.shape}"
            )
        stages, states, actions, successors = transitions.shape
        if successors != states or stages not in (1, self.horizon) or not states * actions:
            raise ConfigError(
                f"transitions must be (T, S, A, S) with T = 1 or horizon = {self.horizon},"
                f" got {transitions.shape}"
            )
        _freeze(self, "transitions", transitions)
        _freeze(self, "rewards", self.rewards, (stages, states, actions))
        _freeze(self, "initial", self.initial, (states,))
        if np.shape(self.behaviour)[:1] not in ((1,), (self.horizon,)):
            raise ConfigError(
                f"behaviour must be (T', S, A) with T' = 1 or horizon = {self.horizon},"
                f" got shape {np.shape(self.behaviour)}"
            )
        _freeze(self, "behaviour", self.behaviour, (len(self.behaviour), states, actions))
        if self.arrival_rewards is None:
            object.__setattr__(self, "arrival_rewards", np.zeros(states))
        _freeze(self, "arrival_rewards", self.arrival_rewards, (states,))
        if self.terminal is None:
            object.__setattr__(self, "terminal", np.zeros(states, dtype=bool))
        _freeze(self, "terminal", self.terminal, (states,), dtype=np.bool_)
        for name in ("transitions", "initial", "behaviour"):
            check_distributions(name, getattr(self, name))
        self._check_terminal()
        if self.features is not None:
            self._check_features()

    @property
    def states(self) -> int:
        """The number S of states."""
        return int(self.transitions.shape[1])

    @property
    def actions(self) -> int:
        """The number A of actions."""
        return int(self.transitions.shape[2])

    @property
    def reward_range(self) -> tuple[float, float]:
        """The smallest and the largest reward of a step, whether or not it can happen."""
        lasting = self.rewards[:, ~self.terminal]
        return (
            float(lasting.min() + self.arrival_rewards.min()),
            float(lasting.max() + self.arrival_rewards.max()),
        )

    def stages(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Yield transitions ``(S, A, S)`` and mean rewards ``(S, A)`` of each step, the last first.

        The rewards include those of arriving, and are 0 where a state is terminal. At most one
        stage is held in float64 beside the MDP's own arrays, and an unchanging one is the same
        object each time.
        """
        for step in reversed(range(self.horizon)):
            if step == self.horizon - 1 or len(self.transitions) > 1:
                moves = self.transitions[step % len(self.transitions)].astype(
                    np.float64, copy=False
                )
                rewards = self.rewards[step % len(self.rewards)] + moves @ self.arrival_rewards
                rewards[self.terminal] = 0.0
            yield moves, rewards

    def _check_terminal(self) -> None:
        ends = self.terminal
        if self.initial[ends].any():
            raise ConfigError(
                f"initial must give terminal states 0, got {self.initial[ends].sum():.3g}"
            )
        if self.transitions[:, ends][..., ~ends].any():
            leaving = self.transitions[..., ~ends].any(axis=(0, 2, 3)) & ends
            state = int(np.flatnonzero(leaving)[0])
            raise ConfigError(f"terminal state {state} must lead to terminal states alone")
        if self.rewards[:, ends].any():
            state = int(np.flatnonzero(self.rewards.any(axis=(0, 2)) & ends)[0])
            raise ConfigError(
                f"terminal state {state} must have rewards 0: put what arriving there"
                f" earns into arrival_rewards[{state}]"
            )

    def _check_features(self) -> None:
        features = np.asarray(self.features)
        if features.ndim != 3:
            raise ConfigError(f"features must be (S, A, d), got shape {features.shape}")
        _freeze(self, "features", features, (self.states, self.actions, features.shape[2]))
        longest = float(np.linalg.norm(features, axis=-1).max(initial=0.0))
        if longest > 1 + 1e-9:
            raise ConfigError(f"features must have L2 norms <= 1, got {longest:.6g}: divide by it")


def policy_values(mdp: TabularMdp, policy: Policy, *, horizon: int | None = None) -> NDArray[Any]:
    """Return the exact value of each state at each step under a policy.

    Args:
        mdp: the MDP.
        policy: probabilities ``(H', S, A)`` or actions ``(H', S)``, one rule a step from the first
            on; with fewer rules than steps, the last one goes on.
        horizon: steps H; None: the MDP's. Another one needs an MDP that never changes (T = 1), or
            is shorter.

    Returns:
        ``(H + 1, S)`` float64: expected sum of the rewards from step h on; zeros at the end.

    Raises:
        ConfigError: a policy of another form, or a horizon that the MDP does not know.
    """
    mdp = with_horizon(mdp, horizon)
    rules = check_policy(mdp, policy)
    values = np.zeros((mdp.horizon + 1, mdp.states))
    reduced: tuple[Any, ...] = (None, None, None, None)
    for step, (moves, rewards) in zip(reversed(range(mdp.horizon)), mdp.stages(), strict=True):
        rule_index = min(step, len(rules) - 1)
        if reduced[0] is not moves or reduced[1] != rule_index:
            reduced = (moves, rule_index, *_under_rule(moves, rewards, rules[rule_index]))
        values[step] = reduced[3] + reduced[2] @ values[step + 1]
    return values


def policy_value(mdp: TabularMdp, policy: Policy, *, horizon: int | None = None) -> float:
    """Return the exact expected return of a policy from the initial distribution.

    Args:
        mdp: the MDP.
        policy: see `policy_values`.
        horizon: see `policy_values`.
    """
    return float(mdp.initial @ policy_values(mdp, policy, horizon=horizon)[0])


def optimal_policy(
    mdp: TabularMdp, *, horizon: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return an optimal policy and its values; of equally good actions, the first.

    Args:
        mdp: the MDP.
        horizon: see `policy_values`.

    Returns:
        actions ``(H, S)`` int64 and values ``(H + 1, S)`` float64.

    Raises:
        ConfigError: a horizon that the MDP does not know.
    """
    mdp = with_horizon(mdp, horizon)
    actions = np.zeros((mdp.horizon, mdp.states), dtype=np.int64)
    values = np.zeros((mdp.horizon + 1, mdp.states))
    for step, (moves, rewards) in zip(reversed(range(mdp.horizon)), mdp.stages(), strict=True):
        worth = rewards + moves @ values[step + 1]
        actions[step] = worth.argmax(axis=1)
        values[step] = worth.max(axis=1)
    return actions, values


def uniform_policy(mdp: TabularMdp) -> NDArray[np.float64]:
    """Return the policy that takes each action equally often, ``(1, S, A)``."""
    return np.full((1, mdp.states, mdp.actions), 1 / mdp.actions)


def with_horizon(mdp: TabularMdp, horizon: int | None) -> TabularMdp:
    """Return the MDP with another horizon, sharing its arrays.

    Args:
        mdp: the MDP.
        horizon: number of steps; None: the MDP's own.

    Raises:
        ConfigError: below 1, or above the horizon of an MDP that changes from step to step.
    """
    if horizon is None or horizon == mdp.horizon:
        return mdp
    if horizon < 1:
        raise ConfigError(f"horizon must be at least 1, got {horizon}")
    staged = [name for name in _STAGED if len(getattr(mdp, name)) > 1]
    if staged and horizon > mdp.horizon:
        raise ConfigError(
            f"horizon must be at most {mdp.horizon}, for which {' and '.join(staged)} are given,"
            f" got {horizon}"
        )
    cut = {name: getattr(mdp, name)[:horizon] for name in staged}
    return replace(mdp, horizon=horizon, **cut)


def check_policy(mdp: TabularMdp, policy: Policy) -> Policy:
    """Return ``policy`` if it is one of ``mdp``: see `policy_values`.

    Raises:
        ConfigError: another shape, no rule, an unknown action, or numbers that are no
            probabilities.
    """
    rules: NDArray[Any] = np.asarray(policy)
    is_integer = rules.dtype.kind in "iu"
    shape = (mdp.states,) if is_integer else (mdp.states, mdp.actions)
    if rules.dtype.kind not in "iuf" or rules.shape[1:] != shape or rules.ndim != len(shape) + 1:
        raise ConfigError(
            f"policy must be integers (H', {mdp.states}) or probabilities"
            f" (H', {mdp.states}, {mdp.actions}), got {rules.dtype} {rules.shape}"
        )
    if not len(rules):
        raise ConfigError("policy must have at least one rule, got none")
    if not is_integer:
        check_distributions("policy", rules)
    elif rules.min() < 0 or rules.max() >= mdp.actions:
        raise ConfigError(
            f"policy must hold actions 0 to {mdp.actions - 1}, got {rules.min()} to {rules.max()}"
        )
    return rules


def check_distributions(name: str, probabilities: NDArray[Any]) -> None:
    """Check that the last axis holds probabilities.

    Raises:
        ConfigError: one is negative or not finite, or a sum is not 1 (up to 1e-6).
    """
    if not (probabilities >= 0).all():
        raise ConfigError(f"{name} must be probabilities >= 0, got {np.min(probabilities)!r}")
    sums = probabilities.sum(axis=-1, dtype=np.float64)
    wrong = np.argwhere(~(np.abs(sums - 1) <= _TOLERANCE))
    if len(wrong):
        where = tuple(int(index) for index in wrong[0])
        raise ConfigError(f"{name}{list(where) or ''} must sum to 1, got {sums[where]:.9g}")


def _under_rule(
    moves: NDArray[np.float64], rewards: NDArray[np.float64], rule: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the transitions ``(S, S)`` and rewards ``(S,)`` under one rule."""
    if rule.ndim == 1:
        states = np.arange(len(rule))
        return moves[states, rule], rewards[states, rule]
    weights = rule.astype(np.float64, copy=False)
    return np.matmul(weights[:, None], moves)[:, 0], (weights * rewards).sum(axis=1)


def _freeze(
    mdp: TabularMdp,
    name: str,
    value: ArrayLike,
    shape: tuple[int, ...] | None = None,
    dtype: type | None = None,
) -> None:
    """Set a field to a read-only view of ``value`` after checking its shape and numbers."""
    given = np.asarray(value)
    array = (given if shape is None else np.asarray(given, dtype=dtype or np.float64)).view()
    if shape is not None and array.shape != shape:
        raise ConfigError(f"{name} must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ConfigError(f"{name} must be finite numbers")
    array.flags.writeable = False
    object.__setattr__(mdp, name, array)
