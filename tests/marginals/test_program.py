"""What the server draws in each step, what it keeps, and what it makes of it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.marginals import belief, candidates, program, shapes, table_program
from distributed_privrl.marginals.junction_tree import elimination
from distributed_privrl.marginals.program import MarginalsProgram, score
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.marginals.tables import CUTS, JointCount, blocks, parts_of
from distributed_privrl.marginals.together import from_tensors
from distributed_privrl.marginals.unit_sizes import UnitSizes
from distributed_privrl.marginals.workload import LARGEST_WEIGHT
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.marginals.programs import Adds, Chooses, chained, plan_of, program_of
from tests.marginals.rows import (
    ACTION,
    STATE,
    column_counts,
    few_columns,
    group,
    joint_counts,
    step_bounds,
    steps_of,
)

COLUMNS = few_columns()
PLAN = plan_of(COLUMNS, steps=2, tables=3)
OPEN = plan_of(COLUMNS, steps=2, tables=3, epsilon=None)
ROWS = steps_of(
    [(0.0, 0, 0.0, 1.0, False), (3.0, 1, 1.0, 3.0, True), (2.0, 1, 0.0, 0.0, False)] * 40
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "estimated", chained)


def drawn(made: MarginalsProgram, noise: Any, *steps: int) -> MarginalsProgram:
    """Do steps that follow each other, each paid for by an entry of the plan's schedule."""
    for index, reserved in enumerate(steps):
        made.prepare(index)
        made.step(index, group(ROWS, COLUMNS), noise, reserved)
    return made


def test_a_score_by_hand() -> None:
    counts, expected = np.array([[0, 100], [7, 40]]), np.array([[30, 60], [7, 0]])
    # |x - m| is 30 + 40 + 0 + 40; of x noise hides 0 + 16 + 7 + 16; cells cost 1 each.
    apart = (False, False)
    assert score(counts, expected, noise=16, weight=3, ordered=apart) == 3 * (110 - 39 - 4)


@pytest.mark.parametrize("weight", [-1, 0, LARGEST_WEIGHT + 1])
def test_a_weight_that_is_not_charged_for_is_refused(weight: int) -> None:
    counts = np.array([3, 5]) * UNIT_WEIGHT
    with pytest.raises(UnsafeError, match="weights of joint counts are 1 to 4"):
        score(counts, counts, noise=0, weight=weight, ordered=[True])


def test_a_relation_that_no_cell_shows_is_seen_in_blocks() -> None:
    """Of 8 x 8 bins, 10 in each cell on one side of the middle, where 5 are expected everywhere."""
    counts = np.kron(np.array([[10, 0], [0, 10]]), np.ones((4, 4), np.int64))
    expected = np.full((8, 8), 5)
    # 4 x 4 blocks: 16 times |40 - 20| or |0 - 20|, less 8 times min(40, 32), and 2 for each.
    assert score(counts, expected, noise=16, weight=1, ordered=(True, True)) == 320 - 256 - 32
    assert score(counts, expected, noise=16, weight=1, ordered=(False, False)) == 320 - 320 - 64


def counted(made: MarginalsProgram, count: JointCount) -> NDArray[np.int64]:
    """Return what a joint count is without noise."""
    exact = joint_counts(ROWS, COLUMNS, count.clique).astype(np.int64)
    return blocks(exact, made._belief.bins.maps(count))


def test_parts_are_of_the_weight_and_not_of_the_bins() -> None:
    heavy = np.array([300.0, 300.0, *[10.0] * 14])
    assert parts_of(heavy, 2).tolist() == [0] + [1] * 15
    assert parts_of(heavy, 3).tolist() == [0, 1] + [2] * 14
    assert parts_of(-heavy, 3).tolist() == [0] * 16


def open_counts(**settings: Any) -> set[tuple[tuple[str, ...], int]]:
    """Return the names and parts of what may be counted once columns were."""
    made = drawn(program_of(COLUMNS, PLAN, **settings), Adds(), 0)
    made.prepare(1)
    open_ = made._belief.worth_counting()
    return {(tuple(COLUMNS[i].name for i in one.clique), one.parts) for one in open_}


