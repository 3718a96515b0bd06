"""Correlations of all pairs of columns: what is asked, what a unit moves, what is released."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.marginals import correlations
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.correlations import (
    MOST_SUMS,
    answers_of,
    correlation_sensitivity,
    most_sums,
    pairs_of,
    questions_of,
    released_correlations,
    scores_of,
    summed_answers,
    untold_of,
)
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from tests.marginals.halves import Known, shapes_of, wide
from tests.marginals.neighbours import BAD, CAP, COLUMNS, MOST, UNITS, A, B, C, neighbours, table
from tests.marginals.programs import Adds, Chooses, plan_of, program_of, released_columns, resumed
from tests.marginals.rows import columns_of, few_columns, group, steps_of

SHARE = {"correlations_share": 0.15}
RELATIONS = [Relation.REPLACE_WITH_NULL, Relation.ADD_OR_REMOVE, Relation.REPLACE_ONE]


def test_a_number_is_asked_for_its_upper_half_and_a_flag_for_itself() -> None:
    columns = few_columns()
    asked = questions_of(columns, shapes_of(columns, {0: [5, 1, 1, 3]}))
    state, action, reward, after, end = asked
    assert state.answers.tolist() == [-1, 1, 1, 1]
    assert action.answers.tolist() == [-1, 1]
    assert reward.answers.tolist() == [-1, 1]
    assert after.answers.tolist() == [-1, -1, 1, 1], "its shape here is its own"
    assert end.answers.tolist() == [-1, 1], "it terminates"
    assert [one.place for one in asked] == [0, 1, 2, 3, 4]
    assert not any(one.followed for one in asked)
    unseen = replace(columns, ends_unseen=True)
    assert [one.followed for one in questions_of(unseen, shapes_of(unseen))] == [
        *[False] * 3, True, False
    ]  # fmt: skip


def test_every_kind_of_end_is_asked_for_however_rare_its_order() -> None:
    columns = columns_of()
    (end,) = columns.of("end")
    asked = questions_of(columns, shapes_of(columns, {end: [5, 1, 94]}))
    assert [one.answers.tolist() for one in asked if one.place == end] == [
        [-1, 1, -1], [-1, -1, 1]
    ]  # fmt: skip


def test_gaps_and_the_most_frequent_categories_are_asked_for_and_rare_ones_are_not() -> None:
    columns = wide()
    state, _, action, reward, after, *_ = range(7)
    masses = {state: [3, 1, 1, 1, 4], action: [5, 1, 9, 0.01, 2, 1, 0], reward: [1000, 1]}
    asked = questions_of(columns, shapes_of(columns, masses))
    answers = [(one.place, one.answers.tolist()) for one in asked]
    assert answers[:2] == [(0, [-1, 1, 1, 1, 0]), (0, [-1, -1, -1, -1, 1])]
    frequent = [one for place, one in answers if place == action]
    assert [one.index(1) for one in frequent] == [2, 0, 4]
    assert reward not in [place for place, _ in answers]
    row = 2 * (1 + 3 + 1 + 1) + (3 + 1 + 1) + 3 * (1 + 1) + 1
    follows = 3 * (2 + 1)
    assert [one.place for one in asked].count(after) == 2
    assert most_sums(columns) == row + follows + 3
    nothing = questions_of(columns, shapes_of(columns, {action: [0.0] * 7}))
    assert action not in [one.place for one in nothing]


def test_no_pair_is_of_one_column_with_itself_and_no_more_are_asked_than_are_paid() -> None:
    columns = wide()
    state, other, action, _, after, *_ = range(7)
    assert pairs_of(columns, [state, state, other, other]).tolist() == [
        [0, 2], [0, 3], [1, 2], [1, 3]
    ]  # fmt: skip
    assert pairs_of(columns, [after, state, other, action]).tolist() == [
        [0, 3], [1, 2], [1, 3], [2, 3]
    ], "what follows goes with actions"  # fmt: skip
    assert untold_of(columns, [after, state, after]).tolist() == [0, 2]
    assert pairs_of(columns, []).shape == (0, 2)
    columns = few_columns()
    assert most_sums(columns) == 8
    for masses in itertools.product([0.0, 1.0, 50.0], repeat=4):
        shapes = shapes_of(columns, {0: [*masses], 3: [*masses]})
        places = [one.place for one in questions_of(columns, shapes)]
        found = len(pairs_of(columns, places)) + len(untold_of(columns, places))
        assert found <= most_sums(columns)


@pytest.mark.parametrize("columns", [wide(), wide(following="counted")], ids=["one", "two"])
def test_of_two_codings_the_one_of_more_questions_is_paid_for(columns: TableColumns) -> None:
    random = np.random.default_rng(0)
    most = most_sums(columns)
    for _ in range(200):
        masses = {i: random.pareto(0.5, size).tolist() for i, size in enumerate(columns.sizes)}
        unused = frozenset(random.choice(pair) for pair in columns.codings)
        known = replace(columns, unused=unused)
        places = [one.place for one in questions_of(known, shapes_of(known, masses))]
        assert len(pairs_of(known, places)) + len(untold_of(known, places)) <= most


UNSEEN = replace(COLUMNS, ends_unseen=True)
"""Columns of rows of which nobody saw what follows the last one."""


def sums(
    units: Any,
    cap: int,
    most: int | None,
    workers: int = 1,
    columns: TableColumns = COLUMNS,
) -> NDArray[np.int64]:
    """Return the exact sums of all answers, over all shards."""
    data = group(table(units), columns, cap=cap, most=most, workers=workers)
    asked = questions_of(columns, shapes_of(columns))
    bins = [np.arange(size) for size in columns.sizes]
    answers = data.call("correlations", {"bins": bins, "questions": asked})
    return np.sum(answers, axis=0, dtype=np.int64)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("cap", "most", "columns"),
    [(1, None, COLUMNS), (CAP, None, COLUMNS), (CAP, MOST, COLUMNS), (CAP, MOST, UNSEEN)],
    ids=["one", "cap", "most", "unseen"],
)
def test_a_unit_moves_correlations_by_what_is_charged_at_most_and_by_all_of_it_somewhere(
    relation: Relation, cap: int, most: int | None, columns: TableColumns
) -> None:
    bound = correlation_sensitivity(relation, most_sums(columns))
    moved = []
    for one, other in neighbours(relation):
        for size in range(3):
            for others in itertools.combinations_with_replacement(UNITS, size):
                x, y = (sums((unit, *others), cap, most, columns=columns) for unit in (one, other))
                moved.append(float(np.linalg.norm(x - y)))
    assert max(moved) <= bound
    assert max(moved) > (0.52 if relation is Relation.REPLACE_ONE else 0.999) * bound


def test_units_that_answer_oppositely_move_a_sum_by_twice_as_much() -> None:
    """All answers are yes for one unit; for the other those to its action are no."""
    agrees, differs = (B,), ((3.0, 0, 1.0, 3.0, True),)
    apart = np.abs(sums((agrees,), 1, None) - sums((differs,), 1, None))
    assert apart.max() == 2 * UNIT_WEIGHT
    assert (apart > 0).sum() == 4
    assert np.linalg.norm(apart) <= correlation_sensitivity(Relation.REPLACE_ONE, 8)


def test_a_row_that_nothing_follows_answers_nothing_about_it() -> None:
    places = [one.place for one in questions_of(UNSEEN, shapes_of(UNSEEN))]
    pairs = pairs_of(UNSEEN, places)
    after = np.append((np.array(places)[pairs] == 3).any(axis=1), True)
    (seen, unseen) = (sums(((B,),), 1, None, columns=columns) for columns in (COLUMNS, UNSEEN))
    assert (np.abs(seen) == UNIT_WEIGHT).all()
    np.testing.assert_array_equal(unseen, np.where(after, 0, seen))
    np.testing.assert_array_equal(*(sums(((A,),), 1, None, columns=c) for c in (COLUMNS, UNSEEN)))


def test_sums_are_exact_whatever_the_workers_and_a_bad_row_weighs_nothing() -> None:
    units = ((A, B, C), (B,) * 5, (C, BAD), (A,))
    one, two, four = (sums(units, CAP, MOST, workers) for workers in (1, 2, 4))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, four)
    assert not sums(((BAD,),), 1, None).any()


def test_released_correlations_are_those_of_the_scores_of_normal_numbers_and_flags() -> None:
    random, count = np.random.default_rng(0), 200_000
    bounds = Bounds(
        low=np.array([-4.0, -4.0, 0.0]),
        high=np.array([4.0, 4.0, 1.0]),
        step=np.array([0.1, 0.1, 1.0]),
        columns=("observation_0", "observation_1", "reward"),
    )
    columns = step_columns(
        Box(-4, 4, (2,)), Discrete(2), bounds, next_observation="absolute"
    ).without_successors()
    x, y, z = (0.6**0.5 * random.normal(size=count) for _ in range(3))
    own = 0.4**0.5 * random.normal(size=count)
    x, y, z = x + own, np.exp(y + own), z - own
    parts = [np.argsort(np.argsort(one)) * 20 // count for one in (x, y)]
    rows = np.stack([*parts, z > 0.8, random.random(count) < 0.3], axis=1).astype(np.int32)
    sizes = [20, 20, 2, 2]
    shapes = [
        ColumnShape(
            np.bincount(rows[:, i], minlength=size).astype(float),
            np.arange(size),
            np.zeros(size),
            0.0,
            np.empty(0),
        )
        for i, size in enumerate(sizes)
    ]
    asked = questions_of(columns, shapes)
    exact = summed_answers(rows, np.ones(count), asked, columns)
    known = Known(columns, shapes, count, count)
    found = released_correlations(asked, exact, 0.02 * count, known, cliques=[(0, 1, 4), (3,)])
    real = {
        name: np.corrcoef(of(rows, asked, columns).T)
        for name, of in (("answers", answers_of), ("scores", scores_of))
    }
    wanted = [real["answers"][i, j] for i, j in found.pairs]
    np.testing.assert_allclose(found.values, wanted, atol=1e-9)
    scores = [real["scores"][i, j] for i, j in found.pairs]
    assert scores[0] == pytest.approx(0.4, abs=0.02)
    assert scores[1] == pytest.approx(-0.28, abs=0.02)
    np.testing.assert_allclose(found.values * found.stretch, scores, atol=0.02)
    assert found.deviations[0] == pytest.approx(0.02)
    assert found.stretch[0] == pytest.approx(math.pi / 2, rel=0.03)
    assert found.stretch[5] == 1
    assert found.deviations[5] == pytest.approx(0.01 / (0.21 * 0.79 * 0.84) ** 0.5, rel=0.02)
    assert found.counted.tolist() == [True, *[False] * 5]
    np.testing.assert_array_equal(found.among, [found.values, found.deviations])


def test_what_follows_is_told_of_the_rows_that_something_follows() -> None:
    """Half of the rows of whoever is high are the last; what follows is told of the others."""
    random, count = np.random.default_rng(0), 200_000
    columns = replace(few_columns(), ends_unseen=True)
    high, treated = random.random(count) < 0.3, random.random(count) < 0.2
    ended = high & (random.random(count) < 0.5)
    later = random.random(count) < np.where(ended, high, 0.2 + 0.4 * high + 0.3 * treated)
    rows = np.zeros((count, 5), np.int32)
    for place, one in enumerate([3 * high, treated, False, 3 * later, ended]):
        rows[:, place] = one
    masses = [
        np.bincount(rows[~ended, i] if i == 3 else rows[:, i], minlength=size).astype(float)
        for i, size in enumerate(columns.sizes)
    ]
    stands_for = [*masses[:3], masses[0], masses[4]]
    shapes = shapes_of(columns, {i: one.tolist() for i, one in enumerate(stands_for)})
    asked = questions_of(columns, shapes)
    known = Known(columns, shapes, count, int((~ended).sum()))
    exact = summed_answers(rows, np.ones(count), asked, columns)
    found = released_correlations(asked, exact, 0.02 * count, known)
    places = [one.place for one in asked]
    assert places == [0, 1, 3, 4]
    everywhere = np.corrcoef(answers_of(rows, asked, columns).T)
    followed = np.corrcoef(answers_of(rows[~ended], asked[:3], columns).T)
    for (one, other), value, among in zip(
        found.pairs.tolist(), found.values, found.among[0], strict=True
    ):
        assert value == pytest.approx(everywhere[one, other], abs=2e-3)
        if 2 in (one, other):
            wanted = followed[one, other]
            assert among == pytest.approx(wanted, abs=2e-3)
            assert found.among[1][0] > 0
        else:
            assert among == value
    treated_later = found.pairs.tolist().index([1, 2])
    assert found.deviations[treated_later] > 0.02 / 0.8, "and the noise of what follows is in it"


def test_a_plan_pays_for_correlations_and_keeps_its_budget() -> None:
    columns = few_columns()
    without = plan_of(columns)
    for relation in RELATIONS:
        plan = plan_of(columns, relation=relation.value, correlations_share=0.15)
        assert plan.correlated == 8
        assert plan.counts[0] == 0
        assert sum(plan.counts) == sum(without.counts)
        first, second, *choices = plan.releases
        assert second.vector is not None
        assert second.vector.sensitivity == pytest.approx(
            UNIT_WEIGHT * relation.contributions * math.sqrt(8)
        )
        assert first.columns is not None
        share = (first.columns.noise_multiplier / second.vector.noise_multiplier) ** 2
        assert share == pytest.approx(0.15 / 0.35)
        assert plan.schedule[1] == (second.vector.event,)
        noisier = plan_of(columns, relation=relation.value, choices_share=0.1, **SHARE)
        as_noisy = plan_of(columns, relation=relation.value, choices_share=0.1)
        tables = [one.releases[-1].tables for one in (noisier, as_noisy)]
        assert tables[0] is not None
        assert tables[1] is not None
        more = tables[0].noise_multiplier / tables[1].noise_multiplier
        assert more == pytest.approx(7 / 6, rel=0.01), "docs/marginals.md: a sixth more noise"
        assert all(one.choices for one in choices)
    assert not without.correlated


def test_shares_that_leave_nothing_and_too_many_pairs_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave nothing for joint counts"):
        plan_of(few_columns(), correlations_share=0.6)
    side = Box(0, 1, (80,))
    numbers = tuple(f"observation_{i}" for i in range(80))
    bounds = Bounds(
        low=np.zeros(81), high=np.ones(81), step=np.ones(81), columns=(*numbers, "reward")
    )
    columns = step_columns(side, Discrete(2), bounds, next_observation="absolute")
    assert most_sums(columns) > MOST_SUMS
    with pytest.raises(ConfigError, match="leave out columns"):
        plan_of(columns, correlations_share=0.1)


def test_more_pairs_than_are_paid_for_are_refused_before_noise_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = few_columns()
    noise: Any = Adds()
    made = program_of(columns, plan_of(columns, correlations_share=0.15), Chooses())
    resumed(made, released_columns(columns, units=48, deviation=0.2 * UNIT_WEIGHT))
    made.prepare(1)
    asked = made._questions
    monkeypatch.setattr(type(made), "_questions", property(lambda _: (*asked, replace(asked[3]))))
    with pytest.raises(UnsafeError, match=r"the plan pays for 8 sums .* and 10 with"):
        made.step(1, group(steps_of([B]), columns), noise, 1)
    assert not noise.asked


def test_a_resume_takes_up_correlations_and_draws_none_anew() -> None:
    columns, noise = few_columns(), Adds(amount=7)
    plan = plan_of(columns, correlations_share=0.15)
    made = program_of(columns, plan, Chooses())
    resumed(made, released_columns(columns, units=48, deviation=0.2 * UNIT_WEIGHT))
    made.step(1, group(steps_of([A, B, C]), columns), noise, 1)  # type: ignore[arg-type]
    kept = made.tensors()
    assert len(noise.asked) == 1
    again = program_of(columns, plan, Chooses())
    again.restore(kept, 2)
    for name, tensor in kept.items():
        assert again.tensors()[name].equal(tensor), name
    found = made.model().correlations
    assert found is not None
    other = again.model().correlations
    assert other is not None
    np.testing.assert_array_equal(found.values, other.values)


def test_where_the_columns_are_lost_the_next_entry_counts_them_and_no_correlation() -> None:
    columns, noise = few_columns(), Adds()
    made = program_of(columns, plan_of(columns, correlations_share=0.15), Chooses())
    made.step(1, group(steps_of([A, B, C] * 20), columns), noise, 1)  # type: ignore[arg-type]
    assert [len(values) for values, *_ in noise.asked] == [sum(columns.counted)]
    assert made.model().correlations is None


def test_where_noise_leaves_nothing_to_ask_nothing_is_drawn_and_the_run_goes_on() -> None:
    columns, noise = few_columns(), Adds()
    made = program_of(columns, plan_of(columns, correlations_share=0.15), Chooses())
    counts = [np.zeros(one.counted) for one in columns.columns if one.counted]
    for one in counts:
        one[0] = 1000 * UNIT_WEIGHT
    known = {
        "columns": torch.from_numpy(np.concatenate(counts).astype(np.int64)),
        "columns.deviation": torch.tensor(0.2 * UNIT_WEIGHT, dtype=torch.float64),
    }
    resumed(made, known).step(1, group(steps_of([A]), columns), noise, 1)  # type: ignore[arg-type]
    assert not noise.asked
    assert made.model().correlations is None


def test_a_plan_for_less_than_a_unit_moves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, noise = few_columns(), Adds()
    plan = plan_of(columns, correlations_share=0.15)
    made = program_of(columns, plan, Chooses())
    resumed(made, released_columns(columns, units=48, deviation=0.2 * UNIT_WEIGHT))
    monkeypatch.setattr(type(made), "relation", Relation.REPLACE_ONE)
    with pytest.raises(UnsafeError, match="and a sensitivity of 2\\.96582e\\+06, and 8 with"):
        made.step(1, group(steps_of([B]), columns), noise, 1)  # type: ignore[arg-type]
    assert not noise.asked


def test_sums_are_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    columns = few_columns()
    rows = np.stack([random.integers(0, size, 1000) for size in columns.sizes], axis=1)
    asked = questions_of(columns, shapes_of(columns))
    weights = random.integers(0, UNIT_WEIGHT, 1000).astype(np.float64)
    whole = summed_answers(rows.astype(np.int32), weights, asked, columns)
    monkeypatch.setattr(correlations, "_BLOCK", 7)
    again = summed_answers(rows.astype(np.int32), weights, asked, columns)
    np.testing.assert_array_equal(whole, again)
