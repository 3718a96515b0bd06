"""What `benchmarks.levels` measures, by hand; its runs are the product's own."""

import numpy as np
import pytest

from benchmarks import levels
from benchmarks.trajectory_models import columns_kept
from distributed_privrl.data.trajectories import Trajectories


def test_levels_are_kept_by_those_who_have_them() -> None:
    people = levels.people(3000, "test")
    found = levels.kept(people)
    for lag in levels.LAGS:
        assert found[f"steady, {lag} later"] == pytest.approx(0.5, abs=0.05)
        assert found[f"tested, {lag} later"] == pytest.approx(0.5, abs=0.06)
        assert abs(found[f"nobody's, {lag} later"]) < 0.05
    assert found["wandering, 1 later"] > 0.85
    assert people["tested"].isna().mean() == pytest.approx(0.4, abs=0.02)
    others = levels.people(3000, "others")
    assert columns_kept(others, people, levels.NUMBERS, high=levels.HIGH) > 0.97
    assert list(levels._missed(found, found)) == [0.0] * 6


def test_gaps_of_drawn_rows_are_gaps() -> None:
    observations = np.array([[50, 60, 0, 1, 2], [51, 0, 1, 3, 4], [51, 0, 1, 3, 4]], np.float32)
    made = Trajectories(
        observations=observations,
        actions=np.zeros(2, np.int64),
        rewards=np.zeros(2, np.float32),
        terminated=np.array([False, True]),
        truncated=np.zeros(2, bool),
        offsets=np.array([0, 2]),
        unit_ids=np.zeros(1, np.uint64),
    )
    frame = levels.as_frame(made)
    assert frame["tested"].isna().tolist() == [False, True]
    assert frame["wandering"].tolist() == [1, 3]
    assert frame["person"].tolist() == [0, 0]
