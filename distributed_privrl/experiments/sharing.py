"""A released dataset as a folder that Hugging Face's ``datasets`` reads, with its card."""

import contextlib
from pathlib import Path

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import storage_errors, unfinished_folder, write_atomically
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.exporting import export
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.cards import FILE_NAME, card_beside
from distributed_privrl.experiments.clearance import cleared
from distributed_privrl.privacy.ledger import Ledger

READER = "Hugging Face's datasets"
DATA_FILE = "data/train-00000-of-00001.parquet"
CERTIFICATE = "certificate.json"


def export_folder(
    store: DatasetStore,
    dataset: str,
    out: Path,
    *,
    declared: DeclaredTable | None = None,
    ledger_url: str | None = None,
) -> None:
    """Write a dataset as a folder for ``datasets.load_dataset``: Parquet, card, certificate.

    Args:
        store: where the dataset lies.
        dataset: its id.
        out: the folder to make; it must not exist.
        declared: names and kinds of the columns, as in `data.exporting.export`.
        ledger_url: the ledger that public rows are held against; None: ``PRIVRL_LEDGER`` or the
            user's data folder.

    Raises:
        ConfigError: no such dataset, ``out`` exists, or ``declared`` does not fit the rows.
        UnsafeError: the dataset is neither released nor public.
        VerificationError: its files are not those that its certificate names.
        StorageError: the disk is full or cannot be written; nothing is left behind.

    Privacy: post-processing of what was released; no unit, relation or event of its own.
    """
    with contextlib.closing(Ledger(ledger_url)) as ledger:
        release = cleared(store, dataset, reader=READER, ledger=ledger)
    if out.exists():
        raise ConfigError(f"{out} exists already: choose another name")
    with storage_errors(f"write {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(out.parent) as unfinished:
            folder = unfinished / out.name
            (folder / DATA_FILE).parent.mkdir(parents=True)
            export(store, dataset, "parquet", folder / DATA_FILE, declared=declared)
            text = card_beside(store, dataset, {"train": DATA_FILE})
            write_atomically(folder / FILE_NAME, text)
            if release.certificate is not None:
                write_atomically(folder / CERTIFICATE, release.certificate.to_json())
            folder.rename(out)
