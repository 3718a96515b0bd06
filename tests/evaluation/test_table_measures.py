"""Measures of synthetic tables: figures by hand."""

import numpy as np
import pandas as pd
import pytest

from distributed_privrl.evaluation.table_measures import (
    association,
    associations,
    cells_of,
    gaps,
    marginal,
    pearson,
    rare_cells,
)
from tests.evaluation.named import names, numbers, rows_of

NAN = float("nan")


@pytest.mark.parametrize(
    ("real", "synthetic", "expected"),
    [
        pytest.param(numbers(0, 1, 2, 3), numbers(2, 3, 2, 3), 0.5, id="1 - KS"),
        pytest.param(numbers(0, NAN, 1), numbers(1, 1, NAN), 0.5, id="missing values are left out"),
        pytest.param(numbers(NAN), numbers(NAN, NAN), 1.0, id="nothing on both sides"),
        pytest.param(numbers(1), numbers(NAN), 0.0, id="nothing on one side"),
        pytest.param(numbers(7, 7), numbers(7), 1.0, id="a constant"),
        pytest.param(names("a", "a", "b", "c"), names("a", "b", "b", "d"), 0.5, id="1 - TV"),
        pytest.param(names(0, 0, None), names(1), 0.0, id="no category in common"),
    ],
)
def test_marginals_by_hand(real: pd.Series, synthetic: pd.Series, expected: float) -> None:
    assert marginal(real, synthetic) == pytest.approx(expected)


def test_associations_by_hand() -> None:
    one, other = numbers(0, 1, 2, NAN), numbers(0, 1, 8, 3)
    assert pearson(one, other) == pytest.approx(8 / np.sqrt(2 * 38))
    assert association(one, other) == pytest.approx(1)
    ratio = association(names("a", "a", "b", "b"), numbers(0, 2, 4, 6))
    assert ratio**2 == pytest.approx(1 - 4 / 20 * 3 / 2), "1 - within / total, adjusted"
    assert association(names(*"aabb" * 5), names(*"xxyy" * 5)) == pytest.approx(1)
    assert association(names(*"aabb" * 5), names(*"xyxy" * 5)) == 0
    assert association(numbers(1, 1, 1), numbers(1, 2, 3)) == 0, "a constant"
    assert association(names("a", "a"), numbers(1, 2)) == 0
    assert association(numbers(NAN, 1), numbers(2, NAN)) == 0, "no row in common"
    assert pearson(numbers(1, 1), numbers(1, 2)) == pearson(names("a", "b"), numbers(1, 2)) == 0


def test_gaps_of_pairs_by_hand() -> None:
    real = pd.DataFrame({"a": [0.0, 1, 2], "b": [0.0, 1, 2], "c": [1.0, 1, 1]})
    turned = real.assign(b=real["b"][::-1].to_numpy())
    expected = {("a", "b"): pytest.approx(2), ("a", "c"): 0, ("b", "c"): 0}
    assert gaps(real, turned) == gaps(real, turned, pearson) == expected


def test_rare_cells_by_hand() -> None:
    real = ["often"] * 96 + ["rare"] * 3 + ["rarer"]
    found = rare_cells(real, ["often"] * 7 + ["rare"] + ["never"] * 2, below=0.05)
    assert found.real == pytest.approx(0.04)
    assert found.synthetic == pytest.approx(0.1)
    assert found.ratio == pytest.approx(2.5)
    assert found.missed == pytest.approx(0.25)
    assert found.invented == pytest.approx(0.2)
    assert rare_cells(["a"], ["a"]).ratio is None


def test_cells_are_categories_and_intervals_of_numbers() -> None:
    frame = pd.DataFrame({"route": names(3, 3), "delay": [14.0, 15.0], "other": [1.0, 2.0]})
    assert cells_of(frame, {"route": (), "delay": (15, 60)}) == [(3.0, 0), (3.0, 1)]


def test_associations_of_all_pairs_are_those_of_each() -> None:
    rng = np.random.default_rng(0)
    frame = rows_of(200, rng).frame.assign(gaps=numbers(*[NAN, 1.0, 2.0, 5.0] * 50), same=1.0)
    found = associations(frame)
    assert len(found) == 7 * 6 / 2
    for (one, other), value in found.items():
        assert value == pytest.approx(association(frame[one], frame[other])), (one, other)
    assert found["s", "next_s"] == pytest.approx(1)
    assert found["s", "same"] == 0
