"""How far means of numbers are from the real ones. None of this is a private release."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from distributed_privrl.data.named_rows import is_category
from distributed_privrl.evaluation.followers import Problem
from distributed_privrl.evaluation.judged import Judged

FAR_MEAN = 0.25
"""A mean is lost if it is off by more than this beyond any other real sample's, in deviations."""
_WHOLE = 1000
"""From this size on a mean is told without a fraction."""


def mean_gaps(real: pd.DataFrame, other: pd.DataFrame, names: Sequence[str]) -> dict[str, float]:
    """Return how far the means of numbers are from the real ones, in mean absolute deviations.

    A few rows far out move a mean, and hardly the distribution.

    Args:
        real: ``(N, columns)``.
        other: ``(M, columns)``.
        names: of the columns. Left out are categories, those without a number on either side, and
            those whose real rows do not deviate from their median.

    Example:
        >>> real = pd.DataFrame({"spent": [0.0, 0, 0, 8]})
        >>> mean_gaps(real, pd.DataFrame({"spent": [0.0, 0, 0, 40]}), ["spent"])
        {'spent': 4.0}
    """
    found = {}
    for name in names:
        if is_category(real[name]):
            continue
        numbers = real[name].astype(np.float64)
        deviation = (numbers - numbers.median()).abs().mean()
        gap = abs(mean_of(other, name) - numbers.mean())
        if deviation > 0 and np.isfinite(gap):
            found[name] = float(gap / deviation)
    return found


def mean_of(frame: pd.DataFrame, name: str) -> float:
    """Return the mean of a number, without its gaps."""
    return float(frame[name].astype(np.float64).mean())


def mean_problems(means: Sequence[Judged]) -> list[Problem]:
    """Return which means the rows are not useful for, with the reason."""
    return [
        Problem(
            text=f"the mean of {one.name}: {_text(one.synthetic)} in synthetic rows,"
            f" {_text(one.real)} in real ones",
            kind="mean",
            columns=one.columns,
        )
        for one in means
        if one.excess > FAR_MEAN
    ]


def _text(mean: float) -> str:
    return f"{mean:,.0f}" if abs(mean) >= _WHOLE else f"{mean:.3g}"
