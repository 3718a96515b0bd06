"""The benchmark of a step of private fine-tuning at a tiny scale."""

import numpy as np
import pytest

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from benchmarks import dp_fine_tuning_step
from tests.benchmarks.quick import last_line


def test_ratios_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    ratios = last_line(dp_fine_tuning_step, capsys)["ratios"]
    assert set(ratios) == {f"vs_{than}_1x16" for than in ("single", "opacus", "non_private")}
    assert min(ratios.values()) > 0


def test_all_paths_make_the_same_clipped_sum() -> None:
    """Or comparing their times says nothing."""
    scale = dp_fine_tuning_step.QUICK
    _, private, _ = dp_fine_tuning_step.steps_of(scale.sizes[0], scale.package, scale.documents)
    sums = [step.clipped_sum().copy() for step in private.values()]
    assert len(sums) == 3
    assert np.linalg.norm(sums[0]) > 0.01
    for other in sums[1:]:
        assert np.linalg.norm(other - sums[0]) < 1e-4 * np.linalg.norm(sums[0])
