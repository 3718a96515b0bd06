"""Aligned text on standard output: names with values, tables, and commands to go on with."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from distributed_privrl.core.folders import as_given


def show_values(values: Mapping[str, str | Sequence[str]]) -> None:
    """Write one line a value, or several, names aligned.

    Args:
        values: name to value, or to the lines of one.
    """
    width = max(map(len, values))
    for name, value in values.items():
        lines = [value] if isinstance(value, str) else value
        for label, line in zip((name, *[""] * (len(lines) - 1)), lines, strict=True):
            typer.echo(f"{label:<{width}}  {as_given(line)}")


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table whose columns are as wide as their widest cell.

    Args:
        header: (C,) names of the columns.
        rows: (R, C) cells.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def resume_line(
    config: Path,
    out: Path | str,
    overrides: Sequence[str],
    ledger: str | None,
    *,
    verb: str = "run",
) -> str:
    """Return the command that goes on with a run or a sweep; a ledger's password is left out.

    Args:
        config: the configuration's file.
        out: the run's folder, or its URI.
        overrides: as they were given.
        ledger: as it was given.
        verb: that was called.

    Example:
        >>> resume_line(Path("a.yaml"), Path("runs/a"), ["seed=1"], None)
        'privrl run a.yaml --out runs/a -o seed=1 --resume'
    """
    words = ["privrl", verb, str(config), "--out", str(out)]
    for override in overrides:
        words += ["-o", override]
    if ledger is not None:
        words += ["--ledger", "LEDGER" if {"@", "?"} & {*ledger} else ledger]
    return shlex.join([*words, "--resume"])
