"""Reads the columns of a table to import in chunks: CSV, Parquet, NPZ, HDF5, Arrow streams."""

import errno
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.data.array_files import CHUNK_ROWS, flattened, read_hdf5, read_npz
from distributed_privrl.data.bombs import MOST_COLUMNS, MOST_TEXT, check_texts
from distributed_privrl.data.corpus import JSON_LINES
from distributed_privrl.data.csv_files import Separator, csv_frames, csv_header, likely_separator
from distributed_privrl.data.declared import DateKind, DeclaredTable, LabelledKind
from distributed_privrl.data.values import texts

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

_SPREADSHEETS = (".xlsx", ".xls", ".ods")
_OF_DOCUMENTS = (
    "; documents need no draft: a schema with the line text: {unit: COLUMN, column: COLUMN} makes"
    " `privrl import` read them"
)
_SHOWN = 32
"""Columns that a message names."""
_NUMBER_BYTES = 16
"""Of a number in a page, at most, with what says whether there is one."""
_BEGINNINGS = {
    b"PK\x03\x04": ("a zip archive, as NPZ files are", (".npz",)),
    b"\x89HDF\r\n\x1a\n": ("HDF5", (".hdf5", ".h5")),
    b"PAR1": ("Parquet", (".parquet",)),
}
"""How files begin, whatever they are called: what each is, and its suffixes."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A table that is read in chunks, once.

    Args:
        name: of it, for messages.
        declared: roles and kinds of its columns: of arrays with W values a row, W columns each.
        frames: its rows, `CHUNK_ROWS` at a time.
    """

    name: str
    declared: DeclaredTable
    frames: Iterator["pd.DataFrame"]


_Opened = tuple[Iterator["pd.DataFrame"], DeclaredTable]


def open_file(path: Path, declared: DeclaredTable, *, separator: Separator = "comma") -> Source:
    """Return the named columns of a file.

    An array of a part with rows of W > 1 numbers, ``name``, becomes the columns ``name[0]`` to
    ``name[W - 1]``. Nothing is unpickled: an NPZ file of objects is refused.

    Args:
        path: a ``.csv``, ``.parquet``, ``.npz``, ``.hdf5`` or ``.h5`` file.
        declared: what to read; for arrays, keys of the file, in HDF5 also paths such as ``a/b``.
        separator: of the fields of a CSV file; other files have none.

    Raises:
        ConfigError: another kind of file, no such file or column. Also while it is read.
        StorageError: the file cannot be read. Also while it is read.
    """
    readers: dict[str, Callable[[Path, DeclaredTable], _Opened]] = {
        ".csv": partial(_read_csv, separator=separator),
        ".parquet": _read_parquet,
        ".npz": _read_npz,
        ".hdf5": _read_hdf5,
        ".h5": _read_hdf5,
    }
    _check_suffix(path, readers)
    if not path.is_file():
        raise ConfigError(f"no file at {path}")
    with _reading(path):
        frames, found = readers[path.suffix](path, declared)

    def checked() -> Iterator["pd.DataFrame"]:
        while True:
            with _reading(path):
                frame = next(frames, None)
            if frame is None:
                return
            if len(frame):
                yield frame

    return Source(name=str(path), declared=found, frames=checked())


def separator_of(path: Path) -> Separator:
    """Return what seems to separate the fields of a table: a comma, where it is no CSV file."""
    if path.suffix != ".csv" or not path.is_file():
        return "comma"
    with _reading(path):
        return likely_separator(path)


