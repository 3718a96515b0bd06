"""What the agents of an evaluation earn: a section of a report, and the ratio to real data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distributed_privrl.core.random import Streams
from distributed_privrl.environments import reference_returns
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.published import PublishedCell, published_cell
from distributed_privrl.evaluation.report import Metric, ReleasedFigure, Section
from distributed_privrl.evaluation.returns import bootstrap_interval, normalised
from distributed_privrl.experiments.comparison import is_maze
from distributed_privrl.experiments.trials import learning_curve
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue

Trials = Sequence[Mapping[str, Any]]


def trainers_of(trials: Trials) -> list[str]:
    """Return the trainers' names, in order."""
    return list(dict.fromkeys(str(trial["trainer"]) for trial in trials))


def finished(trials: Trials, trainer: str) -> list[Mapping[str, Any]]:
    """Return the trials of a trainer that did not fail."""
    return [one for one in trials if one["trainer"] == trainer and "failed" not in one]


def failures(trials: Trials) -> dict[str, str]:
    """Return why trials failed, by trainer and seed."""
    return {
        f"{one['trainer']}, seed {one['seed']}": str(one["failed"])
        for one in trials
        if "failed" in one
    }


def mean_return(trials: Trials, trainer: str) -> float | None:
    """Return the mean over seeds of the last evaluations' mean return; None if all failed."""
    figures = [learning_curve(one).figure() for one in finished(trials, trainer)]
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
    trials: Trials, environment: str, *, certificate: Mapping[str, Any], source: str
) -> Section:
    """Return a section with the returns of agents trained on the released data.

    Args:
        trials: results of `run_trials`.
        environment: where they were evaluated.
        certificate: of the data; says which cell of a paper is shown beside a figure.
        source: the ledger entry that paid for the data.
    """
    published = published_cells(trials, environment, certificate)
    metrics = []
    curves = {}
    for trainer in trainers_of(trials):
        mine = [learning_curve(one) for one in finished(trials, trainer)]
        if mine:
            curves[trainer] = mine
            figures = np.array([curve.figure() for curve in mine])
            metrics += _metrics(trainer, figures, environment, source)
        if trainer in published:
            metrics.append(_published_metric(trainer, published[trainer]))
    metrics += [
        Metric(name=name, value=ReleasedValue(f"failed: {reason}", ledger_entry=source))
        for name, reason in failures(trials).items()
    ]
    image = plots.learning_curves(curves) if curves else None
    return Section(
        title="Agents trained on the synthetic dataset",
        explanation=f"Evaluated in {environment}; the mean of the last evaluations, not the best.",
        metrics=metrics,
        figures=[ReleasedFigure(image=image, caption="Returns", ledger_entry=source)]
        if image
        else [],
    )


def _metrics(trainer: str, figures: Any, environment: str, source: str) -> list[Metric]:
    low, high = bootstrap_interval(figures, generator=Streams(0).numpy("bootstrap"))
    mean = float(figures.mean())
    metrics = [
        Metric(
            name=f"{trainer}: mean return over the last evaluations",
            value=ReleasedValue(mean, ledger_entry=source),
            explanation=f"{len(figures)} seed(s), 95 % bootstrap interval {low:.1f} .. {high:.1f}",
        )
    ]
    if is_maze(environment):
        value = normalised(mean, reference_returns(environment))
        metrics.append(
            Metric(
                name=f"{trainer}: normalised return",
                value=ReleasedValue(value, ledger_entry=source),
                explanation="0 is the random policy, 100 the planner",
            )
        )
    return metrics


def _published_metric(trainer: str, cell: PublishedCell) -> Metric:
    return Metric(
        name=f"{trainer}: normalised return in the paper",
        value=PublicValue(cell.normalised_return),
        explanation=f"{cell}; on its own data, normalised by D4RL's references",
    )


def return_ratios(
    synthetic: Trials, real: Trials, environment: str, agents: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Return what each trainer's agents earn on both datasets, and the ratio; private.

    Args:
        synthetic: results on the synthetic dataset.
        real: results of plain loops on the real one.
        environment: where they were evaluated; returns are normalised if it has references.
        agents: trainer to the plain loop of the same agent; without those that failed.
    """
    ratios = {}
    for trainer, loop in agents.items():
        ours, theirs = mean_return(synthetic, trainer), mean_return(real, loop)
        if ours is None or theirs is None:
            continue
        if is_maze(environment):
            reference = reference_returns(environment)
            ours, theirs = normalised(ours, reference), normalised(theirs, reference)
        ratio = ours / theirs if theirs > 0 else float("nan")
        ratios[trainer] = {"synthetic": ours, "real": theirs, "ratio": ratio}
    return ratios


def ratio_section(ratios: Mapping[str, Mapping[str, float]], real: Trials) -> Section:
    """Return a section that compares with agents trained on real rows; for private reports."""
    metrics = [
        Metric(
            name=f"{trainer}: synthetic / real",
            value=found["ratio"] if np.isfinite(found["ratio"]) else "not applicable",
            explanation=f"{found['synthetic']:.2f} on the synthetic dataset,"
            f" {found['real']:.2f} on the real one",
        )
        for trainer, found in ratios.items()
    ]
    metrics += [
        Metric(name=f"{name}, on the real dataset", value=f"failed: {reason}")
        for name, reason in failures(real).items()
    ]
    return Section(
        title="The same agents on the real dataset",
        explanation="Plain loops over the same losses; a ratio needs returns above 0.",
        metrics=metrics,
    )
