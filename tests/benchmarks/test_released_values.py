"""The benchmark of values that may leave: its table."""

import pytest

from benchmarks import released_values
from tests.benchmarks.quick import last_line


def test_released_values(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("icu_sepsis", reason="the extra `envs` is not installed")
    found = last_line(released_values, capsys)
    assert abs(found["ratios"]["clinicians_as_real_rows_error"]) < 0.2
