"""What a configuration names beside datasets: the environment, and agents to train on the release.

Agents of ours with their default options are known by name, so that a plan need not wait for torch.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from distributed_privrl.agents.names import AGENTS_FOR
from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.data.spaces import Space, environment_spaces
from distributed_privrl.environments import register
from distributed_privrl.stages.encoders import bounds_source

if TYPE_CHECKING:
    from distributed_privrl.evaluation.trainer import Trainer


def check_names(
    config: RunConfig, *, more_trainers: "Callable[[], Mapping[str, Trainer]] | None" = None
) -> None:
    """Check the environment and the trainers that a configuration names; opens no data.

    Args:
        config: of the run.
        more_trainers: returns trainers beside the plain loops, by name; asked where names and
            options are not those of plain loops, because whatever trains is slow to import.

    Raises:
        ConfigError: as `release_evaluation.check_agents`, as far as the environment's own spaces
            tell; or an environment that a run would need cannot be made.
        UnsafeError: as `release_evaluation.check_agents`.
    """
    named, data = config.evaluation.trainers, config.data
    policy = not isinstance(config.output, OutputConfig)
    if named and (policy or data.environment is None or not _plain(config)):
        _check_trainers(config, None, more_trainers)
    if data.environment is None:
        return
    if not (named or policy or bounds_source(data) == "environment"):
        return
    register()
    _, actions, made = environment_spaces(data.environment)
    made.close()  # type: ignore[no-untyped-call]
    if not (set(named) <= set(AGENTS_FOR.get(type(actions).__name__, ())) and _plain(config)):
        _check_trainers(config, actions, more_trainers)


def _plain(config: RunConfig) -> bool:
    """Say whether all trainers are plain loops of agents that we know, with their own options."""
    known = {name for names in AGENTS_FOR.values() for name in names}
    return set(config.evaluation.trainers) <= known and not config.evaluation.options


def _check_trainers(
    config: RunConfig,
    actions: Space | None,
    more: "Callable[[], Mapping[str, Trainer]] | None",
) -> None:
    """Check the trainers themselves, and whether they know the actions; None: not known yet."""
    from distributed_privrl.experiments.release_evaluation import asked_trainers

    for trainer in asked_trainers(config, more() if more is not None else None):
        if actions is not None:
            trainer.algorithm.check_actions(actions)
