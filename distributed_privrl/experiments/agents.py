"""What the agents of an evaluation earn: a section of a report, and the ratio to real data."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distributed_privrl.core.files import remove_file, write_atomically
from distributed_privrl.environments import reference_returns
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.intervals import spread
from distributed_privrl.evaluation.published import PublishedCell, published_cell
from distributed_privrl.evaluation.report import TRAINED_AGENTS, Metric, Section
from distributed_privrl.evaluation.returns import LAST_EVALUATIONS, LearningCurve, normalised
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.comparison import is_maze
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.events import write_events
from distributed_privrl.experiments.trials import (
    evaluations_of,
    learning_curve,
    without_reason,
)
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue

EVALUATION_FILE = "evaluation.json"
FAILURES_FILE = "failures.json"

Trials = Sequence[Mapping[str, Any]]


def trainers_of(trials: Trials) -> list[str]:
    """Return the trainers' names, in order."""
    return list(dict.fromkeys(str(trial["trainer"]) for trial in trials))


def finished(trials: Trials, trainer: str) -> list[Mapping[str, Any]]:
    """Return the trials of a trainer that did not fail."""
    return [one for one in trials if one["trainer"] == trainer and "failed" not in one]


def failures(trials: Trials) -> dict[str, str]:
    """Return the kind of error of the trials that failed, by trainer and seed."""
    return {_cell(one): str(one["failed"]) for one in trials if "failed" in one}


def reasons(trials: Trials) -> dict[str, str]:
    """Return `failures` with the errors' texts; they may quote rows and paths."""
    return {
        _cell(one): ": ".join(filter(None, (str(one["failed"]), one.get("reason"))))
        for one in trials
        if "failed" in one
    }


def _cell(trial: Mapping[str, Any]) -> str:
    return f"{trial['trainer']}, seed {trial['seed']}"


def keep_trials(trials: Trials, directory: RunDirectory, *, may_leave: bool) -> None:
    """Write what agents earned to ``evaluation.json``, and why they failed to ``private/``.

    Args:
        trials: results of `run_trials`.
        directory: where.
        may_leave: the rows that they were trained on were released or are public; otherwise all of
            it goes to ``private/``.

    What an earlier command left there and these trials have not (results where there are none,
    failures that were put right) is removed, so that it agrees with the report.
    """
    folder = directory.path if may_leave else directory.private
    if failed := reasons(trials):
        directory.write_private(FAILURES_FILE, json.dumps(failed, indent=2))
    else:
        remove_file(directory.private / FAILURES_FILE)
    if not trials:
        remove_file(folder / EVALUATION_FILE)
        return
    content = json.dumps([without_reason(one) for one in trials])
    if may_leave:
        write_atomically(folder / EVALUATION_FILE, content)
    else:
        directory.write_private(EVALUATION_FILE, content)


def write_curves(trials: Trials, directory: RunDirectory, source: Sourced[str]) -> None:
    """Write each agent's learning curve for TensorBoard, to ``events/TRAINER-SEED/``.

    Args:
        trials: results of `run_trials` on a dataset.
        directory: where.
        source: the dataset's id, released or public; of a private one nothing is written.

    Privacy: mean returns are post-processing of the dataset; events tell no time.
    """
    curves = directory.events.parent
    for earlier in sorted(curves.glob(f"*/{directory.events.name}")):
        remove_file(earlier)  # of agents that were asked for before
    if not source.may_leave:
        return
    for trial in (one for one in trials if "failed" not in one):
        path = curves / f"{trial['trainer']}-{trial['seed']}" / directory.events.name
        _write_curve(learning_curve(trial), path, source)


def _write_curve(curve: LearningCurve, path: Path, source: Sourced[str]) -> None:
    lines = []
    for returns in curve.returns:
        value = source.then(lambda _: returns).value(lambda found: found.mean)  # noqa: B023  at once
        assert isinstance(value, PublicValue | ReleasedValue), "of rows that may leave"
        lines.append({"return": value})
    write_events(path, lines, steps=curve.steps)


