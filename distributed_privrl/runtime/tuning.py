"""Sweeps on Ray Tune: trials in placement groups of their own, side by side, which resume."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.errors import (
    BudgetError,
    ConfigError,
    MissingExtraError,
    PrivRLError,
)
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.sweeps.jobs import results_of
from distributed_privrl.experiments.sweeps.points import short_names
from distributed_privrl.experiments.sweeps.trial import Job, TrialResult, run_trial
from distributed_privrl.runtime.launch import start_executor
from distributed_privrl.runtime.rllib.trainer import PREFIX, RLLIB_TRAINERS
from distributed_privrl.runtime.session import connect

NAME = "trials"
"""Of Tune's experiment: its folder is the sweep's own, so that no other is overwritten."""
SCORE = "score"
_LOGGERS = "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"
_RLLIB_CPUS = 1.0
"""For what RLlib and Ray Data start beside a trial."""


def bundles_of(runtime: RuntimeConfig, trainers: Sequence[str]) -> list[dict[str, float]]:
    """Return what a trial reserves: for itself, for each worker, for what RLlib starts.

    Args:
        runtime: of its configuration.
        trainers: of its evaluation.
    """
    own = {"CPU": runtime.cpus_per_worker}
    workers: list[dict[str, float]] = []
    if runtime.executor == "ray":
        gpus = {"GPU": runtime.gpus_per_worker} if runtime.gpus_per_worker else {}
        workers = [own | gpus for _ in range(runtime.workers)]
    beside = [{"CPU": _RLLIB_CPUS}] if any(one.startswith(PREFIX) for one in trainers) else []
    return [own, *workers, *beside]


def run_jobs(
    jobs: Sequence[Job],
    *,
    storage: Path,
    public: bool,
    concurrent: int | None,
    retries: int,
    trackers: Sequence[str] = (),
) -> list[TrialResult]:
    """Run the jobs on Ray Tune, as many at once as fit, and return what came of them.

    Called again with the same ``storage``, it goes on: trials that have ended are not run again.

    Args:
        jobs: of one sweep.
        storage: where Tune keeps its state.
        public: whether what Tune keeps, times of trials among it, may be seen by anybody.
        concurrent: trials at a time; None: as many as fit.
        retries: how often a trial whose process died goes on by itself.
        trackers: ``wandb`` and ``mlflow``; told of public trials alone.

    Raises:
        BudgetError: a trial's budget does not do; the others have ended.
        ConfigError: a trial needs more CPUs than there are.
        MissingExtraError: a tracker is not installed.

    Privacy: Tune's state tells how long trials took; where these read sensitive rows it lies in
    ``private/``, no logger is attached, and trackers are refused.
    """
    runtime, trainers = _needs(jobs[0])
    bundles = bundles_of(runtime, trainers)
    together = min(concurrent or len(jobs), len(jobs))
    each = sum(bundle["CPU"] for bundle in bundles)
    local = max(os.cpu_count() or 1, each, each * (concurrent or 0))
    if not public:
        os.environ[_LOGGERS] = "1"
    ray = connect(cpus=local)
    _check_fits(ray, each)
    from ray import tune

    callbacks = _callbacks(trackers, storage) if public else []
    trainable = tune.with_resources(_trial(jobs), tune.PlacementGroupFactory(bundles))
    columns = {f"trial/{short}": short for short in short_names(jobs[0].values).values()}
    reporter = tune.CLIReporter(
        metric_columns=[SCORE, "epsilon"], parameter_columns=columns, max_report_frequency=10
    )
    tuner = _tuner(
        trainable,
        jobs,
        tune_config=tune.TuneConfig(num_samples=1, max_concurrent_trials=together),
        run_config=tune.RunConfig(
            name=NAME,
            storage_path=str(storage.absolute()),
            failure_config=tune.FailureConfig(max_failures=retries),
            progress_reporter=reporter,
            callbacks=callbacks,
            verbose=1,
        ),
    )
    found = tuner.fit()
    for error in found.errors:
        cause = _own(error)
        if isinstance(cause, BudgetError):
            raise cause
    return results_of(jobs)


def _needs(job: Job) -> tuple[RuntimeConfig, tuple[str, ...]]:
    config = parse_config(job.config, source=f"trial {job.name}")
    return config.runtime, config.evaluation.trainers


def _check_fits(ray: Any, each: float) -> None:
    have = float(ray.cluster_resources().get("CPU", 0.0))
    if each > have + 1e-9:
        raise ConfigError(
            f"a trial needs {each:g} CPUs but Ray has {have:g}: lower runtime.workers or"
            " runtime.cpus_per_worker"
        )


def _trial(jobs: Sequence[Job]) -> Callable[[Mapping[str, Any]], None]:
    by_name = {job.name: job for job in jobs}

    def trial(config: Mapping[str, Any]) -> None:
        from ray import tune

        job = by_name[config["trial"]["name"]]
        executor = start_executor(_needs(job)[0])
        try:
            found = run_trial(job, executor, more_trainers=RLLIB_TRAINERS)
        finally:
            executor.close()
        tune.report({SCORE: found.score, "epsilon": found.epsilon, "failed": found.failed})

    return trial


def _tuner(trainable: Any, jobs: Sequence[Job], *, tune_config: Any, run_config: Any) -> Any:
    """Return a tuner that goes on where one was, or begins."""
    from ray import tune

    points = [
        {"name": job.name, **{s: job.values[path] for path, s in short_names(job.values).items()}}
        for job in jobs
    ]
    space = {"trial": tune.grid_search(points)}
    path = f"{run_config.storage_path}/{NAME}"
    if tune.Tuner.can_restore(path):
        return tune.Tuner.restore(
            path,
            trainable=trainable,
            param_space=space,
            resume_unfinished=True,
            resume_errored=True,
        )
    return tune.Tuner(trainable, param_space=space, tune_config=tune_config, run_config=run_config)


def _callbacks(trackers: Sequence[str], storage: Path) -> list[Any]:
    """Return what tells trackers of public trials.

    Raises:
        MissingExtraError: a tracker is not installed.
    """
    made: list[Any] = []
    for name in trackers:
        try:
            if name == "wandb":
                import wandb  # noqa: F401
                from ray.air.integrations.wandb import WandbLoggerCallback

                made.append(WandbLoggerCallback(project="privrl"))
            else:
                import mlflow  # noqa: F401
                from ray.air.integrations.mlflow import MLflowLoggerCallback

                uri = (storage.parent / "mlflow").absolute().as_uri()
                made.append(MLflowLoggerCallback(tracking_uri=uri, experiment_name="privrl"))
        except ImportError as error:
            raise MissingExtraError(name, "tracking") from error
    return made


def _own(error: BaseException) -> BaseException:
    """Return the error of ours behind what Tune raises."""
    seen: BaseException | None = error
    while seen is not None:
        cause = getattr(seen, "cause", None)
        if isinstance(cause, PrivRLError):
            return cause
        if isinstance(seen, PrivRLError):
            return seen
        seen = cause if isinstance(cause, BaseException) else seen.__cause__
    return error