def test_numbers_are_counted_in_parts_where_noise_hides_bins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not any(parts for _, parts in open_counts())  # 15 units a cell, noise of 2
    monkeypatch.setattr(candidates, "_RESOLVED", 100.0)
    monkeypatch.setattr(candidates, "_CLEAR", 1000.0)
    monkeypatch.setattr(shapes, "ATOM", 1.0)  # no value has all the weight
    state, after = "observation_0", "next_observation_0"
    named = open_counts()
    assert {((state, "action"), 0), ((state, "action"), 2), ((state, after), 0)} <= named
    assert ((state, "action"), 5) not in named  # it has four values
    assert {parts for clique, parts in named if clique == (state, after)} == {0, 2}
    for clique, parts in named:  # not categories
        assert not parts or {state, after, "reward"} & set(clique)
    triple = (state, "action", "reward")  # of two numbers
    assert {parts for clique, parts in named if clique == triple} == {0, 2}
    assert {parts for clique, parts in named if clique == (state, "reward")} == {0, 2, 3}
    made = drawn(program_of(COLUMNS, PLAN), Adds(), 0)
    made.prepare(1)
    pair = tuple(i for i in range(len(COLUMNS)) if COLUMNS[i].name in (state, after))
    _, room = elimination(made._belief.bins.sizes, [pair])
    few = open_counts(model_cells=room)  # as much as what a number becomes takes
    assert ((state, after), 0) in few
    assert not any(parts for clique, parts in few if clique != (state, after))
    one, other = made._belief.bins.maps(JointCount((0, 1), 2))
    assert len(set(one.tolist())) == 2 < len(one)
    assert other.tolist() == [0, 1]


def test_what_a_number_becomes_is_counted_in_bins_or_halves_until_its_few_cells_drown_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = ("observation_0", "next_observation_0")
    monkeypatch.setattr(candidates, "_RESOLVED", 100.0)
    monkeypatch.setattr(candidates, "_CLEAR", 1000.0)
    monkeypatch.setattr(shapes, "ATOM", 1.0)
    for noise, parts in ((0.75, {0, 2}), (100.0, {0, 2, 3})):
        monkeypatch.setattr(candidates, "_OWN", noise)
        found = open_counts()
        assert {parts for clique, parts in found if clique == pair} == parts
        triples = {parts for clique, parts in found if set(pair) < set(clique)}
        assert triples == {0}  # halves say little of what it becomes


def test_halves_of_what_a_number_becomes_are_worth_less_to_a_choice_than_its_bins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "_RESOLVED", 100.0)
    monkeypatch.setattr(candidates, "_CLEAR", 1000.0)
    monkeypatch.setattr(shapes, "ATOM", 1.0)
    weights, names = list[int](), [one.name for one in COLUMNS.columns]

    def scored(*given: Any, weight: int, **settings: Any) -> int:
        weights.append(weight)
        return score(*given, weight=weight, **settings)

    monkeypatch.setattr(program, "score", scored)
    made = drawn(program_of(COLUMNS, PLAN), Adds(), 0)
    made.prepare(1)
    open_ = made._belief.worth_counting()
    made.step(1, group(ROWS, COLUMNS), Adds(), 1)
    found = dict(zip(open_, weights, strict=False))
    state, after = (names.index(one) for one in ("observation_0", "next_observation_0"))
    action, reward = names.index("action"), names.index("reward")
    assert (found[JointCount((state, after))], found[JointCount((state, after), 2)]) == (4, 3)
    assert found[JointCount((state, action), 2)] == found[JointCount((state, reward), 2)] == 4


class Best(Chooses):
    """Takes what has the best score."""

    def choose_exponential(self, scores: Sequence[int], *, scale: float, tag: int = 0) -> int:
        return int(np.argmax(scores))


WIDE = step_columns(Box(0, 23, (1,)), ACTION, step_bounds(high=23.0), next_observation="absolute")
OWN = tuple(WIDE.of("observation", "next_observation"))