def open_columns(path: Path, *, separator: Separator) -> Iterator["pd.DataFrame"]:
    """Yield all columns of a table as they stand, `CHUNK_ROWS` rows at a time.

    Args:
        path: a ``.csv`` file, whose values are all texts or gaps, or a ``.parquet`` file, whose
            values have its types.
        separator: of the fields of a CSV file.

    Raises:
        ConfigError: another kind of file, no such file, no rows, or two columns of one name.
        StorageError: the file cannot be read.
    """
    readers: dict[str, Callable[[Path], Iterator[pd.DataFrame]]] = {
        ".csv": partial(_all_of_csv, separator=separator),
        ".parquet": _all_of_parquet,
    }
    if path.suffix in (".npz", ".hdf5", ".h5"):
        raise ConfigError(
            f"{path} must end in {' or '.join(readers)}: write the schema of arrays (.npz, .hdf5)"
            " by hand, as docs/data.md has it"
        )
    _check_suffix(path, readers)
    if not path.is_file():
        raise ConfigError(f"no file at {path}")
    with _reading(path):
        frames = readers[path.suffix](path)
        first = next(frames, None)
        if first is None or not len(first):
            raise ConfigError(f"{path} has no rows")
        yield first
        yield from frames


def _all_of_csv(path: Path, *, separator: Separator) -> Iterator["pd.DataFrame"]:
    header, names = csv_header(path, separator)
    if twice := _several(header):
        raise ConfigError(f"{path} has several columns {_listed(twice)}: rename all but one")
    return csv_frames(path, names, separator=separator, text=names, values={}, rows=CHUNK_ROWS)


def _all_of_parquet(path: Path) -> Iterator["pd.DataFrame"]:
    file = _opened_parquet(path)
    names = file.schema_arrow.names
    return (_frame(table, names) for table in _tables(path, file, names))


