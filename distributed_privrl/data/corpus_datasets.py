"""A corpus as a dataset: its documents beside a table that has a digest of each as a row.

A budget belongs to rows and to the units they are of. A document's row is its digest, so that the
same text is the same row wherever it is imported: what finds shared rows, public ones among the
sensitive, or people under another id finds documents, too.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium.spaces import Box, Discrete
from pydantic import Field

from distributed_privrl.core.config import PositiveInt, StrictModel, read_yaml, validate
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.data.corpus import DOCUMENT, TEXT, CorpusRef, check_corpus, documents
from distributed_privrl.data.metadata import PUBLIC_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Transitions

UNIT_IDS = "unit_id"
"""Column of that file: 64 bits that name whose a document is."""
FOLDER, FILE, HASH = "text", "corpus.parquet", "corpus.sha256"
"""Beside a dataset's rows: its documents, and the hash of that file."""
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

    def complete(folder: Path) -> Mapping[str, Any]:
        (folder / FOLDER).mkdir(mode=0o700)
        _write(ref, folder / FOLDER / FILE)
        (folder / FOLDER / HASH).write_text(_hash(folder / FOLDER / FILE))
        return {}

    store.write_transitions(
        dataset,
        _rows(ref),
        layout="transitions",
        observation_space=Box(0.0, 1.0, (_DIGEST_NUMBERS,), np.float32),
        action_space=Discrete(1),
        unit_column=unit,
        has_successors=False,
        metadata={PUBLIC_KEY: True} if schema.public else {},
        complete=complete,
    )


def corpus_file(store: DatasetStore, dataset: str) -> Path:
    """Return the file of a dataset's documents; its columns are ``text`` and `UNIT_IDS`.

    Raises:
        ConfigError: the dataset is no corpus.
        StorageError: the file is gone, or is not the one that was imported: its documents would be
            paid for by others' budget.
    """
    store.info(dataset)  # it is there
    folder = store.root / dataset / FOLDER
    if not folder.is_dir():
        raise ConfigError(
            f"{dataset} holds no documents: import a JSONL or Parquet file of texts with a schema"
            " that has the section text"
        )
    path = folder / FILE
    with storage_errors(f"read {path}"):
        found, stated = _hash(path), (folder / HASH).read_text()
    if found != stated:
        raise StorageError(f"{path} is not the file that was imported: import the corpus again")
    return path


def _units(ref: CorpusRef) -> Iterator[tuple[str, bytes, int]]:
    """Yield each document, its digest, and the 64 bits of its unit.

    Documents that are units are named by their text, those of the same text by their number among
    them: another corpus with the same document has the same unit.
    """
    seen: Counter[bytes] = Counter()
    for one in documents(ref):
        digest = hashlib.sha256(one.text.encode()).digest()
        unit = one.unit_id
        if ref.unit == DOCUMENT:
            named = hashlib.blake2b(digest + seen[digest].to_bytes(8, "big"), digest_size=8)
            unit = int.from_bytes(named.digest(), "big")
            seen[digest] += 1
        yield one.text, digest, unit


def _chunks(ref: CorpusRef) -> Iterator[list[tuple[str, bytes, int]]]:
    read = _units(ref)
    while chunk := list(islice(read, _CHUNK)):
        yield chunk


def _rows(ref: CorpusRef) -> Iterator[Transitions]:
    empty = True
    for chunk in _chunks(ref):
        empty, size = False, len(chunk)
        digests = np.frombuffer(b"".join(digest[:16] for _, digest, _ in chunk), ">u2")
        rows = (digests.reshape(size, _DIGEST_NUMBERS) / 2**16).astype(np.float32)  # exact
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


def _write(ref: CorpusRef, path: Path) -> None:
    """Write the documents, for their owner alone."""
    schema = pa.schema([(TEXT, pa.string()), (UNIT_IDS, pa.uint64())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for chunk in _chunks(ref):
            texts, units = [text for text, _, _ in chunk], [unit for _, _, unit in chunk]
            writer.write_table(pa.table({TEXT: texts, UNIT_IDS: pa.array(units, pa.uint64())}))
    path.chmod(0o600)


def _hash(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
