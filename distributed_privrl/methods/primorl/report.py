"""What a report says of a policy and its ensemble, tried in a public simulator.

Reference: paper 001, figures 2 and 5 (learning curves), section 4.3.2 (uncertainty and error).
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.agents.policy import ActionScale, Policy
from distributed_privrl.core.files import storage_errors
from distributed_privrl.core.progress import Progress
from distributed_privrl.core.random import Streams
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.report import Metric, ReleasedFigure, Section
from distributed_privrl.evaluation.returns import (
    LearningCurve,
    Returns,
    evaluate_policy,
)
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts, load_ensemble
from distributed_privrl.methods.primorl.model_environment import (
    max_aleatoric,
    max_pairwise_difference,
)
from distributed_privrl.methods.primorl.policy_training import CURVE, strict_json
from distributed_privrl.models.dynamics import DynamicsEnsemble
from distributed_privrl.privacy.metrics import ReleasedValue

_RESET_SEEDS = 2**31
_BINS = 10
_PENALTIES = {
    "max_aleatoric": "largest predicted deviation",
    "max_pairwise_difference": "largest difference of two members",
}


def study(config: PrimorlConfig, folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Return what the policy earns, and how wrong the ensemble is, in ``data.environment``.

    Args:
        config: of the run.
        folder: of the policy.
        progress: told where it is.

    Privacy: the released policy and ensemble in a public simulator: no event, no real row.
    """
    environment, episodes = config.data.environment, config.evaluation.episodes
    if environment is None or not episodes:
        return []
    streams = Streams(config.seed).child("study")
    policy = Policy.load(folder / config.output.policy)
    facts, ensemble = load_ensemble(folder / config.output.ensemble)
    progress("trying the policy", 0, 2)
    returns = evaluate_policy(
        policy, environment, episodes=episodes, seed=streams.integer("episodes")
    )
    progress("trying the policy", 1, 2)
    paths = _paths(
        policy, environment, episodes=episodes, steps=config.evaluation.horizon, streams=streams
    )
    results: list[dict[str, Any]] = [
        {"kind": "returns", "returns": list(returns.per_episode)},
        {"kind": "curve", "points": _curve(folder)},
        {"kind": "model error", **_open_loop_error(facts, ensemble, paths)},
        {"kind": "uncertainty", **_calibration(facts, ensemble, paths)},
    ]
    progress("trying the policy", 2, 2)
    return list(strict_json(results))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _curve(folder: Path) -> list[dict[str, Any]]:
    path = folder / "checkpoint" / CURVE
    if not path.exists():
        return []
    with storage_errors(f"read {path}"):
        return list(json.loads(path.read_text()))


