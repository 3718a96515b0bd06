"""Draws that are chosen so that columns go together as released correlations say."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.marginals.attack import ModelAttack
from distributed_privrl.marginals.correlations import (
    Correlations,
    answers_of,
    pairs_of,
    questions_of,
)
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.tilting import Tilt, Traits, block_sizes, fitted_tilt
from tests.marginals.fields import model_of
from tests.marginals.rows import columns_of, few_columns, steps_of

LONGEST = 12


def with_correlations(
    model: TableModel,
    values: dict[tuple[int, int], float],
    deviation: float,
    *,
    counted: bool = False,
) -> TableModel:
    """Return a model whose columns go together as is said, by the places of two questions.

    Args:
        model: of rows.
        values: correlations of answers; others are 0.
        deviation: of their noise.
        counted: whether the columns were counted together, too.
    """
    questions = questions_of(model.columns, model.shapes)
    pairs = pairs_of(model.columns, [one.place for one in questions])
    stretch = np.array([questions[i].shown / questions[i].told for i, _ in pairs])
    stretch *= [questions[j].shown / questions[j].told for _, j in pairs]
    own = np.array([values.get((int(i), int(j)), 0.0) for i, j in pairs])
    noise = np.full(len(pairs), deviation)
    found = Correlations(
        questions, pairs, own, noise, stretch, np.full(len(pairs), counted), np.stack([own, noise])
    )
    return replace(model, correlations=found)


def correlation(model: TableModel, rows: NDArray[np.int32], one: int, other: int) -> float:
    """Return the correlation of the answers of rows of bins to two questions."""
    answers = answers_of(rows, questions_of(model.columns, model.shapes), model.columns)
    return float(np.corrcoef(answers[:, one], answers[:, other])[0, 1])


def rows_model() -> TableModel:
    """Return a model of rows whose columns are unrelated."""
    return model_of(columns_of())


def traits(model: TableModel) -> Traits:
    """Return what draws of a model are chosen by."""
    assert model.traits is not None
    return model.traits


def test_rows_go_together_as_they_should_and_columns_stay_as_they_are() -> None:
    model = with_correlations(rows_model(), {(0, 1): 0.3, (0, 2): -0.15}, 0.01)
    random = np.random.default_rng(0)
    as_they_come = model._drawn(20_000, random)
    tilt = model.tilted
    assert tilt is not None
    rows = model._tilted(20_000, random)
    assert correlation(model, as_they_come, 0, 1) == pytest.approx(0, abs=0.03)
    assert correlation(model, rows, 0, 1) == pytest.approx(0.3, abs=0.03)
    assert correlation(model, rows, 0, 2) == pytest.approx(-0.15, abs=0.03)
    assert correlation(model, rows, 1, 2) == pytest.approx(0, abs=0.03)
    for place in model.columns.of("observation", "action", "reward"):
        one, other = (
            np.bincount(some[:, place], minlength=10) / len(some) for some in (rows, as_they_come)
        )
        np.testing.assert_allclose(one, other, atol=0.02)
    assert tilt.times <= 8


def test_what_was_counted_of_two_columns_is_kept_within_their_halves() -> None:
    kept = []
    for counted in (True, False):
        model = with_correlations(rows_model(), {(0, 1): 0.3}, 0.01, counted=counted)
        rows = model._tilted(20_000, np.random.default_rng(0))
        assert correlation(model, rows, 0, 1) == pytest.approx(0.3, abs=0.03)
        above = rows[rows[:, 0] >= 5]
        shares = [(above[above[:, 0] == one][:, 1] == 1).mean() for one in (5, 9)]
        kept.append(shares[1] - shares[0])
    assert abs(kept[0]) < 0.05, "as unlikely at 5 as at 9: halves are told alone"
    assert kept[1] > 0.1, "the more, the farther out"


def test_what_noise_explains_is_not_tilted() -> None:
    model = rows_model()
    noisy = with_correlations(model, {(0, 1): 0.1, (0, 2): -0.12, (1, 2): 0.09}, 0.1)
    assert noisy.tilted is None
    assert model.tilted is None
    one, other = (some.transitions(500, np.random.default_rng(3)) for some in (model, noisy))
    np.testing.assert_array_equal(one.observations, other.observations)


def test_a_correlation_is_believed_as_far_as_noise_lets_it() -> None:
    kept = []
    for deviation in (0.01, 0.1, 0.12):
        model = with_correlations(rows_model(), {(0, 1): 0.4}, deviation)
        assert model.tilted is not None
        rows = model._tilted(20_000, np.random.default_rng(0))
        kept.append(correlation(model, rows, 0, 1))
    assert kept[0] > kept[1] > kept[2] > 0.05
    assert kept[0] == pytest.approx(0.4, abs=0.03)


def test_trajectories_go_together_and_are_as_long_as_before() -> None:
    model = model_of(columns_of())
    plain = Rollout(model, LONGEST)
    tilted = Rollout(with_correlations(model, {(0, 1): 0.2}, 0.01), LONGEST)
    one = plain.draw(6000, np.random.default_rng(0))
    other = tilted.draw(6000, np.random.default_rng(0))
    assert len(other) == 6000
    assert other.unit_ids.tolist() == list(range(6000))
    assert other.lengths.mean() == pytest.approx(one.lengths.mean(), rel=0.03)
    states = [some.transitions("trajectory") for some in (one, other)]
    found = [np.corrcoef(some.observations[:, 0] > 4.5, some.actions == 1)[0, 1] for some in states]
    assert abs(found[0]) < 0.05
    assert abs(found[1]) > 0.12
    assert tilted.drift.facts()["trajectories"] == 6000


@pytest.mark.parametrize("lengths", [None, [0.0] * 3 + [10.0] * 9], ids=["free", "counted"])
def test_who_goes_on_and_what_follows_actions_are_as_was_measured(
    lengths: list[float] | None,
) -> None:
    model = model_of(columns_of(), lengths)
    parts = [model.columns[one.place].part for one in questions_of(model.columns, model.shapes)]
    state, action, after, end = (
        parts.index(part) for part in ("observation", "action", "next_observation", "end")
    )

    def relations(values: dict[tuple[int, int], float]) -> list[float]:
        made = Rollout(with_correlations(model, values, 0.01), LONGEST).draw(
            6000, np.random.default_rng(0)
        )
        steps = made.transitions("trajectory")
        high, later = steps.observations[:, 0] > 4.5, steps.next_observations[:, 0] > 4.5
        pairs = (high, steps.terminated), (steps.actions, later)
        return [float(np.corrcoef(one, other)[0, 1]) for one, other in pairs]

    assert relations({(state, end): 0.2}) == pytest.approx([0.2, 0.0], abs=0.04)
    assert relations({(action, after): 0.2}) == pytest.approx([0.0, 0.2], abs=0.04)


def made_tilt(times: int = 4) -> Tilt:
    """Return a tilt by the first trait alone."""
    return Tilt(
        features=lambda some: some[:, :1].astype(np.float64),
        slopes=np.array([1.0]),
        offset=0.0,
        times=times,
    )


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_as_many_different_draws_are_taken_as_are_asked_for(count: int) -> None:
    source = np.random.default_rng(count)
    draws = source.normal(size=(4 * count, 1)).astype(np.float32)
    for random in range(20):
        taken = made_tilt().chosen(draws, count, np.random.default_rng(random))
        assert len(np.unique(taken)) == count
        assert (np.diff(taken) > 0).all()
    again = made_tilt().chosen(draws, count, np.random.default_rng(0))
    np.testing.assert_array_equal(again, made_tilt().chosen(draws, count, np.random.default_rng(0)))


def test_draws_are_taken_as_often_as_they_weigh() -> None:
    draws = np.repeat(np.log([[0.5], [1.5]]), 2000, axis=0).astype(np.float32)
    taken = made_tilt().chosen(draws, 1000, np.random.default_rng(0))
    assert (taken >= 2000).mean() == pytest.approx(0.75, abs=0.01)
    heavy = np.array([[0.0]] * 30 + [[9.0]] * 10, np.float32)
    assert made_tilt().chosen(heavy, 10, np.random.default_rng(0)).max() >= 30


def test_draws_of_one_kind_alone_are_left_as_they_are() -> None:
    model = with_correlations(rows_model(), {(0, 1): 0.3}, 0.01)
    own = traits(model)
    one = np.repeat(own.of(model._drawn(1, np.random.default_rng(0))), 500, axis=0)
    tilt = fitted_tilt(own, one)
    assert tilt is None or np.isfinite(tilt.weights(one)).all()


def test_the_attack_knows_which_rows_are_taken_more_often() -> None:
    rows = steps_of([(3.0, 1, 0.0, 1.0, False), (3.0, 0, 1.0, 1.0, False)])
    model = model_of(few_columns())
    tilted = with_correlations(model, {(0, 1): 0.4}, 0.01)
    plain, own = (ModelAttack(one, rounds=1).losses(rows)[:, 0] for one in (model, tilted))
    assert tilted.tilted is not None
    bins = np.array([[3, 1, 0, 1, 0], [3, 0, 1, 1, 0]], np.int32)
    weights = tilted.tilted.weights(traits(tilted).of(bins))
    np.testing.assert_allclose(plain - own, np.log(weights), rtol=1e-6)
    assert own[0] < plain[0]
    assert own[1] > plain[1]


def test_blocks_are_all_there_is() -> None:
    assert block_sizes(0, 10) == []
    assert block_sizes(20, 10) == [10, 10]


def test_draws_have_as_many_traits_as_are_said() -> None:
    for columns in (columns_of(), few_columns()):
        model = with_correlations(model_of(columns), {}, 1.0)
        own = traits(model)
        assert own.of(model._drawn(7, np.random.default_rng(0))).shape == (7, own.size)
        held = [model.columns[place].part for place, _ in own.held]
        assert ("next_observation" in held) == ("time" not in held), "the next row's state is it"
