"""Removes a dataset from the store, unless something needs it; its account stays as it is."""

from collections.abc import Iterator

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.privacy.ledger import Account, Ledger


def remove_dataset(
    store: DatasetStore, ledger: Ledger, dataset: str, *, anyway: bool = False
) -> Account | None:
    """Remove a dataset, whole and at once, and return the account that stays, if it has one.

    Args:
        store: where it lies.
        ledger: what keeps its account; read, never written.
        dataset: its id.
        anyway: remove it although something needs it.

    Raises:
        ConfigError: no such dataset, or something needs it (`needed_by`).
        StorageError: it cannot be removed.

    Privacy: no event. What was spent stays spent: an account is of rows and of whose they are
        (`Ledger.set_budget`), and knows them by their fingerprint and sketch, which lie in the
        ledger. The same rows that come back, under any id, have the account that they had.
    """
    store.metadata_file(dataset)
    if not anyway and (reasons := list(needed_by(store, ledger, dataset))):
        raise ConfigError(
            f"{dataset} is needed: {'; '.join(reasons)}. --anyway removes it all the same; what was"
            " spent of its budget stays spent"
        )
    store.remove(dataset)
    return next((one for one in ledger.accounts() if one.dataset == dataset), None)


def needed_by(store: DatasetStore, ledger: Ledger, dataset: str) -> Iterator[str]:
    """Yield what a dataset is needed for, as far as the ledger and its own marks tell.

    A run that read it as public rows is known to neither.
    """
    for hold in ledger.holds(dataset):
        yield (
            f"run {hold.run_id} holds some of its budget (it can be resumed; `privrl ledger settle"
            f" {hold.run_id}` gives it up)"
        )
    entries = ledger.entries(dataset)
    if going_on := [one.id for one in entries if one.status == "open"]:
        yield f"what was charged as {', '.join(going_on)} is not settled, and reads it on --resume"
    if ended := [one.id for one in entries if one.status == "settled"]:
        yield (f"report, sample and audit of a run that was charged as {', '.join(ended)} read it")
    try:
        info = store.info(dataset)
    except StorageError:  # it is damaged: whoever removes it says so
        yield "its metadata cannot be read, so that nobody knows what it is"
        return
    if info.certificate:
        yield "it is the release of a run, whose certificate lists its files"
    spent = {one.dataset for one in ledger.accounts()} - {dataset}
    if kin := sorted(spent.intersection((*info.split_of, *info.split_into))):
        yield (
            f"it and {', '.join(kin)}, which has a budget, are parts of the same data, and its"
            " metadata say so"
        )
