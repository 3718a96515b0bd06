"""The number of trials of a private selection follows its law, to the last draw."""

import math

import numpy as np
import pytest
from scipy import stats

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.repetitions import TrialCount

LAWS = {
    "geometric": TrialCount(mean=5.0, shape=1.0),
    "logarithmic": TrialCount(mean=5.0, shape=0.0),
    "between them": TrialCount(mean=5.0, shape=0.5),
    "steeper": TrialCount(mean=3.0, shape=4.0),
    "poisson": TrialCount(mean=5.0, shape=None),
}
DRAWS = 6_000
BY_CHANCE = 1e-7
"""How often a right draw fails a test here."""


@pytest.mark.parametrize("name", LAWS)
def test_probabilities_are_a_law_with_the_mean_that_is_charged(name):
    law = LAWS[name]
    found = law.probabilities(2000)
    assert math.fsum(found) == pytest.approx(1.0, abs=1e-12)
    assert math.fsum(k * p for k, p in enumerate(found)) == pytest.approx(law.mean, rel=1e-12)
    assert (found[0] > 0) == (law.shape is None)  # no other law gives no trial at all


def test_probabilities_are_those_of_the_textbook():
    places = np.arange(60)
    expected = {
        "geometric": stats.geom.pmf(places, 1 / 5),
        "poisson": stats.poisson.pmf(places, 5.0),
    }
    for name, law in expected.items():
        assert LAWS[name].probabilities(59) == pytest.approx(law, rel=1e-12)
    logarithmic = LAWS["logarithmic"].probabilities(59)
    rate = logarithmic[2] / logarithmic[1] * 2
    assert logarithmic[1:] == pytest.approx(stats.logser.pmf(places[1:], rate), rel=1e-10)
    steeper = LAWS["steeper"].probabilities(59)
    success = 1 - steeper[2] / steeper[1] * 2 / 5
    free = stats.nbinom.pmf(places, 4, success)
    assert steeper[1:] == pytest.approx(free[1:] / (1 - free[0]), rel=1e-10)


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_the_law(name):
    law = LAWS[name]
    seen = np.bincount([law.draw() for _ in range(DRAWS)])
    assert goodness(seen, law) > BY_CHANCE
    other = TrialCount(mean=1.5 * law.mean, shape=law.shape)
    assert goodness(seen, other) < BY_CHANCE, "a mean half as high again is told apart"


def goodness(seen, law):
    """Return the p-value of the chi-square test, rare numbers together."""
    probabilities = np.array(law.probabilities(max(len(seen), 200)))
    padded = np.zeros(len(probabilities))
    padded[: len(seen)] = seen
    common = DRAWS * probabilities >= 10
    observed = np.append(padded[common], padded[~common].sum())
    expected = DRAWS * np.append(probabilities[common], 1 - probabilities[common].sum())
    some = expected > 1e-9
    assert not observed[~some].any()
    return stats.chisquare(observed[some], expected[some] * DRAWS / expected[some].sum()).pvalue


def test_a_draw_takes_the_whole_range_of_its_bits():
    law, asked = LAWS["geometric"], []

    def bits(fill):
        def draw(count):
            asked.append(count)
            return (1 << count) - 1 if fill else 0

        return draw

    assert law.draw(bits(fill=False)) == 1
    assert LAWS["poisson"].draw(bits(fill=False)) == 0
    # The last number whose tail is above 2^-193: nothing is cut off before.
    assert law.draw(bits(fill=True)) == pytest.approx(193 * math.log(2) / -math.log(0.8), abs=2)
    assert set(asked) == {192}


def test_a_middle_draw_is_the_quantile():
    law = LAWS["geometric"]
    for share in (0.1, 0.3, 0.5, 0.9, 0.99):
        found = law.draw(lambda count, share=share: int(share * 2**count))
        assert found == stats.geom.ppf(share, 1 / 5)


@pytest.mark.parametrize(
    ("mean", "shape"), [(1.0, 1.0), (10_001, 1.0), (math.nan, 0.0), (5, -0.1), (5, 101), (0, None)]
)
def test_what_is_no_law_is_refused(mean, shape):
    with pytest.raises(ConfigError, match=r"mean|shape"):
        TrialCount(mean=mean, shape=shape)


@pytest.mark.parametrize("shape", [1.0, 0.0, 100.0, None])
def test_large_means_are_drawn_too(shape):
    law = TrialCount(mean=10_000.0, shape=shape)
    assert law.draw() >= 0
