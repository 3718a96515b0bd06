"""Returns of a policy in its environment, normalised as D4RL does.

The reported figure is always a mean over the last evaluations of a training run, never the best
one: choosing the best by its return is a selection on the test.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive, did_you_mean
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space, same_form, supported_space
from distributed_privrl.environments import ReferenceReturns

LAST_EVALUATIONS = 5
"""Of a training run, of which the mean is its figure."""
_RESET_SEEDS = 2**31


class ActingPolicy(Protocol):
    """Anything that acts on a batch of observations."""

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return actions ``(N, A)`` for ``observations`` ``(N, O)``, row by row."""
        ...


@dataclass(frozen=True)
class Returns:
    """Undiscounted returns of single episodes.

    Args:
        per_episode: one number an episode.
    """

    per_episode: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over episodes."""
        return float(np.mean(self.per_episode))


@dataclass(frozen=True)
class LearningCurve:
    """Returns along a training run.

    Args:
        steps: gradient steps of each evaluation, rising.
        returns: one `Returns` an evaluation.
    """

    steps: tuple[int, ...]
    returns: tuple[Returns, ...]

    def figure(self, last: int = LAST_EVALUATIONS) -> float:
        """Return the mean return over the ``last`` evaluations (all, if there are fewer).

        Raises:
            ConfigError: the curve is empty.
        """
        check_positive("last", last)
        if not self.returns:
            raise ConfigError("the curve holds no evaluation: evaluate at least once")
        return float(np.mean([evaluation.mean for evaluation in self.returns[-last:]]))


def evaluate_policy(
    policy: ActingPolicy,
    environment_id: str,
    *,
    episodes: int,
    seed: int,
    environments: int = 16,
    max_steps: int | None = None,
) -> Returns:
    """Return the returns of ``policy`` over whole episodes.

    Several environments step in lockstep, so that the policy acts on batches. Episode i starts
    from a seed of its own, whatever the number of environments. It ends, and its return is NaN,
    where an action is not finite: no environment is asked to take such a step.

    Args:
        policy: acts on batches of observations.
        environment_id: Gymnasium id.
        episodes: number of episodes.
        seed: public seed of the episodes.
        environments: environments that step together.
        max_steps: steps of an episode at most; None: the environment's own time limit.

    Raises:
        ConfigError: a number is not positive, the environment cannot be made, or it has no time
            limit.
    """
    check_positive("episodes", episodes)
    check_positive("environments", environments)
    streams = Streams(seed)
    waiting = deque(
        (episode, streams.integer(f"episode/{episode}") % _RESET_SEEDS)
        for episode in range(episodes)
    )
    totals = [0.0] * episodes
    made = [_make(environment_id, max_steps) for _ in range(min(environments, episodes))]
    running = [_Run.start(environment, *waiting.popleft()) for environment in made]
    while running:
        actions = policy.act(np.stack([run.observation for run in running]))
        following = []
        for run, action in zip(running, actions, strict=True):
            reward, done = run.step(action)
            totals[run.episode] += reward
            if not done:
                following.append(run)
            elif waiting:
                following.append(_Run.start(run.environment, *waiting.popleft()))
        running = following
    for environment in made:
        environment.close()  # type: ignore[no-untyped-call]
    return Returns(tuple(totals))


@dataclass
class _Run:
    environment: gymnasium.Env[Any, Any]
    episode: int
    observation: Any

    @classmethod
    def start(cls, environment: gymnasium.Env[Any, Any], episode: int, seed: int) -> "_Run":
        return cls(environment, episode, environment.reset(seed=seed)[0])

    def step(self, action: Any) -> tuple[float, bool]:
        if not np.isfinite(action).all():
            return math.nan, True
        self.observation, reward, terminated, truncated, _ = self.environment.step(action)
        return float(reward), terminated or truncated


def _make(environment_id: str, max_steps: int | None = None) -> gymnasium.Env[Any, Any]:
    try:
        environment = gymnasium.make(environment_id, max_episode_steps=max_steps)
    except (gymnasium.error.Error, ImportError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, gymnasium.error.UnregisteredEnv):
            own = [name for name in gymnasium.registry if name.startswith("privrl/")]
            reason = f"{reason} {did_you_mean(environment_id, own)}".rstrip()
        raise ConfigError(f"environment {environment_id!r} cannot be made: {reason}") from error
    if environment.spec is None or environment.spec.max_episode_steps is None:
        raise ConfigError(f"environment {environment_id!r} has no time limit: register one")
    if isinstance(environment.observation_space, gymnasium.spaces.Dict):
        return gymnasium.wrappers.FlattenObservation(environment)
    return environment


def check_environment(
    environment_id: str, spaces: Mapping[str, Space], *, advised: str | None = None
) -> None:
    """Check that an environment can be made, and has the spaces of the rows.

    Args:
        environment_id: Gymnasium id.
        spaces: ``observation`` and ``action`` of a dataset.
        advised: id of the environment that the dataset names, which a message advises.

    Raises:
        ConfigError: it cannot be made, has no time limit, or its rows have another form.
    """
    try:
        made = _make(environment_id)
    except ConfigError as error:
        if advised in (None, environment_id):
            raise
        raise ConfigError(
            f"{error}; leave --env out to take the dataset's own, {advised}"
        ) from error
    try:
        for part, space in spaces.items():
            own = supported_space(f"{part}s of {environment_id}", getattr(made, f"{part}_space"))
            if not same_form(own, space):
                raise ConfigError(
                    f"environment {environment_id!r} does not fit the dataset: its {part}s are"
                    f" {own}, the dataset's are {space}; give another --env"
                )
    finally:
        made.close()  # type: ignore[no-untyped-call]


def normalised(value: float, reference: ReferenceReturns) -> float:
    """Return 100 (value - random) / (planner - random), as D4RL normalises returns.

    Raises:
        ConfigError: the planner's reference return is not above the random policy's.

    Example:
        >>> normalised(30.0, ReferenceReturns(random=10.0, planner=50.0))
        50.0
    """
    if not reference.planner > reference.random:
        raise ConfigError(
            f"reference returns must have planner > random, got {reference.planner}"
            f" and {reference.random}"
        )
    return 100 * (value - reference.random) / (reference.planner - reference.random)
