"""Where what a report shows comes from, which says by type whether it may leave."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from distributed_privrl.evaluation.figures import (
    AnyFigure,
    PrivateFigure,
    PublicFigure,
    ReleasedFigure,
)
from distributed_privrl.evaluation.report import ReportValue
from distributed_privrl.privacy.metrics import Answer, PublicValue, Scalar

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """A dataset's id, a policy's file or what is computed of them, with what it is to the world.

    Made by `released`, `public` and `private`.

    Args:
        content: itself; bare, for words and decisions.
        kind: ``released`` under a valid certificate, ``public`` by its owner's word, or
            ``private``: not for release.
        answer: the same as the answer of charged releases, if it is released.

    Raises:
        TypeError: a released one without an answer, or another one with one.

    Privacy:
        Computes nothing: what is mapped is post-processing of ``content`` and of public facts.
    """

    content: T
    kind: Literal["released", "public", "private"]
    answer: Answer[T] | None = None

    def __post_init__(self) -> None:
        if (self.kind == "released") != isinstance(self.answer, Answer):
            raise TypeError(
                f"a {self.kind} source with {self.answer!r}: what is released has the answer of the"
                " releases that paid, the rest has none"
            )

    @classmethod
    def released(cls, answer: Answer[T]) -> "Sourced[T]":
        """Return an answer as what it is."""
        return cls(answer.value, "released", answer)

    @classmethod
    def public(cls, content: T) -> "Sourced[T]":
        """Return what its owner declared public."""
        return cls(content, "public")

    @classmethod
    def private(cls, content: T) -> "Sourced[T]":
        """Return what is not for release."""
        return cls(content, "private")

    @property
    def may_leave(self) -> bool:
        """Whether what is computed of it may leave."""
        return self.kind != "private"

    def then(self, f: Callable[[T], S]) -> "Sourced[S]":
        """Return ``f`` of the content, as what the content is."""
        if self.answer is not None:
            return Sourced.released(self.answer.then(f))
        return Sourced(f(self.content), self.kind)

    def paid_by(self, entry: str) -> "Sourced[T]":
        """Return the same where one entry of the ledger alone paid for what follows of it.

        Raises:
            UnsafeError: it was not among those that paid.
        """
        return self if self.answer is None else Sourced.released(self.answer.paid_by(entry))

    def value(self, f: Callable[[T], Scalar]) -> ReportValue:
        """Return a value of the content as what the content is; of a private one it is bare."""
        if self.answer is not None:
            return self.answer.map(f)
        value = f(self.content)
        return PublicValue(value) if self.kind == "public" else value

    def figure(self, draw: Callable[[T], bytes], caption: str) -> AnyFigure:
        """Return a figure of the content as what the content is."""
        if self.answer is not None:
            return ReleasedFigure(answer=self.answer.then(draw), caption=caption)
        kind = PublicFigure if self.kind == "public" else PrivateFigure
        return kind(image=draw(self.content), caption=caption)
