"""Figures of reports, which say by type whether they may leave."""

from dataclasses import dataclass

from distributed_privrl.privacy.metrics import Answer


@dataclass(frozen=True, kw_only=True)
class PublicFigure:
    """A figure that depends on no private data.

    Args:
        image: the bytes of an SVG or PNG file.
        caption: what it shows.
    """

    image: bytes
    caption: str


@dataclass(frozen=True, kw_only=True)
class ReleasedFigure:
    """A figure drawn from releases that the ledger was charged for, and public data alone.

    Args:
        answer: the bytes of an SVG or PNG file, drawn from the releases' answers.
        caption: what it shows.

    Raises:
        TypeError: ``answer`` is no answer.

    Privacy:
        Post-processing of the releases of ``answer``.
    """

    answer: Answer[bytes]
    caption: str

    def __post_init__(self) -> None:
        if not isinstance(self.answer, Answer):
            raise TypeError(f"a released figure is an Answer, not {type(self.answer).__name__}")

    @property
    def image(self) -> bytes:
        """The bytes of an SVG or PNG file."""
        return self.answer.value

    @property
    def ledger_entry(self) -> str:
        """Id of the entry that paid last."""
        return self.answer.ledger_entry


@dataclass(frozen=True, kw_only=True)
class PrivateFigure:
    """A figure drawn from sensitive data: for private reports only.

    Args:
        image: the bytes of an SVG or PNG file.
        caption: what it shows.
    """

    image: bytes
    caption: str


AnyFigure = PublicFigure | ReleasedFigure | PrivateFigure