def mean_return(trials: Trials, trainer: str) -> float | None:
    """Return the mean over seeds of the last evaluations' mean return; None if all failed."""
    figures = _figures(trials, trainer)
    return float(np.mean(figures)) if figures else None


def mean_normalised_return(trials: Trials, trainer: str, environment: str) -> float | None:
    """Return `mean_return`, normalised; None if all failed or there are no references."""
    mean = mean_return(trials, trainer)
    if mean is None or not is_maze(environment):
        return None
    return normalised(mean, reference_returns(environment))


def published_cells(
    trials: Trials, environment: str, certificate: Mapping[str, Any]
) -> dict[str, PublishedCell]:
    """Return the paper's cell of each trainer that has a figure, where there is one.

    Args:
        trials: results of `run_trials`.
        environment: where they were evaluated.
        certificate: of the data; its method and epsilon choose the cell.
    """
    method, epsilon = certificate.get("method"), certificate.get("epsilon")
    agents = {str(one["trainer"]): str(one["agent"]) for one in trials if "agent" in one}
    cells = {
        trainer: published_cell(method, environment, agent, epsilon)
        for trainer, agent in agents.items()
    }
    return {trainer: cell for trainer, cell in cells.items() if cell is not None}


def returns_section(
    trials: Trials, environment: str, *, certificate: Mapping[str, Any], source: Sourced[str]
) -> Section:
    """Return a section with the returns of agents trained on a dataset.

    Args:
        trials: results of `run_trials` on it, one at least.
        environment: where they were evaluated.
        certificate: of the data; says which cell of a paper is shown beside a figure.
        source: the dataset's id; what it is to the world, the returns are.
    """
    earned: Sourced[Trials] = source.then(lambda _: trials)
    published = published_cells(trials, environment, certificate)
    metrics = []
    for trainer in trainers_of(trials):
        metrics.append(_settings_metric(trials, trainer))
        if finished(trials, trainer):
            metrics += _metrics(trainer, earned, environment)
        if trainer in published:
            metrics.append(_published_metric(trainer, published[trainer]))
    metrics += [
        Metric(name=name, value=earned.value(partial(_failed, name))) for name in failures(trials)
    ]
    curves = earned.then(_curves)
    return Section(
        title=TRAINED_AGENTS,
        explanation=_caption(trials, environment),
        metrics=metrics,
        figures=[curves.figure(plots.learning_curves, "Returns")] if curves.content else [],
    )


def _curves(trials: Trials) -> dict[str, list[LearningCurve]]:
    """Return the learning curves of each trainer's agents; none of one whose agents all failed."""
    curves = {
        trainer: [learning_curve(one) for one in finished(trials, trainer)]
        for trainer in trainers_of(trials)
    }
    return {trainer: mine for trainer, mine in curves.items() if mine}


def _failed(name: str, trials: Trials) -> str:
    return f"failed: {failures(trials)[name]}"


def _caption(trials: Trials, environment: str) -> str:
    """Say how agents of one evaluation were trained and how their figure is found."""
    steps, episodes = trials[0]["steps"], trials[0]["episodes"]
    count = evaluations_of(steps)
    last = min(LAST_EVALUATIONS, count)
    return (
        f"Gradient steps an agent: {steps}. Episodes of each evaluation: {episodes}, in"
        f" {environment}. A figure is the mean of the last {last} of {count} evaluations, not the"
        " best."
    )


def _settings_metric(trials: Trials, trainer: str) -> Metric:
    """Return what the agents of a trainer were trained with, which whoever asked for them chose."""
    trial = next(one for one in trials if one["trainer"] == trainer)
    options = ", ".join(f"{name}={value}" for name, value in sorted(trial["options"].items()))
    return Metric(
        name=f"{trainer}: gradient steps",
        value=PublicValue(trial["steps"]),
        explanation=f"options: {options or 'the defaults'}; episodes of each evaluation:"
        f" {trial['episodes']}",
    )


def _figures(trials: Trials, trainer: str) -> list[float]:
    """Return the figure of each seed that did not fail."""
    return [learning_curve(one).figure() for one in finished(trials, trainer)]


