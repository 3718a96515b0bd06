"""A released policy and its ensemble, tried in a public simulator.

Reference: PriMORL, figures 2 and 5 (learning curves), section 4.3.2 (uncertainty and error).
"""

import json
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
from distributed_privrl.evaluation.returns import evaluate_policy
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts, load_ensemble
from distributed_privrl.methods.primorl.model_environment import (
    max_aleatoric,
    max_pairwise_difference,
)
from distributed_privrl.methods.primorl.policy_training import CURVE, strict_json
from distributed_privrl.models.dynamics import DynamicsEnsemble

_RESET_SEEDS = 2**31
_BINS = 10


def study(config: PrimorlConfig, folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Return what the policy earns, and how wrong the ensemble is, in ``data.environment``.

    Without a simulator, or episodes, there is the curve of its training alone.

    Args:
        config: of the run.
        folder: of the policy.
        progress: told where it is.

    Privacy: the released policy and ensemble in a public simulator: no event, no real row.
    """
    environment, episodes = config.data.environment, config.evaluation.episodes
    curve = {"kind": "curve", "points": _curve(folder)}
    if environment is None or not episodes:
        return [curve]
    streams = Streams(config.seed).child("study")
    policy = Policy.load(folder / config.output.policy, finite=False)
    facts, ensemble = load_ensemble(folder / config.output.ensemble)
    progress("trying the policy", 0, 2)
    returns = evaluate_policy(
        policy, environment, episodes=episodes, seed=streams.integer("episodes")
    )
    uniform = evaluate_policy(
        _Uniform(ActionScale.of(policy.action_space), streams.numpy("uniform")),
        environment,
        episodes=episodes,
        seed=streams.integer("episodes"),
    )
    progress("trying the policy", 1, 2)
    paths = _paths(
        policy, environment, episodes=episodes, steps=config.evaluation.horizon, streams=streams
    )
    results: list[dict[str, Any]] = [
        {"kind": "returns", "returns": list(returns.per_episode), "uniform": uniform.mean},
        curve,
        {"kind": "model error", **_open_loop_error(facts, ensemble, paths)},
        {"kind": "uncertainty", **_calibration(facts, ensemble, paths)},
    ]
    progress("trying the policy", 2, 2)
    return list(strict_json(results))


class _Uniform:
    """Acts by chance, evenly inside the bounds: what a policy is to beat."""

    def __init__(self, limits: ActionScale, generator: np.random.Generator) -> None:
        self._limits, self._generator = limits, generator

    def act(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        low, high = self._limits.low, self._limits.high
        shape = (len(observations), len(low))
        return self._generator.uniform(low, high, shape).astype(np.float32)


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
