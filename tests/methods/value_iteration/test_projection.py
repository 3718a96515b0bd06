"""Equation 3: equal to the linear program, and much faster; equation 5: moments of the estimate."""

import time

import numpy as np
import pytest
from scipy.optimize import linprog

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.value_iteration.projection import (
    project_counts,
    transition_moments,
)


def by_linear_program(row: np.ndarray, pair: float, slack: float) -> np.ndarray:
    """Solve equation 4: variables x and t."""
    size = len(row)
    near = np.hstack([np.eye(size), -np.ones((size, 1))])
    far = np.hstack([-np.eye(size), -np.ones((size, 1))])
    total = np.append(np.ones(size), 0.0)
    result = linprog(
        np.append(np.zeros(size), 1.0),
        A_ub=np.vstack([near, far, total, -total]),
        b_ub=np.concatenate([row, -row, [pair + slack / 2, slack / 2 - pair]]),
        bounds=[(0, None)] * (size + 1),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert result.status == 0
    return result.x[:size]


def instances():
    generator = np.random.default_rng(3)
    for number in range(120):
        size = int(generator.integers(1, 9))
        row = np.maximum(generator.normal(1, 6, size), 0)
        if number % 3 == 0:
            row = np.round(row)  # ties and zeros
        if number % 10 == 0:
            row[:] = 0
        pair = max(0.0, generator.normal(row.sum() / 2 if number % 2 else 2 * row.sum(), 8))
        yield row, pair * (number % 7 > 0), [0.0, 0.5, 4.0, 60.0][number % 4]


@pytest.mark.parametrize(("row", "pair", "slack"), list(instances()))
def test_the_projection_solves_the_linear_program(row, pair, slack):
    projected, totals = project_counts(row[None], np.array([pair]), slack)
    expected = by_linear_program(row, pair, slack)
    assert np.abs(projected[0] - row).max() == pytest.approx(np.abs(expected - row).max(), abs=1e-9)
    assert projected[0] == pytest.approx(expected, abs=1e-9)
    assert totals[0] == pytest.approx(projected[0].sum(), abs=1e-9)
    assert abs(totals[0] - pair) <= slack / 2 + 1e-9


def test_known_solutions():
    rows = np.array([[4.0, 2.0, 0.0], [4.0, 2.0, 0.0], [4.0, 2.0, 0.0], [3.0, 3.0, 3.0]])
    pairs = np.array([2.0, 10.0, 6.5, 0.0])
    projected, totals = project_counts(rows, pairs, 2.0)
    expected = [[2.5, 0.5, 0.0], [5.0, 3.0, 1.0], [4.0, 2.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    assert projected == pytest.approx(np.array(expected), abs=1e-15)
    assert totals == pytest.approx([3.0, 9.0, 6.0, 1.0])


def test_exact_counts_stay_as_they_are_without_slack():
    rows = np.random.default_rng(0).integers(0, 9, (50, 7)).astype(float)
    projected, totals = project_counts(rows, rows.sum(axis=1), 0.0)
    assert np.array_equal(projected, rows)
    assert np.array_equal(totals, rows.sum(axis=1))


def test_nothing_is_left_where_the_sum_must_be_zero():
    projected, totals = project_counts(np.array([[5.0, 5.0, 1e-9]]), np.zeros(1), 0.0)
    assert np.array_equal(projected, np.zeros((1, 3)))
    assert totals[0] == 0


def test_steep_rows_need_many_newton_steps_and_still_end():
    row = 2.0 ** np.arange(40)
    projected, totals = project_counts(row[None], np.array([1.0]), 0.0)
    assert totals[0] == 1.0
    assert np.count_nonzero(projected) == 1


def test_ties_at_the_threshold_end():
    generator = np.random.default_rng(5)
    rows = np.repeat(generator.random((2000, 3)), 7, axis=1)
    pairs = rows[:, :7].sum(axis=1) * generator.random(2000)
    projected, totals = project_counts(rows, pairs, 0.0)
    assert totals == pytest.approx(pairs, abs=1e-12)
    assert np.array_equal(projected[:, :6], projected[:, 1:7])


def test_the_projection_may_overwrite_its_input():
    rows = np.random.default_rng(1).random((9, 5))
    expected, _ = project_counts(rows, np.ones(9), 0.1)
    projected, _ = project_counts(rows, np.ones(9), 0.1, out=rows)
    assert projected is rows
    assert np.array_equal(rows, expected)


def test_the_projection_is_a_hundred_times_faster_than_a_solver():
    rows = np.maximum(np.random.default_rng(2).normal(0, 9, (500, 64)), 0)
    pairs = np.full(500, 20.0)
    project_counts(rows, pairs, 4.0)

    def seconds(work):
        start = time.process_time()  # which other processes do not lengthen
        work()
        return time.process_time() - start

    ours = min(seconds(lambda: project_counts(rows, pairs, 4.0)) for _ in range(3)) / 500
    solver = min(seconds(lambda: by_linear_program(rows[0], 20.0, 4.0)) for _ in range(3))
    assert solver > 100 * ours


@pytest.mark.parametrize(
    ("rows", "pairs", "slack", "named"),
    [
        (np.zeros(3), np.zeros(3), 0.0, "noisy_next"),
        (np.zeros((2, 0)), np.zeros(2), 0.0, "noisy_next"),
        (np.zeros((2, 3)), np.zeros(3), 0.0, "noisy_pair"),
        (np.zeros((2, 3)), np.zeros(2), -1.0, "slack"),
        (np.full((2, 3), -1.0), np.zeros(2), 0.0, "noisy_next"),
        (np.zeros((2, 3)), np.array([0.0, np.nan]), 0.0, "noisy_pair"),
        (np.full((2, 3), np.inf), np.zeros(2), 0.0, "noisy_next"),
    ],
)
def test_impossible_counts_are_refused(rows, pairs, slack, named):
    with pytest.raises(ConfigError, match=named):
        project_counts(rows, pairs, slack)


def test_moments_are_those_of_the_estimate():
    counts = np.array([[1.0, 3.0], [0.5, 0.5], [0.0, 8.0]])
    means, variances = transition_moments(
        counts, counts.sum(axis=1), np.array([2.0, 6.0]), threshold=1.0
    )
    assert means == pytest.approx([5.0, 4.0, 6.0])  # the second is uniform: 1 is not above 1
    assert variances == pytest.approx([3.0, 4.0, 0.0])
    skewed = transition_moments(
        np.array([[1.0, 0.0]]), np.ones(1), np.array([2.0, 6.0]), threshold=1.0
    )
    assert skewed[0] == pytest.approx([4.0])
    with pytest.raises(ConfigError, match="values"):
        transition_moments(counts, counts.sum(axis=1), np.zeros(3), threshold=0.0)
