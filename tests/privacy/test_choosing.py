"""Who may choose: one law for both sources, and secure choices that nobody can repeat.

`tests/gates/quantiles.py` compares the secure source with the law.
"""

from collections import Counter

import numpy as np
from scipy import stats

from distributed_privrl.privacy.choosing import LARGEST_DISTANCE, SecureChooser, SeededChooser
from tests.gates.bounds import ALPHA
from tests.gates.quantiles import law


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
