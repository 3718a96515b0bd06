"""Reads CSV files: which lines are whole, and which fields hold no value."""

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from distributed_privrl.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

_ABSENT = frozenset(
    {
        *("", "NA", "N/A", "n/a", "NULL", "null", "None", "NaN", "nan", "-NaN", "-nan", "<NA>"),
        *("#N/A", "#N/A N/A", "#NA", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    }
)
"""What stands in a CSV file for no value, where it is not a declared value of its column."""


def csv_header(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of a CSV file's columns as they stand, and as they are read.

    Raises:
        ConfigError: a line has more fields or fewer than the header.
        ValueError: a quote is not closed, or something follows it within a field.
    """
    import pandas as pd

    header = _checked_header(path)
    return header, [str(name) for name in pd.read_csv(path, nrows=0).columns]


def csv_frames(
    path: Path,
    columns: Sequence[str],
    *,
    text: Collection[str],
    values: Mapping[str, frozenset[str]],
    rows: int,
) -> Iterator["pd.DataFrame"]:
    """Return columns of a CSV file, some rows at a time.

    Args:
        path: the file.
        columns: what to read.
        text: those that stay text.
        values: texts of a column that are values, whatever else they mean (``NA``).
        rows: held at a time.
    """
    import pandas as pd

    absent = {name: sorted(_ABSENT - kept) for name, kept in values.items()}
    return iter(
        pd.read_csv(
            path,
            usecols=list(columns),
            dtype=dict.fromkeys(text, str),
            keep_default_na=False,
            na_values=dict.fromkeys(columns, sorted(_ABSENT)) | absent,
            chunksize=rows,
            low_memory=False,
        )
    )


def _checked_header(path: Path) -> list[str]:
    """Return a CSV file's column names, if each of its lines has as many fields.

    Blank lines are none; pandas would shift or fill up the others without a word.

    Raises:
        ConfigError: a line has more fields or fewer.
        ValueError: a quote is not closed, or something follows it within a field.
    """
    header: list[str] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, strict=True)
        try:
            header = next(filter(_not_blank, lines), header)
            for fields in lines:
                if len(fields) != len(header) and _not_blank(fields):
                    _refuse_line(path, lines.line_num, fields, header)
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from error
    return header


def _not_blank(fields: list[str]) -> bool:
    return len(fields) > 1 or bool("".join(fields).strip())


def _refuse_line(path: Path, number: int, fields: list[str], header: list[str]) -> NoReturn:
    if len(fields) == len(header) + 1 and not fields[-1].strip():
        advice = "a comma stands at its end: remove it, or give the header one, too"
    elif len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        advice = "separate fields by commas (not semicolons or tabs), write decimals with a point"
    elif len(fields) > len(header):
        advice = (
            "write decimals with a point (3.5, not 3,5), put texts with commas in quotes, and"
            " separate fields by commas alone"
        )
    else:
        advice = "complete it (a field without a value keeps its comma), or remove it"
    raise ConfigError(
        f"{path}: line {number} has {len(fields)} {'fields' if len(fields) > 1 else 'field'}, the"
        f" header {len(header)}: {advice}"
    )
