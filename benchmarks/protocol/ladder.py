"""Rows whose order is known: a judge that does not find it publishes nothing."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.protocol.rows import Rows
from distributed_privrl.core.errors import VerificationError
from distributed_privrl.core.random import Streams

FEWER = 200_000
BLUR = 0.1
"""Noise of the blurred rung, in standard deviations of each column."""

MARGIN = 2.0
"""Points of 100 between two rungs."""

REAL, FEW, BLURRED, SHUFFLED, PRETRAINED = (
    "real",
    "200,000 of them",
    "blurred",
    "actions shuffled",
    "pre-training only",
)
RUNGS = (REAL, FEW, BLURRED, SHUFFLED, PRETRAINED)
ABOVE = ((REAL, FEW), (FEW, BLURRED), (BLURRED, SHUFFLED), (BLURRED, PRETRAINED))
"""What must lie above what."""


class NotAdmittedError(VerificationError):
    """A judge has not ordered the ladder."""


@dataclass(frozen=True)
class Admission:
    """That a judge has ordered a ladder; made from its scores, so that it cannot lack.

    Args:
        judge: whose.
        scores: normalised score of each rung.

    Raises:
        NotAdmittedError: a rung is missing, or two do not lie as they must.
    """

    judge: str
    scores: Mapping[str, float]

    def __post_init__(self) -> None:
        """Check the order."""
        wrong = disorder(self.scores)
        if wrong:
            raise NotAdmittedError(f"{self.judge} publishes nothing: {'; '.join(wrong)}")


def disorder(scores: Mapping[str, float]) -> list[str]:
    """Return what is missing or wrong in a judge's ladder; empty: it is ordered.

    Example:
        >>> disorder(dict(zip(RUNGS, (90.0, 60.0, 40.0, 5.0, 10.0))))
        []
        >>> disorder(dict(zip(RUNGS, (90.0, 60.0, 61.0, 5.0, 10.0))))
        ['200,000 of them (60.0) lies less than 2 points above blurred (61.0)']
    """
    missing = [f"{rung} was not run" for rung in RUNGS if rung not in scores]
    wrong = [
        f"{high} ({scores[high]:.1f}) lies less than {MARGIN:g} points above"
        f" {low} ({scores[low]:.1f})"
        for high, low in ABOVE
        if high in scores and low in scores and not scores[high] - scores[low] >= MARGIN
    ]
    return missing + wrong


def fewer(rows: Rows, streams: Streams, *, count: int = FEWER) -> Rows:
    """Return ``count`` rows drawn without replacement, or all where there are no more."""
    order = streams.numpy("ladder/fewer").permutation(len(rows))
    return rows.chosen(np.sort(order[:count]))


def blurred(rows: Rows, streams: Streams, *, share: float = BLUR) -> Rows:
    """Return the rows with noise on observations, actions and next observations."""
    rng = streams.numpy("ladder/blurred")

    def noisy(columns: NDArray[np.float32]) -> NDArray[np.float32]:
        noise = share * columns.std(axis=0) * rng.standard_normal(columns.shape)
        return np.asarray(columns + noise, dtype=np.float32)

    return dataclasses.replace(
        rows,
        observations=noisy(rows.observations),
        actions=noisy(rows.actions),
        next_observations=noisy(rows.next_observations),
    )


def shuffled(rows: Rows, streams: Streams) -> Rows:
    """Return the rows with each action moved to another row."""
    order = streams.numpy("ladder/shuffled").permutation(len(rows))
    return dataclasses.replace(rows, actions=rows.actions[order])


MADE: Mapping[str, Callable[[Rows, Streams], Rows]] = {
    REAL: lambda rows, streams: rows,
    FEW: fewer,
    BLURRED: blurred,
    SHUFFLED: shuffled,
}
"""Rungs that are made of a recording; `PRETRAINED` takes a generator."""
