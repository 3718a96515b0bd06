"""The benchmark of a step of tuning at a tiny scale."""

import pytest

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from benchmarks import tuning_step
from tests.benchmarks.quick import last_line


def test_the_share_of_writing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = last_line(tuning_step, capsys)
    assert 0 < found["ratios"]["generation_share"] < 1
