"""What rows teach of rewards, next states, ends and actions, judged on real rows.

A forest of regression trees of scikit-learn learns targets from some rows and foretells them for
real ones. None of this is a private release.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from distributed_privrl.data.named_rows import Rows, is_category

TAUGHT_ROWS = 3000
"""Rows of each side that a forest learns from, or is judged on, at most."""
MOST_LEVELS = 10
"""Values of a category that are foretold one by one; the rarer ones count as one."""
_TREES, _LEAF, _FEWEST = 10, 5, 20


def targets_of(rows: Rows) -> dict[str, tuple[str, ...]]:
    """Return the columns that follow from state and action, by what they are."""
    targets = {"reward": rows.rewarded} if rows.rewarded else {}
    if rows.successor:
        targets["next state"] = rows.successor
    if rows.end is not None:
        targets["end"] = (rows.end,)
    return targets


def explained(
    learned: Rows,
    judged: Rows,
    targets: Sequence[str],
    rng: np.random.Generator,
    *,
    given: Sequence[str] | None = None,
) -> dict[str, float]:
    """Return how much of each target is explained by what other rows teach of it.

    Args:
        learned: M rows that the forest learns the targets from.
        judged: N real rows of the same columns; numbers are compared by their ranks among these, so
            that a few rows far out do not decide.
        targets: columns; rows without a value in all of them are left out.
        rng: of subsamples and trees.
        given: columns that they are foretold from; None: state and action.

    Returns:
        For each target the share of its variation that is explained: 1 if it is foretold exactly,
        0 if no better than by its mean (or worse). Targets that do not vary in ``judged`` are left
        out, and all of them where either side has fewer than 20 rows.
    """
    from sklearn.ensemble import RandomForestRegressor

    own = _with_targets(learned, targets).sample(TAUGHT_ROWS, rng)
    true = _with_targets(judged, targets).sample(TAUGHT_ROWS, rng)
    coded = {
        name: _coded_target(own.frame[name], true.frame[name])
        for name in targets
        if true.frame[name].nunique() > 1
    }
    if not coded or min(len(own), len(true)) < _FEWEST:
        return {}
    known = [*own.state, *own.action] if given is None else given
    inputs = [_coded_input(own.frame[name], true.frame[name]) for name in known]
    forest = RandomForestRegressor(
        n_estimators=_TREES,
        min_samples_leaf=_LEAF,
        max_features=0.5,
        n_jobs=1,
        random_state=int(rng.integers(2**31)),
    ).fit(_stacked(inputs, 0), np.squeeze(_stacked(coded.values(), 0)))
    foretold = forest.predict(_stacked(inputs, 1)).reshape(len(true), -1)
    ends = np.cumsum([part[1].shape[1] for part in coded.values()])[:-1]
    return {
        name: _share(wanted, found)
        for (name, (_, wanted)), found in zip(
            coded.items(), np.split(foretold, ends, axis=1), strict=True
        )
    }


_Both = tuple[NDArray[np.float64], NDArray[np.float64]]
"""A column of the rows that are learned from, and of those that are judged on."""


def _with_targets(rows: Rows, targets: Sequence[str]) -> Rows:
    return rows.select(rows.frame[list(targets)].notna().any(axis=1).to_numpy())


def _stacked(columns: Iterable[_Both], side: int) -> NDArray[np.float64]:
    return np.concatenate([both[side] for both in columns], axis=1)


def _coded_input(own: pd.Series, true: pd.Series) -> _Both:
    """Return a column as numbers; a category's are the places of its values."""
    if not is_category(own):
        return own.to_numpy(np.float64)[:, None], true.to_numpy(np.float64)[:, None]
    places = own.cat.codes, true.cat.set_categories(own.cat.categories).cat.codes
    one, other = (codes.to_numpy(np.float64)[:, None] for codes in places)
    return np.where(one < 0, np.nan, one), np.where(other < 0, np.nan, other)


def _coded_target(own: pd.Series, true: pd.Series) -> _Both:
    """Return ranks of numbers, from 0 to 1, or what share of 1 each frequent category has."""
    if is_category(own):
        kept = true.value_counts().index[:MOST_LEVELS]
        one, other = (
            np.stack([(column == value).to_numpy(np.float64) for value in kept], axis=1)
            for column in (own, true)
        )
        return one, other
    known = np.sort(true.dropna().to_numpy(np.float64))
    one, other = (_ranks(column.to_numpy(np.float64), known) for column in (own, true))
    return one, other


def _ranks(values: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the places of values among known ones, from 0 to 1; 1/2 where there is none."""
    low, high = (np.searchsorted(known, values, side=side) for side in ("left", "right"))
    return np.where(np.isnan(values), 0.5, (low + high) / 2 / len(known))[:, None]


def _share(wanted: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    total = float(((wanted - wanted.mean(axis=0)) ** 2).sum())
    return max(0.0, 1 - float(((wanted - found) ** 2).sum()) / total)
