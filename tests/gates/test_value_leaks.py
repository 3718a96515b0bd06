"""Whole runs of `policy_value`: what may leave holds no secret."""

from pathlib import Path

from tests.gates.value_leaks import gate_nothing_leaves, judged_run


def test_nothing_that_may_leave_holds_a_secret(tmp_path: Path) -> None:
    gate_nothing_leaves(judged_run(tmp_path))
