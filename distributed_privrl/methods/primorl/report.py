"""What a report says of a policy and its ensemble, tried in a public simulator."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.report import Metric, ReleasedFigure, Section
from distributed_privrl.evaluation.returns import LearningCurve, Returns
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue

_PENALTIES = {
    "max_aleatoric": "largest predicted deviation",
    "max_pairwise_difference": "largest difference of two members",
}


def policy_sections(
    config: PrimorlConfig, path: Path, source: str, results: Sequence[Any]
) -> list[Section]:
    """Return the sections on a policy and its ensemble.

    Args:
        config: of the run.
        path: the policy's file.
        source: the ledger entry that paid for it.
        results: what `study.study` returned.

    Privacy: post-processing of what was released; no event.
    """
    found = {result["kind"]: result for result in results}
    promised = _promised_sections(config, found, source)
    if "returns" not in found:
        untried = Section(title="The policy was not tried", explanation=_untried(config))
        return [untried, *promised]
    return [
        _returns_section(config, found, source),
        *promised,
        _error_section(found["model error"], source),
        _uncertainty_section(config, found["uncertainty"], source),
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


def _returns_section(config: PrimorlConfig, found: dict[str, Any], source: str) -> Section:
    final = [_number(value) for value in found["returns"]["returns"]]
    metrics = [
        Metric(
            name="mean return of the policy",
            value=ReleasedValue(float(np.mean(final)), ledger_entry=source),
            explanation=f"{len(final)} episodes; standard deviation {np.std(final):.4g}",
        )
    ]
    if "uniform" in found["returns"]:  # runs of earlier versions have none
        metrics.append(
            Metric(
                name="mean return of uniform actions",
                value=PublicValue(_number(found["returns"]["uniform"])),
                explanation="in the same episodes: what a policy that learned something beats",
            )
        )
    figures = []
    if (curve := _learning_curve(found, "returns")) is not None:
        metrics.append(
            Metric(
                name="mean over the last evaluations of the training",
                value=ReleasedValue(curve.figure(), ledger_entry=source),
                explanation=f"of {len(curve.steps)}, the last after {curve.steps[-1]} steps",
            )
        )
        figures.append(
            ReleasedFigure(
                image=plots.learning_curves({"policy": [curve]}),
                caption="Return in the simulator by gradient steps in the model",
                ledger_entry=source,
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


def _promised_sections(config: PrimorlConfig, found: dict[str, Any], source: str) -> list[Section]:
    """Return the section on returns inside the model; none of runs of earlier versions."""
    curve = _learning_curve(found, "model_return")
    if curve is None:
        return []
    policy = config.training.policy
    lowered = "" if policy.penalty == "none" else ", rewards lowered by the penalty"
    promise = Metric(
        name="mean over the last evaluations in the models",
        value=ReleasedValue(curve.figure(), ledger_entry=source),
        explanation=f"of {len(curve.steps)}; in {config.rollout_horizon} steps at most{lowered}",
    )
    figure = ReleasedFigure(
        image=plots.learning_curves({"policy, in the models": [curve]}, ylabel="promised return"),
        caption="Return inside the models by gradient steps: a promise, not what is earned",
        ledger_entry=source,
    )
    return [
        Section(
            title="What the models promise, which is not what the policy earns",
            explanation="Rollouts of the policy in the pessimistic models that it was trained in,"
            " always from the same starts. It shows whether training went on or fell apart; models"
            " that are wrong promise what nobody earns.",
            metrics=[promise],
            figures=[figure],
        )
    ]


def _learning_curve(found: dict[str, Any], kind: str) -> LearningCurve | None:
    """Return the curve of what each point of the training's has under ``kind``, if any has."""
    points = [point for point in found.get("curve", {"points": []})["points"] if kind in point]
    if not points:
        return None
    values = [point[kind] if isinstance(point[kind], list) else [point[kind]] for point in points]
    return LearningCurve(
        steps=tuple(point["step"] for point in points),
        returns=tuple(Returns(tuple(map(_number, value))) for value in values),
    )


def _error_section(result: dict[str, Any], source: str) -> Section:
    last = len(result["error"]) - 1
    chosen = sorted({0, last // 4, last // 2, last})
    metrics = [
        Metric(
            name=f"error after {index + 1} steps",
            value=ReleasedValue(result["error"][index], ledger_entry=source),
            explanation=f"{_number(result['still'][index]):.3g} if nothing moved",
        )
        for index in chosen
    ]
    lines = {"ensemble": result["error"], "nothing moves": result["still"]}
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
            source=source,
        ),
    )


def _uncertainty_section(config: PrimorlConfig, result: dict[str, Any], source: str) -> Section:
    metrics, lines = [], {}
    for key, name in _PENALTIES.items():
        used = " (used)" if key == config.training.policy.penalty else ""
        metrics.append(
            Metric(
                name=f"{name}{used}: rank correlation with the error",
                value=ReleasedValue(result[key]["rank_correlation"], ledger_entry=source),
                explanation="1: what is uncertain is wrong, 0: the penalty tells nothing",
            )
        )
        lines[name] = result[key]["error_by_tenth"]
    return Section(
        title="Whether the models know where they are wrong",
        explanation="One step from the simulator's own states, in standardised targets.",
        metrics=metrics,
        figures=_figures(
            lines,
            xlabel="tenth of the steps, by rising uncertainty",
            ylabel="error of one step",
            caption="Error by uncertainty",
            source=source,
        ),
    )


def _figures(
    values: dict[str, list[float | None]], *, xlabel: str, ylabel: str, caption: str, source: str
) -> list[ReleasedFigure]:
    """Return a figure of numbers 1, 2, ... of each name; none where no number is finite."""
    lines = {
        name: {float(place + 1): [value] for place, value in enumerate(own) if value is not None}
        for name, own in values.items()
    }
    shown = {name: points for name, points in lines.items() if points}
    if not shown:
        return []
    image = plots.lines_with_spread(shown, xlabel=xlabel, ylabel=ylabel)
    return [ReleasedFigure(image=image, caption=caption, ledger_entry=source)]
