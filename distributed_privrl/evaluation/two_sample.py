"""A classifier that tells real rows from synthetic ones, by groups of columns.

Gradient-boosted trees of scikit-learn. The area under its curve on rows that it has not seen is 0.5
where nobody can tell, 1 where everybody can. A group has the columns that come before it, too, so
that what it adds to the group before is what its own columns give away.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from distributed_privrl.data.named_rows import Rows, is_category

AREA_ROWS = 10_000
"""Of each table, at most: training and test together."""
_MOST_LEVELS = 200
_MOST_BINS = 255
"""Of a column of numbers; the trees know no more values than that."""
_FEWEST = 8
TREES = 60


def groups_of(rows: Rows) -> dict[str, tuple[str, ...]]:
    """Return the columns of each group: states, decisions, what they earn, lead to, and ends.

    Rows that nothing follows have neither of the last two, and a table may lack actions or rewards.
    """
    decision = rows.state + rows.action
    groups = {"s": rows.state}
    if rows.action:
        groups["s, a"] = decision
    if rows.rewarded:
        groups["s, a, r"] = decision + rows.rewarded
    if rows.successor:
        groups["s, a, s'"] = decision + rows.successor
    if rows.end is not None:
        groups["s, a, end"] = (*decision, rows.end)
    return groups


def two_sample_areas(
    real: Rows, synthetic: Rows, rng: np.random.Generator, *, rows: int = AREA_ROWS
) -> dict[str, float]:
    """Return the area under the curve for each of `groups_of`.

    Half of the units train the classifier and the others test it, on the real side; so they do on
    the synthetic side, where rows without units are split one by one. Both sides weigh the same.

    Args:
        real: M rows of several units.
        synthetic: N rows.
        rng: of the split, the rows that take part, and the trees.
        rows: of each side, at most.
    """
    parts = [part.sample(rows // 2, rng) for side in (real, synthetic) for part in side.halves(rng)]
    seed = int(rng.integers(2**31))
    train, test = (parts[0], parts[2]), (parts[1], parts[3])
    return {
        name: area(
            (train[0].frame[list(columns)], train[1].frame[list(columns)]),
            (test[0].frame[list(columns)], test[1].frame[list(columns)]),
            seed=seed,
        )
        for name, columns in groups_of(real).items()
    }


def area(
    train: tuple[pd.DataFrame, pd.DataFrame], test: tuple[pd.DataFrame, pd.DataFrame], *, seed: int
) -> float:
    """Return the area under the curve of a classifier of (real, synthetic) rows.

    Args:
        train: (M, D) real and (N, D) synthetic rows.
        test: others of the same columns.
        seed: of the trees.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    if any(len(part) < _FEWEST for part in (*train, *test)):
        return float("nan")
    numbers, masks = _numbers([*train, *test])
    numbers = _binned(numbers, masks)
    x, y = np.concatenate(numbers[:2]), np.repeat([0, 1], [len(part) for part in train])
    weights = np.repeat([len(y) / len(part) for part in train], [len(part) for part in train])
    constant = (x == x[:1]).all()
    if constant:
        return 0.5
    classifier = HistGradientBoostingClassifier(
        max_iter=TREES,
        learning_rate=0.1,
        max_leaf_nodes=15,
        min_samples_leaf=_FEWEST,
        early_stopping=False,
        categorical_features=masks,
        random_state=seed,
    ).fit(x, y, sample_weight=weights)
    shown = classifier.predict_proba(np.concatenate(numbers[2:]))[:, 1]
    return float(roc_auc_score(np.repeat([0, 1], [len(part) for part in test]), shown))


def _numbers(
    frames: list[pd.DataFrame],
) -> tuple[list[NDArray[np.float64]], NDArray[np.bool_]]:
    """Return each frame as numbers, and which columns are categories of few enough levels.

    Categories of more levels than the trees take are numbers in the order of their names.
    """
    names = [str(name) for name in frames[0]]
    levels = {
        name: pd.Index(np.unique(np.concatenate([f[name].dropna().to_numpy() for f in frames])))
        for name in names
        if is_category(frames[0][name])
    }
    few = np.array([name in levels and len(levels[name]) <= _MOST_LEVELS for name in names])
    return [
        np.stack(
            [
                _positions(frame[name], levels[name])
                if name in levels
                else frame[name].to_numpy(np.float64)
                for name in names
            ],
            axis=1,
        )
        for frame in frames
    ], few


def _binned(
    parts: list[NDArray[np.float64]], categories: NDArray[np.bool_]
) -> list[NDArray[np.float64]]:
    """Return rows whose numbers have at most `_MOST_BINS` values.

    Half of the bins hold equal shares of the real training rows, the other half of the synthetic
    ones, so that both sides weigh the same. The trees would find bins by themselves, but for rows
    with weights they walk through each column for each bin: three quarters of a fit's time.

    Args:
        parts: real and synthetic rows that train, then any others, ``(N, D)`` each.
        categories: ``(D,)``, columns that stay as they are.
    """
    shares = np.linspace(0, 1, _MOST_BINS // 2 + 2)[1:-1]
    parts = [part.copy() for part in parts]
    for place in np.flatnonzero(~categories):
        known = [column[~np.isnan(column)] for column in (part[:, place] for part in parts[:2])]
        if len(np.unique(np.concatenate(known))) <= _MOST_BINS:
            continue
        edges = np.unique(
            np.concatenate([np.quantile(side, shares) for side in known if len(side)])
        )
        for part in parts:
            column = part[:, place]
            part[:, place] = np.where(np.isnan(column), np.nan, np.searchsorted(edges, column))
    return parts


def _positions(column: pd.Series, levels: "pd.Index[Any]") -> NDArray[np.float64]:
    found = levels.get_indexer(pd.Index(column.to_numpy())).astype(np.float64)
    return np.where(found < 0, np.nan, found)
