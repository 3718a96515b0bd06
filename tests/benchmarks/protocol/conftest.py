from typing import Any

import pytest

from benchmarks.protocol import grid_judge
from benchmarks.protocol.rows import Rows
from benchmarks.protocol.starts import Score


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the judge was given, each time; it finds the first 90, each further 10 less."""
    seen: list[int] = []

    def judge(rows: Rows, *_: Any) -> tuple[Score, list[Score]]:
        seen.append(len(rows))
        found = Score(earned=1.0, normalised=100.0 - 10 * len(seen), reach=1.0, hold=None)
        return found, [found]

    monkeypatch.setattr(grid_judge, "judge", judge)
    return seen
