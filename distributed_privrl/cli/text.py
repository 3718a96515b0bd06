"""Aligned text on standard output: names with values, and tables."""

from collections.abc import Mapping, Sequence

import typer


def show_values(values: Mapping[str, str]) -> None:
    """Write one line a value, names aligned.

    Args:
        values: name to value.
    """
    width = max(map(len, values))
    for name, value in values.items():
        typer.echo(f"{name:<{width}}  {value}")


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