def _metrics(trainer: str, earned: Sourced[Trials], environment: str) -> list[Metric]:
    figures = earned.then(lambda trials: _figures(trials, trainer))
    mean = figures.then(lambda values: float(np.mean(values)))
    metrics = [
        Metric(
            name=f"{trainer}: mean return over the last evaluations",
            value=mean.value(float),
            explanation=spread(figures.content),
        )
    ]
    if is_maze(environment):
        references = reference_returns(environment)
        metrics.append(
            Metric(
                name=f"{trainer}: normalised return",
                value=mean.value(lambda value: normalised(value, references)),
                explanation="0 is the random policy, 100 the planner",
            )
        )
    return metrics


def _published_metric(trainer: str, cell: PublishedCell) -> Metric:
    return Metric(
        name=f"{trainer}: normalised return in the paper",
        value=PublicValue(cell.normalised_return),
        explanation=f"{cell}; another dataset, normalised by D4RL's references: not comparable"
        " number by number",
    )


def return_ratios(
    synthetic: Trials, real: Trials, environment: str, agents: Mapping[str, str]
) -> dict[str, dict[str, float | None]]:
    """Return what each trainer's agents earn on both datasets, and the ratio; private.

    Args:
        synthetic: results on the synthetic dataset.
        real: results of plain loops on the real one.
        environment: where they were evaluated; returns are normalised if it has references.
        agents: trainer to the plain loop of the same agent; without those that failed.

    Returns:
        for each trainer ``synthetic``, ``real``, ``ratio``, which is None where the agent on real
        rows earns nothing above 0, and ``normalised``, whether they are normalised returns.
    """
    ratios: dict[str, dict[str, float | None]] = {}
    for trainer, loop in agents.items():
        ours, theirs = mean_return(synthetic, trainer), mean_return(real, loop)
        if ours is None or theirs is None:
            continue
        if is_maze(environment):
            reference = reference_returns(environment)
            ours, theirs = normalised(ours, reference), normalised(theirs, reference)
        ratio = ours / theirs if theirs > 0 else None
        ratios[trainer] = {"synthetic": ours, "real": theirs, "ratio": ratio}
        ratios[trainer]["normalised"] = is_maze(environment)
    return ratios


def ratio_section(
    synthetic: Trials, real: Trials, environment: str, agents: Mapping[str, str]
) -> Section:
    """Return a section that compares with agents trained on real rows; for private reports.

    Args:
        synthetic: results on the synthetic dataset.
        real: results of plain loops on the real one.
        environment: where they were evaluated.
        agents: trainer to the plain loop of the same agent.
    """
    ratios = return_ratios(synthetic, real, environment, agents)
    metrics = []
    for trainer, loop in agents.items():
        metrics.append(_side(trainer, "synthetic", synthetic, trainer, environment))
        metrics.append(_side(trainer, "real", real, loop, environment))
        ratio = ratios.get(trainer, {}).get("ratio")
        metrics.append(
            Metric(
                name=f"{trainer}: synthetic / real",
                value="not applicable" if ratio is None else ratio,
                explanation="of normalised returns" if is_maze(environment) else "of mean returns",
            )
        )
    metrics += [
        Metric(name=f"{name}, on the real dataset", value=f"failed: {reason}")
        for name, reason in reasons(real).items()
    ]
    return Section(
        title="The same agents on the real dataset",
        explanation="Plain loops over the same losses; a ratio needs returns above 0."
        f" {_caption(real, environment)}",
        metrics=metrics,
    )


def _side(trainer: str, side: str, trials: Trials, name: str, environment: str) -> Metric:
    """Return what a trainer's agents earn on one dataset, over which seeds."""
    figures = _figures(trials, name)
    failed = sum(one["trainer"] == name and "failed" in one for one in trials)
    notes = [f"{len(figures)} ok, {failed} failed"]
    if figures:
        notes.append(spread(figures))
    score = mean_normalised_return(trials, name, environment)
    if score is not None:
        notes.append(f"normalised {score:.1f}")
    return Metric(
        name=f"{trainer}, {side}: mean return",
        value=float(np.mean(figures)) if figures else "all failed",
        explanation="; ".join(notes),
    )
