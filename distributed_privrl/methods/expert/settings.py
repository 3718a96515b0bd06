"""What a configuration says of the agent and its actions; a plan checks it without torch."""

from gymnasium.spaces import Box

from distributed_privrl.agents.options import settings_named
from distributed_privrl.agents.settings import AgentConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.action_levels import ActionLevels
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.expert.config import (
    AgentModelConfig,
    ExpertDataConfig,
    LocalExpertConfig,
)
from distributed_privrl.updates.federated_config import FederatedConfig


def agent_settings(model: AgentModelConfig) -> AgentConfig:
    """Return the hyper-parameters of the agent.

    Raises:
        ConfigError: a setting is unknown, of another type or out of range.
    """
    if "hidden" in model.options:
        raise ConfigError("model.options has hidden: give model.hidden instead")
    return settings_named(model.agent, {**model.options, "hidden": list(model.hidden)})


def local_settings(local: LocalExpertConfig) -> FederatedConfig:
    """Return the settings of one expert's training.

    Raises:
        ConfigError: a value is out of range.
    """
    return FederatedConfig(
        epochs=local.epochs,
        batch_size=local.batch_size,
        learning_rate=local.learning_rate,
        projection="end",
    )


def levels_of(data: ExpertDataConfig, store: DatasetStore) -> ActionLevels | None:
    """Return the levels that stand for a dataset's Box actions; None: it is used as it is.

    Raises:
        ConfigError: they are not of its actions, or a Box's actions have none.
    """
    actions = store.info(data.sensitive).action_space
    if data.action_levels is not None:
        return ActionLevels.of(data.action_levels, actions)
    if isinstance(actions, Box):
        raise ConfigError(
            f"{data.sensitive} has actions {actions}: declare data.action_levels, a list for each"
            " of their columns"
        )
    return None