def open_table(table: Any, declared: DeclaredTable) -> Source:
    """Return the named columns of a table in memory.

    Args:
        table: of pandas, Polars or Arrow, whatever speaks Arrow's stream protocol; or a mapping of
            names to arrays.
        declared: what to read.

    Raises:
        ConfigError: it is none, a column holds objects that Arrow does not know, or is not there.
    """
    import pyarrow as pa

    name = f"the {type(table).__module__.partition('.')[0]} table"
    try:
        if isinstance(table, Mapping):
            table, name = pa.table(dict(table)), "the table"
        if not hasattr(table, "__arrow_c_stream__"):
            raise ConfigError(
                f"table must be of pandas, Polars or Arrow, or a mapping of names to arrays, got"
                f" {type(table).__name__}"
            )
        reader = pa.RecordBatchReader.from_stream(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name} cannot be read as Arrow columns: {reason}") from error
    wanted = _wanted(name, declared, reader.schema.names)
    if twice := _several(reader.schema.names, set(wanted)):
        raise ConfigError(f"{name} has several columns {_listed(twice)}: rename all but one")
    _check_flat(name, reader.schema, wanted)
    ids = _ids(declared)
    frames = (
        _frame(batch.slice(start, CHUNK_ROWS), wanted, ids=ids)
        for batch in reader
        for start in range(0, batch.num_rows, CHUNK_ROWS)
    )
    return Source(name=name, declared=declared, frames=frames)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file in whatever is wrong with it."""
    import pyarrow as pa

    damage = (
        *(ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError),
        *(pa.ArrowException, zipfile.BadZipFile, zlib.error, EOFError, MemoryError),
    )  # what readers raise whose files were changed at will
    try:
        with storage_errors(f"read {path}"):
            try:
                yield
            except OSError as error:
                if error.errno in (None, errno.EINVAL):  # libraries' word for damaged files
                    raise ValueError(str(error)) from error
                raise
    except damage as error:
        reason = " ".join(str(error).split())
        reason = _other_content(path) or reason
        raise ConfigError(f"{path} is no proper {path.suffix[1:]} file: {reason}") from error


def _check_suffix(path: Path, known: Collection[str]) -> None:
    if path.suffix not in known:
        sheet = "; save the sheet as CSV" if path.suffix in _SPREADSHEETS else ""
        texts = _OF_DOCUMENTS if path.suffix in JSON_LINES else ""
        raise ConfigError(f"{path} must end in {', '.join(known)}{sheet}{texts}")


def _other_content(path: Path) -> str | None:
    """Return in words what a file is by its first bytes, if its suffix says another thing."""
    with storage_errors(f"read {path}"), path.open("rb") as file:
        begins = file.read(max(map(len, _BEGINNINGS)))
    for beginning, (kind, suffixes) in _BEGINNINGS.items():
        if begins.startswith(beginning) and path.suffix not in suffixes:
            return f"its content is {kind}; give it a name that ends in {' or '.join(suffixes)}"
    return None


def _wanted(name: Path | str, declared: DeclaredTable, present: Iterable[str]) -> list[str]:
    """Return the named columns, each once, if they are present."""
    wanted, known = declared.columns.named, dict.fromkeys(map(str, present))
    absent = [column for column in wanted if column not in known]
    if absent:
        raise ConfigError(f"{name} has no column {_listed(absent)}; it has {_listed(known)}")
    return wanted


def _listed(names: Collection[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(islice(names, _SHOWN)) + more


def _several(names: Iterable[str], wanted: Collection[str] | None = None) -> list[str]:
    """Return those names that are there more than once, sorted."""
    counts = Counter(names)
    return sorted(
        name for name, count in counts.items() if count > 1 and (wanted is None or name in wanted)
    )


def _read_csv(path: Path, declared: DeclaredTable, *, separator: Separator) -> _Opened:
    """Read a CSV file; ids, categories and dates stay text, so that 7 and 007 differ."""
    columns = declared.columns
    header, names = csv_header(path, separator)
    wanted = _wanted(path, declared, names)
    if twice := _several(header, set(wanted)):
        raise ConfigError(f"{path} has several columns {_listed(twice)}: rename all but one")
    kinds = dict(declared.part("observation") + declared.part("action")) | declared.kinds
    kinds |= {
        after: kind
        for after, (_, kind) in zip(columns.following, declared.part("observation"), strict=False)
    }
    plain = [name for name, kind in kinds.items() if isinstance(kind, LabelledKind | DateKind)]
    ids = _ids(declared)
    declared_texts = {name: texts(kind) for name, kind in kinds.items()}
    frames = csv_frames(
        path,
        wanted,
        separator=separator,
        text=[*ids, *plain],
        values=declared_texts,
        rows=CHUNK_ROWS,
    )
    return frames, declared


def _opened_parquet(path: Path, **options: Any) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    size = path.stat().st_size
    return pq.ParquetFile(
        path,
        thrift_container_size_limit=MOST_COLUMNS,
        thrift_string_size_limit=max(size, 1),
        **options,
    )


def _tables(path: Path, file: "pq.ParquetFile", wanted: Sequence[str]) -> Iterator["pa.Table"]:
    """Yield the wanted columns, `CHUNK_ROWS` rows at most at a time; texts stay within bounds.

    Pages declare what they unpack to. Texts are read as a dictionary, each once, and counted before
    they are written out.

    Raises:
        ValueError: a column's texts, or its pages, are too long.
    """
    import pyarrow as pa

    schema, about = file.schema_arrow, file.metadata
    texts = [name for name in wanted if _is_text(schema.field(name).type)]
    for number in range(about.num_row_groups) if texts else ():
        # Asked for a column of a damaged footer, Arrow ends the process: the group alone is asked.
        group = about.row_group(number)
        most = len(texts) * MOST_TEXT * (1 + group.num_rows // CHUNK_ROWS)
        others = _NUMBER_BYTES * group.num_rows * about.num_columns
        check_texts(f"columns {texts}", group.total_byte_size, most + others)
    coded = _opened_parquet(path, metadata=about, read_dictionary=texts)
    held: list[pa.RecordBatch] = []
    sizes: Counter[str] = Counter()
    for batch in coded.iter_batches(batch_size=CHUNK_ROWS, columns=list(wanted)):
        # A batch of dictionaries ends where a group of rows does.
        if sum(map(len, held)) + len(batch) > CHUNK_ROWS:
            yield pa.Table.from_batches(held).unify_dictionaries()
            held, sizes = [], Counter()
        for name in texts:
            sizes[name] += _size_of_texts(batch[name])
            check_texts(f"column {name!r}", sizes[name], MOST_TEXT)
            batch[name].validate(full=True)  # bytes that are no text
        held.append(_written_out(batch, schema))
    if held:
        yield pa.Table.from_batches(held).unify_dictionaries()


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return kind in kinds or (pa.types.is_dictionary(kind) and kind.value_type in kinds)


def _size_of_texts(column: "pa.Array") -> int:
    """Return the bytes of a column's texts, each repetition counted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.DictionaryArray):
        lengths = pc.binary_length(column.dictionary).take(column.indices)
    else:
        lengths = pc.binary_length(column)
    return int(pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0)


