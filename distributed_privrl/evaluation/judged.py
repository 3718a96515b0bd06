"""A figure of synthetic rows beside the same figure of another real sample."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Named(NamedTuple):
    """What a figure is called, and the columns that it is about."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A figure of the synthetic rows, and the same of another real sample.

    Args:
        name: of the column, pair or event.
        value: mean over the splits.
        reference: of another real sample, mean over the splits.
        lowest: of another real sample.
        highest: of another real sample.
        real: what is compared, in the real rows, where it is a number; else NaN.
        synthetic: the same in the synthetic rows.
        columns: that it is about.
    """

    name: str
    value: float
    reference: float
    lowest: float
    highest: float
    real: float = float("nan")
    synthetic: float = float("nan")
    columns: tuple[str, ...] = ()

    @property
    def excess(self) -> float:
        """How far the value is above what any other real sample scored."""
        return self.value - self.highest

    @property
    def shortfall(self) -> float:
        """How far the value is below what any other real sample scored."""
        return self.lowest - self.value


def judged(
    named: Named,
    theirs: Sequence[float],
    own: Sequence[float],
    *,
    real: float = float("nan"),
    synthetic: float = float("nan"),
) -> Judged:
    """Return a figure over all splits.

    Args:
        named: the figure.
        theirs: what the synthetic rows score in each split.
        own: what the other real sample scores.
        real: see `Judged`.
        synthetic: see `Judged`.
    """
    return Judged(
        name=named.name,
        columns=named.columns,
        value=float(np.mean(theirs)),
        reference=float(np.mean(own)),
        lowest=min(own),
        highest=max(own),
        real=real,
        synthetic=synthetic,
    )


def worst(found: Iterable[Judged]) -> tuple[Judged, ...]:
    """Return the figures, those first that are the farthest above another real sample's."""
    return tuple(sorted(found, key=lambda one: one.reference - one.value))
