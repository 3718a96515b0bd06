"""Reads CSV files: what separates fields, which lines are whole, which fields hold no value."""

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bombs import MOST_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

Separator = Literal["comma", "semicolon", "tab", "bar"]
"""What stands between the fields of a CSV file."""
_MARKS: Mapping[Separator, str] = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
_ABSENT = frozenset(
    {
        *("", "NA", "N/A", "n/a", "NULL", "null", "None", "NaN", "nan", "-NaN", "-nan", "<NA>"),
        *("#N/A", "#N/A N/A", "#NA", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    }
)
"""What stands in a CSV file for no value, where it is not a declared value of its column."""


def likely_separator(path: Path, otherwise: Separator = "comma") -> Separator:
    """Return what splits the header of a CSV file into most fields; ``otherwise`` in doubt."""
    fields: dict[Separator, int] = {}
    for separator, mark in _MARKS.items():
        with path.open(newline="", encoding="utf-8-sig") as file:
            try:
                header = next(filter(_not_blank, csv.reader(file, delimiter=mark)), [])
            except csv.Error:  # a quote that is not closed: whoever reads the file says so
                header = []
        fields[separator] = len(header)
    return max(fields, key=lambda one: (fields[one], one == otherwise))


def csv_header(path: Path, separator: Separator) -> tuple[list[str], list[str]]:
    """Return the names of a CSV file's columns as they stand, and as they are read.

    Args:
        path: the file.
        separator: of its fields.

    Raises:
        ConfigError: the header has another separator, or a line more fields or fewer than it.
        ValueError: a quote is not closed, or something follows it within a field.
    """
    import pandas as pd

    header = _checked_header(path, separator)
    return header, [str(name) for name in pd.read_csv(path, sep=_MARKS[separator], nrows=0).columns]


def csv_frames(
    path: Path,
    columns: Sequence[str],
    *,
    separator: Separator,
    text: Collection[str],
    values: Mapping[str, frozenset[str]],
    rows: int,
) -> Iterator["pd.DataFrame"]:
    """Return columns of a CSV file, some rows at a time.

    Args:
        path: the file.
        columns: what to read.
        separator: of its fields.
        text: those that stay text.
        values: texts of a column that are values, whatever else they mean (``NA``).
        rows: held at a time.
    """
    import pandas as pd

    absent = {name: sorted(_ABSENT - kept) for name, kept in values.items()}
    return iter(
        pd.read_csv(
            path,
            sep=_MARKS[separator],
            usecols=list(columns),
            dtype=dict.fromkeys(text, str),
            keep_default_na=False,
            na_values=dict.fromkeys(columns, sorted(_ABSENT)) | absent,
            chunksize=rows,
            low_memory=False,
        )
    )


def _checked_header(path: Path, separator: Separator) -> list[str]:
    """Return a CSV file's column names, if each of its lines has as many fields.

    Blank lines are none; pandas would shift or fill up the others without a word.

    Raises:
        ConfigError: the header has another separator, or a line more fields or fewer.
        ValueError: a quote is not closed, or something follows it within a field.
    """
    header: list[str] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, delimiter=_MARKS[separator], strict=True)
        try:
            header = next(filter(_not_blank, lines), header)
            if len(header) == 1:
                _check_separator(path, separator)
            if len(header) > MOST_COLUMNS:
                raise ConfigError(f"{path} has {len(header)} columns, more than {MOST_COLUMNS}")
            for fields in lines:
                if len(fields) != len(header) and _not_blank(fields):
                    _check_separator(path, separator)
                    _refuse_line(path, lines.line_num, fields, header, separator)
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from error
    return header


def _not_blank(fields: list[str]) -> bool:
    return len(fields) > 1 or bool("".join(fields).strip())


def _check_separator(path: Path, separator: Separator) -> None:
    found = likely_separator(path, separator)
    if found != separator:
        raise ConfigError(
            f"{path} is read as separated by {separator}s, and its header is separated by"
            f" {found}s: write `separator: {found}` into its schema (privrl init: --separator"
            f" {found})"
        )


def _refuse_line(
    path: Path, number: int, fields: list[str], header: list[str], separator: Separator
) -> NoReturn:
    if len(fields) == len(header) + 1 and not fields[-1].strip():
        advice = f"a {separator} stands at its end: remove it, or give the header one, too"
    elif len(fields) <= len(header):
        advice = f"complete it (a field without a value keeps its {separator}), or remove it"
    else:
        decimals = "write decimals with a point (3.5, not 3,5), " if separator == "comma" else ""
        advice = (
            f"{decimals}put texts with {separator}s in quotes, and separate fields by {separator}s"
            " alone"
        )
    raise ConfigError(
        f"{path}: line {number} has {len(fields)} {'fields' if len(fields) > 1 else 'field'}, the"
        f" header {len(header)}: {advice}"
    )