def _written_out(batch: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Return a batch whose columns have the types of ``schema``, not dictionaries of them."""
    import pyarrow as pa

    fields = [schema.field(name) for name in batch.schema.names]
    columns = [
        column.dictionary_decode().cast(field.type)
        if isinstance(column, pa.DictionaryArray) and not pa.types.is_dictionary(field.type)
        else column
        for field, column in zip(fields, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _check_flat(name: Path | str, schema: "pa.Schema", wanted: list[str]) -> None:
    """Refuse columns whose values are lists or structs.

    Raises:
        ConfigError: one of ``wanted`` is such a column.
    """
    import pyarrow as pa

    for column in wanted:
        kind = schema.field(column).type
        if pa.types.is_nested(kind):
            raise ConfigError(
                f"{name}: column {column!r} holds several values a row ({kind}): write each of them"
                " as a column"
            )


def _read_parquet(path: Path, declared: DeclaredTable) -> _Opened:
    file = _opened_parquet(path)
    schema = file.schema_arrow
    wanted = _wanted(path, declared, schema.names)
    if twice := _several(schema.names, set(wanted)):
        raise ConfigError(f"{path} has several columns {_listed(twice)}: rename all but one")
    _check_flat(path, schema, wanted)
    tables = _tables(path, file, wanted)
    return (_frame(table, wanted, ids=_ids(declared)) for table in tables), declared


def _ids(declared: DeclaredTable) -> list[str]:
    """Return the columns that name people and trajectories, which are read as texts."""
    columns = declared.columns
    return [name for name in (columns.trajectory, columns.unit) if name is not None]


def _frame(
    rows: "pa.RecordBatch | pa.Table", wanted: list[str], *, ids: Sequence[str] = ()
) -> "pd.DataFrame":
    """Return the columns of some rows; whole numbers and truth values stay so beside gaps.

    Decimals become floats, but those of ``ids``, which beyond 2^53 would run into each other.
    """
    import pandas as pd
    import pyarrow as pa

    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    table = table.select(wanted)
    for place, column in enumerate(table.schema):
        if pa.types.is_decimal(column.type):
            kind = pa.string() if column.name in ids else pa.float64()
            values = table.column(place).cast(kind)
            table = table.set_column(place, column.name, values)
    types = {pa.bool_(): pd.BooleanDtype(), pa.int64(): pd.Int64Dtype()}
    types |= {pa.uint64(): pd.UInt64Dtype()}
    frame: pd.DataFrame = table.to_pandas(
        ignore_metadata=True, types_mapper=types.get, date_as_object=False
    )
    return frame


def _read_npz(path: Path, declared: DeclaredTable) -> _Opened:
    return flattened(path, declared, read_npz(path, partial(_wanted, path, declared)))


def _read_hdf5(path: Path, declared: DeclaredTable) -> _Opened:
    return flattened(path, declared, read_hdf5(path, partial(_wanted, path, declared)))
