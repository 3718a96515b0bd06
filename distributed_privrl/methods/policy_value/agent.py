"""The agent that is valued: who trains it, and its training on released rows."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from distributed_privrl.data.proper import proper_transitions
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.trainer import PlainTrainer, Spaces, find_trainer, train
from distributed_privrl.methods.policy_value.config import PolicyValueConfig

if TYPE_CHECKING:
    from distributed_privrl.agents.policy import Policy


def trainer_of(config: PolicyValueConfig) -> PlainTrainer:
    """Return the plain loop that trains the agent.

    Raises:
        ConfigError: nobody is called that, or an option is wrong.
    """
    trainer = find_trainer(config.training.trainer, config.training.options)
    assert isinstance(trainer, PlainTrainer)
    return trainer


def train_on_release(
    config: PolicyValueConfig,
    store: DatasetStore,
    *,
    observation_space: Space,
    action_space: Space,
    told: Callable[[int], None],
) -> "Policy":
    """Return the policy of an agent that was trained on the release.

    Args:
        config: of the run.
        store: datasets.
        observation_space: of both datasets.
        action_space: of both.
        told: called with the steps taken, 0 first.

    Privacy: post-processing of the release.
    """
    from distributed_privrl.agents.policy import Policy

    rows = proper_transitions(store, config.model.release)
    told(0)
    policy = train(
        trainer_of(config),
        rows,
        Spaces(observation=observation_space, action=action_space),
        seed=config.seed,
        steps=config.training.steps,
        told=told,
    )
    assert isinstance(policy, Policy)
    return policy
