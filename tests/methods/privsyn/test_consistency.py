"""Marginals that agree: averages by what is known best, no negative cell, one total."""

import numpy as np
import pytest

from distributed_privrl.marginals.cleaning import norm_sub
from distributed_privrl.marginals.tables import Margin
from distributed_privrl.methods.privsyn.consistency import consistent

SIZES = (4, 3, 5)


def truth() -> np.ndarray:
    return np.random.default_rng(3).gamma(0.5, 1, SIZES) * 1000


def test_noisy_marginals_agree_and_come_nearer() -> None:
    joint = truth()
    total = float(joint.sum())
    exact = {(0, 1): joint.sum(axis=2), (1, 2): joint.sum(axis=0), (0, 2): joint.sum(axis=1)}
    deviations = {(0, 1): 20.0, (1, 2): 200.0, (0, 2): 60.0}
    singles = [joint.sum(axis=tuple(set(range(3)) - {i})) for i in range(3)]
    errors = np.zeros((2, 6))
    for seed in range(8):
        random = np.random.default_rng(seed)
        noisy = {
            one: table + deviations[one] * random.normal(size=table.shape)
            for one, table in exact.items()
        }
        margins = [
            Margin(one + 30 * random.normal(size=len(one)), np.full(len(one), 30.0))
            for one in singles
        ]
        found, pairs = consistent(margins, noisy, deviations, total)
        for clique, table in pairs.items():
            assert table.min() >= 0
            assert table.sum() == pytest.approx(total)
            for axis, place in enumerate(clique):
                assert np.abs(table.sum(axis=1 - axis) - found[place]).sum() < 0.02 * total
        before, true = (
            [*noisy.values(), *(one.masses for one in margins)],
            [*exact.values(), *singles],
        )
        for row, made in enumerate((before, [*pairs.values(), *found])):
            errors[row] += [np.abs(x - y).sum() for x, y in zip(made, true, strict=True)]
    ratios = errors[1] / errors[0]
    assert ratios[1] < 0.8  # the noisiest pair has learned most
    assert (ratios < 1.02).all()


def test_a_count_with_little_noise_decides() -> None:
    sure = np.array([[300.0, 100.0], [50.0, 550.0]])
    margins = [Margin(np.array([500.0, 500.0]), np.full(2, 1e3))] * 2
    found, _ = consistent(margins, {(0, 1): sure}, {(0, 1): 0.1}, 1000.0)
    np.testing.assert_allclose(found[0], [400, 600], rtol=1e-3)
    np.testing.assert_allclose(found[1], [350, 650], rtol=1e-3)


@pytest.mark.parametrize("counts", [[1.0, 2.0, 3.0], [-5.0, 100.0, -7.0], [-1.0, -2.0, -3.0]])
def test_what_is_taken_off_is_one_number(counts: list[float]) -> None:
    found = norm_sub(np.array(counts), 6.0)
    assert found.sum() == pytest.approx(6)
    assert found.min() >= 0
    kept = found > 0
    taken = (np.array(counts) - found)[kept]
    assert np.ptp(taken) < 1e-9
    assert (np.array(counts)[~kept] <= taken[0] + 1e-9).all()
