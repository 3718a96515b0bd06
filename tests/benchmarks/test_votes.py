"""The benchmark of votes at a tiny scale."""

import pytest

from benchmarks import votes
from tests.benchmarks.quick import last_line


def test_votes(capsys: pytest.CaptureFixture[str]) -> None:
    found = last_line(votes, capsys)
    assert found["votes_ms"] > 0
    assert set(found["ratios"]) == {"votes_vs_allowed", "vs_bound", "vs_float64", "late_vs_early"}
    assert all(value > 0 for value in found["ratios"].values())