def _paths(
    policy: Policy, environment: str, *, episodes: int, steps: int, streams: Streams
) -> list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Return observations (T + 1, O), actions (T, A) and rewards (T,) of each episode.

    Half of the actions are uniform, so that the ensemble is asked about more than its own best; all
    those are that the policy has no finite answer for.
    """
    made = gymnasium.make(environment)
    if isinstance(made.observation_space, gymnasium.spaces.Dict):
        made = gymnasium.wrappers.FlattenObservation(made)
    generator = streams.numpy("exploration")
    limits = ActionScale.of(policy.action_space)
    paths = []
    for episode in range(episodes):
        observation, _ = made.reset(seed=streams.integer(f"path/{episode}") % _RESET_SEEDS)
        observations = [np.asarray(observation)]
        actions: list[NDArray[Any]] = []
        rewards: list[float] = []
        over = False
        while not over and len(actions) < steps:
            action = policy.act(observations[-1][None])[0]
            if generator.random() < 0.5 or not np.isfinite(action).all():
                action = generator.uniform(limits.low, limits.high).astype(action.dtype)
            observation, reward, terminated, truncated, _ = made.step(action)
            observations.append(np.asarray(observation))
            actions.append(action)
            rewards.append(float(reward))
            over = terminated or truncated
        paths.append((np.array(observations), np.array(actions), np.array(rewards)))
    made.close()  # type: ignore[no-untyped-call]
    return paths


def _predicted(
    facts: EnsembleFacts, ensemble: DynamicsEnsemble, observations: Any, actions: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    model = facts.model_facts
    inputs = torch.from_numpy(np.concatenate([observations, actions], axis=1)).float()
    with torch.no_grad():
        found: tuple[torch.Tensor, torch.Tensor] = ensemble(
            (inputs - model.input_offset) / model.input_scale
        )
    return found


def _open_loop_error(
    facts: EnsembleFacts,
    ensemble: DynamicsEnsemble,
    paths: Sequence[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]],
) -> dict[str, list[float]]:
    """Return how far the ensemble's mean has strayed after each step, its own states fed back.

    Errors are root mean squares over columns in public deviations of an observation; ``still`` is
    the error of a model that predicts that nothing moves.
    """
    model = facts.model_facts
    width = model.observation_width
    deviations = model.input_scale[:width].numpy()
    steps = min(len(actions) for _, actions, _ in paths)
    truth = np.stack([observations[: steps + 1] for observations, _, _ in paths])
    actions = np.stack([path[1][:steps] for path in paths])
    state = torch.from_numpy(truth[:, 0]).float()
    error, still = [], []
    for step in range(steps):
        mean, _ = _predicted(facts, ensemble, state.numpy(), actions[:, step])
        targets = model.target_offset + model.target_scale * mean.mean(dim=0)
        state = model.observations.clip(state + targets[:, :-1])
        after = truth[:, step + 1]
        error.append(float(np.sqrt((((state.numpy() - after) / deviations) ** 2).mean())))
        still.append(float(np.sqrt((((truth[:, 0] - after) / deviations) ** 2).mean())))
    return {"error": error, "still": still}


def _calibration(
    facts: EnsembleFacts,
    ensemble: DynamicsEnsemble,
    paths: Sequence[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]],
) -> dict[str, Any]:
    """Return the mean error of one step in tenths of rising uncertainty, and rank correlations."""
    model = facts.model_facts
    before = np.concatenate([path[0][:-1] for path in paths])
    after = np.concatenate([path[0][1:] for path in paths])
    actions = np.concatenate([path[1] for path in paths])
    rewards = np.concatenate([path[2] for path in paths])
    mean, log_variance = _predicted(facts, ensemble, before, actions)
    moved = np.concatenate([after - before, rewards[:, None]], axis=1)
    targets = (torch.from_numpy(moved).float() - model.target_offset) / model.target_scale
    error = torch.linalg.vector_norm(mean.mean(dim=0) - targets, dim=1).numpy()
    found: dict[str, Any] = {}
    for name, values in (
        ("max_aleatoric", max_aleatoric(log_variance).numpy()),
        ("max_pairwise_difference", max_pairwise_difference(mean).numpy()),
    ):
        ranks, errors = (np.argsort(np.argsort(one)) for one in (values, error))
        found[name] = {
            "rank_correlation": float(np.corrcoef(ranks, errors)[0, 1]) if len(ranks) > 1 else 0.0,
            "error_by_tenth": [
                float(error[part].mean())
                for part in np.array_split(np.argsort(values), min(_BINS, len(values)))
            ],
        }
    return found


def policy_sections(
    config: PrimorlConfig, path: Path, source: str, results: Sequence[Any]
) -> list[Section]:
    """Return the sections on a policy and its ensemble.

    Args:
        config: of the run.
        path: the policy's file.
        source: the ledger entry that paid for it.
        results: what `study` returned.

    Privacy: post-processing of what was released; no event.
    """
    found = {result["kind"]: result for result in results}
    if not found:
        return []
    return [
        _returns_section(config, found, source),
        _error_section(found["model error"], source),
        _uncertainty_section(config, found["uncertainty"], source),
    ]


def _returns_section(config: PrimorlConfig, found: dict[str, Any], source: str) -> Section:
    final = [_number(value) for value in found["returns"]["returns"]]
    metrics = [
        Metric(
            name="mean return of the policy",
            value=ReleasedValue(float(np.mean(final)), ledger_entry=source),
            explanation=f"{len(final)} episodes; standard deviation {np.std(final):.4g}",
        )
    ]
    figures = []
    points = found["curve"]["points"]
    if points:
        curve = LearningCurve(
            steps=tuple(point["step"] for point in points),
            returns=tuple(Returns(tuple(map(_number, point["returns"]))) for point in points),
        )
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
    return Section(
        title=f"What the policy earns in {config.data.environment}",
        explanation="Trained inside the private ensemble alone, tried in a public simulator.",
        metrics=metrics,
        figures=figures,
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
