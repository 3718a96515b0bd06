"""Privacy loss distributions beside dp_accounting's own, which invert the loss point by point."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library

from distributed_privrl.privacy.loss_distributions import _private_round

SAMPLED = [(1e-5, 0.5), (4e-3, 1.0), (0.05, 0.6), (0.2, 4.8), (0.9, 20.0), (1 - 1e-9, 2.0)]


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize(("probability", "multiplier"), SAMPLED)
def test_a_sampled_gaussian_is_the_library_s(
    probability: float, multiplier: float, scale: float
) -> None:
    ours = _private_round(probability, multiplier, scale)
    theirs = library.from_gaussian_mechanism(
        multiplier, value_discretization_interval=ours.interval, sampling_prob=probability
    )
    for direction in ("_pmf_remove", "_pmf_add"):
        mine, other = (
            getattr(one, direction).to_dense_pmf() for one in (ours.distribution, theirs)
        )
        assert mine._lower_loss == other._lower_loss
        np.testing.assert_allclose(mine._probs, other._probs, rtol=0, atol=1e-10)
        assert mine._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-6, abs=1e-30)
    mine, other = (one.self_compose(100) for one in (ours.distribution, theirs))
    figures = [one.get_epsilon_for_delta(1e-6) for one in (mine, other)]
    assert figures[0] == pytest.approx(figures[1], rel=1e-6)
