"""Hyper-parameters of the agents; imports no torch.

References stand beside each agent's losses.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

from distributed_privrl.core.checks import (
    check_delta,
    check_positive,
    check_probability,
)
from distributed_privrl.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Hyper-parameters of every agent.

    Args:
        hidden: widths of the hidden layers of every network.
        batch_size: rows of a batch (N).
        learning_rate: of Adam.

    Raises:
        ConfigError: a value is out of range.
    """

    hidden: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        numbers = [(one.name, getattr(self, one.name)) for one in fields(self) if one.type is int]
        for name, value in [*numbers, *(("hidden", width) for width in self.hidden)]:
            if not isinstance(value, int):
                raise ConfigError(f"{name} must be a whole number, got {value!r}")
            check_positive(name, value)
        check_positive("learning_rate", self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class ValueConfig(AgentConfig):
    """Hyper-parameters of agents that learn action values.

    Args:
        hidden: widths of the hidden layers of every network.
        batch_size: rows of a batch (N).
        learning_rate: of Adam.
        discount: of future rewards.
        polyak: step of a target network towards its network.

    Raises:
        ConfigError: a value is out of range.
    """

    discount: float = 0.99
    polyak: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("discount", self.discount, zero_allowed=True)
        check_probability("polyak", self.polyak)


@dataclass(frozen=True, kw_only=True)
class BCConfig(AgentConfig):
    """Hyper-parameters of behaviour cloning.

    Args:
        hidden: widths of the hidden layers.
        batch_size: rows of a batch (N).
        learning_rate: of Adam.
        actor: for Box actions; ``gaussian`` has a standard deviation that does not depend on the
            state.

    Raises:
        ConfigError: a value is out of range.
    """

    actor: Literal["deterministic", "gaussian"] = "deterministic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.actor not in ("gaussian", "deterministic"):
            raise ConfigError(f"actor must be gaussian or deterministic, got {self.actor!r}")


@dataclass(frozen=True, kw_only=True)
class IQLConfig(ValueConfig):
    """Hyper-parameters of IQL; the defaults are CORL's for Maze2D.

    Args:
        hidden: widths of the hidden layers of every network.
        batch_size: rows of a batch (N).
        learning_rate: of Adam; the actor's falls to 0 along a cosine.
        discount: of future rewards.
        polyak: step of the target critic towards the critic.
        expectile: of the state value; .5 is the mean, 1 the maximum.
        beta: inverse temperature of the advantage weights; 0 is behaviour cloning.
        maximum_weight: cap of the advantage weights.
        actor: ``gaussian`` has a standard deviation that does not depend on the state.

    Raises:
        ConfigError: a value is out of range.
    """

    expectile: float = 0.7
    beta: float = 3.0
    maximum_weight: float = 100.0
    actor: Literal["gaussian", "deterministic"] = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("maximum_weight", self.maximum_weight)
        check_probability("expectile", self.expectile)
        if not self.beta >= 0:
            raise ConfigError(f"beta must be >= 0, got {self.beta!r}")
        if self.actor not in ("gaussian", "deterministic"):
            raise ConfigError(f"actor must be gaussian or deterministic, got {self.actor!r}")


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(ValueConfig):
    """Hyper-parameters of TD3+BC; the defaults are the paper's and CORL's.

    Args:
        hidden: widths of the hidden layers of every network.
        batch_size: rows of a batch (N).
        learning_rate: of Adam.
        discount: of future rewards.
        polyak: step of the target networks towards theirs.
        alpha: weight of the normalised action values against imitation.
        policy_noise: standard deviation of the noise on target actions.
        noise_clip: its cap.
        policy_delay: actor and target networks move every so many steps.

    Raises:
        ConfigError: a value is out of range.
    """

    alpha: float = 2.5
    policy_noise: float = 0.2
    noise_clip: float = 0.5
    policy_delay: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "policy_noise", "noise_clip"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be >= 0, got {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class EDACConfig(ValueConfig):
    """Hyper-parameters of EDAC; the defaults are CORL's.

    Args:
        hidden: widths of the hidden layers of every network.
        batch_size: rows of a batch (N).
        learning_rate: of Adam.
        discount: of future rewards.
        polyak: step of the target critics towards the critics.
        critics: how many (E).
        eta: weight of the diversity of the critics' slopes; the paper has 0, .1, 1 and 5.

    Raises:
        ConfigError: a value is out of range.
    """

    hidden: tuple[int, ...] = (256, 256, 256)
    critics: int = 10
    eta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.critics >= 2:
            raise ConfigError(f"critics must be at least 2, got {self.critics!r}")
        if not self.eta >= 0:
            raise ConfigError(f"eta must be >= 0, got {self.eta!r}")


@dataclass(frozen=True, kw_only=True)
class SacConfig(EDACConfig):
    """Hyper-parameters of SAC.

    Args:
        hidden: widths of the hidden layers of every network.
        batch_size: rows of a batch (N).
        learning_rate: of Adam: actor, critics and temperature.
        discount: of future rewards.
        polyak: step of the target critics towards the critics.
        critics: how many (E); the lowest counts.
        eta: weight of the diversity of the critics' slopes; 0: plain SAC.
        target_entropy: of the actor; None: -A.
        environments: rows that the environment steps at once (M).
        horizon: steps after which a row starts anew, without being terminal, once its action ends.
        gradient_steps: gradient steps for each time that the actor acts in the M rows.
        action_repeat: steps of the environment that an action is held for in training (K). What is
            learned from is K steps as one: discounts count them, and the reward is their mean.
            Exploration and values reach farther. The policy may act at every step all the same.
        warmup: rows taken by uniform actions before the first gradient step.
        capacity: rows that the replay buffer keeps.
        real_share: share of a batch drawn from fixed rows instead, where there are any.
        reward_offset: what is added to rewards in training. Values start near 0: where that is
            what the best policy earns, they are learned sooner. It changes no optimum where nothing
            terminates.
        decay_steps: learning rates fall to 0 along a cosine over so many gradient steps; None: they
            stay.

    Raises:
        ConfigError: a value is out of range, or recorded steps meet held actions.
    """

    hidden: tuple[int, ...] = (256, 256)
    critics: int = 2
    eta: float = 0.0
    target_entropy: float | None = None
    environments: int = 64
    horizon: int = 200
    gradient_steps: int = 1
    action_repeat: int = 1
    warmup: int = 5_000
    capacity: int = 1_000_000
    real_share: float = 0.0
    reward_offset: float = 0.0
    decay_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("real_share", self.real_share, zero_allowed=True)
        check_positive("action_repeat", self.action_repeat)
        if self.real_share and self.action_repeat > 1:
            raise ConfigError(
                f"action_repeat={self.action_repeat} holds actions, recorded rows do not: set"
                " real_share to 0, or action_repeat to 1"
            )
        if self.decay_steps is not None:
            check_positive("decay_steps", self.decay_steps)
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ConfigError(f"target_entropy must be finite, got {self.target_entropy!r}")
        if max(self.warmup, self.environments) > self.capacity:
            raise ConfigError(
                f"capacity={self.capacity} must be at least warmup={self.warmup} and"
                f" environments={self.environments}"
            )


@dataclass(frozen=True, kw_only=True)
class CQLConfig(ValueConfig):
    """Hyper-parameters of CQL; the defaults are CORL's.

    Args:
        hidden: widths of the hidden layers of every network.
        batch_size: rows of a batch (N).
        learning_rate: of Adam, for the critics.
        actor_learning_rate: of Adam, for actor and temperature.
        discount: of future rewards.
        polyak: step of the target critics towards the critics.
        alpha: weight of the conservative term; 5 in the authors' code, 10 in CORL.
        sampled_actions: actions drawn from each of three distributions for that term (K).
        entropy_backup: whether targets count the entropy.

    Raises:
        ConfigError: a value is out of range.
    """

    hidden: tuple[int, ...] = (256, 256, 256)
    actor_learning_rate: float = 3e-5
    alpha: float = 10.0
    sampled_actions: int = 10
    entropy_backup: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("actor_learning_rate", self.actor_learning_rate)
        if not self.alpha >= 0:
            raise ConfigError(f"alpha must be >= 0, got {self.alpha!r}")


@dataclass(frozen=True, kw_only=True)
class DiscreteValueConfig(ValueConfig):
    """Hyper-parameters of agents of Discrete actions that learn action values.

    Args:
        hidden: widths of the hidden layers of every network.
        batch_size: rows of a batch (N).
        learning_rate: of Adam.
        discount: of future rewards.
        polyak: step of the target network towards its network; 1 copies it.
        target_interval: the target network moves every so many steps.

    Raises:
        ConfigError: a value is out of range.
    """

    target_interval: int = 1


@dataclass(frozen=True, kw_only=True)
class DiscreteCQLConfig(DiscreteValueConfig):
    """Hyper-parameters of discrete CQL.

    Args: those of `DiscreteValueConfig`, and
        alpha: weight of the conservative term; the paper has 4 where data are scarce.

    Raises:
        ConfigError: a value is out of range.
    """

    alpha: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha >= 0:
            raise ConfigError(f"alpha must be >= 0, got {self.alpha!r}")


@dataclass(frozen=True, kw_only=True)
class DiscreteBCQConfig(DiscreteValueConfig):
    """Hyper-parameters of discrete BCQ; the defaults are the authors' for small observations.

    Args: those of `DiscreteValueConfig`, and
        threshold: actions must be more than this times as likely as the likeliest; 0 is Q-learning.
        logit_penalty: weight of the behaviour network's mean squared logit.

    Raises:
        ConfigError: a value is out of range.
    """

    threshold: float = 0.3
    logit_penalty: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta("threshold", self.threshold)
        if not self.logit_penalty >= 0:
            raise ConfigError(f"logit_penalty must be >= 0, got {self.logit_penalty!r}")
