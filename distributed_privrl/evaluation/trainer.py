"""The port through which evaluation trains agents, and the plain loops behind it.

``runtime`` adds trainers of its own (RLlib); callers hand them in. A trainer is told by its agent's
name and settings, so that torch is imported to train alone, not to check what is asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from distributed_privrl.agents.names import action_spaces, check_actions
from distributed_privrl.agents.options import DEFAULTS, check_known, with_options
from distributed_privrl.agents.settings import AgentConfig
from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.evaluation.returns import (
    ActingPolicy,
    LearningCurve,
    Returns,
    evaluate_policy,
)

if TYPE_CHECKING:
    from distributed_privrl.agents.algorithm import Algorithm
    from distributed_privrl.agents.policy import Policy

_TOLD = 20
"""Times that progress of a training is told."""

OnEvaluation = Callable[[int, ActingPolicy], None]

Options = Mapping[str, Mapping[str, Any]]
"""Hyper-parameters that differ from the defaults, by agent."""


@dataclass(frozen=True, kw_only=True)
class Spaces:
    """The spaces of a dataset.

    Args:
        observation: Box or Discrete.
        action: Box or Discrete.
    """

    observation: Space
    action: Space


class Trainer(Protocol):
    """Trains one kind of agent on transitions."""

    @property
    def name(self) -> str:
        """What a configuration calls it."""
        ...

    @property
    def agent(self) -> str:
        """Name of the agent; the plain loop of that name trains the same one."""
        ...

    @property
    def released_rows_only(self) -> bool:
        """Whether rows must be released or public: they may leave this process."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """Whether rows stay in the memory of the process that trains: no file, no other process."""
        ...

    def with_settings(self, settings: Mapping[str, Any]) -> "Trainer":
        """Return the trainer with some of its agent's hyper-parameters changed.

        Raises:
            ConfigError: one is unknown (the message lists the names) or out of range.
        """
        ...

    def prepare(self) -> None:
        """Import and start what the first training would, so that only rows are missing then."""
        ...

    def train(
        self,
        transitions: Transitions,
        spaces: Spaces,
        *,
        seed: int,
        steps: int,
        evaluate_every: int,
        on_evaluation: OnEvaluation,
    ) -> ActingPolicy:
        """Return a policy trained for ``steps`` gradient steps.

        Args:
            transitions: the training data.
            spaces: of observations and actions.
            seed: public seed.
            steps: gradient steps.
            evaluate_every: gradient steps between calls of ``on_evaluation``.
            on_evaluation: called with the step and the policy so far.
        """
        ...


@dataclass(frozen=True)
class PlainTrainer:
    """Any agent of ours as a plain loop in this process.

    Args:
        agent: its name.
        config: its hyper-parameters.
        device: that it computes on.
    """

    agent: str
    config: AgentConfig
    device: str = "cpu"

    released_rows_only: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """What a configuration calls it."""
        return self.agent

    @property
    def algorithm(self) -> "Algorithm[Any, Any]":
        """Its losses and update rule."""
        from distributed_privrl.agents.algorithms import ALGORITHMS

        return replace(ALGORITHMS[self.agent], config=self.config)

    def prepare(self) -> None:
        """Import what training needs; see `Trainer.prepare`."""
        from distributed_privrl.agents import algorithms, training  # noqa: F401

    def train(
        self,
        transitions: Transitions,
        spaces: Spaces,
        *,
        seed: int,
        steps: int,
        evaluate_every: int,
        on_evaluation: OnEvaluation,
    ) -> "Policy":
        """Train the agent; see `Trainer.train`."""
        from distributed_privrl.agents.training import train_agent

        return train_agent(
            self.algorithm,
            transitions,
            observation_space=spaces.observation,
            action_space=spaces.action,
            steps=steps,
            streams=Streams(seed),
            on_evaluation=on_evaluation,
            evaluate_every=evaluate_every,
            device=self.device,
        )

    def with_settings(self, settings: Mapping[str, Any]) -> "PlainTrainer":
        """Return the trainer with some hyper-parameters changed; see `Trainer.with_settings`."""
        return replace(self, config=with_options(self.agent, self.config, settings))


TRAINERS: Mapping[str, Trainer] = {
    name: PlainTrainer(name, config) for name, config in DEFAULTS.items()
}
"""The plain loops, by name."""


def check_trainer(trainer: Trainer, actions: Space) -> None:
    """Check that the agent of a trainer knows a dataset's actions.

    Raises:
        ConfigError: it does not; the message names who does.
    """
    check_actions(trainer.agent, action_spaces(trainer.agent), actions)


def find_trainer(
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    more: Mapping[str, Trainer] | None = None,
    device: str = "cpu",
) -> Trainer:
    """Return the trainer called ``name``.

    Args:
        name: as in the configuration.
        settings: hyper-parameters of its agent that differ from the defaults.
        more: trainers beside the plain loops; they win over a loop of the same name.
        device: that a plain loop computes on; others compute where they do.

    Raises:
        ConfigError: nobody is called that (the message lists the names), or an option is wrong.
    """
    known = {**TRAINERS, **(more or {})}
    check_known(name, known)
    found = known[name].with_settings(settings) if settings else known[name]
    return replace(found, device=device) if isinstance(found, PlainTrainer) else found


def settings_of(
    name: str, options: Options, *, more: Mapping[str, Trainer] | None = None
) -> Mapping[str, Any]:
    """Return what ``options`` say of the agent that the trainer called ``name`` trains.

    An agent has one set of hyper-parameters, whoever trains it: the plain loop or RLlib.
    """
    return options.get(find_trainer(name, more=more).agent, {}) if options else {}


def train(
    trainer: Trainer,
    transitions: Transitions,
    spaces: Spaces,
    *,
    seed: int,
    steps: int,
    told: Callable[[int], None] = lambda _: None,
) -> ActingPolicy:
    """Train an agent that is not evaluated on the way; the one that `train_and_evaluate` trains.

    Args:
        trainer: what trains it.
        transitions: the training data.
        spaces: of observations and actions.
        seed: public seed.
        steps: gradient steps.
        told: called with the steps taken, some twenty times.
    """
    return trainer.train(
        transitions,
        spaces,
        seed=Streams(seed).integer("training"),
        steps=steps,
        evaluate_every=max(1, steps // _TOLD),
        on_evaluation=lambda step, _: told(step),
    )


def train_and_evaluate(
    trainer: Trainer,
    transitions: Transitions,
    spaces: Spaces,
    *,
    environment_id: str,
    seed: int,
    steps: int,
    evaluations: int,
    episodes: int,
    told: Callable[[int], None] | None = None,
) -> tuple[ActingPolicy, LearningCurve]:
    """Train an agent and return it with its returns along the way.

    Args:
        trainer: what trains it.
        transitions: the training data.
        spaces: of observations and actions.
        environment_id: Gymnasium id of the environment that it is evaluated in.
        seed: public seed of training and evaluation.
        steps: gradient steps.
        evaluations: evaluations, evenly spread, the last one at the end.
        episodes: episodes of each evaluation.
        told: called with the steps taken, after each evaluation.

    Raises:
        ConfigError: ``evaluations`` does not divide ``steps``.
    """
    check_positive("evaluations", evaluations)
    if steps % evaluations:
        raise ConfigError(f"steps={steps} must be a multiple of evaluations={evaluations}")
    streams = Streams(seed)
    curve: list[tuple[int, Returns]] = []

    def record(step: int, policy: ActingPolicy) -> None:
        episode_seed = streams.integer(f"evaluation/{step}")
        returns = evaluate_policy(policy, environment_id, episodes=episodes, seed=episode_seed)
        curve.append((step, returns))
        if told is not None:
            told(step)

    policy = trainer.train(
        transitions,
        spaces,
        seed=streams.integer("training"),
        steps=steps,
        evaluate_every=steps // evaluations,
        on_evaluation=record,
    )
    return policy, LearningCurve(
        steps=tuple(step for step, _ in curve), returns=tuple(returns for _, returns in curve)
    )
