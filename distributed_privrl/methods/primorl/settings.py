"""What a configuration says of both trainings, as settings; a plan checks them without torch."""

from distributed_privrl.agents.settings import SacConfig
from distributed_privrl.methods.primorl.config import (
    LocalTrainingConfig,
    MopoPolicyConfig,
    PolicyTrainingConfig,
)
from distributed_privrl.updates.federated_config import FederatedConfig

MODEL_ROLLOUTS = 64
"""Rollouts of which an evaluation in the model is the mean."""


def local_settings(local: LocalTrainingConfig) -> FederatedConfig:
    """Return the settings of one trajectory's training.

    Raises:
        ConfigError: the weight decay leaves nothing of a parameter.
    """
    return FederatedConfig(
        batch_size=local.batch_size,
        epochs=local.epochs,
        learning_rate=local.learning_rate,
        weight_decay=local.weight_decay,
        projection=local.projection,
        strategy=local.clipping,
        shuffle=local.shuffle,
    )


def policy_settings(config: PolicyTrainingConfig, horizon: int) -> SacConfig:
    """Return the settings of SAC.

    Args:
        config: of the policy's training.
        horizon: steps of a rollout (H).

    Raises:
        ConfigError: a value is out of range.
    """
    return SacConfig(
        hidden=config.hidden,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        discount=config.discount,
        polyak=config.polyak,
        target_entropy=config.target_entropy,
        environments=config.rollouts,
        horizon=horizon,
        gradient_steps=config.gradient_steps,
        action_repeat=config.action_repeat,
        reward_offset=config.reward_offset,
        decay_steps=config.steps if config.schedule == "cosine" else None,
        real_share=config.real_share if isinstance(config, MopoPolicyConfig) else 0.0,
    )
