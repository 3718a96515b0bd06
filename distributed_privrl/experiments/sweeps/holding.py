"""What the trials of a composed sweep hold in the ledger: all of them, before the first one starts.

A trial's hold is that of its run, opened earlier: its run finds it under its own name.
"""

from collections.abc import Sequence
from contextlib import closing

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.accounts import inspect_inputs
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.sweeps.job import Job
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.stages.charging import holding_of


def hold_all(jobs: Sequence[Job], store: DatasetStore, ledger_url: str | None) -> None:
    """Hold what each trial may cost that has charged nothing yet; all of them, or none.

    Called again, it leaves what is held. What a trial does not use is free again once it ends.

    Args:
        jobs: of a sweep that the sensitive dataset pays for.
        store: has its datasets.
        ledger_url: of what is charged; None: ``PRIVRL_LEDGER``, or the user's.

    Raises:
        BudgetError: something else was quicker: what is left does not do for all trials.
        UnsafeError: as `inspect_inputs`, or unit, relation or data do not fit the account.
        StorageError: a folder or the ledger cannot be written.

    Privacy: nothing is charged or drawn.
    """
    with closing(Ledger(ledger_url)) as ledger:
        known = [entry.id for entry in ledger.entries()]
        known += [held.run_id for held in ledger.holds()]
        waiting = [job for job in jobs if not charged(job, known)]
        if not waiting:
            return
        configs = [parse_config(job.config, source=f"trial {job.name}") for job in waiting]
        rows = inspect_inputs(configs[0], store, ledger).identity
        opened = list[str]()
        try:
            for job, config in zip(waiting, configs, strict=True):
                directory = RunDirectory(job.run)
                if not directory.begun(SecureNoise.name):
                    directory.begin(SecureNoise.name)
                run_id = directory.run_id
                ours = all(held.run_id != run_id for held in ledger.holds())  # not another process'
                ledger.open_hold(
                    holding_of(config.data, config.privacy, run_id=run_id, fingerprint=rows)
                )
                if ours:
                    opened.append(run_id)
        except BaseException:  # an interruption, too, must not leave the budget held
            for run_id in opened:
                ledger.free_hold(run_id)
            raise


def free_unused(job: Job, run_id: str | None, ledger_url: str) -> None:
    """Free what a trial holds that was refused, unless it charged something.

    Args:
        job: the trial.
        run_id: that its run had; None: it held nothing.
        ledger_url: of what is charged.
    """
    if job.public or run_id is None:
        return
    with closing(Ledger(ledger_url)) as ledger:
        ledger.free_hold(run_id)


def held_as(job: Job) -> str | None:
    """Return the name under which a trial's run holds its budget; None: it has none yet."""
    directory = RunDirectory(job.run)
    return directory.run_id if directory.facts_path.exists() else None


def charged(job: Job, known: Sequence[str]) -> bool:
    """Say whether a trial asks for no more: it has ended, or the ledger knows its run.

    Args:
        job: the trial.
        known: ids of entries and holds of the ledger.
    """
    if job.result_path.exists():
        return True
    run_id = held_as(job)
    return run_id is not None and any(name.startswith(run_id) for name in known)
