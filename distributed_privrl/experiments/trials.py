"""Agents trained on released or public data, trainers x seeds, in parallel where CPUs allow."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distributed_privrl.core.executor import Executor
from distributed_privrl.core.progress import Progress
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import register
from distributed_privrl.evaluation.returns import LearningCurve, Returns
from distributed_privrl.evaluation.trainer import Spaces, find_trainer, train_and_evaluate

EVALUATIONS = 10


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One agent.

    Args:
        root: the dataset store's folder.
        dataset: what it is trained on.
        environment: where it is evaluated.
        trainer: name of the trainer.
        seed: its public seed.
        steps: gradient steps.
        episodes: episodes of each evaluation.
        options: the trainer's settings.
    """

    root: str
    dataset: str
    environment: str
    trainer: str
    seed: int
    steps: int
    episodes: int
    options: Mapping[str, Any] = field(default_factory=dict)


class AgentTrial:
    """Trains and evaluates one agent."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec

    def run(self) -> dict[str, Any]:
        """Return the agent's learning curve, with what it was trained with."""
        spec = self._spec
        register()
        store = DatasetStore(Path(spec.root))
        info = store.info(spec.dataset)
        _, curve = train_and_evaluate(
            find_trainer(spec.trainer, spec.options),
            store.read_transitions(spec.dataset, unit="transition"),
            Spaces(observation=info.observation_space, action=info.action_space),
            environment_id=spec.environment,
            seed=spec.seed,
            steps=spec.steps,
            evaluations=_evaluations(spec.steps),
            episodes=spec.episodes,
        )
        return {
            **{name: value for name, value in asdict(spec).items() if name != "root"},
            "curve_steps": list(curve.steps),
            "curve_returns": [list(returns.per_episode) for returns in curve.returns],
        }


def _evaluations(steps: int) -> int:
    return next(count for count in range(min(EVALUATIONS, steps), 0, -1) if steps % count == 0)


def run_trials(
    specs: Sequence[TrialSpec], executor: Executor, *, parallel: int, progress: Progress
) -> list[dict[str, Any]]:
    """Run every trial, ``parallel`` at a time, and return their results in order.

    Args:
        specs: the agents.
        executor: where they are trained.
        parallel: how many actors fit at once; more would wait for CPUs for ever.
        progress: told how many are done.
    """
    results: list[dict[str, Any]] = []
    progress("training agents", 0, len(specs))
    for start in range(0, len(specs), parallel):
        group = executor.start(
            AgentTrial, list(specs[start : start + parallel]), repeat_lost_calls=True
        )
        results.extend(group.call("run"))
        group.close()
        progress("training agents", len(results), len(specs))
    return results


def learning_curve(result: dict[str, Any]) -> LearningCurve:
    """Return the curve in a trial's result."""
    return LearningCurve(
        steps=tuple(result["curve_steps"]),
        returns=tuple(Returns(tuple(values)) for values in result["curve_returns"]),
    )
