"""Stored figures of the benchmarks that advice and verdicts rest on."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A stored figure of the benchmarks: where it stands, and what it is.

    Args:
        result: name of the file in ``benchmarks/results``.
        row: what picks its cell: values by name.
        figure: name of the figure.
        value: as stored, rounded.
    """

    result: str
    row: tuple[tuple[str, object], ...]
    figure: str
    value: float

    def __str__(self) -> str:
        """Return the figure and where it stands."""
        named = ", ".join(
            f"{name} {value:g}" if isinstance(value, int | float) else str(value)
            for name, value in self.row
        )
        return f"{self.figure} {self.value:g} ({named}: benchmarks/results/{self.result}.json)"
