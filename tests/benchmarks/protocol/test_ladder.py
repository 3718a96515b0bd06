import numpy as np
import pytest

from benchmarks.protocol import ladder
from benchmarks.protocol.ladder import ABOVE, RUNGS, Admission, NotAdmittedError, disorder
from benchmarks.protocol.rows import Rows
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams

ORDERED = dict(zip(RUNGS, (90.0, 60.0, 40.0, 5.0, 10.0), strict=True))


@pytest.fixture
def rows() -> Rows:
    rng = np.random.default_rng(0)
    made = rng.standard_normal((4000, 11)).astype(np.float32)
    return Rows(
        observations=made[:, :4],
        actions=made[:, 4:6],
        rewards=made[:, 6],
        next_observations=made[:, 7:],
    )


def test_an_ordered_ladder_admits_its_judge() -> None:
    assert Admission("grid", ORDERED).judge == "grid"


@pytest.mark.parametrize(("high", "low"), ABOVE)
def test_two_rungs_that_do_not_lie_apart_publish_nothing(high: str, low: str) -> None:
    scores = {**ORDERED, high: ORDERED[low] + ladder.MARGIN - 0.01}
    assert any(f"above {low}" in reason for reason in disorder(scores))
    with pytest.raises(NotAdmittedError, match="grid publishes nothing"):
        Admission("grid", scores)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_missing_rung_or_one_without_a_number_publishes_nothing(rung: str) -> None:
    with pytest.raises(NotAdmittedError, match=f"{rung} was not run"):
        Admission("grid", {name: ORDERED[name] for name in RUNGS if name != rung})
    with pytest.raises(NotAdmittedError, match="nan"):
        Admission("grid", {**ORDERED, rung: float("nan")})


def test_fewer_rows_are_rows_of_the_recording_once_each(rows: Rows) -> None:
    few = ladder.fewer(rows, Streams(1), count=500)
    assert len(few) == 500
    kept = np.isin(rows.rewards, few.rewards)
    assert kept.sum() == 500
    np.testing.assert_array_equal(few.actions, rows.actions[kept])
    assert len(ladder.fewer(rows, Streams(1), count=10**6)) == len(rows)


def test_blurred_rows_have_noise_of_the_stated_size_and_true_rewards(rows: Rows) -> None:
    blur = ladder.blurred(rows, Streams(1))
    for name in ("observations", "actions", "next_observations"):
        noise = getattr(blur, name) - getattr(rows, name)
        np.testing.assert_allclose(noise.std(axis=0), ladder.BLUR, rtol=0.1)
    np.testing.assert_array_equal(blur.rewards, rows.rewards)


def test_shuffled_actions_are_the_same_ones_elsewhere(rows: Rows) -> None:
    mixed = ladder.shuffled(rows, Streams(1))
    np.testing.assert_array_equal(np.sort(mixed.actions[:, 0]), np.sort(rows.actions[:, 0]))
    assert (mixed.actions[:, 0] == rows.actions[:, 0]).mean() < 0.01
    np.testing.assert_array_equal(mixed.observations, rows.observations)


def test_rows_without_finite_numbers_are_left_out(rows: Rows) -> None:
    rows.actions[:3] = np.nan
    assert len(rows.finite()) == len(rows) - 3
    rows.rewards[:] = np.inf
    with pytest.raises(ConfigError, match="no row is finite"):
        rows.finite()
