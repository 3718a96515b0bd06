"""Sweeps on Ray Tune: trials in placement groups of their own, side by side, which resume."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.errors import (
    ConfigError,
    MissingExtraError,
    PrivRLError,
    UnsafeError,
)
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.sweeps.job import Job
from distributed_privrl.experiments.sweeps.points import short_names
from distributed_privrl.experiments.sweeps.trial import run_trial
from distributed_privrl.privacy.ledger.storage import ledger_reference
from distributed_privrl.runtime.launch import start_executor
from distributed_privrl.runtime.rllib.trainer import RLLIB_TRAINERS
from distributed_privrl.runtime.session import cluster_address, connect, keep_to_owner

NAME = "trials"
"""Of Tune's experiment: its folder is the sweep's own, so that no other is overwritten."""
SCORE, EPSILON = "score", "epsilon"
_TRIAL = "trial"
_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the newer output takes no table of ours
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Tune would end as if all trials had
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # files of a configuration are named from where we are
    "MLFLOW_ALLOW_FILE_STORE": "true",  # else it asks for a database, whose packages it leaves out
}
_NO_LOGGERS = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
_ROWS, _SECONDS = 30, 30
"""Of the table, and between two of them."""


def bundles_of(runtime: RuntimeConfig) -> list[dict[str, float]]:
    """Return what a trial reserves: for itself, and for each worker.

    Args:
        runtime: of its configuration.
    """
    own = {"CPU": runtime.cpus_per_worker}
    if runtime.executor == "local":
        return [own]
    gpus = {"GPU": runtime.gpus_per_worker} if runtime.gpus_per_worker else {}
    return [own, *(own | gpus for _ in range(runtime.least_workers))]


def run_jobs(
    jobs: Sequence[Job],
    *,
    storage: Path,
    ledger: str | None,
    public: bool,
    concurrent: int | None,
    retries: int,
    trackers: Sequence[str] = (),
) -> list[Exception]:
    """Run the jobs on Ray Tune, as many at once as fit; return errors of those that did not end.

    Called again with the same ``storage``, it goes on: trials that have ended are not run again.

    Args:
        jobs: of one sweep.
        storage: where Tune keeps its state.
        ledger: URL of what is charged; None: ``PRIVRL_LEDGER`` of this process, or the user's.
        public: whether what Tune keeps, times of trials among it, may be seen by anybody.
        concurrent: trials at a time; None: as many as fit.
        retries: how often a trial whose process died goes on by itself.
        trackers: ``wandb`` and ``mlflow``; told of public trials alone.

    Raises:
        ConfigError: a trial needs more CPUs than there are.
        MissingExtraError: a tracker is not installed.
        UnsafeError: trackers of trials that read sensitive rows.

    Privacy: Tune's state tells how long trials took; where these read sensitive rows it lies in
    ``private/``, its copy in Ray's own folder is for its owner alone, no logger is attached, and
    trackers are refused. The ledger's URL, which may hold
    a password, reaches trials through Ray's object store, in memory: it is no part of what Tune
    pickles, of a job, of a command line or of an environment.
    """
    if trackers and not public:
        raise UnsafeError(
            f"{', '.join(trackers)} would be told of trials that read sensitive rows: trackers go"
            " with selection.pays=public alone"
        )
    bundles = bundles_of(_runtime_of(jobs[0]))
    together = min(concurrent or len(jobs), len(jobs))
    each = sum(bundle["CPU"] for bundle in bundles)
    ray = connect(cpus=max(os.cpu_count() or 1, each, each * (concurrent or 0)))
    if cluster_address() is None:  # nodes may join a cluster
        _check_fits(ray, each)
    if not public:
        keep_to_owner()
    from ray import tune

    url = ledger_reference(ledger)
    trainable = tune.with_resources(
        tune.with_parameters(_trial(jobs), url=url), tune.PlacementGroupFactory(bundles)
    )
    with _environment(_SETTINGS if public else _SETTINGS | _NO_LOGGERS):
        tuner = _tuner(
            trainable,
            jobs,
            tune_config=tune.TuneConfig(
                num_samples=1,
                max_concurrent_trials=together,
                reuse_actors=True,
                trial_name_creator=_short_name,
                trial_dirname_creator=_name,
            ),
            run_config=tune.RunConfig(
                name=NAME,
                storage_path=str(storage.absolute()),
                failure_config=tune.FailureConfig(max_failures=retries),
                progress_reporter=_table(jobs),
                callbacks=_callbacks(trackers, storage),
                verbose=1,
            ),
        )
        return [_own(error) for error in tuner.fit().errors]


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set what Tune reads from the environment, for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _table(jobs: Sequence[Job]) -> Any:
    """Return what shows the trials: a column a searched value, the score, and what it cost.

    Privacy: no times, which tell of private steps.
    """
    from ray import tune

    columns = {f"{_TRIAL}/{short}": short for short in short_names(jobs[0].values).values()}
    return tune.CLIReporter(
        metric_columns={SCORE: SCORE, EPSILON: "epsilon of it"},
        parameter_columns=columns,
        print_intermediate_tables=True,
        max_progress_rows=_ROWS,
        max_report_frequency=_SECONDS,
    )


def _name(trial: Any) -> str:
    """Return the name of a trial's folder."""
    return str(trial.config[_TRIAL]["name"])


def _short_name(trial: Any) -> str:
    """Return what a trial is called in the table, whose columns have its values."""
    return _name(trial).rpartition("-")[2]


def _runtime_of(job: Job) -> RuntimeConfig:
    return parse_config(job.config, source=f"trial {job.name}").runtime


def _check_fits(ray: Any, each: float) -> None:
    have = float(ray.cluster_resources().get("CPU", 0.0))
    if each > have + 1e-9:
        raise ConfigError(
            f"a trial needs {each:g} CPUs but Ray has {have:g}: lower runtime.workers or"
            " runtime.cpus_per_worker"
        )


def _trial(jobs: Sequence[Job]) -> Callable[..., None]:
    by_name = {job.name: job for job in jobs}

    def trial(config: Mapping[str, Any], url: str) -> None:
        from ray import tune

        job = by_name[config[_TRIAL]["name"]]
        with contextlib.closing(start_executor(_runtime_of(job))) as executor:
            found = run_trial(job, executor, ledger=url, more_trainers=RLLIB_TRAINERS)
        tune.report({SCORE: found.score, EPSILON: found.epsilon, "failed": found.failed})

    return trial


def _tuner(trainable: Any, jobs: Sequence[Job], *, tune_config: Any, run_config: Any) -> Any:
    """Return a tuner that goes on where one was, or begins."""
    from ray import tune

    points = [
        {"name": job.name, **{s: job.values[path] for path, s in short_names(job.values).items()}}
        for job in jobs
    ]
    space = {_TRIAL: tune.grid_search(points)}
    path = Path(run_config.storage_path) / NAME
    # killed before it wrote any state, Tune has no trials to restore
    if tune.Tuner.can_restore(str(path)) and any(path.glob("experiment_state-*.json")):
        return tune.Tuner.restore(
            str(path),
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


def _own(error: Exception) -> Exception:
    """Return the error of ours behind what Tune raises, or that one."""
    seen: BaseException | None = error
    while seen is not None:
        cause = getattr(seen, "cause", None)
        if isinstance(cause, PrivRLError):
            return cause
        if isinstance(seen, PrivRLError):
            return seen
        seen = cause if isinstance(cause, BaseException) else seen.__cause__
    return error
