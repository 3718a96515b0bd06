"""The agents that a run's configuration asks for, trained on what the run released."""

import json
from collections.abc import Mapping
from pathlib import Path

from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.progress import Progress
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.trainer import Trainer, settings_of
from distributed_privrl.experiments.agents import EVALUATION_FILE, Trials, keep_trials
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.registry import method_named
from distributed_privrl.experiments.trainers import check_agents
from distributed_privrl.experiments.trials import (
    AGENTS,
    TRAINING,
    TRAINING_ON_PRIVATE,
    TrialSpec,
    content_of,
    run_trials,
)
from distributed_privrl.privacy.certificate import Certificate


def evaluate_release(
    config: RunConfig,
    store: DatasetStore,
    directory: RunDirectory,
    certificate: Certificate,
    executor: Executor,
    *,
    progress: Progress,
    more_trainers: Mapping[str, Trainer] | None = None,
) -> Trials:
    """Train the configured agents on the synthetic dataset, or simulate what a policy's method has.

    Each agent's result is kept as it ends; called again, those that are missing or failed are
    trained.

    Args:
        config: of the run.
        store: datasets.
        directory: of the run.
        certificate: of the release.
        executor: where agents are trained.
        progress: told where it is.
        more_trainers: trainers beside the plain loops, by name.

    Raises:
        ConfigError: as `check_agents`, or the kept results are of another evaluation.

    Privacy: post-processing of the released dataset in a public environment; no event. Of a dataset
    that neither has a valid certificate nor is public all results lie in ``private/``.
    """
    evaluation = config.evaluation
    if not isinstance(config.output, OutputConfig):
        return _study(config, directory, progress)
    check_agents(config, store, more_trainers=more_trainers)
    if not evaluation.trainers or config.data.environment is None:
        return []
    from distributed_privrl.stages.devices import device_of  # torch: for those who train alone

    content, device = content_of(store, config.output.dataset), device_of(config.runtime)
    specs = [
        TrialSpec(
            root=store.place,
            dataset=config.output.dataset,
            content=content,
            environment=config.data.environment,
            trainer=trainer,
            seed=seed,
            steps=evaluation.steps,
            episodes=evaluation.episodes,
            options=settings_of(trainer, evaluation.options, more=more_trainers),
            more=more_trainers or {},
            device=device,
        )
        for trainer in evaluation.trainers
        for seed in range(evaluation.seeds)
    ]
    public = store.info(config.output.dataset).declared_public
    releasable = certificate.status == "valid" or public
    folder = directory.path if releasable else directory.make_private()
    results = run_trials(
        specs,
        executor,
        parallel=config.runtime.least_workers,
        progress=progress,
        kept=folder / AGENTS,
        stage=TRAINING if releasable else TRAINING_ON_PRIVATE,
    )
    keep_trials(results, directory, may_leave=releasable)
    return results


def stored_trials(directory: RunDirectory, certificate: Certificate) -> Trials:
    """Return what `evaluate_release` found in a finished run.

    Raises:
        ConfigError: agents were trained on something else than what the certificate is of.
        StorageError: it cannot be read.
    """
    paths = [directory.path / EVALUATION_FILE]
    if certificate.status != "valid":
        paths.append(directory.private / EVALUATION_FILE)
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return []
    trials, digest = _read(path), certificate.digest
    if certificate.status == "valid" and any(
        one.get("content", digest) != digest for one in trials
    ):
        raise ConfigError(
            f"{path} is of agents that were not trained on what this run released: delete it, and"
            " train them with privrl run --resume"
        )
    return trials


def _study(config: RunConfig, directory: RunDirectory, progress: Progress) -> Trials:
    """Run the method's simulations in the public problem, once; results go where the policy is."""
    private = config.privacy.epsilon is None
    folder = directory.private if private else directory.path
    path = folder / EVALUATION_FILE
    if path.exists():
        return _read(path)
    study = method_named(config.method).inspection.study
    results = study(config, folder, progress) if study is not None else []
    if results and private:
        directory.write_private(EVALUATION_FILE, json.dumps(results))
    elif results:
        write_atomically(path, json.dumps(results))
    return results


def _read(path: Path) -> Trials:
    try:
        return list(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}; delete it and evaluate again") from error
