"""Before the first trial of a sweep starts: its folder, its rows, and whether its budget does."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from distributed_privrl.core.errors import BudgetError, ConfigError, PrivRLError
from distributed_privrl.core.files import remove_folder
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.accounts import check_public
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.sweeps.config import PublicSelection, Sweep
from distributed_privrl.experiments.sweeps.holding import charged, hold_all
from distributed_privrl.experiments.sweeps.job import Job
from distributed_privrl.experiments.sweeps.jobs import SweepDirectory, jobs_of
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.budgets import check_affordable, check_delta_sum
from distributed_privrl.privacy.ledger.records import budget_line
from distributed_privrl.privacy.ledger.storage import ledger_url
from distributed_privrl.privacy.units import Relation


def prepared_jobs(
    sweep: Sweep,
    directory: SweepDirectory,
    *,
    store: DatasetStore,
    ledger: str | None,
    resume: bool,
    anyway: bool = False,
) -> tuple[Job, ...]:
    """Make a sweep's folder, or go on in it, and return its trials; refused, it leaves nothing.

    Args:
        sweep: whose trials are all seen.
        directory: where it goes.
        store: datasets; of a public sweep the sensitive one is not asked for anything.
        ledger: URL of what is charged; None: ``PRIVRL_LEDGER``, or the user's.
        resume: go on.
        anyway: run what plans call hopeless, too.

    Raises:
        BudgetError: what is left of the budget does not do for all trials.
        StorageError: a folder or the ledger cannot be written.
        ConfigError: as `SweepDirectory.make` and `jobs_of`.
        UnsafeError: as `jobs_of`, or the ledger knows rows that stand in as somebody's.

    Privacy: nothing is charged or drawn; a sweep that pays holds all its trials' budgets
    (`hold_all`). A public sweep asks the ledger, where there is one, whose
    rows it has accounts of; neither the sensitive dataset nor its account is looked for.
    """
    fresh = directory.make(sweep, resume=resume)
    try:
        jobs = jobs_of(sweep, directory, store=store, anyway=anyway)
        _check_nobodys(sweep, jobs, store, ledger)
        if not isinstance(sweep.selection, PublicSelection):
            check_budget(jobs, ledger)
            directory.make_private()
            hold_all(jobs, store, ledger)
    except PrivRLError:
        if fresh:
            remove_folder(directory.path)
        raise
    return jobs


def _check_nobodys(sweep: Sweep, jobs: Sequence[Job], store: DatasetStore, url: str | None) -> None:
    """Check that no account is of rows that stand in, judge, or are public in any trial.

    Raises:
        ConfigError: what judges was not declared public.
        UnsafeError: one is.
    """
    named = [
        name
        for job in jobs
        for name in (
            *parse_config(job.config, source=f"trial {job.name}").data.public,
            *([job.score.to] if job.score.to is not None else []),
        )
    ]
    if isinstance(sweep.selection, PublicSelection):
        named.append(sweep.selection.stand_in)
    public = list(dict.fromkeys(named))
    for name in public:
        if not store.info(name).declared_public:
            raise ConfigError(f"{name} was not declared public, and trials are judged by it")
    place = ledger_url(url)
    if place.get_backend_name() == "sqlite" and not Path(str(place.database)).exists():
        return
    with closing(Ledger(url)) as ledger:
        check_public(store, ledger, public)


def check_budget(jobs: Sequence[Job], ledger_url: str | None) -> None:
    """Check that what is left of a budget does for all trials that have charged nothing yet.

    Each trial is taken at all that it may cost; what it does not use is free again once it ends.

    Args:
        jobs: of a sweep that the sensitive dataset pays for.
        ledger_url: of what is charged; None: ``PRIVRL_LEDGER``, or the user's.

    Raises:
        BudgetError: there is no budget, or not enough of it.
    """
    config = parse_config(jobs[0].config, source=f"trial {jobs[0].name}")
    with closing(Ledger(ledger_url)) as ledger:
        known = [entry.id for entry in ledger.entries()]
        known += [held.run_id for held in ledger.holds()]
        privacy = [
            parse_config(job.config, source=f"trial {job.name}").privacy
            for job in jobs
            if not charged(job, known)
        ]
        asked = [(one.epsilon, one.delta) for one in privacy if one.epsilon is not None]
        if not asked:
            return
        epsilon, delta = (sum(part) for part in zip(*asked, strict=True))
        data, relation = config.data, Relation(config.privacy.relation)
        for account in ledger.accounts():
            if account.dataset == data.sensitive:
                check_affordable(account, epsilon=epsilon, delta=delta)
                units = data.units if isinstance(data.units, int) else None
                check_delta_sum(account, delta=delta, units=units)
                return
    line = budget_line(data.sensitive, data.unit, relation, (epsilon, delta))
    raise BudgetError(f"no budget is set for {data.sensitive}: set one with `{line}`")
