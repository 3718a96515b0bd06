"""What a trial is worth: one number, of what it released and of public things alone."""

import json
import math

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.labels import shown_labels
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.experiments.agents import mean_normalised_return, mean_return
from distributed_privrl.experiments.comparison import is_maze
from distributed_privrl.experiments.registry import method_named
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.experiments.samples import shown_rows
from distributed_privrl.experiments.sweeps.config import ScoreConfig


def score_of(
    score: ScoreConfig, config: RunConfig, result: RunResult, store: DatasetStore
) -> float | None:
    """Return what a finished run is worth; None: it has no figure, such as where agents failed.

    Args:
        score: says how.
        config: of the run.
        result: of it.
        store: has what it released, and the public rows.

    Raises:
        ConfigError: there is nothing of that kind to look at.

    Privacy: post-processing of the release; agents act in a public simulator, likeness is to public
    rows.
    """
    if score.by == "agents":
        found = _of_agents(score, config, result)
    elif score.by == "policy":
        found = _of_policy(config, result)
    else:
        found = _likeness(score, config, result, store)
    return None if found is None or not math.isfinite(found) else found


def _of_agents(score: ScoreConfig, config: RunConfig, result: RunResult) -> float | None:
    trainer = score.trainer or config.evaluation.trainers[0]
    environment = str(config.data.environment)
    if is_maze(environment):
        return mean_normalised_return(result.trials, trainer, environment)
    return mean_return(result.trials, trainer)


def _of_policy(config: RunConfig, result: RunResult) -> float:
    """Return the figure of the report that the method calls its headline.

    Raises:
        ConfigError: the report lacks it: data.environment has no simulator, or none was asked.
    """
    headline = method_named(config.method).inspection.headline
    directory, valid = result.directory, result.certificate.status == "valid"
    folder = directory.path if valid else directory.private
    report = json.loads((folder / "report.json").read_text())
    for section in report["sections"]:
        for metric in section["metrics"]:
            if metric["name"] == headline and isinstance(metric["value"], int | float):
                return float(metric["value"])
    raise ConfigError(
        "selection.score: the report does not say what the policy is worth: name"
        " data.environment, and evaluation.episodes above 0"
    )


def _likeness(
    score: ScoreConfig, config: RunConfig, result: RunResult, store: DatasetStore
) -> float:
    """Return the mean of marginal and correlation fidelity to public rows."""
    public = score.to or config.data.public[0]
    if not store.info(public).declared_public:
        raise ConfigError(f"selection.score.to={public} was not declared public")
    names = shown_labels(store.info(public))
    found = fidelity(shown_rows(store, public), shown_rows(store, result.released), names)
    return (found.marginal + found.correlation) / 2
