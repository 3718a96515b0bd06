"""What a report says of a policy and its ensemble, tried in a public simulator."""

import math
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.figures import AnyFigure
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.returns import LearningCurve, Returns
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.privacy.metrics import PublicValue

Found = Sourced[dict[str, Any]]
"""What a study found, by kind."""
_PENALTIES = {
    "max_aleatoric": "largest predicted deviation",
    "max_pairwise_difference": "largest difference of two members",
}


def policy_sections(
    config: PrimorlConfig, path: Sourced[Path], results: Sourced[Sequence[Any]]
) -> list[Section]:
    """Return the sections on a policy and its ensemble.

    Args:
        config: of the run.
        path: the policy's file.
        results: what `study.study` returned.

    Privacy: post-processing of what was released; no event.
    """
    found = results.then(lambda every: {result["kind"]: result for result in every})
    promised = _promised_sections(config, found)
    if "returns" not in found.content:
        untried = Section(title="The policy was not tried", explanation=_untried(config))
        return [untried, *promised]
    return [
        _returns_section(config, found),
        *promised,
        _error_section(found.then(itemgetter("model error"))),
        _uncertainty_section(config, found.then(itemgetter("uncertainty"))),
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _untried(config: PrimorlConfig) -> str:
    why = (
        "There is no public simulator (data.environment)"
        if config.data.environment is None
        else "evaluation.episodes is 0"
    )
    return (
        f"{why}: nothing here says what the policy earns or how wrong the models are. Try both on"
        " public data or in a simulator of your own before anybody acts on them."
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _returns_section(config: PrimorlConfig, found: Found) -> Section:
    earned = found.then(lambda kinds: [_number(value) for value in kinds["returns"]["returns"]])
    final, tried = earned.content, found.content["returns"]
    metrics = [
        Metric(
            name="mean return of the policy",
            value=earned.value(_mean),
            explanation=f"{len(final)} episodes; standard deviation {np.std(final):.4g}",
        )
    ]
    if "uniform" in tried:  # runs of earlier versions have none
        metrics.append(
            Metric(
                name="mean return of uniform actions",
                value=PublicValue(_number(tried["uniform"])),
                explanation="in the same episodes: what a policy that learned something beats",
            )
        )
    figures = []
    for curve in _learning_curves(found, "returns"):
        steps = curve.content.steps
        metrics.append(
            Metric(
                name="mean over the last evaluations of the training",
                value=curve.value(LearningCurve.figure),
                explanation=f"of {len(steps)}, the last after {steps[-1]} steps",
            )
        )
        figures.append(
            curve.figure(
                lambda one: plots.learning_curves({"policy": [one]}),
                "Return in the simulator by gradient steps in the model",
            )
        )
    private = config.privacy.epsilon is not None
    trained = "Trained inside the private ensemble alone" if private else "Trained without privacy"
    return Section(
        title=f"What the policy earns in {config.data.environment}",
        explanation=f"{trained}, tried in a public simulator.",
        metrics=metrics,
        figures=figures,
    )


def _promised_sections(config: PrimorlConfig, found: Found) -> list[Section]:
    """Return the section on returns inside the model; none of runs of earlier versions."""
    return [_promised(config, curve) for curve in _learning_curves(found, "model_return")]


def _promised(config: PrimorlConfig, curve: Sourced[LearningCurve]) -> Section:
    policy = config.training.policy
    lowered = "" if policy.penalty == "none" else ", rewards lowered by the penalty"
    promise = Metric(
        name="mean over the last evaluations in the models",
        value=curve.value(LearningCurve.figure),
        explanation=f"of {len(curve.content.steps)}; in {config.rollout_horizon} steps at"
        f" most{lowered}",
    )
    figure = curve.figure(
        lambda one: plots.learning_curves(
            {"policy, in the models": [one]}, ylabel="promised return"
        ),
        "Return inside the models by gradient steps: a promise, not what is earned",
    )
    return Section(
        title="What the models promise, which is not what the policy earns",
        explanation="Rollouts of the policy in the pessimistic models that it was trained in,"
        " always from the same starts. It shows whether training went on or fell apart; models"
        " that are wrong promise what nobody earns.",
        metrics=[promise],
        figures=[figure],
    )


def _learning_curves(found: Found, kind: str) -> list[Sourced[LearningCurve]]:
    """Return the curve of what each point of the training's has under ``kind``, if any has."""
    curve = found.then(lambda kinds: _learning_curve(kinds, kind))
    if curve.content is None:
        return []
    return [curve.then(_there)]


def _there(curve: LearningCurve | None) -> LearningCurve:
    assert curve is not None
    return curve


def _learning_curve(found: dict[str, Any], kind: str) -> LearningCurve | None:
    points = [point for point in found.get("curve", {"points": []})["points"] if kind in point]
    if not points:
        return None
    values = [point[kind] if isinstance(point[kind], list) else [point[kind]] for point in points]
    return LearningCurve(
        steps=tuple(point["step"] for point in points),
        returns=tuple(Returns(tuple(map(_number, value))) for value in values),
    )


def _error_section(found: Found) -> Section:
    result = found.content
    error, last = found.then(itemgetter("error")), len(result["error"]) - 1
    chosen = sorted({0, last // 4, last // 2, last})
    metrics = [
        Metric(
            name=f"error after {index + 1} steps",
            value=error.value(itemgetter(index)),
            explanation=f"{_number(result['still'][index]):.3g} if nothing moved",
        )
        for index in chosen
    ]
    lines = found.then(lambda one: {"ensemble": one["error"], "nothing moves": one["still"]})
    return Section(
        title="How far the models stray",
        explanation="The members' mean, its own states fed back, along episodes of the simulator"
        " whose actions are the policy's or, every other one, uniform.",
        metrics=metrics,
        figures=_figures(
            lines,
            xlabel="steps",
            ylabel="error (public deviations)",
            caption="Error over the horizon",
        ),
    )


def _uncertainty_section(config: PrimorlConfig, found: Found) -> Section:
    metrics = []
    for key, name in _PENALTIES.items():
        used = " (used)" if key == config.training.policy.penalty else ""
        metrics.append(
            Metric(
                name=f"{name}{used}: rank correlation with the error",
                value=found.then(itemgetter(key)).value(itemgetter("rank_correlation")),
                explanation="1: what is uncertain is wrong, 0: the penalty tells nothing",
            )
        )
    lines = found.then(
        lambda result: {name: result[key]["error_by_tenth"] for key, name in _PENALTIES.items()}
    )
    return Section(
        title="Whether the models know where they are wrong",
        explanation="One step from the simulator's own states, in standardised targets.",
        metrics=metrics,
        figures=_figures(
            lines,
            xlabel="tenth of the steps, by rising uncertainty",
            ylabel="error of one step",
            caption="Error by uncertainty",
        ),
    )


def _figures(
    values: Sourced[dict[str, list[float | None]]], *, xlabel: str, ylabel: str, caption: str
) -> list[AnyFigure]:
    """Return a figure of numbers 1, 2, ... of each name; none where no number is finite."""
    shown = values.then(_points)
    if not shown.content:
        return []
    return [
        shown.figure(
            lambda lines: plots.lines_with_spread(lines, xlabel=xlabel, ylabel=ylabel), caption
        )
    ]


def _points(values: dict[str, list[float | None]]) -> dict[str, dict[float, list[float]]]:
    lines = {
        name: {float(place + 1): [value] for place, value in enumerate(own) if value is not None}
        for name, own in values.items()
    }
    return {name: points for name, points in lines.items() if points}
