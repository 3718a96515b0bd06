"""The synthetic linear MDP of two states and a hundred actions.

From the text of DP-VAPVI (section 5, footnote 11): two states, 100 actions, H = 20, two instances,
a feature map kept from Min et al. and Yin et al., transitions made stochastic and a reward made
more complex. Its appendix F, which has the numbers, was not at hand.

After descriptions of the earlier papers, which could not be compared with their text: the feature
map below, measures that put weight on its last two coordinates alone, a fixed random alpha_h in
{0, 1} that says which state is aimed at, and a behaviour that takes action 0 with probability 0.6
and else one of the others.

Our choice: the probabilities of reaching the state aimed at, the rewards, the uniform first state,
and the random draws behind both instances. So figures of this problem compare methods with each
other, never with the papers' figures.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.tabular import TabularMdp

Instance = Literal["a", "b"]

STATES = 2
ACTIONS = 100
BITS = 8
FEATURE_NORM = 3.0
"""The norm of every unscaled feature vector: eight bits of +-1, and one 1; a public fact."""

BEHAVIOUR_OF_ACTION_0 = 0.6

BIT_SHARE = 0.25
"""Sum of the absolute weights of the bits in the reward."""

LARGEST_GAP = 0.5
"""Largest difference that delta makes to a reward."""


@dataclass(frozen=True, kw_only=True)
class _Instance:
    """What an instance is drawn from.

    Args:
        reached: range of the probability of reaching the state aimed at.
        positive: probability that the weight of a bit is positive; the higher it is, the less
            action 0 earns, whose bits are all -1.
    """

    reached: tuple[float, float]
    positive: float


_INSTANCES = {
    "a": _Instance(reached=(0.85, 0.95), positive=0.5),
    "b": _Instance(reached=(0.75, 0.95), positive=0.75),
}


def linear_mdp(instance: Instance = "a", horizon: int = 20) -> TabularMdp:
    """Return an instance of the synthetic linear MDP.

    With delta = 1 if (s = 0) equals (a = 0), else 0, the features of (s, a) are the eight bits of a
    (+1 and -1, the lowest first), delta and 1 - delta, divided by 3: every norm is 1. At step h the
    next state is alpha_h with probability p_h if delta = 1, else q_h. The reward is w_h . bits and
    u_h if delta = 1, else v_h, in sum in [0, 1]. Both are linear in the features at each step. The
    highest bit is always -1 and delta + (1 - delta) always 1, so the features span nine of their
    ten dimensions.

    The numbers of step h depend on the instance and h alone: a shorter horizon is a beginning.

    Args:
        instance: ``"a"``, or ``"b"``: more chance in the transitions, a behaviour that earns less,
                and more to gain by planning ahead.
        horizon: number of steps H.

    Raises:
        ConfigError: no such instance, or a horizon below 1.

    Reference: Qiao & Wang, "Offline Reinforcement Learning with Differential Privacy", section 5;
        Min et al., "Variance-Aware Off-Policy Evaluation with Linear Function Approximation";
        Yin et al., "Near-optimal Offline Reinforcement Learning with Linear Representation".
    """
    if instance not in _INSTANCES:
        raise ConfigError(f"instance must be a or b, got {instance!r}")
    if horizon < 1:
        raise ConfigError(f"horizon must be at least 1, got {horizon}")
    features = _features()
    steps = [_step(instance, step) for step in range(horizon)]
    behaviour = np.full((1, STATES, ACTIONS), (1 - BEHAVIOUR_OF_ACTION_0) / (ACTIONS - 1))
    behaviour[..., 0] = BEHAVIOUR_OF_ACTION_0
    return TabularMdp(
        transitions=np.stack([np.clip(features @ measures, 0, 1) for measures, _ in steps]),
        rewards=np.stack([np.clip(features @ weights, 0, 1) for _, weights in steps]),
        initial=np.full(STATES, 1 / STATES),
        horizon=horizon,
        behaviour=behaviour,
        features=features,
    )


def _features() -> NDArray[np.float64]:
    """Return the feature map, ``(2, 100, 10)``, of norm 1."""
    actions = np.arange(ACTIONS)
    bits = 2 * (actions[:, None] >> np.arange(BITS) & 1) - 1
    delta = (np.arange(STATES)[:, None] == 0) == (actions == 0)
    repeated = np.broadcast_to(bits, (STATES, ACTIONS, BITS))
    last = np.stack([delta, ~delta], axis=-1)
    return np.concatenate([repeated, last], axis=-1) / FEATURE_NORM


def _step(instance: str, step: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the measures ``(10, 2)`` and the reward vector ``(10,)`` of one step."""
    rng = Streams(0).numpy(f"environments/linear-mdp-{instance}/{step}")
    aimed = int(rng.integers(STATES))
    drawn_from = _INSTANCES[instance]
    low, high = drawn_from.reached
    reached = rng.uniform(low, high), 1 - rng.uniform(low, high)
    measures = np.zeros((BITS + 2, STATES))
    measures[BITS:, aimed] = reached
    measures[BITS:, 1 - aimed] = 1 - np.array(reached)
    gap = rng.uniform(0, LARGEST_GAP) * rng.choice([-1, 1])
    bits = BIT_SHARE * rng.dirichlet(np.ones(BITS))
    bits *= rng.choice([-1, 1], size=BITS, p=[1 - drawn_from.positive, drawn_from.positive])
    weights = np.array([*bits, 0.5 + gap / 2, 0.5 - gap / 2])
    return measures * FEATURE_NORM, weights * FEATURE_NORM
