"""Runs of cells: the best division, and the mean over all of them."""

from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np
import pytest

from distributed_privrl.marginals.divisions import Divisions, cost_of_run, shrunk

CELLS = 7


def divisions() -> Iterator[list[tuple[int, int]]]:
    """Yield all ways to divide a few cells into runs."""
    for cuts in product([False, True], repeat=CELLS - 1):
        ends = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), CELLS]
        yield list(pairwise(ends))


def errors(noisy: np.ndarray, widths: np.ndarray, runs: list[tuple[int, int]]) -> float:
    found = 0.0
    for start, stop in runs:
        counts, wide = noisy[start:stop] / 2.0, widths[start:stop] / widths.mean()
        found += ((counts - wide * (counts @ wide) / (wide @ wide)) ** 2).sum() + 3.0
    return float(found)


@pytest.mark.parametrize("seed", range(8))
def test_best_and_mean_are_those_of_all_divisions(seed: int) -> None:
    random = np.random.default_rng(seed)
    widths = random.uniform(0.5, 2, CELLS)
    noisy = np.where(np.arange(CELLS) < 3, 12.0, 2.0) * widths + random.normal(0, 2, CELLS)
    made = Divisions(noisy, widths, 2.0, 3.0)
    every = list(divisions())
    losses = np.array([errors(noisy, widths, runs) for runs in every])
    best = [(run.start, run.stop) for run in made.best()]
    assert best == every[int(np.argmin(losses))]
    likely = np.exp((losses.min() - losses) / 2)
    mean = np.zeros(CELLS)
    for runs, share in zip(every, likely / likely.sum(), strict=True):
        for start, stop in runs:
            wide, mass = widths[start:stop], noisy[start:stop].sum()
            dense = max((noisy[start:stop] @ wide) / (wide @ wide), 0.0)
            kept = shrunk(mass, 2.0 * np.sqrt(stop - start)) / mass if mass > 0 else 0.0
            mean[start:stop] += share * dense * kept * wide
    assert made.mean() == pytest.approx(mean)


def test_a_column_that_falls_steadily_is_not_flat_where_noise_is_large() -> None:
    """As years of work of 595 people: the best division has one run, in most draws."""
    counts = np.linspace(2.0, 0.0, 50)
    flat, best, mean = 0, [], []
    for seed in range(40):
        noisy = counts + np.random.default_rng(seed).normal(0, 3.0, 50)
        made = Divisions(noisy, np.ones(50), 3.0, cost_of_run(50))
        runs = list(made.best())
        flat += len(runs) == 1
        pieces = np.concatenate([np.full(r.stop - r.start, noisy[r].mean()) for r in runs])
        for found, weights in ((best, np.maximum(pieces, 0)), (mean, made.mean())):
            misses = np.cumsum(weights / weights.sum() - counts / counts.sum())
            found.append(np.abs(misses).sum())
    assert flat > 20
    assert np.median(mean) < 0.75 * np.median(best)


def test_cells_without_noise_are_as_they_are() -> None:
    counts = np.repeat([900.0, 0.0, 400.0], 20)
    mean = Divisions(counts, np.ones(60), 1.0, cost_of_run(60)).mean()
    assert mean == pytest.approx(counts, abs=0.5)
