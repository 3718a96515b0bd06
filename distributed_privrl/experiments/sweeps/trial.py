"""One trial of a sweep: the program's own run in a folder of its own, and its score."""

import json
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import BudgetError, PrivRLError, StorageError, WorkerLostError
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.trainer import Trainer
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.events import write_events
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.run import run
from distributed_privrl.experiments.sweeps.holding import free_unused, held_as
from distributed_privrl.experiments.sweeps.job import Job, TrialResult
from distributed_privrl.experiments.sweeps.points import short_names
from distributed_privrl.experiments.sweeps.scores import score_of
from distributed_privrl.experiments.withholding import rows_withheld
from distributed_privrl.privacy.certificate import Certificate
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue, stated_answer

REFUSED = "refused"


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
    sensitive ones: its ledger is the trial's own, and its certificate never states anything. Of
    another, what tells of rows goes to ``private/`` of its run, and not to the process's log.
    """
    if (known := TrialResult.read(job.result_path)) is not None:
        return known
    config = parse_config(job.config, source=f"trial {job.name}")
    held = held_as(job)
    try:
        # The log of the process that runs a trial is for whoever has the cluster's token.
        with nullcontext() if job.public else rows_withheld(job.run):
            found = _tried(job, config, executor, ledger, progress, more_trainers)
    except BudgetError:
        free_unused(job, held, ledger)  # its folder may be gone, and the hold's name with it
        raise
    except (WorkerLostError, StorageError):
        raise
    except PrivRLError as error:
        free_unused(job, held, ledger)
        found = TrialResult(
            name=job.name,
            values=job.values,
            score=None,
            epsilon=None,
            released="",
            # Why a trial on sensitive rows is refused may tell of them.
            failed=f"{type(error).__name__}: {error}" if job.public else REFUSED,
        )
    with storage_errors(f"make {job.folder}"):
        Path(job.folder).mkdir(parents=True, exist_ok=True)
    write_atomically(job.result_path, json.dumps(found.to_json(), indent=1) + "\n")
    return found


def _tried(
    job: Job,
    config: RunConfig,
    executor: Executor,
    ledger: str,
    progress: Progress,
    more_trainers: Mapping[str, Trainer] | None,
) -> TrialResult:
    folder, store = Path(job.folder), DatasetStore(job.root)
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
        stand_in=job.public,
    )
    counts = job.public or result.certificate.status == "valid"
    score = score_of(job.score, config, result, store) if counts else None
    _write_events(job, score, result.certificate)
    return TrialResult(
        name=job.name,
        values=job.values,
        score=score,
        epsilon=_charged(config, ledger) if job.public else result.certificate.epsilon,
        released=result.released,
    )


def _charged(config: RunConfig, ledger: str) -> float | None:
    """Return what a public trial's own ledger was charged; None: it was not private."""
    with closing(Ledger(ledger)) as own:
        entries = own.entries(config.data.sensitive)
    return sum(one.epsilon for one in entries) if entries else None


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
