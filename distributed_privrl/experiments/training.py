"""The agents of an evaluation, trained the same way on every dataset that it compares."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed_privrl.core.executor import Executor
from distributed_privrl.core.progress import Progress
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.trainer import Options, Trainer, settings_of
from distributed_privrl.experiments.trials import TrialSpec, content_of, run_trials


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the agents of an evaluation are trained, the same on every dataset.

    Args:
        store: datasets.
        environment: where agents are evaluated.
        seeds: agents of each trainer.
        steps: gradient steps an agent.
        episodes: episodes of each evaluation.
        options: hyper-parameters of each agent that differ from its defaults.
        more: trainers beside the plain loops.
        executor: where agents are trained.
        parallel: agents at a time.
        progress: told how far they are.
        judged_on: id of real episodes that agents are valued on, instead of an environment.
        device: that plain loops compute on.
    """

    store: DatasetStore
    environment: str
    seeds: int
    steps: int
    episodes: int
    options: Options
    more: Mapping[str, Trainer]
    executor: Executor
    parallel: int
    progress: Progress
    judged_on: str = ""
    device: str = "cpu"

    def run(
        self, dataset: str, trainers: Iterable[str], *, kept: Path, stage: str
    ) -> list[dict[str, Any]]:
        """Train every trainer's agents on ``dataset``; see `run_trials`."""
        content = content_of(self.store, dataset)
        judged_content = content_of(self.store, self.judged_on) if self.judged_on else ""
        specs = [
            TrialSpec(
                root=self.store.place,
                dataset=dataset,
                content=content,
                environment="" if self.judged_on else self.environment,
                trainer=trainer,
                seed=seed,
                steps=self.steps,
                episodes=self.episodes,
                options=settings_of(trainer, self.options, more=self.more),
                more=self.more,
                judged_on=self.judged_on,
                judged_content=judged_content,
                device=self.device,
            )
            for trainer in trainers
            for seed in range(self.seeds)
        ]
        return run_trials(
            specs,
            self.executor,
            parallel=self.parallel,
            progress=self.progress,
            kept=kept,
            stage=stage,
        )
