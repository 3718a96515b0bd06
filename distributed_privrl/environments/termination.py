"""When public environments end an episode, as rules on what they show after a step.

A model of the dynamics says nothing of it: the rule is the simulator's, a public fact.
"""

from collections.abc import Callable
from typing import Any

from gymnasium.envs.registration import parse_env_id

Rule = Callable[[Any], Any]
"""Observations ``(M, O)`` after a step, raw, to whether the episode is over ``(M,)``.

Arrays or torch tensors: rules compare and combine, and nothing else.
"""


def _walker(after: Any) -> Any:
    height, lean = after[:, 0], after[:, 1]
    return (height <= 0.8) | (height >= 2.0) | (lean <= -1.0) | (lean >= 1.0)


def _hopper(after: Any) -> Any:
    height, lean = after[:, 0], after[:, 1]
    return (height <= 0.7) | (lean <= -0.2) | (lean >= 0.2) | (abs(after[:, 1:]) >= 100).any(1)


def _inverted_pendulum(after: Any) -> Any:
    return abs(after[:, 1]) > 0.2


def _mountain_car(after: Any) -> Any:
    return (after[:, 0] >= 0.45) & (after[:, 1] >= 0)


_RULES: dict[str, Rule] = {
    "Walker2d": _walker,
    "Hopper": _hopper,
    "InvertedPendulum": _inverted_pendulum,
    "MountainCarContinuous": _mountain_car,
}


def termination_rule(environment: str) -> Rule | None:
    """Return when an environment with its default arguments ends; None where no rule is known.

    Args:
        environment: Gymnasium id; a rule holds for every version of a name.

    Reference: Gymnasium's documentation of Walker2d, Hopper, InvertedPendulum ("Episode End") and
    Continuous Mountain Car. Pendulum, HalfCheetah, Swimmer, Reacher and the cart-poles of
    dm_control never end.

    Example:
        >>> termination_rule("Pendulum-v1") is None, termination_rule("Hopper-v5") is None
        (True, False)
    """
    namespace, name, _ = parse_env_id(environment.rpartition(":")[2])
    return None if namespace else _RULES.get(name)
