"""Mirror descent with momentum, against mbi's own."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.marginals import model
from distributed_privrl.marginals.descent import _expanded, descent
from distributed_privrl.marginals.estimation_backend import backend
from distributed_privrl.marginals.model import ESTIMATING, Measured, estimated
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
    mbi = backend()
    domain = mbi.Domain(["0", "1", "2"], list(SIZES))
    names = [tuple(str(i) for i in one.clique) for one in measured]
    tables = {
        tuple(str(i) for i in clique): mbi.Factor(domain.project([str(i) for i in clique]), table)
        for clique, table in model._factorised(measured).items()
    }
    found = mbi.estimation.MirrorDescent().estimate(
        domain,
        [
            mbi.LinearMeasurement(one.counts.ravel(), name, 5.0)
            for one, name in zip(measured, names, strict=True)
        ],
        known_total=TOTAL,
        iters=iterations,
        warm_start=mbi.CliqueVector(domain, list(tables), tables),
    )
    shares = np.asarray(found.project(("0", "1", "2")).values) / TOTAL
    return np.asarray(shares)


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
    monkeypatch.setattr(model, "_TOLERANCE", None)
    told: list[tuple[str, int, int]] = []
    estimated(SIZES, noisy(), total=TOTAL, progress=lambda *one: told.append(one))
    assert told == [(ESTIMATING, done, 100) for done in (0, 25, 50, 75, 100, 100)]


def test_potentials_are_those_of_larger_cliques() -> None:
    """In the order of the larger ones, and added where two lie in one."""
    mbi = backend()
    domain = mbi.Domain(["a", "b", "c", "d"], [2, 3, 4, 5])
    source = np.random.default_rng(0)
    values = {("c", "a"): source.normal(size=(4, 2)), ("b",): source.normal(size=3)}
    start = mbi.CliqueVector(
        domain,
        list(values),
        {one: mbi.Factor(domain.project(one), table) for one, table in values.items()},
    )
    found = _expanded(domain, [("a", "b", "c"), ("d",)], start)
    together = values["c", "a"].T[:, None, :] + values["b",][None, :, None]
    np.testing.assert_allclose(found["a", "b", "c"], together)
    assert not found["d",].any()


def test_estimates_of_other_numbers_are_not_compiled_anew() -> None:
    """Compiling one takes seconds, and all the rest of it takes a few hundredths."""
    source, line = np.random.default_rng(5), np.repeat(np.eye(2), [2, 1], axis=0)

    def measured() -> list[Measured]:
        pairs = source.gamma(2.0, 50.0, (2, 3, 3))
        return [
            Measured((0, 1), pairs[0], source.uniform(1, 9, (3, 3))),
            Measured((1, 2), pairs[1], 5.0, (line, line * source.uniform(0.5, 1))),
            Measured((2,), pairs[1].sum(axis=0), 3.0),
        ]

    first = estimated((3, 3, 3), measured(), total=1000.0)
    compiled = descent()._multi_step._cache_size()
    second = estimated((3, 3, 3), measured(), total=900.0, last=True)
    assert descent()._multi_step._cache_size() == compiled > 0
    assert not np.allclose(joint(first), joint(second))


def test_an_estimate_has_the_same_bits_whatever_was_estimated_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a program that others left compiled, and by one that is compiled for it alone."""
    others = [replace(one, counts=one.counts[::-1] + 7.0) for one in noisy()]
    estimated(SIZES, others, total=TOTAL, last=True)
    found = [estimated(SIZES, noisy(), total=TOTAL) for _ in range(2)]
    monkeypatch.setattr(model, "descent", descent.__wrapped__)
    found.append(estimated(SIZES, noisy(), total=TOTAL))
    first, *again = [one.potentials for one in found]
    for one in again:
        assert one.keys() == first.keys()
        for clique, values in first.items():
            np.testing.assert_array_equal(one[clique], values)
