import math

import numpy as np
import pytest
from scipy.spatial import cKDTree

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation import neighbours
from distributed_privrl.evaluation.neighbours import (
    Copying,
    copying,
    coverage,
    distances_within,
    expected_coverage,
    nearest_distances,
    standardised,
)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_nearest_distances_by_hand() -> None:
    training = np.array([[0.0, 0.0], [10.0, 0.0]])
    rows = np.array([[3.0, 4.0], [10.0, 1.0], [5.0, 0.0]])
    np.testing.assert_allclose(nearest_distances(rows, training), [5, 1, 5])


def test_distances_within_leave_the_row_itself_out() -> None:
    rows = np.array([[0.0], [1.0], [3.0], [7.0]])
    np.testing.assert_allclose(distances_within(rows), [1, 1, 2, 4])
    np.testing.assert_allclose(distances_within(rows, 2), [3, 2, 3, 6])
    np.testing.assert_allclose(distances_within(np.zeros((3, 2))), 0)  # copies of itself
    with pytest.raises(ConfigError, match=r"1 \.\. 3, got 4"):
        distances_within(rows, 4)


def test_standardised_by_hand() -> None:
    reference = np.array([[0.0, 5.0], [4.0, 5.0]])
    (table,) = standardised(reference, np.array([[6.0, 7.0]]))
    np.testing.assert_allclose(table, [[2, 2]])  # deviation 2; the constant column keeps its unit


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 3)), "columns of the reference"),
        (np.zeros((0, 2)), "one row or more"),
        (np.array([[0.0, np.nan]]), "not finite"),
    ],
)
def test_wrong_rows_are_named(rows: np.ndarray, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        standardised(np.eye(2), rows)


def test_coverage_by_hand() -> None:
    reference = np.array([[0.0], [1.0], [3.0], [7.0]])  # radii for k=1: 1, 1, 2, 4
    assert coverage(reference, np.array([[-0.9]]), neighbours=1) == 0.25
    assert coverage(reference, np.array([[5.0]]), neighbours=1) == 0.5  # 2 from 3, 2 from 7
    assert coverage(reference, np.array([[5.1]]), neighbours=1) == 0.25
    assert coverage(reference, reference, neighbours=1) == 1


def test_coverage_of_the_same_distribution_is_as_expected() -> None:
    source = generator()
    shares = [coverage(*source.normal(size=(2, 200, 3)), neighbours=3) for _ in range(20)]
    assert np.mean(shares) == pytest.approx(expected_coverage(200, 200, neighbours=3), abs=0.015)
    assert expected_coverage(3, 2, neighbours=2) == pytest.approx(1 - (2 / 4) * (1 / 3))


def detected(training: np.ndarray, held_out: np.ndarray, synthetic: np.ndarray) -> Copying:
    return copying(training, held_out, synthetic, generator=generator(5), permutations=499)


def test_shares_by_hand() -> None:
    training, held_out = np.array([[0.0], [10.0]]), np.array([[4.0], [13.0]])
    found = detected(training, held_out, np.array([[1.0], [3.0], [11.0]]))
    np.testing.assert_allclose(found.to_training, [1, 3, 1])
    np.testing.assert_allclose(found.to_held_out, [3, 1, 2])
    np.testing.assert_allclose(found.held_out_to_training, [4, 3])
    assert found.training_share == pytest.approx(2 / 3)
    assert (found.expected_share, found.groups) == (0.5, 4)
    # Of the six pairs (1, 3, 1) against (4, 3) five are nearer, one is a tie.
    assert found.nearer_share == pytest.approx(5.5 / 6)
    assert found.near_copies == pytest.approx(2 / 3)  # below 3, the least distance held out
    assert found.shared == 0


def test_copies_are_detected_and_fresh_rows_are_not() -> None:
    source = generator()
    training, held_out, fresh = source.normal(size=(3, 150, 4))
    copies = detected(training, held_out, training + 0.05 * source.normal(size=(150, 4)))
    assert copies.fires()
    assert copies.training_share > 0.9
    assert copies.near_copies > 0.9
    honest = detected(training, held_out, fresh)
    assert not honest.fires()
    assert honest.nearer_share == pytest.approx(0.5, abs=0.1)
    assert honest.near_copies < 0.05


def test_a_few_copies_among_bad_rows_are_detected() -> None:
    source = generator(1)
    training, held_out = source.normal(size=(2, 150, 4))
    far = source.normal(size=(100, 4)) * 4
    assert detected(training, held_out, np.concatenate([training[:80], far])).fires()
    assert not detected(training, held_out, far).fires()


def test_rows_from_the_middle_alone_are_nearer_but_no_copies() -> None:
    """The rank test takes them for copies: that is why the detector does not fire on it."""
    source = generator(2)
    training, held_out = source.normal(size=(2, 200, 4))
    found = detected(training, held_out, 0.2 * source.normal(size=(200, 4)))
    assert found.nearer_p_value < 1e-6
    assert not found.fires()


def test_the_false_alarm_rate_is_that_of_the_level() -> None:
    source, values = generator(3), []
    for _ in range(200):
        training, held_out, fresh = source.normal(size=(3, 20, 2))
        found = copying(training, held_out, fresh, generator=source, permutations=99)
        values.append(found.p_value)
    # Of 200 exact p-values about 20 are at most .1: binomial, alpha 1e-6 on either side.
    assert 4 <= sum(value <= 0.1 for value in values) <= 46


def test_rows_of_a_group_are_one_witness() -> None:
    """Held-out trajectories elsewhere are no evidence if there are two of them alone."""
    source = generator(4)
    training, held_out = source.normal(size=(2, 40, 2))
    held_out += 3
    fresh = source.normal(size=(60, 2))
    groups = {"training_groups": np.arange(40) // 20, "held_out_groups": np.arange(40) // 20}
    assert detected(training, held_out, fresh).fires()
    grouped = copying(training, held_out, fresh, generator=generator(5), **groups)
    assert grouped.groups == 4
    assert not grouped.fires()


def test_equal_rows_on_both_sides_are_nobodys() -> None:
    rows = np.repeat(np.eye(3), 30, axis=0)  # a discrete world: every row is on both sides
    found = detected(rows, rows, rows)
    assert not found.fires()
    assert found.shared == 1
    assert math.isclose(found.nearer_share, 0.5)


def test_many_columns_give_the_distances_of_a_tree_and_ask_none(monkeypatch) -> None:
    """One-hot rows, many of them alike; and numbers, one of which is nearly a copy."""
    source = np.random.default_rng(0)
    one_hot = np.eye(200)[source.integers(0, 200, 300)] * 14
    numbers = source.normal(size=(300, 200))
    numbers[7] = numbers[3] + 1e-9
    expected = [cKDTree(table).query(table, k=[4])[0][:, 0] for table in (one_hot, numbers)]
    copy = cKDTree(numbers[:5]).query(numbers[5:])[0]

    def refuse(*_: object) -> None:
        raise AssertionError("a tree looks at every pair of rows of many columns")

    monkeypatch.setattr(neighbours, "cKDTree", refuse)
    for table, distances in zip((one_hot, numbers), expected, strict=True):
        np.testing.assert_allclose(distances_within(table, 3), distances, rtol=1e-12)
    np.testing.assert_allclose(nearest_distances(numbers[5:], numbers[:5]), copy, rtol=1e-6)