def counted_once(*, loose: bool, **settings: Any) -> MarginalsProgram:
    """Return a program that made one joint count of 24 values and of what each becomes.

    Normal scores before and after a step go together by .35, or each value is one higher.
    """
    source = np.random.default_rng(0)
    one, other = source.standard_normal((2, 1000))
    other = 0.35 * one + math.sqrt(1 - 0.35**2) * other
    before, after = (
        np.searchsorted(np.quantile(z, np.arange(1, 24) / 24), z) for z in (one, other)
    )
    after = after if loose else (before + 1) % 24
    chance = source.integers(0, 2, (1000, 2))
    rows = steps_of(
        [
            (float(s), int(a), float(r), float(z), False)
            for s, z, (a, r) in zip(before, after, chance, strict=True)
        ]
    )
    plan = plan_of(WIDE, steps=1, tables=1, epsilon=4.0)
    made = program_of(WIDE, plan, Best(), most_cells=2000, rows=20_000, **settings)
    for index in range(2):
        made.prepare(index)
        made.step(index, group(rows, WIDE), Adds(), index)
    return made


@pytest.mark.parametrize(("loose", "parts", "least"), [(True, 2, 0.25), (False, 0, 0.7)])
def test_halves_are_chosen_where_a_number_loosely_stays_and_bins_where_it_rises_by_one(
    loose: bool, parts: int, least: float
) -> None:
    made = counted_once(loose=loose)
    assert [one.count for one in made._belief.tables] == [JointCount(OWN, parts)]
    shares = made._belief.expected(OWN) / made._belief.bins.total
    first, last = (np.arange(size) - (size - 1) / 2 for size in shares.shape)
    spread = math.sqrt(shares.sum(axis=1) @ first**2 * (shares.sum(axis=0) @ last**2))
    assert first @ shares @ last > least * spread


@pytest.mark.parametrize("loose", [True, False])
def test_what_a_number_becomes_is_counted_in_bins_where_it_is_asked_for(loose: bool) -> None:
    made = counted_once(loose=loose, asked=(OWN,))
    assert [one.count for one in made._belief.tables] == [JointCount(OWN)]


def test_parts_that_are_alike_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least value and the most are atoms: halves and thirds of those between are the same."""
    monkeypatch.setattr(candidates, "_RESOLVED", 100.0)
    monkeypatch.setattr(candidates, "_CLEAR", 1000.0)
    pair = ("observation_0", "reward")
    assert {parts for clique, parts in open_counts() if clique == pair} == {0, 2}


@pytest.mark.parametrize(("clear", "parts"), [(1000.0, {0, 2, 3}), (12.0, {0, 3}), (10.0, {0})])
def test_parts_that_are_clear_stand_for_coarser_ones(
    clear: float, parts: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell of bins has 10.6 deviations on average, one of thirds 14.1 and one of halves 21.2."""
    monkeypatch.setattr(candidates, "_RESOLVED", 100.0)
    monkeypatch.setattr(candidates, "_CLEAR", clear)
    monkeypatch.setattr(shapes, "ATOM", 1.0)
    pair = ("observation_0", "reward")
    assert {parts for clique, parts in open_counts() if clique == pair} == parts


def test_what_was_counted_in_parts_may_be_counted_in_bins_and_not_the_other_way_round() -> None:
    bins, halves, fifths = (JointCount((0, 1), parts) for parts in (0, 2, 5))
    assert bins.tells(fifths)
    assert fifths.tells(halves)
    assert not halves.tells(fifths)
    assert not fifths.tells(bins)
    assert JointCount((0, 1, 2), 5).tells(halves)
    assert not bins.tells(JointCount((0, 1, 2), 2))
    made = drawn(program_of(COLUMNS, PLAN), Adds(), 0)
    made.prepare(1)
    belief = made._belief
    belief.take(halves, counted(made, halves), 1.0)
    assert bins in belief.worth_counting()
    assert halves not in belief.worth_counting()
    belief.take(bins, counted(made, bins), 1.0)
    assert not [one for one in belief.worth_counting() if one.clique == (0, 1)]
    expected = joint_counts(ROWS, COLUMNS, (0, 1))
    np.testing.assert_allclose(belief.expected((0, 1)), expected, atol=0.02 * belief.bins.total)


