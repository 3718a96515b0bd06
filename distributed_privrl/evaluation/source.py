"""Where what a report shows comes from, which says by type whether it may leave."""

from dataclasses import dataclass
from typing import Any, Literal

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation.report import (
    AnyFigure,
    PrivateFigure,
    PublicFigure,
    ReleasedFigure,
)
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a dataset is to the world.

    Args:
        kind: ``released`` under a valid certificate, ``public`` by its owner's word, or
            ``private``: not for release.
        ledger_entry: the entry that paid, of a released one.

    Raises:
        ConfigError: a released one without an entry, or another one with one.

    Privacy:
        Computes nothing: it wraps what is post-processing of this one dataset and of public facts.
    """

    kind: Literal["released", "public", "private"]
    ledger_entry: str = ""

    def __post_init__(self) -> None:
        if (self.kind == "released") != bool(self.ledger_entry):
            raise ConfigError(
                f"a {self.kind} source with ledger_entry={self.ledger_entry!r}: released rows have"
                " the entry that paid, others have none"
            )

    @property
    def may_leave(self) -> bool:
        """Whether what is computed from the dataset may leave."""
        return self.kind != "private"

    def value(self, value: Any) -> Any:
        """Return ``value`` as what it is; of a private source it stays bare."""
        if self.kind == "released":
            return ReleasedValue(value, ledger_entry=self.ledger_entry)
        return PublicValue(value) if self.kind == "public" else value

    def figure(self, image: bytes, caption: str) -> AnyFigure:
        """Return a figure as what it is."""
        if self.kind == "released":
            return ReleasedFigure(image=image, caption=caption, ledger_entry=self.ledger_entry)
        kind = PublicFigure if self.kind == "public" else PrivateFigure
        return kind(image=image, caption=caption)
