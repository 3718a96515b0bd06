"""A corpus as a dataset: its documents beside a table that has a digest of each as a row.

A budget belongs to rows and to the units they are of. A document's row is the digest of its words,
so that the same text is the same row wherever it is imported, however it is spaced and cut: what
finds shared rows, public ones among the sensitive, or people under another id finds documents, too.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from pydantic import Field

from distributed_privrl.core.config import PositiveInt, StrictModel, read_yaml, validate
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.data.corpus import (
    DOCUMENT,
    TEXT,
    CorpusRef,
    Document,
    check_corpus,
    documents,
    hash_of,
)
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
    max_characters: PositiveInt = Field(
        default=20_000, description="public cap; the rest of a longer document is left out"
    )


class CorpusSchema(StrictModel):
    """What a corpus to import holds: a column ``text``, and who wrote it."""

    text: CorpusTexts
    public: bool = Field(default=False, description="declare that the texts are nobody's secret")


def corpus_schema(path: Path) -> CorpusSchema | None:
    """Return the schema of texts in a YAML file; None: it is one of a table.

    Raises:
        ConfigError: one line that lists each wrong or unknown key.
    """
    values = read_yaml(path)
    return validate(CorpusSchema, values, source=str(path)) if TEXT in values else None


def import_corpus(path: Path, schema: CorpusSchema, store: DatasetStore, dataset: str) -> None:
    """Write the documents of a file or folder as a new dataset.

    Args:
        path: see `CorpusRef`.
        schema: whose they are.
        store: where the dataset goes.
        dataset: its id.

    Raises:
        ConfigError: the corpus, the unit or the id is wrong; nothing is written.
        StorageError: it cannot be read, or the dataset not written.

    Privacy: a record that cannot be read is left out without a word (see `documents`).
    """
    unit = schema.text.unit
    if unit in (TRANSITION, TRAJECTORY, TEXT, ""):
        raise ConfigError(f"text.unit must be {DOCUMENT} or a column's name, got {unit!r}")
    check_corpus(path, unit=unit)
    ref = CorpusRef(path=str(path), unit=unit, max_characters=schema.text.max_characters)

    read, kept = hashlib.sha256(), hashlib.sha256()

    def complete(folder: Path) -> Mapping[str, Any]:
        (folder / FOLDER).mkdir(mode=0o700)
        _write(ref, folder / FOLDER / FILE, kept)
        if read.digest() != kept.digest():
            raise StorageError(f"{path} changed while it was read: import it again")
        (folder / FOLDER / HASH).write_text(hash_of(folder / FOLDER / FILE))
        return {}

    store.write_transitions(
        dataset,
        _rows(ref, read),
        layout="transitions",
        observation_space=Box(0.0, 1.0, (_DIGEST_NUMBERS,), np.float32),
        action_space=Discrete(1),
        unit_column=unit,
        has_successors=False,
        metadata={PUBLIC_KEY: True} if schema.public else {},
        complete=complete,
    )


def corpus_of(store: DatasetStore, dataset: str) -> CorpusRef:
    """Return where a dataset's documents lie, and how they are cut, after a look at all of them.

    Raises:
        ConfigError: the dataset is no corpus.
        StorageError: the file is gone, or its documents and their units are not the rows that the
            dataset's budget is for.
    """
    unit = store.info(dataset).unit_column
    folder = store.folder(dataset) / FOLDER
    if unit is None or not folder.is_dir():
        raise ConfigError(
            f"{dataset} holds no documents: import a JSONL or Parquet file of texts with a schema"
            " that has the section text"
        )
    path = folder / FILE
    damaged = StorageError(f"{path} is not the file that was imported: import the corpus again")
    with storage_errors(f"read {path}"):
        stated = (folder / HASH).read_text()
    if hash_of(path) != stated:
        raise damaged
    charged = (
        row
        for part in store.iter_transitions(dataset, unit=unit)
        for row in zip(part.observations, part.unit_ids, strict=True)
    )
    for found, row in itertools.zip_longest(_stored(path), charged):
        if found is None or row is None or found[1] != row[1] or not (found[0] == row[0]).all():
            raise damaged
    metadata = pq.read_schema(path).metadata or {}
    return CorpusRef(
        path=str(path), unit=UNIT_IDS, max_characters=int(metadata[CAP]), sha256=stated
    )


def _stored(path: Path) -> Iterator[tuple[NDArray[np.float32], int]]:
    """Yield the row and the unit that each document of a dataset's file stands for."""
    with storage_errors(f"read {path}"), pq.ParquetFile(path) as opened:
        for batch in opened.iter_batches(batch_size=_CHUNK):
            texts, units = batch.column(TEXT).to_pylist(), batch.column(UNIT_IDS).to_pylist()
            digests = [Document(0, "", text).digest for text in texts]
            yield from zip(_as_rows(digests), units, strict=True)


def _units(ref: CorpusRef) -> Iterator[tuple[str, bytes, int]]:
    """Yield each whole document, its digest, and the 64 bits of its unit.

    Documents that are units are named by their text, those of the same text by their number among
    them: another corpus with the same document has the same unit.
    """
    seen: Counter[bytes] = Counter()
    for one in documents(ref):
        digest, unit = one.digest, one.unit_id
        if ref.unit == DOCUMENT:
            named = hashlib.blake2b(digest + seen[digest].to_bytes(8, "big"), digest_size=8)
            unit = int.from_bytes(named.digest(), "big")
            seen[digest] += 1
        yield one.whole, digest, unit


def _chunks(ref: CorpusRef, seen: Any) -> Iterator[list[tuple[str, bytes, int]]]:
    """Yield documents in chunks, and let ``seen`` hash what and whose they are."""
    read = _units(ref)
    while chunk := list(itertools.islice(read, _CHUNK)):
        for text, _, unit in chunk:
            seen.update(hashlib.sha256(text.encode()).digest() + unit.to_bytes(8, "big"))
        yield chunk


def _as_rows(digests: Sequence[bytes]) -> NDArray[np.float32]:
    """Return the first 128 bits of digests as rows (N, 8) in [0, 1), exactly."""
    numbers = np.frombuffer(b"".join(digest[:16] for digest in digests), ">u2")
    return (numbers.reshape(len(digests), _DIGEST_NUMBERS) / 2**16).astype(np.float32)


def _rows(ref: CorpusRef, seen: Any) -> Iterator[Transitions]:
    empty = True
    for chunk in _chunks(ref, seen):
        empty, size = False, len(chunk)
        rows = _as_rows([digest for _, digest, _ in chunk])
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
        raise ConfigError(f"{ref.path} holds no document that can be read")


def _write(ref: CorpusRef, path: Path, seen: Any) -> None:
    """Write the whole documents, for their owner alone, and how readers cut them."""
    schema = pa.schema(
        [(TEXT, pa.string()), (UNIT_IDS, pa.uint64())],
        metadata={CAP: str(ref.max_characters)},
    )
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for chunk in _chunks(ref, seen):
            texts, units = [text for text, _, _ in chunk], [unit for _, _, unit in chunk]
            columns = [pa.array(texts, pa.string()), pa.array(units, pa.uint64())]
            writer.write_table(pa.table(columns, schema=schema))
    path.chmod(0o600)
