import math

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation.one_run import Guesses, epsilon_at_least, guessed


def responses(epsilon: float, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response of each canary: exactly (epsilon, 0), and the best that it allows."""
    generator = np.random.default_rng(seed)
    inside = generator.random(size) < 0.5
    truthful = generator.random(size) < 1 / (1 + math.exp(-epsilon))
    ties = generator.random(size) / 2
    return np.where(inside == truthful, 1.0, 0.0) + ties, inside


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_bound_holds_as_often_as_it_says_and_is_near(epsilon: float) -> None:
    found = [
        epsilon_at_least(
            guessed(*responses(epsilon, 2000, seed), made=400), delta=0.0, confidence=0.95
        )
        for seed in range(100)
    ]
    above = sum(value > epsilon for value in found)
    assert above <= 14  # of a hundred, one in twenty: more has probability 1e-4
    assert np.mean(found) > 0.5 * epsilon


def test_delta_lowers_the_bound_and_may_explain_everything() -> None:
    guesses = Guesses(canaries=1000, made=100, right=95)
    bounds = [epsilon_at_least(guesses, delta=d, confidence=0.95) for d in (0.0, 1e-5, 1e-4, 0.5)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2] > 0
    assert bounds[-1] == 0


def test_guesses_by_hand() -> None:
    scores = np.array([0.1, 5.0, -3.0, 4.0, -2.0])
    inside = np.array([True, True, False, False, True])
    assert guessed(scores, inside, made=4) == Guesses(canaries=5, made=4, right=2)
    for made in (1, 6):
        with pytest.raises(ConfigError, match="made must lie in"):
            guessed(scores, inside, made=made)


def test_no_right_guess_bounds_nothing() -> None:
    assert epsilon_at_least(Guesses(canaries=9, made=9, right=0), delta=0, confidence=0.9) == 0
