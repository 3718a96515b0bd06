"""The trainers that are asked for, by name and option, found before anything is trained or drawn.

What is here imports no torch.
"""

from collections.abc import Mapping, Sequence

from distributed_privrl.core.checks import did_you_mean
from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.returns import check_environment
from distributed_privrl.evaluation.trainer import (
    TRAINERS,
    Options,
    Trainer,
    check_trainer,
    find_trainer,
    settings_of,
)


def known_trainers(
    names: Sequence[str], options: Options, *, more: Mapping[str, Trainer] | None
) -> dict[str, Trainer]:
    """Return the trainers of an evaluation, by name.

    Args:
        names: of the trainers.
        options: hyper-parameters of agents that differ from their defaults.
        more: trainers beside the plain loops.

    Raises:
        ConfigError: a trainer or an option is unknown, or options are of an agent that is not
            trained.
    """
    agents = {name: find_trainer(name, more=more).agent for name in names}
    every = {**TRAINERS, **(more or {})}
    known = sorted({trainer.agent for trainer in every.values()})
    for name, given in options.items():
        if not isinstance(given, Mapping):
            raise ConfigError(f"option {name}={given!r} must look like AGENT.KEY=VALUE: iql.beta=3")
        agent = every[name].agent if name in every else name
        if agent != name:
            raise ConfigError(
                f"option of {name}: it trains the agent {agent}, whose options it shares; write"
                f" {agent}.key=value"
            )
        if name not in known:
            raise ConfigError(
                f"option of {name}, which is no agent: {did_you_mean(name, known)}choose from"
                f" {', '.join(known)}"
            )
        if name not in agents.values():
            raise ConfigError(f"option of {name}, which is not trained: name it among the trainers")
    return {
        name: find_trainer(name, settings_of(name, options, more=more), more=more) for name in names
    }


def check_agents(
    config: RunConfig, store: DatasetStore, *, more_trainers: Mapping[str, Trainer] | None = None
) -> None:
    """Check that the agents asked for can be trained on the release, before anything is drawn.

    Args:
        config: of the run.
        store: has the sensitive dataset, whose spaces the release will have.
        more_trainers: trainers beside the plain loops, by name.

    Raises:
        ConfigError: a trainer or an option of it is unknown or cannot use the actions, or no
            environment is named, or it is not that of the dataset; or the run learns a policy.
        UnsafeError: a trainer shares its rows, and the run is not private.
    """
    if not (trainers := asked_trainers(config, more_trainers)):
        return
    info = store.info(config.data.sensitive)
    for trainer in trainers:
        check_trainer(trainer, info.action_space)
    spaces = {"observation": info.observation_space, "action": info.action_space}
    check_environment(str(config.data.environment), spaces)


def asked_trainers(config: RunConfig, more: Mapping[str, Trainer] | None) -> list[Trainer]:
    """Return the trainers that a run is to train on the dataset that it makes.

    Args:
        config: of the run.
        more: trainers beside the plain loops, by name.

    Raises:
        ConfigError: as `check_agents`, whatever the dataset.
        UnsafeError: as `check_agents`.
    """
    evaluation = config.evaluation
    if not evaluation.trainers:
        return []
    if not isinstance(config.output, OutputConfig):
        raise ConfigError(
            f"evaluation.trainers judge a synthetic dataset, {config.method} releases none: leave"
            " them out"
        )
    if config.data.environment is None:
        raise ConfigError("evaluation.trainers needs data.environment: name a Gymnasium id")
    trainers = known_trainers(evaluation.trainers, evaluation.options, more=more)
    for name, trainer in trainers.items():
        if trainer.released_rows_only and config.privacy.epsilon is None:
            raise UnsafeError(
                f"privacy.epsilon is null, so {name} may not read what this run makes: RLlib gets"
                f" released and public rows alone; name {trainer.agent} in evaluation.trainers"
            )
    return list(trainers.values())
