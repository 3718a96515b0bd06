"""Documents and the rows that stand for them: whether they agree, and which text is whose row.

Texts are opened in the process that calls: a worker's during a run, the audit's in an audit.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.executor import Executor
from distributed_privrl.data.corpus import CorpusRef, Document, hash_of
from distributed_privrl.data.corpus_datasets import (
    FOLDER,
    StoredDocument,
    as_rows,
    corpus_of,
    damaged,
    stored_documents,
    write_documents,
)
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.shards import shard_of
from distributed_privrl.data.store import Complete, DatasetStore
from distributed_privrl.data.trajectories import Transitions


@dataclass(frozen=True, kw_only=True)
class DocumentsRef:
    """A share of a dataset's documents, and where the rows that stand for them are; no text.

    Args:
        corpus: its share.
        root: of the dataset store: its folder, or a URI.
        dataset: id of the dataset.
        unit: its unit column.
    """

    corpus: CorpusRef
    root: str
    dataset: str
    unit: str


class DocumentCheck:
    """Says whether a share's documents are those that the dataset's budget is for: a worker.

    Privacy: its answer is yes or no, and leads to a refusal that the operator alone sees. It draws
    and charges nothing.
    """

    def __init__(self, ref: DocumentsRef) -> None:
        self._ref = ref

    def agrees(self) -> bool:
        """Return whether hash, number, order and units are right, and the share's digests.

        Raises:
            StorageError: documents or rows cannot be read.
        """
        ref, corpus = self._ref, self._ref.corpus
        if hash_of(Path(corpus.path)) != corpus.sha256:
            return False
        rows = DatasetStore(ref.root).iter_transitions(ref.dataset, unit=ref.unit)
        charged = itertools.chain.from_iterable(
            zip(part.observations, part.unit_ids.tolist(), strict=True) for part in rows
        )
        for chunk in stored_documents(corpus.path):
            beside = list(itertools.islice(charged, len(chunk)))
            if [unit for _, unit in beside] != [one.unit_id for one in chunk]:
                return False
            units = np.array([one.unit_id for one in chunk], np.uint64)
            own = np.flatnonzero(shard_of(units, corpus.count) == corpus.index)
            found = _rows_of([chunk[place] for place in own])
            if any((found[i] != beside[place][0]).any() for i, place in enumerate(own)):
                return False
        return next(charged, None) is None


def check_documents(store: DatasetStore, dataset: str, *, workers: int, executor: Executor) -> None:
    """Refuse documents that are not those that the dataset's budget is for; workers look.

    Args:
        store: where the dataset lies.
        dataset: its id.
        workers: that share the work.
        executor: of the run.

    Raises:
        StorageError: documents or their units are not the dataset's rows, or cannot be read.

    Privacy: the process that calls opens no document.
    """
    corpus, unit = corpus_of(store, dataset), store.info(dataset).unit_column
    assert unit is not None
    refs = [
        DocumentsRef(
            corpus=replace(corpus, index=index, count=workers),
            root=store.place,
            dataset=dataset,
            unit=unit,
        )
        for index in range(workers)
    ]
    group = executor.start(DocumentCheck, refs, repeat_lost_calls=True)
    try:
        agree = group.call("agrees")
    finally:
        group.close()
    if not all(agree):
        raise damaged(corpus.path)


def texts_of(store: DatasetStore, dataset: str, rows: Transitions) -> list[str]:
    """Return the text (N,) that each row of a corpus stands for, as readers cut it.

    Args:
        store: where the dataset lies.
        dataset: its id.
        rows: N of its rows.

    Raises:
        ConfigError: the dataset is no corpus.
        StorageError: its documents cannot be read, or are not its rows.

    Privacy: raw text, for ``private/`` alone.
    """
    corpus = corpus_of(store, dataset)
    wanted = dict.fromkeys(_keys(rows.observations, rows.unit_ids), "")
    missing = set(wanted)
    for chunk in stored_documents(corpus.path):
        units = np.array([one.unit_id for one in chunk], np.uint64)
        for key, one in zip(_keys(_rows_of(chunk), units), chunk, strict=True):
            if key in missing:
                wanted[key] = one.text[: corpus.max_characters]
                missing.discard(key)
    if missing:
        raise damaged(corpus.path)
    return [wanted[key] for key in _keys(rows.observations, rows.unit_ids)]


def documents_of_side(store: DatasetStore, dataset: str, keep: Keep) -> Complete | None:
    """Return what writes the documents of some units beside their rows; None: there are none.

    Args:
        store: where the dataset lies.
        dataset: its id, which may be of a corpus.
        keep: unit ids (N,) to a mask (N,).
    """
    if not (store.folder(dataset) / FOLDER).is_dir():
        return None
    corpus = corpus_of(store, dataset)

    def kept() -> Iterator[list[StoredDocument]]:
        for chunk in stored_documents(corpus.path):
            mask = keep(np.array([one.unit_id for one in chunk], np.uint64))
            if mask.any():
                yield list(itertools.compress(chunk, mask))

    def complete(folder: Path) -> Mapping[str, Any]:
        write_documents(folder, kept(), corpus.max_characters)
        return {}

    return complete


def _rows_of(documents: Sequence[StoredDocument]) -> NDArray[np.float32]:
    """Return the row (N, 8) that stands for each document."""
    return as_rows([Document(one.unit_id, "", one.text).digest for one in documents])


def _keys(rows: NDArray[Any], units: NDArray[np.uint64]) -> list[tuple[bytes, int]]:
    numbers = np.ascontiguousarray(rows, np.float32)
    return [(row.tobytes(), unit) for row, unit in zip(numbers, units.tolist(), strict=True)]
