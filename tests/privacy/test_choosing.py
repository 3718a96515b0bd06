"""Who may choose: one law for both sources, and secure choices that nobody can repeat.

`tests/gates/quantiles.py` compares the secure source with the law of permute-and-flip.
"""

from collections import Counter

import numpy as np
import opendp.prelude as dp
import pytest
from scipy import stats

from distributed_privrl.privacy.choosing import (
    LARGEST_DISTANCE,
    LARGEST_SCORE,
    SecureChooser,
    SeededChooser,
)
from tests.gates.bounds import ALPHA
from tests.gates.quantiles import law
from tests.gates.selections import law as exponential_law


def test_seeded_choices_follow_the_law():
    distances, draws = (0, 1, 2, 3), 4_000
    for scale in (0.5, 2.0):
        seen = Counter(
            SeededChooser(5).choose(distances, scale=scale, tag=tag) for tag in range(draws)
        )
        expected = np.array(law(distances, scale)) * draws
        fit = stats.chisquare([seen[position] for position in range(4)], expected)
        assert fit.pvalue > ALPHA


def test_the_law_is_permute_and_flip():
    assert np.isclose(sum(law((0, 3, 8), 2.0)), 1.0)
    assert np.allclose(law((7, 7), 1.0), [0.5, 0.5])
    taken = np.exp(-1)  # when looked at first, which happens half of the time
    assert np.allclose(law((0, 1), 1.0), [1 - taken / 2, taken / 2])


def test_a_seed_and_a_tag_give_the_same_choice_whatever_was_drawn_before():
    distances = list(range(50))
    first = SeededChooser(1)
    draws = [first.choose(distances, scale=20.0, tag=tag) for tag in range(20)]
    second = SeededChooser(1)
    assert [second.choose(distances, scale=20.0, tag=tag) for tag in (7, 3)] == [draws[7], draws[3]]
    other = SeededChooser(2)
    assert [other.choose(distances, scale=20.0, tag=tag) for tag in range(20)] != draws


def test_distances_of_any_size_are_taken():
    for chooser in (SecureChooser(), SeededChooser(0)):
        assert chooser.choose([LARGEST_DISTANCE, 5, 10**18], scale=1.0) == 1
        assert chooser.choose([3], scale=1e-6) == 0
        assert chooser.choose([0, 0, LARGEST_DISTANCE], scale=1e12) in (0, 1)


def test_secure_choices_differ():
    chooser = SecureChooser()
    draws = [chooser.choose([0] * 1000, scale=1.0) for _ in range(4)]
    assert len(set(draws)) > 1


@pytest.mark.parametrize("chooser", [SecureChooser(), SeededChooser(5)], ids=["secure", "seeded"])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_exponential_choices_have_the_scale_that_is_asked_and_a_fifth_less_or_more_fails(
    chooser, scale
):
    scores, draws = np.array([-3, -2, 0, 1]), 4_000
    seen = Counter(
        chooser.choose_exponential(scores.tolist(), scale=scale, tag=tag) for tag in range(draws)
    )
    observed = [seen[position] for position in range(4)]

    def fit(factor):
        return stats.chisquare(observed, exponential_law(scores, factor * scale) * draws).pvalue

    assert fit(1.0) > ALPHA
    assert fit(0.8) < ALPHA
    assert fit(1.25) < ALPHA


@pytest.mark.parametrize(("sensitivity", "scale"), [(1, 2.0), (3, 0.7), (2**20, 2.0**22)])
def test_opendp_charges_exponential_choices_what_the_event_states(sensitivity, scale):
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.linf_distance(T="i64")
    noisy = dp.m.make_noisy_max(*space, dp.zero_concentrated_divergence(), scale=scale)
    assert noisy.map(sensitivity) == pytest.approx((2 * sensitivity / scale) ** 2 / 8, rel=1e-12)


def test_scores_of_any_size_and_sign_are_taken():
    for chooser in (SecureChooser(), SeededChooser(0)):
        assert chooser.choose_exponential([-LARGEST_SCORE, 5, LARGEST_SCORE], scale=1.0) == 2
        assert chooser.choose_exponential([-LARGEST_SCORE, 0], scale=1e-6) == 1
        assert chooser.choose_exponential([3], scale=1e-6) == 0
        assert chooser.choose_exponential([0, 0, -LARGEST_SCORE], scale=1e12) in (0, 1)


def test_exponential_choices_repeat_by_seed_and_tag_alone():
    scores = list(range(50))
    first, again, other = SeededChooser(1), SeededChooser(1), SeededChooser(2)
    draws = [first.choose_exponential(scores, scale=20.0, tag=tag) for tag in range(20)]
    assert [again.choose_exponential(scores, scale=20.0, tag=tag) for tag in (7, 3)] == [
        draws[7],
        draws[3],
    ]
    assert [other.choose_exponential(scores, scale=20.0, tag=tag) for tag in range(20)] != draws
    secure = [SecureChooser().choose_exponential([0] * 1000, scale=1.0) for _ in range(4)]
    assert len(set(secure)) > 1