def test_what_was_guessed_within_parts_gives_way_to_a_finer_count() -> None:
    made = drawn(program_of(COLUMNS, PLAN), Adds(), 0)
    made.prepare(1)
    belief = made._belief
    halves, bins = JointCount((0, 1, 2), 2), JointCount((0, 2))
    belief.take(halves, counted(made, halves), 1.0)
    before = belief.tables[0].cleaned.sum(axis=1)
    unlike = counted(made, bins)[::-1].copy()
    belief.take(bins, unlike, 1.0)
    finer = belief.tables[1].cleaned
    assert np.abs(before - finer).max() > 0.05 * belief.bins.total
    agreed = belief._agreed(belief.tables[0])
    np.testing.assert_allclose(agreed.sum(axis=1), finer, atol=1e-6 * belief.bins.total)
    np.testing.assert_allclose(belief._agreed(belief.tables[1]), finer)


def test_joint_counts_tell_of_the_columns_that_they_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number's bins, in later counts as well; a category is what its own count says."""
    made = drawn(program_of(COLUMNS, PLAN), Adds(), 0)
    made.prepare(1)
    model, cleaned, seen = made._belief, belief.cleaned, []
    monkeypatch.setattr(belief, "cleaned", lambda one, *_: seen.append(one) or cleaned(one, *_))
    pair = JointCount((0, 1))
    counts = counted(made, pair)
    moved = counts.copy()
    moved[0], moved[2] = moved[0] + moved[2], 0
    deviation = model.bins.shapes[0].deviation / 100
    model.take(pair, moved, deviation)
    known = [model._margin(i, {}, model._noisy()).masses for i in (0, 1)]
    np.testing.assert_allclose(known[0], moved.sum(axis=1), atol=0.02 * model.bins.total)
    assert np.abs(known[0] - model.bins.margin(0).masses).max() > 0.1 * model.bins.total
    np.testing.assert_array_equal(known[1], model.bins.margin(1).masses)
    model.take(pair, counts, deviation)
    first, second = seen
    assert not first.before
    (before,) = second.before
    np.testing.assert_array_equal(before.noisy, moved)
    np.testing.assert_allclose(first.margins[0].masses, known[0])
    assert second.margins[0].masses[0] == pytest.approx(
        (counts + moved).sum(axis=1)[0] / 2, abs=0.05 * model.bins.total
    )


def test_each_step_draws_what_its_entry_states() -> None:
    chooser, noise = Chooses((2, 0, 1)), Adds(amount=5)
    drawn(program_of(COLUMNS, PLAN, chooser), noise, 0, 1, 2)
    first, *tables = noise.asked
    releases = [PLAN.releases[number] for number in (1, 1, 2)]
    assert PLAN.releases[0].columns is not None
    assert first[1] == PLAN.releases[0].columns.standard_deviation
    np.testing.assert_array_equal(first[0], column_counts(ROWS, COLUMNS))
    assert [one[1] for one in tables] == [one.tables.standard_deviation for one in releases]
    assert [one[1] for one in chooser.asked] == [one.choices.scale for one in releases]
    tags = [one[2] for one in noise.asked]
    assert len(set(tags)) == 4  # no two draws of a test's source are the same
    assert [one[2] for one in chooser.asked] == tags[1:]


def test_what_is_measured_is_what_was_chosen_and_parts_of_it_are_no_candidates_any_more() -> None:
    made = program_of(COLUMNS, PLAN, Chooses((0, 10**9)), rows=300)
    with pytest.raises(IndexError):
        drawn(made, Adds(), 0, 1)
    chooser, noise = Chooses(), Adds(amount=5)
    made = drawn(program_of(COLUMNS, PLAN, chooser), noise, 0, 1, 2)
    counts = [table.count for table in made._belief.tables]
    assert len(set(counts)) == 3
    for count, (values, _, _) in zip(counts, noise.asked[1:], strict=True):
        np.testing.assert_array_equal(values, counted(made, count).ravel())
    candidates = [len(scores) for scores, _, _ in chooser.asked]
    assert candidates[0] > candidates[1] > candidates[2]


