"""What the owner of real rows is told of numbers outside the public bounds; for private reports."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.labels import MISSING, column_labels
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.experiments.samples import sampled_rows

TITLE = "Numbers outside their bounds"
_ASK = (
    "If the code book has it as a code, such as no answer, leave the field empty in the file and"
    " say under kinds what becomes of gaps (missing). If not, the bounds are too narrow: name"
    " wider ones that anybody would name without a look at the rows"
)
_OFTEN = 0.5
"""Of the numbers on one side: a value that is so many of them is named."""


def outside_sections(store: DatasetStore, real: str, bounds: Bounds | None) -> list[Section]:
    """Return what a private report says of real numbers outside the bounds.

    Args:
        store: datasets.
        real: id of the real rows.
        bounds: public, of the run's columns; None: it had none.
    """
    if bounds is None:
        return []
    return [outside_section(sampled_rows(store, real), store.info(real), bounds)]


def outside_section(rows: NDArray[np.floating], info: DatasetInfo, bounds: Bounds) -> Section:
    """Return how many real numbers lie outside the bounds of their columns, with notes.

    Args:
        rows: ``(N, D)`` real ones, in raw units.
        info: of their dataset.
        bounds: public.

    Privacy: exact shares and values of real rows: for private reports alone.
    """
    keys = RowLayout(info.observation_space, info.action_space).column_names
    labels = column_labels(info)
    metrics, notes = [], []
    sides = zip(bounds.columns, bounds.low, bounds.high, strict=True)
    for key, low, high in sides:
        place = keys.index(key)
        name = labels[place]
        numbers = rows[:, place]
        if labels[place + 1 : place + 2] == (f"{name}{MISSING}",):
            numbers = numbers[rows[:, place + 1] != 1]
        found = list(_sides(numbers, float(low), float(high)))
        if not found:
            continue
        metrics.append(
            Metric(
                name=name,
                value=sum(share for share, _ in found),
                explanation="; ".join(words for _, words in found),
            )
        )
        notes += [f"{name}: {words}. {_ASK}." for _, words in found]
    return Section(
        title=TITLE,
        explanation="Shares of the real numbers of a column, of up to some 50,000 rows. Where"
        " values are counted (marginals and the like, PrivORL-AR) a number outside is taken for"
        " the nearest bound, and nothing that may leave says so. Bounds are public: do not choose"
        " them by what stands here.",
        metrics=metrics or [Metric(name="columns with such numbers", value=0)],
        notes=notes,
    )


def _sides(numbers: NDArray[np.floating], low: float, high: float) -> Iterator[tuple[float, str]]:
    """Yield the share of the numbers below and above the bounds, where there are any, in words."""
    stored = numbers.astype(np.float32)
    for outside, word, bound in (
        (stored[stored < np.float32(low)], "below", low),
        (stored[stored > np.float32(high)], "above", high),
    ):
        if not len(outside):
            continue
        share = len(outside) / len(stored)
        values, counts = np.unique(outside, return_counts=True)
        most = int(counts.argmax())
        words = f"{share:.2%} of the numbers lie {word} {bound:g} and are taken for {bound:g}"
        if len(values) == 1:
            words = f"{values[0]:g} is {share:.2%} of the numbers, lies {word} {bound:g} and is"
            words += f" taken for {bound:g}"
        elif counts[most] >= _OFTEN * len(outside):
            words += f", most often {values[most]:g} ({counts[most] / len(stored):.2%})"
        yield share, words
