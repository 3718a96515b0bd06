"""What a private selection asks of its file: trials that are independent draws of one law."""

from typing import TYPE_CHECKING

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.experiments.registry import method_named

if TYPE_CHECKING:
    from distributed_privrl.experiments.sweeps.config import Sweep

_RLLIB = "rllib_"


def check_private(sweep: "Sweep") -> None:
    """Check that one charge can cover the trials of a private selection, and that none leaves more.

    Raises:
        UnsafeError: an axis is a grid or an epsilon, agents would leave traces of each trial, or a
            trial releases more than its winner could.
        ConfigError: the run is not private, learns from another release, or has no figure to select
            by; or an axis changes the score.
    """
    config = sweep.base
    if config.privacy.epsilon is None:
        raise ConfigError("privacy.epsilon is null: there is nothing to select privately")
    _check_axes(sweep)
    remote = [name for name in config.evaluation.trainers if name.startswith(_RLLIB)]
    if remote:
        raise UnsafeError(
            f"evaluation.trainers: {remote[0]} starts processes and writes folders that tell how"
            f" many trials there were: name {remote[0].removeprefix(_RLLIB)} instead"
        )
    if config.output.COUNTED is None and config.output.datasets:
        raise UnsafeError(
            f"output.dataset={config.output.datasets[0]} would leave beside the policy: a private"
            " selection releases one thing alone: leave it out"
        )
    if config.releases:
        raise ConfigError(
            f"{config.method} learns from {config.releases[0]}, which was released before: a"
            " private selection has the sensitive rows and public ones alone"
        )
    if (
        sweep.selection.score.by == "policy"
        and method_named(config.method).inspection.headline is None
    ):
        raise ConfigError(
            f"selection.score.by=policy: {config.method} has no figure of what its policy is worth"
        )


def _check_axes(sweep: "Sweep") -> None:
    for key, axis in sweep.search.items():
        if axis.grid is not None:
            raise UnsafeError(
                f"search.{key} is a grid, and trials of a private selection are independent draws"
                " of one law: write choice instead of grid"
            )
        section = key.split(".")[0]
        if section in ("privacy", "data"):
            raise UnsafeError(
                f"search.{key} changes what a trial costs, and the charge is that of the worst one:"
                " leave it out"
            )
        if section == "evaluation":
            raise ConfigError(
                f"search.{key} changes how trials are judged, and not what they release: leave it"
                " out"
            )