def test_a_choice_knows_the_ones_before_it_in_the_same_step() -> None:
    """What one count has said of others is expected of them: their scores fall."""
    found = []
    for first in (0, 5):
        chooser = Chooses((first,))
        made = drawn(program_of(COLUMNS, PLAN, chooser), Adds(), 0, 1)
        found.append((made._belief.tables[0].clique, chooser.asked))
    (one, asked), (other, others) = found
    assert one != other
    assert asked[0] == others[0]
    assert asked[1][0] != others[1][0]


def test_where_the_columns_were_lost_the_next_entrys_noise_counts_them() -> None:
    chooser, noise = Chooses(), Adds()
    made = drawn(program_of(COLUMNS, PLAN, chooser), noise, 1, 2)
    first, tables = PLAN.releases[0].columns, PLAN.releases[1].tables
    assert first is not None
    assert tables is not None
    expected = tables.noise_multiplier * first.sensitivity
    assert noise.asked[0][1] == pytest.approx(expected)
    assert noise.asked[0][1] > first.standard_deviation
    assert len(noise.asked) == 2
    assert [one[1] for one in chooser.asked] == [PLAN.releases[2].choices.scale]
    assert len(made._belief.tables) == 1


@pytest.mark.parametrize("resolved", [3.0, 100.0])
def test_a_program_goes_on_from_its_checkpoint_as_if_nothing_had_happened(
    resolved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what was counted are parts of numbers."""
    monkeypatch.setattr(candidates, "_RESOLVED", resolved)
    monkeypatch.setattr(candidates, "_CLEAR", 1000.0)
    whole = drawn(program_of(COLUMNS, PLAN, Chooses((3, 1, 0))), Adds(7), 0, 1, 2)
    half = drawn(program_of(COLUMNS, PLAN, Chooses((3, 1))), Adds(7), 0, 1)
    resumed = program_of(COLUMNS, PLAN, Chooses((0,)))
    resumed.restore(half.tensors(), 2)
    resumed.prepare(2)
    resumed.step(2, group(ROWS, COLUMNS), Adds(7), 2)
    assert any(one.parts for one in whole._belief.tables) == (resolved > 3)
    expected, found = whole.tensors(), resumed.tensors()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), tensor.numpy(), err_msg=name)
    one, other = (
        made.model().transitions(50, np.random.default_rng(0)) for made in (whole, resumed)
    )
    np.testing.assert_array_equal(one.observations, other.observations)


@pytest.mark.parametrize(
    "changed", [{"weighed": (5, 1, None, False)}, {"weighed": (4, 1, None, True)}, {"seed": 4}]
)
def test_counts_of_other_rows_or_caps_are_refused(changed: dict[str, Any]) -> None:
    about: dict[str, Any] = {"weighed": (4, 1, None, False)}
    half = drawn(program_of(COLUMNS, PLAN, Chooses((3, 1)), **about), Adds(7), 0, 1)
    program_of(COLUMNS, PLAN, **about).restore(half.tensors(), 2)
    with pytest.raises(UnsafeError, match="are not those that the counts were made with"):
        program_of(COLUMNS, PLAN, **(about | changed)).restore(half.tensors(), 2)


def test_counts_of_classes_of_units_that_begin_elsewhere_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where they are as many, and the settings say the same: where they begin is code."""

    def made(sizes: UnitSizes) -> MarginalsProgram:
        columns = COLUMNS.with_unit_sizes(sizes)
        return program_of(columns, plan_of(columns, steps=2, tables=3))

    sizes = UnitSizes(2, 40)
    kept = made(sizes).tensors()
    made(sizes).restore(kept, 0)
    right = UnitSizes.starts.fget
    assert right is not None
    for other, later in ((UnitSizes(3, 40), 0), (UnitSizes(2, 41), 0), (sizes, 1)):
        monkeypatch.setattr(UnitSizes, "starts", property(lambda one, by=later: right(one) + by))
        with pytest.raises(UnsafeError, match="are not those that the counts were made with"):
            made(other).restore(kept, 0)


@pytest.mark.parametrize(("name", "other"), [("CUTS", CUTS | {2: (0.4,)}), ("_RULES", 8)])
def test_counts_of_parts_that_are_cut_elsewhere_and_of_other_rules_are_refused(
    name: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may be counted, and what it weighs, is the same from the first step to the last."""
    kept = drawn(program_of(COLUMNS, PLAN), Adds(7), 0, 1).tensors()
    assert getattr(table_program, name) != other
    monkeypatch.setattr(table_program, name, other)
    with pytest.raises(UnsafeError, match="are not those that the counts were made with"):
        program_of(COLUMNS, PLAN).restore(kept, 2)


def test_what_is_kept_is_noisy_or_follows_from_it() -> None:
    made = drawn(program_of(COLUMNS, PLAN), Adds(amount=12_345), 0, 1, 2)
    tensors = made.tensors()
    np.testing.assert_array_equal(tensors["columns"].numpy(), column_counts(ROWS, COLUMNS) + 12_345)
    for name, tensor in tensors.items():
        kind, *numbers = name.split(".")
        assert kind in {"digest", "columns", "table", "cleaned", "deviation", "together"}
        if kind == "table":
            count = JointCount(tuple(map(int, numbers[2:])), int(numbers[1]))
            np.testing.assert_array_equal(tensor.numpy(), counted(made, count) + 12_345)


def test_what_counts_mean_does_not_depend_on_how_arrays_are_printed() -> None:
    """A resume in a program that prints its arrays in another way is the same run."""
    columns = few_columns()
    digests = []
    others = {"precision": 3, "threshold": 5, "suppress": True, "linewidth": 200, "sign": "+"}
    for options in ({}, others):
        with np.printoptions(**options):  # type: ignore[arg-type]
            made = program_of(columns, plan_of(columns, epsilon=10.0), Chooses(), rows=2000)
            digests.append(made.tensors()["digest"].tolist())
    assert digests[0] == digests[1]


def test_what_is_told_of_counts_is_columns_parts_steps_and_noise_and_outlives_a_resume() -> None:
    made = drawn(program_of(COLUMNS, PLAN), Adds(amount=12_345), 0, 1, 2)
    told = from_tensors(made.tensors())
    assert told is not None
    tables = [name.split(".")[3:] for name in made.tensors() if name.startswith("table.")]
    assert [[COLUMNS[int(i)].name for i in clique] for clique in tables] == [
        list(one.columns) for one in told
    ]
    noise = PLAN.details["joint_noise_units"]
    assert [(one.step, one.noise_units) for one in told] == [(step, noise) for step in (1, 1, 2)]
    again = program_of(COLUMNS, PLAN)
    again.restore(made.tensors(), 3)
    assert from_tensors(again.tensors()) == told
    half = drawn(program_of(COLUMNS, PLAN), Adds(amount=12_345), 0, 1)
    rest = program_of(COLUMNS, PLAN)
    rest.restore(half.tensors(), 2)
    assert from_tensors(drawn(rest, Adds(amount=12_345), 2).tensors()) == told


def test_counts_that_an_earlier_version_began_tell_nothing() -> None:
    made = drawn(program_of(COLUMNS, PLAN), Adds(), 0, 1).tensors()
    del made["together"]
    rest = program_of(COLUMNS, PLAN)
    rest.restore(made, 2)
    assert from_tensors(drawn(rest, Adds(), 2).tensors()) is None


def test_counts_of_other_columns_are_not_taken_up() -> None:
    half = drawn(program_of(COLUMNS, PLAN), Adds(), 0, 1)
    wider = step_columns(
        STATE, ACTION, step_bounds(high=6.0, step=2.0), next_observation="absolute"
    )
    assert wider.sizes == COLUMNS.sizes
    with pytest.raises(
        UnsafeError, match="bounds, spaces, settings or the version of the program are not"
    ):
        program_of(wider, PLAN).restore(half.tensors(), 2)
    for changed in ({"most_cells": 201}, {"model_cells": 7}, {"given": (0,)}, {"rows": 501}):
        with pytest.raises(
            UnsafeError, match="bounds, spaces, settings or the version of the program are not"
        ):
            program_of(COLUMNS, PLAN, **changed).restore(half.tensors(), 2)


def test_a_plan_for_fewer_histograms_is_refused_before_anything_is_drawn() -> None:
    first, *rest = PLAN.releases
    assert first.columns is not None
    halved = replace(first.columns, sensitivity=first.columns.sensitivity / 2)
    releases = (replace(first, columns=halved), *rest)
    cheap = replace(PLAN, releases=releases, schedule=tuple(one.events for one in releases))
    noise = Adds()
    with pytest.raises(UnsafeError, match="not those that it was drawn up for"):
        drawn(program_of(COLUMNS, cheap), noise, 0)
    assert noise.asked == []


def test_without_privacy_the_best_candidate_is_measured_exactly() -> None:
    chooser = Chooses()
    made = drawn(program_of(COLUMNS, OPEN, chooser), None, 0, 1, 2)
    assert chooser.asked == []
    for table in made._belief.tables:
        np.testing.assert_array_equal(table.noisy, counted(made, table.count))
    rows = made.model().transitions(2000, np.random.default_rng(0))
    assert rows.observations[rows.actions == 0].max() == 0
    assert rows.terminated.mean() == pytest.approx(1 / 3, abs=0.05)


def test_large_candidates_and_models_are_left_out() -> None:
    few, chooser = Chooses(), Chooses()
    drawn(program_of(COLUMNS, PLAN, chooser), Adds(), 0, 1)
    drawn(program_of(COLUMNS, PLAN, few, most_cells=8), Adds(), 0, 1)
    assert 0 < len(few.asked[0][0]) < len(chooser.asked[0][0])
    noise = Adds()
    none = drawn(program_of(COLUMNS, PLAN, Chooses(), model_cells=3), noise, 0, 1, 2)
    assert len(noise.asked) == 1  # no candidate: fewer draws than are paid for
    assert none.model().transitions(10, np.random.default_rng(0)).rewards.shape == (10,)


def test_a_model_grows_with_each_choice_alike() -> None:
    """What is large waits its turn; where nothing is small enough, all may be chosen."""
    made = drawn(program_of(COLUMNS, PLAN, Chooses()), Adds(), 0)
    made.prepare(1)
    belief = made._belief
    open_ = belief.worth_counting()
    cells = {one: elimination(belief.bins.sizes, [one.clique])[1] for one in open_}
    least, most = min(cells.values()), max(cells.values())
    assert least < most
    belief._spec, belief._planned = replace(belief._spec, model_cells=2 * least), 2
    assert belief.small_enough(open_) == [one for one in open_ if cells[one] == least]
    belief._spec, belief._planned = replace(belief._spec, model_cells=most), 1
    assert belief.small_enough(open_) == open_
    belief._planned = 10**6
    assert belief.small_enough(open_) == open_  # nothing is small enough: all may be


def test_a_run_that_released_nothing_has_no_model() -> None:
    with pytest.raises(BudgetError, match="used up all steps"):
        program_of(COLUMNS, PLAN).model()


def test_the_total_is_of_all_columns_and_never_nothing() -> None:
    made = drawn(program_of(COLUMNS, PLAN), Adds(), 0)
    made.prepare(1)
    assert made._belief.bins.total == pytest.approx(120 * UNIT_WEIGHT)
    nothing = program_of(COLUMNS, PLAN)
    nothing.step(0, group(None, COLUMNS), Adds(amount=-(2**30)), 0)
    nothing.prepare(1)
    assert nothing._belief.bins.total == UNIT_WEIGHT
