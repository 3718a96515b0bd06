"""What a configuration names beside datasets: the environment, and agents to train."""

from collections.abc import Mapping

from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.data.spaces import environment_spaces
from distributed_privrl.environments import register
from distributed_privrl.evaluation.trainer import Trainer, check_trainer
from distributed_privrl.experiments.trainers import asked_trainers
from distributed_privrl.stages.encoders import bounds_source


def check_names(config: RunConfig, *, more_trainers: Mapping[str, Trainer] | None = None) -> None:
    """Check the environment and the trainers that a configuration names; opens no data.

    Args:
        config: of the run.
        more_trainers: trainers beside the plain loops, by name.

    Raises:
        ConfigError: as `trainers.check_agents`, as far as the environment's own spaces tell; or an
            environment that a run would need cannot be made.
        UnsafeError: as `trainers.check_agents`.
    """
    trainers, data = asked_trainers(config, more_trainers), config.data
    if data.environment is None:
        return
    policy = not isinstance(config.output, OutputConfig)
    if not (trainers or policy or bounds_source(data) == "environment"):
        return
    register()
    _, actions, made = environment_spaces(data.environment)
    made.close()  # type: ignore[no-untyped-call]
    for trainer in trainers:
        check_trainer(trainer, actions)
