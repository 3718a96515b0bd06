"""What a private selection asks of its file: trials that are independent draws of one law."""

from collections.abc import Iterable

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.evaluation.trainer import Trainer


def check_private(config: RunConfig, *, axes: Iterable[str], grids: Iterable[str]) -> None:
    """Check that one charge can cover the trials of a private selection, and that none leaves more.

    Args:
        config: of the run with the first value of each axis.
        axes: dotted paths of what is searched.
        grids: those of them that are grids.

    Raises:
        UnsafeError: an axis is a grid or an epsilon, or a trial keeps or releases more than its
            winner could.
        ConfigError: the run is not private or learns from another release, or an axis changes the
            score.
    """
    if config.privacy.epsilon is None:
        raise ConfigError("privacy.epsilon is null: there is nothing to select privately")
    _check_axes(axes, grids)
    if config.runtime.pretrained is not None:
        raise UnsafeError(
            f"runtime.pretrained={config.runtime.pretrained} would keep a file for each trial,"
            " and tell how many there were: leave it out"
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


def check_rows_kept(trainers: Iterable[Trainer]) -> None:
    """Refuse trainers that hand a trial's rows on: those of losers would outlive their trial.

    Args:
        trainers: of the agents that judge trials.

    Raises:
        UnsafeError: one does.
    """
    for trainer in trainers:
        if not trainer.keeps_rows:
            raise UnsafeError(
                f"{trainer.name} hands its rows to files or other processes, and what losers of a"
                " private selection make must not outlive them: give it no learners"
            )


def _check_axes(axes: Iterable[str], grids: Iterable[str]) -> None:
    for key in grids:
        raise UnsafeError(
            f"search.{key} is a grid, and trials of a private selection are independent draws of"
            " one law: write choice instead of grid"
        )
    for key in axes:
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
