"""A corpus as a dataset: its documents beside a table that has a digest of each as a row.

A budget belongs to rows and to the units they are of. A document's row is the digest of its words,
so that the same text is the same row wherever it is imported, however it is spaced and cut: what
finds shared rows, public ones among the sensitive, or people under another id finds documents, too.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from pydantic import Field

from distributed_privrl.core.config import PositiveInt, StrictModel, validate
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.data.corpus import (
    DOCUMENT,
    TEXT,
    CorpusRef,
    Note,
    Turns,
    check_corpus,
    documents,
    hash_of,
    unnoted,
)
from distributed_privrl.data.findings import Findings
from distributed_privrl.data.metadata import PUBLIC_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Transitions

UNIT_IDS = "unit_id"
"""Column of that file: 64 bits that name whose a document is."""
FOLDER, FILE, HASH = "text", "corpus.parquet", "corpus.sha256"
"""Beside a dataset's rows: its documents, and the hash of that file."""
CAP = b"max_characters"
"""In that file's metadata."""
_DIGEST_NUMBERS = 8
_CHUNK = 1024


class CorpusTexts(StrictModel):
    """Where documents come from, and whose they are."""

    unit: str = Field(
        default=DOCUMENT, description="document, or the column that says who wrote one"
    )
    column: str = Field(default=TEXT, description="that holds the documents")
    turns: Turns | None = Field(
        default=None, description="fields of a turn, where the column holds lists of them"
    )
    max_characters: PositiveInt = Field(
        default=20_000, description="public cap; the rest of a longer document is left out"
    )


class CorpusSchema(StrictModel):
    """What a corpus to import holds: a column of documents, and who wrote them."""

    text: CorpusTexts
    public: bool = Field(default=False, description="declare that the texts are nobody's secret")


def corpus_schema(path: Path) -> CorpusSchema | None:
    """Return the schema of texts in a YAML file; None: it is one of a table.

    Raises:
        ConfigError: one line that lists each wrong or unknown key.
    """
    values = read_yaml(path)
    return validate(CorpusSchema, values, source=str(path)) if TEXT in values else None


def import_corpus(
    path: Path, schema: CorpusSchema, store: DatasetStore, dataset: str
) -> Sensitive[tuple[str, ...]]:
    """Write the documents of a file or folder as a new dataset.

    Args:
        path: see `CorpusRef`.
        schema: whose they are.
        store: where the dataset goes.
        dataset: its id.

    Returns:
        Lines for the owner: how many units wrote the documents, where a column names them, and how
        many records were left out or changed, and why.

    Raises:
        ConfigError: the corpus, the unit or the id is wrong; nothing is written. Of a corpus that
            has no document the message says why its records are none, and quotes none.
        StorageError: it cannot be read, or the dataset not written.

    Privacy: what is returned depends on single records: for the owner alone. A record that cannot
        be read is left out (see `documents`).
    """
    texts = schema.text
    its_text = texts.unit == texts.column != DOCUMENT
    if its_text or texts.unit in (TRANSITION, TRAJECTORY, TEXT, ""):
        raise ConfigError(f"text.unit must be {DOCUMENT} or a column's name, got {texts.unit!r}")
    ref = CorpusRef(
        path=str(path),
        unit=texts.unit,
        column=texts.column,
        turns=texts.turns,
        max_characters=texts.max_characters,
    )
    check_corpus(ref)
    findings, units = Findings(None), set[int]()

    read, kept = hashlib.sha256(), hashlib.sha256()

    def complete(folder: Path) -> Mapping[str, Any]:
        chunks = (
            [StoredDocument(text, unit) for text, _, unit in chunk] for chunk in _chunks(ref, kept)
        )
        write_documents(folder, chunks, ref.max_characters)
        if read.digest() != kept.digest():
            raise StorageError(f"{path} changed while it was read: import it again")
        return {}

    store.write_transitions(
        dataset,
        _rows(ref, read, findings, units),
        layout="transitions",
        observation_space=Box(0.0, 1.0, (_DIGEST_NUMBERS,), np.float32),
        action_space=Discrete(1),
        unit_column=texts.unit,
        has_successors=False,
        metadata={PUBLIC_KEY: True} if schema.public else {},
        complete=complete,
    )
    lines = findings.lines()
    if texts.unit != DOCUMENT:
        values = "value" if len(units) == 1 else "values"
        whose = f"note to the owner: the documents are of {len(units):,} {values} of {texts.unit}"
        lines = (whose, *lines)
    return Sensitive(lines)


def corpus_of(store: DatasetStore, dataset: str) -> CorpusRef:
    """Return where a dataset's documents lie, and how they are cut; opens no document.

    Raises:
        ConfigError: the dataset is no corpus.
        StorageError: the file is gone or damaged.

    Privacy: for the process that starts a run. It reads the file's schema and the hash beside it;
        whether the documents are those that the dataset's budget is for is workers' to say
        (`data.corpus_rows`).
    """
    folder = documents_folder(store, dataset)
    path = folder / FILE
    with storage_errors(f"read {path}"):
        stated = (folder / HASH).read_text()
        try:
            cap = int(pq.read_schema(path).metadata[CAP])
        except (pa.ArrowException, TypeError, KeyError, ValueError):
            raise damaged(path) from None  # what pyarrow says may quote the file
    return CorpusRef(path=str(path), unit=UNIT_IDS, max_characters=cap, sha256=stated)


