import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import local_update, local_update_scaling


def test_all_ways_of_local_training_make_the_same_sum() -> None:
    """Or comparing their times says nothing."""
    rounds = local_update.rounds(local_update.QUICK["pendulum"])
    expected = rounds[local_update.LOOP].total()
    assert np.linalg.norm(expected) > 0.03
    for name in (local_update.VMAP, local_update.KERNEL):
        np.testing.assert_allclose(rounds[name].total(), expected, rtol=0, atol=1e-6)


def test_the_table_has_every_way(tmp_path: Path) -> None:
    local_update.main(["--scale", "quick", "--out", str(tmp_path)])
    saved = json.loads((tmp_path / "local_update.json").read_text())
    assert len(saved["cells"]) == 2 * 5
    for name in ("pendulum_vs_loop", "cartpole_vs_loop", "pendulum_of_flop_bound"):
        assert saved["ratios"][name] > 0


def test_the_operations_are_those_of_the_products() -> None:
    assert local_update.FULL["pendulum"].operations == 2 * 3 * 200 * (3 * 4864 - 256)


@pytest.mark.slow
def test_workers_are_measured(tmp_path: Path) -> None:
    local_update.main(["--scaling", "--scale", "quick", "--out", str(tmp_path)])
    saved = json.loads((tmp_path / "local_update_scaling.json").read_text())
    assert [cell["workers"] for cell in saved["cells"]] == [*local_update_scaling.QUICK.workers]
