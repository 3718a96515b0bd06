"""The gate on the sums behind a policy's value."""

from pathlib import Path

from tests.gates.values import gate_value_sums


def test_a_unit_adds_its_own_integers_and_no_more(tmp_path: Path) -> None:
    gate_value_sums(tmp_path)
