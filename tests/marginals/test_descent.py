"""Mirror descent with momentum, against that of mbi, the library of private-PGM's authors."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.private_pgm import estimated_by_mbi
from distributed_privrl.marginals import descent, model
from distributed_privrl.marginals.descent import ESTIMATING
from distributed_privrl.marginals.loss import Loss, Measured
from distributed_privrl.marginals.model import estimated
from tests.marginals.fields import joint

SIZES = 9, 9, 9
TOTAL = 50_000.0


def noisy() -> list[Measured]:
    """Return noisy counts of all pairs of three columns, whose cells differ a thousandfold."""
    source = np.random.default_rng(3)
    some = np.exp(-np.arange(9))
    near = np.exp(-np.abs(np.subtract.outer(np.arange(9), np.arange(9))))
    table = np.einsum("a,ab,bc,ac->abc", some, near, near, near)
    table *= TOTAL / table.sum()
    return [
        Measured(pair, table.sum(axis=axis) + source.normal(0, 5.0, (9, 9)), 5.0)
        for axis, pair in enumerate([(1, 2), (0, 2), (0, 1)])
    ]


def loss(shares: NDArray[np.float64], measured: list[Measured]) -> float:
    """Return what an estimate minimises: squared misses in deviations."""
    return sum(
        float(np.square(TOTAL * shares.sum(axis=axis) - one.counts).sum()) / 50
        for axis, one in enumerate(measured)
    )


def by_mbi(measured: list[Measured], iterations: int) -> NDArray[np.float64]:
    """Return the shares that mbi's own mirror descent finds from the same start."""
    found = estimated_by_mbi(
        SIZES, measured, total=TOTAL, start=model._factorised(measured), iterations=iterations
    )
    shares = np.asarray(found.project(("0", "1", "2")).values)
    return np.asarray(shares / shares.sum())


def test_a_fifth_of_the_iterations_finds_a_lower_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = noisy()
    monkeypatch.setattr(model, "_ITERATIONS", 400)
    ours = loss(joint(estimated(SIZES, measured, total=TOTAL)), measured)
    assert ours < loss(by_mbi(measured, 2000), measured)
    assert 2 * ours < loss(by_mbi(measured, 400), measured)


def test_what_was_measured_without_contradiction_is_met() -> None:
    """A step that is too long is taken back; the loss ends at nothing."""
    source = np.random.default_rng(0)
    exact = source.dirichlet(np.full(24, 0.3)).reshape(2, 3, 4)
    measured = [
        Measured(pair, 3000 * exact.sum(axis=axis), 0.01)
        for axis, pair in enumerate([(1, 2), (0, 2), (0, 1)])
    ]
    found = joint(estimated((2, 3, 4), measured, total=3000.0, last=True))
    for axis in range(3):
        np.testing.assert_allclose(found.sum(axis=axis), exact.sum(axis=axis), atol=1e-3)


def test_progress_is_told_in_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_ITERATIONS", 100)
    monkeypatch.setattr(descent, "_PATIENCE", 100)
    told: list[tuple[str, int, int]] = []
    estimated(SIZES, noisy(), total=TOTAL, progress=lambda *one: told.append(one))
    assert told == [(ESTIMATING, done, 100) for done in (0, 25, 50, 75, 100, 100)]


def test_potentials_are_of_cliques_that_lie_in_no_other() -> None:
    """What was measured twice, or within a larger clique, has the potentials of one."""
    three = 0, 1, 2
    whole = np.random.default_rng(1).dirichlet(np.full(24, 5.0)).reshape(2, 3, 4)
    measured = [
        Measured((0, 1), 1000 * whole.sum(axis=2), 2.0),
        Measured(three, 1000 * whole, 4.0),
        Measured((1, 2), 1000 * whole.sum(axis=0), 2.0),
        Measured((0, 1), 1000 * whole.sum(axis=2), 2.0),
        Measured((3,), np.array([400.0, 600.0]), 2.0),
    ]
    found = estimated((2, 3, 4, 2), measured, total=1000.0, last=True)
    assert found.potentials.keys() == {three, (3,)}
    np.testing.assert_allclose(joint(found), np.multiply.outer(whole, [0.4, 0.6]), atol=1e-6)


def test_an_estimate_has_the_same_bits_whatever_was_estimated_before() -> None:
    others = [replace(one, counts=one.counts[::-1] + 7.0) for one in noisy()]
    first = estimated(SIZES, noisy(), total=TOTAL).potentials
    estimated(SIZES, others, total=TOTAL, last=True)
    again = estimated(SIZES, noisy(), total=TOTAL).potentials
    assert again.keys() == first.keys()
    for clique, values in first.items():
        np.testing.assert_array_equal(again[clique], values)


def test_an_estimate_is_the_same_in_other_units() -> None:
    """Counts weigh what units weigh, billions or one."""
    few = [replace(one, counts=one.counts / 1e6, deviations=5e-6) for one in noisy()]
    np.testing.assert_allclose(
        joint(estimated(SIZES, few, total=TOTAL / 1e6)),
        joint(estimated(SIZES, noisy(), total=TOTAL)),
        atol=1e-6,
    )


@pytest.mark.parametrize("deviation", [1e-6, 1.0, 1e6, 1e12])
def test_counts_that_contradict_each_other_end_no_worse_than_they_start(deviation: float) -> None:
    """Empty cells, a column of one bin, sums that are not the total, weights a millionfold."""
    source = np.random.default_rng(5)
    sizes = 1, 3, 4
    for _ in range(5):
        measured = [
            Measured((0,), np.array([source.uniform(0.3, 3) * 1e4]), deviation),
            Measured((1, 2), 1e4 * source.dirichlet(np.full(12, 0.1)).reshape(3, 4), deviation),
            Measured((1,), 3e4 * source.dirichlet(np.full(3, 0.1)), 1e-6 * deviation),
            Measured((0, 2), np.maximum(source.normal(0, 4e3, (1, 4)), 0.0), 1e3 * deviation),
        ]
        start = Loss(sizes, measured, 1e4)
        chain = model._factorised(measured)
        before = start.at(np.concatenate([chain[one.clique].ravel() for one in measured])).loss
        shares = joint(estimated(sizes, measured, total=1e4))
        assert np.isfinite(shares).all()
        after = sum(
            float(np.square((1e4 * shares.sum(axis=axes) - one.counts) / one.deviations).sum()) / 2
            for one, axes in zip(measured, [(1, 2), (0,), (0, 2), (1,)], strict=True)
        )
        assert after <= before * (1 + 1e-9)


@pytest.mark.parametrize("counts", [[-1e9, 1e9], [-3.0, -1.0], [0.0, 0.0]])
def test_counts_that_noise_made_negative_have_an_estimate(counts: list[float]) -> None:
    found = estimated((2,), [Measured((0,), np.array(counts), 1.0)], total=3.0)
    np.testing.assert_allclose(joint(found).sum(), 1)
    assert joint(found)[1] >= joint(found)[0]


def test_counts_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="that are finite"):
        estimated((2,), [Measured((0,), np.array([np.nan, 1.0]), 1.0)], total=3.0)