def documents_folder(store: DatasetStore, dataset: str) -> Path:
    """Return the folder of a dataset's documents.

    Raises:
        ConfigError: the dataset is no corpus.
    """
    folder = store.folder(dataset) / FOLDER
    if store.info(dataset).unit_column is None or not folder.is_dir():
        raise ConfigError(
            f"{dataset} holds no documents: import a JSONL or Parquet file of texts with a schema"
            " that has the section text"
        )
    return folder


def damaged(path: Path | str) -> StorageError:
    """Return the refusal of a file that is not what the dataset's rows stand for."""
    return StorageError(f"{path} is not the file that was imported: import the corpus again")


@dataclass(frozen=True)
class StoredDocument:
    """A document of a dataset.

    Args:
        text: whole, before the public cap.
        unit_id: 64 bits of its unit, as in the dataset's row of it.
    """

    text: str
    unit_id: int


def stored_documents(path: Path | str) -> Iterator[list[StoredDocument]]:
    """Yield the documents of a dataset's file in chunks, in the order of its rows.

    Raises:
        StorageError: it cannot be read; no text is in the message.

    Privacy: raw text, for the process that may hold it.
    """
    with storage_errors(f"read {path}"):
        try:
            with pq.ParquetFile(path) as opened:
                for batch in opened.iter_batches(batch_size=_CHUNK):
                    texts, units = (batch.column(n).to_pylist() for n in (TEXT, UNIT_IDS))
                    yield list(map(StoredDocument, texts, units))
        except pa.ArrowException:
            raise damaged(path) from None


def write_documents(folder: Path, chunks: Iterable[list[StoredDocument]], cap: int) -> None:
    """Write the documents of a dataset into its new folder, for their owner alone.

    Args:
        folder: of the dataset; one for the documents is made in it.
        chunks: of whole documents, in the order of its rows.
        cap: by which readers cut them.

    Raises:
        StorageError: they cannot be written.
    """
    schema = pa.schema([(TEXT, pa.string()), (UNIT_IDS, pa.uint64())], metadata={CAP: str(cap)})
    path = folder / FOLDER / FILE
    with storage_errors(f"write {path}"):
        path.parent.mkdir(mode=0o700)
        # Statistics would put texts into the part of the file that a run's driver reads.
        with pq.ParquetWriter(path, schema, compression="zstd", write_statistics=False) as writer:
            for chunk in chunks:
                texts = pa.array([one.text for one in chunk], pa.string())
                units = pa.array([one.unit_id for one in chunk], pa.uint64())
                writer.write_table(pa.table([texts, units], schema=schema))
        path.chmod(0o600)
        (path.parent / HASH).write_text(hash_of(path))


def _units(ref: CorpusRef, note: Note) -> Iterator[tuple[str, bytes, int]]:
    """Yield each whole document, its digest, and the 64 bits of its unit.

    Documents that are units are named by their text, those of the same text by their number among
    them: another corpus with the same document has the same unit.
    """
    seen: Counter[bytes] = Counter()
    for one in documents(ref, note):
        digest, unit = one.digest, one.unit_id
        if ref.unit == DOCUMENT:
            named = hashlib.blake2b(digest + seen[digest].to_bytes(8, "big"), digest_size=8)
            unit = int.from_bytes(named.digest(), "big")
            seen[digest] += 1
        yield one.whole, digest, unit


def _chunks(
    ref: CorpusRef, seen: Any, note: Note = unnoted
) -> Iterator[list[tuple[str, bytes, int]]]:
    """Yield documents in chunks, and let ``seen`` hash what and whose they are."""
    read = _units(ref, note)
    while chunk := list(itertools.islice(read, _CHUNK)):
        for text, _, unit in chunk:
            seen.update(hashlib.sha256(text.encode()).digest() + unit.to_bytes(8, "big"))
        yield chunk


def as_rows(digests: Sequence[bytes]) -> NDArray[np.float32]:
    """Return the first 128 bits of digests as rows (N, 8) in [0, 1), exactly."""
    numbers = np.frombuffer(b"".join(digest[:16] for digest in digests), ">u2")
    return (numbers.reshape(len(digests), _DIGEST_NUMBERS) / 2**16).astype(np.float32)


def _rows(ref: CorpusRef, seen: Any, findings: Findings, units: set[int]) -> Iterator[Transitions]:
    """Yield the rows of documents; note in ``findings`` and ``units`` what the owner is told."""
    empty, reasons = True, dict[str, None]()

    def note(what: str, then: str) -> None:
        reasons[what] = None
        findings.add(what, then, np.ones(1, bool), None)

    for chunk in _chunks(ref, seen, note):
        empty, size = False, len(chunk)
        units.update(unit for _, _, unit in chunk)
        rows = as_rows([digest for _, digest, _ in chunk])
        yield Transitions(
            observations=rows,
            actions=np.zeros(size, np.int64),
            rewards=np.zeros(size, np.float32),
            next_observations=rows,
            terminated=np.ones(size, bool),
            truncated=np.zeros(size, bool),
            unit_ids=np.array([unit for _, _, unit in chunk], np.uint64),
        )
    if empty:
        why = f": {', '.join(reasons)}" if reasons else ""
        raise ConfigError(f"{ref.path} holds no document that can be read{why}")
