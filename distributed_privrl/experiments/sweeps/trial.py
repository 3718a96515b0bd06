"""One trial of a sweep: the program's own run in a folder of its own, and its score."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import BudgetError, PrivRLError, StorageError, WorkerLostError
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.metadata import CERTIFICATE_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.trainer import Trainer
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.events import write_events
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.run import run
from distributed_privrl.experiments.sweeps.job import Job, TrialResult
from distributed_privrl.experiments.sweeps.points import short_names
from distributed_privrl.experiments.sweeps.scores import score_of
from distributed_privrl.privacy.certificate import Certificate, build_certificate
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue, stated_answer
from distributed_privrl.privacy.verification import read_certificate

NON_PRIVATE, REFUSED = "non_private", "refused"


def run_trial(
    job: Job,
    executor: Executor,
    *,
    ledger: str,
    progress: Progress = silent,
    more_trainers: Mapping[str, Trainer] | None = None,
) -> TrialResult:
    """Run a trial, or go on with it where it stopped, and return what came of it.

    A trial that has ended is not run again. One that is refused has ended, without a score; one
    that lacks a budget, a process or disk has not.

    Args:
        job: what to run.
        executor: where its workers run; stays open.
        ledger: URL of what is charged; a public job has one of its own.
        progress: told where it is.
        more_trainers: agents' trainers beside the plain loops.

    Raises:
        BudgetError: no budget, or not enough of it.
        WorkerLostError: a process was lost; the trial goes on when it is run again.
        StorageError: the disk is full.

    Privacy: a run like any other, charged to ``ledger``. Of a public job the rows stand in for
    sensitive ones: its ledger is the trial's own, and its certificate states nothing.
    """
    if (known := TrialResult.read(job.result_path)) is not None:
        _state_nothing(job)
        return known
    config = parse_config(job.config, source=f"trial {job.name}")
    try:
        found = _tried(job, config, executor, ledger, progress, more_trainers)
    except (BudgetError, WorkerLostError, StorageError):
        _state_nothing(job)
        raise
    except PrivRLError as error:
        found = TrialResult(
            name=job.name,
            values=job.values,
            score=None,
            epsilon=None,
            released="",
            # Why a trial on sensitive rows is refused may tell of them: the terminal says it.
            failed=f"{type(error).__name__}: {error}" if job.public else REFUSED,
        )
    with storage_errors(f"make {job.folder}"):
        Path(job.folder).mkdir(parents=True, exist_ok=True)
    write_atomically(job.result_path, json.dumps(found.to_json(), indent=1) + "\n")
    _state_nothing(job)
    return found


def _tried(
    job: Job,
    config: RunConfig,
    executor: Executor,
    ledger: str,
    progress: Progress,
    more_trainers: Mapping[str, Trainer] | None,
) -> TrialResult:
    folder, store = Path(job.folder), DatasetStore(Path(job.root))
    if job.public:
        with storage_errors(f"make {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        ledger = f"sqlite:///{(folder / 'ledger.sqlite').absolute()}"
        set_budget(config, store, ledger)
    result = run(
        config,
        executor,
        out=job.run,
        ledger_url=ledger,
        store=store,
        resume=RunDirectory(job.run).config_path.exists(),
        progress=progress,
        more_trainers=more_trainers,
        anyway=job.anyway,
        reports=job.score.by == "policy",  # else `privrl report` writes them where they are wanted
    )
    counts = job.public or result.certificate.status == "valid"
    score = score_of(job.score, config, result, store) if counts else None
    _write_events(job, score, result.certificate)
    return TrialResult(
        name=job.name,
        values=job.values,
        score=score,
        epsilon=result.certificate.epsilon,
        released=result.released,
    )


def _write_events(job: Job, score: float | None, certificate: Certificate) -> None:
    """Write a trial's score, beside its values, for TensorBoard; none without privacy.

    Privacy: the score is post-processing of what the trial released, or of public rows.
    """
    shown: PublicValue | ReleasedValue
    if job.public:
        shown = PublicValue(score)
    elif certificate.status == "valid":
        shown = stated_answer(certificate).map(lambda _: score)
    else:
        return
    names = short_names(job.values)
    searched = {names[path]: _searched(value) for path, value in job.values.items()}
    write_events(job.events, [{"score": shown}], searched=searched)


def _searched(value: Any) -> PublicValue:
    """Return a value of an axis, as text where it is a list or a section."""
    scalar = value is None or isinstance(value, bool | int | float | str)
    return PublicValue(value if scalar else json.dumps(value))


def _state_nothing(job: Job) -> None:
    """Replace a public trial's certificate by one that states nothing: nobody's account paid.

    What said so beside it goes; ``privrl report`` writes reports anew.
    """
    directory = RunDirectory(job.run)
    if not job.public or not directory.certificate.exists():
        return
    before = read_certificate(directory.certificate)
    if before.status == NON_PRIVATE:
        return
    config, store = (
        parse_config(job.config, source=f"trial {job.name}"),
        DatasetStore(Path(job.root)),
    )
    nothing = build_certificate(
        method=before.method,
        stages=(),
        spare_rounds=0,
        noise_source=None,
        ledger_entries=(),
        outputs=(),
        versions=before.versions,
    )
    for dataset in config.output.datasets:
        if store.holds(dataset):
            store.update_metadata(dataset, {CERTIFICATE_KEY: nothing.to_dict()})
    for told in (directory.report, directory.report.with_suffix(".json"), directory.metrics):
        told.unlink(missing_ok=True)
    shutil.rmtree(directory.events.parent, ignore_errors=True)
    write_atomically(directory.certificate, nothing.to_json())
