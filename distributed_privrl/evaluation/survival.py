"""What of a table's columns and relations another table of the same columns still has.

Functions of two tables with equal columns; see `associations` for their types. None of these is a
private release: against sensitive rows they belong into ``private/``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from distributed_privrl.data.named_rows import is_category
from distributed_privrl.evaluation.table_measures import association, associations, marginal

KEPT_COLUMN = 0.9
"""Likeness from which a column counts as kept."""
KEPT_SHARE = 0.5
"""Share of a relation, or of a rare category, that must be left for it to count as kept."""
PLANTED = 0.1
"""Strength from which a pair of columns counts as related."""
BANDS = (0.65, 0.35, 0.15)
"""Strengths of relations, of which each begins a band: strong, middling and weak ones."""
_KINDS = ("numbers", "a category and a number", "categories")
"""Of the two columns of a pair, by how many are categories."""
RARE = 0.05
"""Share of the rows below which a category is rare."""


@dataclass(frozen=True, kw_only=True)
class Survived:
    """A figure before and after.

    Args:
        name: of the column, the pair or the category.
        before: its figure in the reference.
        after: its figure in the other table.
        kept: whether that is near enough.
    """

    name: str
    before: float
    after: float
    kept: bool


def columns_kept(reference: pd.DataFrame, other: pd.DataFrame) -> list[Survived]:
    """Return how alike each column is: 1 - KS of numbers, 1 - total variation of categories."""
    found = [(str(name), marginal(reference[name], other[name])) for name in reference.columns]
    return [
        Survived(name=name, before=1.0, after=value, kept=value >= KEPT_COLUMN)
        for name, value in found
    ]


def pairs_kept(reference: pd.DataFrame, other: pd.DataFrame, *, most: int = 12) -> list[Survived]:
    """Return the association of the pairs that are strongest in the reference, strongest first.

    Args:
        reference: (M, D).
        other: (N, D).
        most: pairs.
    """
    strengths = associations(reference)
    chosen = sorted(strengths, key=lambda pair: -abs(strengths[pair]))[:most]
    found = []
    for a, b in chosen:
        if abs(strengths[a, b]) < PLANTED:
            break
        found.append(pair_kept(reference, other, a, b))
    return found


def strengths_kept(reference: pd.DataFrame, other: pd.DataFrame) -> list[Survived]:
    """Return the share of pairs that are kept, by `BANDS` and kinds of columns, strongest first.

    Args:
        reference: (M, D); a pair is as strong as here.
        other: (N, D).
    """
    before, after = associations(reference), associations(other)
    found, above = [], np.inf
    for least in BANDS:
        kept: dict[int, list[bool]] = {}
        for pair, value in before.items():
            if least <= abs(value) < above:
                kind = sum(is_category(reference[name]) for name in pair)
                left = after[pair] * np.sign(value) >= KEPT_SHARE * abs(value)
                kept.setdefault(kind, []).append(bool(left))
        named = f"{least:g} and more" if above == np.inf else f"{least:g} to {above:g}"
        above = least
        for kind, lefts in sorted(kept.items()):
            share = float(np.mean(lefts))
            name = f"{named}, {_KINDS[kind]}: {sum(lefts)} of {len(lefts)}"
            found.append(Survived(name=name, before=1.0, after=share, kept=share >= KEPT_SHARE))
    return found


def pair_kept(reference: pd.DataFrame, other: pd.DataFrame, one: str, beside: str) -> Survived:
    """Return the association of a pair of columns in both tables."""
    before, after = (association(table[one], table[beside]) for table in (reference, other))
    kept = after * np.sign(before) >= KEPT_SHARE * abs(before)
    return Survived(name=f"{one} and {beside}", before=before, after=after, kept=bool(kept))


def rare_kept(reference: pd.DataFrame, other: pd.DataFrame) -> list[Survived]:
    """Return the shares of categories that are rare in the reference; twice or half is near."""
    found = []
    for name in reference.columns:
        if not is_category(reference[name]):
            continue
        mine = reference[name].astype(object).value_counts(normalize=True)
        theirs = other[name].astype(object).value_counts(normalize=True)
        for value, share in mine[mine < RARE].items():
            after = float(theirs.get(value, 0.0))
            near = KEPT_SHARE * share <= after <= share / KEPT_SHARE
            found.append(
                Survived(name=f"{name} {value}", before=float(share), after=after, kept=bool(near))
            )
    return found


def prediction_kept(
    reference: pd.DataFrame, other: pd.DataFrame, *, target: str, given: Sequence[str]
) -> Survived:
    """Return how much of a column's variance in the reference a linear model explains.

    Args:
        reference: (M, D); the model that it teaches itself is the figure before.
        other: (N, D); the model that it teaches is the figure after, judged by the reference, too.
        target: a number.
        given: what it is told from: numbers, and categories one by one.
    """
    explained = [
        _explained(taught, reference, target=target, given=given) for taught in (reference, other)
    ]
    before, after = explained
    return Survived(
        name=f"{target} given {', '.join(given)}",
        before=before,
        after=after,
        kept=after >= KEPT_SHARE * before,
    )


def _explained(
    taught: pd.DataFrame, judged: pd.DataFrame, *, target: str, given: Sequence[str]
) -> float:
    levels = {
        name: sorted(judged[name].astype(object).unique(), key=str)
        for name in given
        if is_category(judged[name])
    }
    scales = {
        name: (float(judged[name].mean()), float(judged[name].std()) or 1.0)
        for name in given
        if name not in levels
    }

    def features(frame: pd.DataFrame) -> NDArray[np.float64]:
        columns = [np.ones(len(frame))]
        for name in given:
            if name in levels:
                values = frame[name].astype(object).to_numpy()
                columns += [np.asarray(values == level, np.float64) for level in levels[name][1:]]
            else:
                mean, scale = scales[name]
                columns.append((frame[name].to_numpy(np.float64) - mean) / scale)
        return np.stack(columns, axis=1)

    x, y = features(taught), taught[target].to_numpy(np.float64)
    weights, *_ = np.linalg.lstsq(x, y, rcond=1e-6)
    truth = judged[target].to_numpy(np.float64)
    total = float(((truth - truth.mean()) ** 2).sum())
    left = float(((truth - features(judged) @ weights) ** 2).sum())
    return 1 - left / total if total > 0 else 0.0
