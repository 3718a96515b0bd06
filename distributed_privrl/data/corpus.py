"""Text that stays where it is: documents of a JSONL file, a Parquet file or a folder.

A record has a ``text``, or a list of turns, and, where a person wrote several, a column that names
the person. What a single record holds never raises: one that cannot be read is left out, as if it
were not there.
"""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from distributed_privrl.core.config import StrictModel
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.data.declared import unit_text
from distributed_privrl.data.hashing import mix

DOCUMENT = "document"
"""The unit where each document is one person's."""
TEXT = "text"
"""Name of the column that holds documents."""
LONGEST_LINE = 1 << 26
"""Bytes of a line of JSONL, or of a file of text; a longer one is left out."""
JSON_LINES = (".jsonl", ".ndjson")
"""Suffixes of files that hold a JSON object a line."""
_TABLES = (".parquet",)
_BATCH_ROWS = 256
_LEFT_OUT = "left out"

Note = Callable[[str, str], None]
"""Takes what is true of a record, and what became of it; neither quotes it."""


def unnoted(what: str, then: str) -> None:
    """Tell nobody."""


class Turns(StrictModel):
    """How a column holds conversations: lists of records, one a turn."""

    speaker: str = Field(description="field of who speaks")
    said: str = Field(description="field of the words")

    def text(self, value: Any) -> str | None:
        """Return a conversation as text, a line a turn, ``User: words``; None: it is none."""
        if not isinstance(value, list):
            return None
        lines = []
        for turn in value:
            fields = turn if isinstance(turn, dict) else {}
            speaker, said = fields.get(self.speaker), fields.get(self.said)
            if not isinstance(speaker, str) or not isinstance(said, str):
                return None
            name = " ".join(speaker.split())
            lines.append(f"{name[:1].upper()}{name[1:]}: {' '.join(said.split())}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class CorpusRef:
    """A share of a corpus: where it lies and which units, never the text.

    Args:
        path: a ``.jsonl`` or ``.parquet`` file, or a folder whose ``.txt`` files are documents.
        unit: ``document``, or the column that names who wrote it.
        column: of the documents.
        turns: how it holds conversations; None: it holds text.
        index: which share.
        count: shares; a unit's share follows from a fixed hash of its id alone.
        max_characters: public cap; the rest of a longer document is left out.
        sha256: hash that the file must have; None: it is not looked at.

    Raises:
        ConfigError: a value is out of range.
    """

    path: str
    unit: str = DOCUMENT
    column: str = TEXT
    turns: Turns | None = None
    index: int = 0
    count: int = 1
    max_characters: int = 20_000
    sha256: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(f"index must lie in [0, {self.count}), got {self.index}")
        if self.max_characters < 1:
            raise ConfigError(f"max_characters must be at least 1, got {self.max_characters}")

    def holds(self, unit_id: int) -> bool:
        """Say whether a unit is of this share."""
        hashed = mix(np.array([unit_id], dtype=np.uint64))[0]
        return int(hashed) % self.count == self.index


@dataclass(frozen=True)
class Document:
    """One document.

    Args:
        unit_id: 64 bits that name whose it is.
        text: cut to the public cap; valid Unicode.
        whole: the text before the cut.
    """

    unit_id: int
    text: str
    whole: str

    @property
    def digest(self) -> bytes:
        """SHA-256 of the words of the whole text: neither spaces, case nor the cap change it."""
        words = unicodedata.normalize("NFKC", self.whole).casefold().split()
        return hashlib.sha256(" ".join(words).encode()).digest()


def check_corpus(ref: CorpusRef) -> None:
    """Refuse what is no corpus; reads a file's schema and whether it has a record at all.

    Raises:
        ConfigError: there is no such file, its format is unknown, it has no record, a column is
            missing or of another type, or a folder cannot tell whose its documents are.
        StorageError: it cannot be read.
    """
    path, kind = Path(ref.path), _kind(Path(ref.path))
    if kind == "folder":
        if ref.unit != DOCUMENT:
            raise ConfigError(
                f"{path} is a folder, and files do not say whose they are: set data.unit to"
                f" {DOCUMENT}, or write one JSONL or Parquet file with a column {ref.unit}"
            )
        if ref.column != TEXT or ref.turns is not None:
            raise ConfigError(f"{path} is a folder, which has no columns: leave text.column out")
        empty = not _files(path)
    elif kind == "lines":
        with storage_errors(f"read {path}"):
            empty = not path.stat().st_size
    else:
        with _opened_table(path) as table:
            _check_columns(ref, table.schema_arrow)
            empty = not table.metadata.num_rows
    if empty:
        raise ConfigError(f"{path} holds no document: give a corpus that has some")


def documents(ref: CorpusRef, note: Note = unnoted) -> Iterator[Document]:
    """Yield the documents of a share, one at a time, in the corpus' order.

    Args:
        ref: the share.
        note: is told of each record that is left out or changed; blank lines are no records.

    Bytes that are no UTF-8 become the replacement character. A record that is no JSON object,
    whose text is no string, or that does not say whose it is, is left out. A document that is there
    twice counts twice: two people may have written the same.

    Raises:
        ConfigError: as `check_corpus`.
        StorageError: the file cannot be read, or is not the one that ``sha256`` names; no text is
            in the message.

    Privacy: raw text, for the process that holds the share. What one record holds decides about
        itself alone.
    """
    path = Path(ref.path)
    check_corpus(ref)
    if ref.sha256 is not None and hash_of(path) != ref.sha256:
        raise StorageError(f"{path} is not the file that was imported: import the corpus again")
    read = {"folder": _from_folder, "lines": _from_lines, "table": _from_table}[_kind(path)]
    yield from read(path, ref, note)


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with storage_errors(f"read {path}"), path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _kind(path: Path) -> str:
    if path.is_dir():
        return "folder"
    if not path.is_file():
        raise ConfigError(f"no corpus at {path}: give a .jsonl or .parquet file, or a folder")
    if path.suffix in JSON_LINES:
        return "lines"
    if path.suffix in _TABLES:
        return "table"
    raise ConfigError(
        f"{path} is neither JSONL (.jsonl) nor Parquet (.parquet), nor a folder of .txt files"
        f"{_made_by_pandas(path)}"
    )


def _made_by_pandas(path: Path) -> str:
    """Return how pandas makes JSONL of a CSV file or a list of JSON; empty: of no other file."""
    reader = {".csv": "read_csv", ".json": "read_json"}.get(path.suffix)
    if reader is None:
        return ""
    return (
        f"; pandas makes one of it: pandas.{reader}({path.name!r})"
        f".to_json({path.with_suffix('.jsonl').name!r}, orient='records', lines=True)"
    )


def _files(path: Path) -> list[Path]:
    with storage_errors(f"read {path}"):
        return sorted(one for one in path.rglob("*.txt") if one.is_file())


def _from_folder(path: Path, ref: CorpusRef, note: Note) -> Iterator[Document]:
    for number, file in enumerate(_files(path)):
        if ref.holds(number):
            with storage_errors(f"read {path}"), file.open("rb") as opened:
                read = opened.read(LONGEST_LINE)
            if len(read) < LONGEST_LINE:
                yield _document(number, _decoded(read, note), ref, note)
            else:
                note(f"{LONGEST_LINE:,} bytes or more", _LEFT_OUT)


def _from_lines(path: Path, ref: CorpusRef, note: Note) -> Iterator[Document]:
    with storage_errors(f"read {path}"), path.open("rb") as opened:
        for number, line in enumerate(_lines(opened)):
            if line.isspace() or (ref.unit == DOCUMENT and not ref.holds(number)):
                continue
            record = _parsed(_decoded(line, note))
            if not line:
                note(f"{LONGEST_LINE:,} bytes or more", _LEFT_OUT)
            elif isinstance(record, dict):
                yield from _record(record, number, ref, note)
            else:
                note("no JSON object in the line", _LEFT_OUT)


def _lines(opened: BinaryIO) -> Iterator[bytes]:
    """Yield lines; one that is too long as an empty one."""
    while line := opened.readline(LONGEST_LINE):
        if line.endswith(b"\n") or len(line) < LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = opened.readline(LONGEST_LINE)
        yield b""


def _decoded(read: bytes, note: Note) -> str:
    text = read.decode("utf-8", "replace")
    if "\N{REPLACEMENT CHARACTER}" in text and text.encode() != read:
        note("bytes that are no UTF-8", "they became the replacement character")
    return text


def _parsed(line: str) -> Any:
    try:
        return json.loads(line.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}"))  # which marks UTF-8
    except (ValueError, RecursionError):
        return None


def _from_table(path: Path, ref: CorpusRef, note: Note) -> Iterator[Document]:
    columns = [ref.column] if ref.unit == DOCUMENT else [ref.column, ref.unit]
    number = 0
    with _opened_table(path) as table:
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            values = [_values(batch.column(name)) for name in columns[1:]]
            read = batch.column(ref.column)
            values.insert(0, _conversations(read, ref.turns) if ref.turns else _values(read, note))
            for row in zip(*values, strict=True):
                if ref.unit != DOCUMENT or ref.holds(number):
                    yield from _record(dict(zip(columns, row, strict=True)), number, ref, note)
                number += 1


def _values(column: pa.Array, note: Note = unnoted) -> list[Any]:
    """Return a column's values; text as bytes, whatever they hold, decoded by our rule."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return [
        _decoded(value, note) if isinstance(value, bytes) else value for value in column.to_pylist()
    ]


def _conversations(column: pa.Array, turns: Turns) -> list[Any]:
    """Return a column's lists of turns, of which the two fields alone are looked at."""
    records, names = column.values, (turns.speaker, turns.said)
    fields = [_values(pc.struct_field(records, [name])) for name in names]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)]
    ends = column.offsets.to_pylist()
    spans = zip(ends[:-1], ends[1:], column.is_valid().to_pylist(), strict=True)
    return [rows[begin:end] if there else None for begin, end, there in spans]


