"""Running a configuration where its ``runtime`` section says."""

from functools import partial
from pathlib import Path

from distributed_privrl.core.config import RunConfig, RuntimeConfig
from distributed_privrl.core.executor import DeferredExecutor, Executor, LocalExecutor
from distributed_privrl.core.places import place_of
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.stored_folders import opened_folder
from distributed_privrl.experiments import run as program
from distributed_privrl.runtime.jobs import check_job, rows_kept_from_log


def start_executor(runtime: RuntimeConfig) -> Executor:
    """Return the executor that a configuration asks for; the caller closes it.

    Raises:
        ConfigError: Ray has fewer CPUs than the workers need, or no cluster answers.
        UnsafeError: the cluster has no token.
    """
    if runtime.executor == "local":
        return LocalExecutor()
    from distributed_privrl.runtime.executor import RayExecutor

    return RayExecutor(
        workers=runtime.most_workers,
        least=runtime.least_workers,
        cpus_per_worker=runtime.cpus_per_worker,
        gpus_per_worker=runtime.gpus_per_worker,
        recovery_seconds=runtime.recovery_seconds,
        wait_seconds=runtime.wait_seconds,
    )


def deferred_executor(runtime: RuntimeConfig) -> Executor:
    """Return the same, Ray started once it is needed; see `DeferredExecutor`.

    Raises:
        ConfigError: the address of the cluster is a dashboard's.
        UnsafeError: Ray is told to do without a token, or the address cannot be probed for one.
    """
    if runtime.executor == "local":
        return start_executor(runtime)
    from distributed_privrl.runtime.session import cluster_address, prepare_environment

    prepare_environment()
    cluster_address()
    return DeferredExecutor(partial(start_executor, runtime))


def metered(progress: Progress, runtime: RuntimeConfig) -> Progress:
    """Return a progress that also sets a cluster's gauges; of a local executor the same one."""
    if runtime.executor == "local" or progress is silent:
        return progress
    from distributed_privrl.runtime.metrics import MeteredProgress

    return MeteredProgress(progress)


def run(
    config: RunConfig,
    *,
    out: Path | str,
    ledger: str | None = None,
    store: DatasetStore | None = None,
    resume: bool = False,
    progress: Progress = silent,
    sign_key: Path | None = None,
    anyway: bool = False,
) -> program.RunResult:
    """Turn a sensitive dataset into a private one; see `experiments.run.run`.

    Args:
        config: from `load_config`.
        out: the run's folder, a path or a URI; see `data.stored_folders.opened_folder`.
        ledger: the ledger's URL; None: ``PRIVRL_LEDGER`` or the user's data folder.
        store: datasets; None: Minari's folder.
        resume: continue the run in ``out``.
        progress: told where long work is.
        sign_key: PEM file of an Ed25519 key that signs the certificate.
        anyway: run what its plan calls hopeless, too.

    Raises:
        UnsafeError: in a job of a cluster, as `check_job`.
    """
    place = place_of("out", out)
    check_job(place, ledger)
    executor = start_executor(config.runtime)
    try:
        with opened_folder(place, name="out") as folder, rows_kept_from_log(folder):
            return program.run(
                config,
                executor,
                out=folder,
                ledger_url=ledger,
                store=store,
                resume=resume,
                progress=metered(progress, config.runtime),
                sign_key=sign_key,
                anyway=anyway,
            )
    finally:
        executor.close()
