"""The gates on votes of teachers let the right code pass."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import pate

GATES = [
    pate.gate_whole_run,
    pate.gate_a_unit_moves_a_count_by_one,
    pate.gate_teachers_share_no_unit,
]


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: str(gate.__name__))
def test_the_gates(gate: Callable[[Path], None], tmp_path: Path) -> None:
    gate(tmp_path)