class _opened_table:  # noqa: N801  a context manager, named as `open` is
    """A Parquet file; what pyarrow says of one it cannot read may quote it, and is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> pq.ParquetFile:
        with storage_errors(f"read {self._path}"):
            try:
                self._file = pq.ParquetFile(self._path)
            except pa.ArrowException:
                raise StorageError(f"{self._path} cannot be read as Parquet") from None
        return self._file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is not None and issubclass(kind, pa.ArrowException):
            raise StorageError(f"{self._path} cannot be read as Parquet") from None


def _check_columns(ref: CorpusRef, schema: pa.Schema) -> None:
    for name in (ref.column,) if ref.unit == DOCUMENT else (ref.column, ref.unit):
        if name not in schema.names:
            raise ConfigError(f"{ref.path} has no column {name}, it has {', '.join(schema.names)}")
        kind = schema.field(name).type
        if name == ref.column and ref.turns is not None:
            _check_turns(ref, ref.turns, kind)
        elif not _is_text(kind) and (name == ref.column or not pa.types.is_integer(_plain(kind))):
            raise ConfigError(f"column {name} of {ref.path} must hold text, it holds {kind}")


def _check_turns(ref: CorpusRef, turns: Turns, kind: pa.DataType) -> None:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    fields = {}
    if listed and pa.types.is_struct(kind.value_type):
        fields = {field.name: field.type for field in kind.value_type}
    wanted = (turns.speaker, turns.said)
    if not all(name in fields and _is_text(fields[name]) for name in wanted):
        raise ConfigError(
            f"column {ref.column} of {ref.path} must hold lists of records with the texts"
            f" {' and '.join(wanted)}, it holds {kind}"
        )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    types, kind = pa.types, _plain(kind)
    text = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(fits(kind) for fits in text)


def _record(record: dict[str, Any], number: int, ref: CorpusRef, note: Note) -> Iterator[Document]:
    """Yield the document of a record, if it has one and is of the share."""
    value = record.get(ref.column)
    text = value if ref.turns is None else ref.turns.text(value)
    if not isinstance(text, str):
        wanted = "text" if ref.turns is None else "turns with speakers and words"
        note(f"no {wanted} under {ref.column!r}", _LEFT_OUT)
        return
    if ref.unit == DOCUMENT:
        unit_id = number
    else:
        person = record.get(ref.unit)
        if isinstance(person, float) and person.is_integer():
            person = int(person)  # as pandas writes whole numbers of a column with gaps
        if isinstance(person, bool) or not isinstance(person, str | int):
            note(f"nobody named under {ref.unit!r}", _LEFT_OUT)
            return
        unit_id = _unit_id(person)
        if not ref.holds(unit_id):
            return
    yield _document(unit_id, text, ref, note)


def _document(unit_id: int, text: str, ref: CorpusRef, note: Note) -> Document:
    whole = text.encode("utf-8", "replace").decode("utf-8")
    if len(whole) > ref.max_characters:
        note(f"more than {ref.max_characters:,} characters", "the rest is not read")
    return Document(unit_id, whole[: ref.max_characters], whole)


def _unit_id(person: str | int) -> int:
    """Return the 64 bits of a person, whose name is `unit_text`."""
    named = unit_text(person).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big")
