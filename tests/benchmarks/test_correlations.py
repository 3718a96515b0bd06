"""What `benchmarks.correlations` measures, by hand; its runs are the product's own."""

import numpy as np
import pytest

from benchmarks import correlations
from benchmarks.trajectory_models import columns_kept
from distributed_privrl.data.trajectories import Trajectories


def test_real_rows_of_others_keep_relations_and_rows_without_any_keep_none() -> None:
    people, others = (correlations.people(3000, name) for name in ("test", "others"))
    real = correlations.relations(people)
    within = [name for name in real if "next" not in name]
    assert len(within) == 66
    weak = [one for one in within if 0.1 <= abs(real[one]) < 0.2]
    assert len(weak) > 10
    found = correlations.kept(correlations.relations(others), real)
    assert found["miss"] < 0.02
    assert found["weak kept"] > 0.95
    assert columns_kept(others, people, correlations.COLUMNS, high=correlations.HIGH) > 0.97
    source = np.random.default_rng(0)
    shuffled = people.copy()
    for name in correlations.COLUMNS:
        shuffled[name] = source.permutation(shuffled[name].to_numpy())
    nothing = correlations.kept(correlations.relations(shuffled), real)
    assert nothing["weak kept"] == nothing["others kept"] == 0
    assert nothing["miss"] > 3 * found["miss"]
    assert columns_kept(
        shuffled, people, correlations.COLUMNS, high=correlations.HIGH
    ) == pytest.approx(1)


def test_drawn_rows_have_the_columns_of_the_table() -> None:
    width = len(correlations.COLUMNS)
    made = Trajectories(
        observations=np.arange(3 * width, dtype=np.float32).reshape(3, width),
        actions=np.zeros(2, np.int64),
        rewards=np.zeros(2, np.float32),
        terminated=np.array([False, True]),
        truncated=np.zeros(2, bool),
        offsets=np.array([0, 2]),
        unit_ids=np.zeros(1, np.uint64),
    )
    frame = correlations.as_frame(made)
    assert frame["number_1"].tolist() == [1, 1 + width]
    assert frame["person"].tolist() == [0, 0]
