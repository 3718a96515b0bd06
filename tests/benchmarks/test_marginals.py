"""The benchmark of marginals at a tiny scale, and that its alternatives do the same work."""

import numpy as np
import pytest

from benchmarks import marginals
from benchmarks.marginals import QUICK, Parts, Watch, people
from tests.benchmarks.quick import last_line


def test_marginals_and_that_both_ways_count_and_draw_alike(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    monkeypatch.setattr(marginals, "Watch", lambda: watch)
    monkeypatch.setattr(marginals, "EVALUATIONS", 100)
    found = last_line(marginals, capsys)
    assert found["rows"] == QUICK.rows
    assert 0 < found["joint_counts"] == len(watch.cliques)
    assert 100 < found["memory_mb"] < 100_000
    assert set(found["ratios"]) == {
        "whole_vs_allowed",
        "memory_vs_allowed",
        "whole_vs_bound",
        "counting_vs_bound",
        "pairs_vs_numpy",
        "rows_vs_mbi",
        "estimate_vs_mbi",
        "loss_vs_mbi",
    }
    assert 0 < found["loss"] < 1000
    loss = found["ratios"].pop("loss_vs_mbi")
    assert loss is None or 0 < loss < 1.1, found["ratios"]
    assert all(ratio > 0 for ratio in found["ratios"].values()), found["ratios"]
    assert all(watch.seconds[name] > 0 for name in (marginals.COUNTING, marginals.ESTIMATION))
    parts = Parts(watch, rows=20_000)
    ours, theirs = parts.pairs(), parts.histograms()
    assert len(ours) == len(theirs) == 136, (
        "17 columns: four numbers after a step, told twice, and the class of the unit's size"
    )
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)
    both = parts.filled(), parts.by_mbi()
    assert both[0].shape == both[1].shape == (20_000, 17)
    for column in range(12):
        size = max(int(rows[:, column].max()) for rows in both) + 1
        shares = [np.bincount(rows[:, column], minlength=size) / 20_000 for rows in both]
        assert np.abs(shares[0] - shares[1]).sum() < 0.05


def test_people_are_the_same_each_time_and_within_their_bounds() -> None:
    one, other = people(QUICK), people(QUICK)
    assert (one.observations == other.observations).all()
    assert (one.rewards == other.rewards).all()
    for numbers in (one.observations, one.next_observations):
        assert (numbers >= marginals.LOW).all()
        assert (numbers <= marginals.HIGH).all()
        stepped = np.array(marginals.STEP) > 0
        assert (numbers[:, stepped] == np.rint(numbers[:, stepped])).all()
    assert len(np.unique(one.unit_ids)) == QUICK.units
    assert np.corrcoef(one.observations[:, 0], one.rewards)[0, 1] < -0.5
