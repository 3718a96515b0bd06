"""A classifier that tells two tables apart."""

import numpy as np
import pandas as pd

from distributed_privrl.evaluation.two_sample import area, groups_of, two_sample_areas
from tests.evaluation.named import rows_of


def test_a_classifier_finds_the_column_that_tells() -> None:
    rng = np.random.default_rng(0)
    found = two_sample_areas(rows_of(2000, rng), rows_of(2000, rng, shift=1.0), rng)
    assert set(found) == set(groups_of(rows_of(4, rng)))
    assert found["s, a, r"] > 0.9
    assert all(abs(found[name] - 0.5) < 0.08 for name in ("s", "s, a", "s, a, s'", "s, a, end"))


def test_an_area_that_cannot_be_had_is_missing_and_constants_tell_nothing() -> None:
    few, same = pd.DataFrame({"a": [1.0]}), pd.DataFrame({"a": np.ones(20)})
    assert np.isnan(area((few, few), (few, few), seed=0))
    assert area((same, same), (same, same), seed=0) == 0.5
