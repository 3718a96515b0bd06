"""The benchmark of DP-APVI: its table, and a linear program that agrees with the projection."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks import processes, value_iteration
from distributed_privrl.methods.value_iteration.projection import project_counts
from tests.benchmarks.quick import last_line


def test_value_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    found = last_line(value_iteration, capsys)
    assert found["ratios"]["projection_vs_lp"] > 100
    assert found["projection_difference"] < 1e-9
    assert found["noisy_numbers"] == 20 * 16 * 4 * (16 + 1)
    assert 0 < found["ratios"]["local_memory_vs_allowed"] < 1
    assert 0 < found["ratios"]["local_wall_vs_allowed"] < 1


@pytest.mark.parametrize("pair", [0.0, 3.0, 40.0])
def test_the_linear_program_is_the_same_problem(pair: float) -> None:
    row = np.maximum(np.random.default_rng(1).normal(1, 4, 12), 0)
    ours, _ = project_counts(row[None], np.array([pair]), 2.0)
    np.testing.assert_allclose(
        value_iteration.by_linear_program(row, pair, 2.0), ours[0], atol=1e-9
    )


def test_what_is_used_is_measured_while_it_is_used_and_in_processes_that_end() -> None:
    burn = "import time\nwhile time.process_time() < 1: pass"

    def work() -> None:
        held = np.ones(int(2e7))
        subprocess.run([sys.executable, "-S", "-c", burn], check=True)
        held += 1

    before = processes.own_memory_bytes()
    used = value_iteration.measured(work)
    assert used.peak > before + 1.4e8
    assert 0.7 < used.cpu < 4
    assert used.wall > 0.7
