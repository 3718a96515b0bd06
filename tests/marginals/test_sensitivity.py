"""What a unit moves, by enumeration of small datasets and by units made for the worst case.

Workers, program, plan and scores are the package's own; the bounds are those that are charged for.
"""

import itertools
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from distributed_privrl.marginals.plan import (
    MarginalsPlan,
    integer_sensitivity,
    score_span,
)
from distributed_privrl.marginals.scores import score
from distributed_privrl.marginals.tables import CUTS, JointCount, blocks, parts_of
from distributed_privrl.marginals.workload import LARGEST_WEIGHT
from distributed_privrl.privacy.events import BoundedRangeEvent, DiscreteGaussianEvent
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from tests.marginals.neighbours import (
    ABSENT,
    ALL,
    CAP,
    COLUMNS,
    MOST,
    UNITS,
    A,
    B,
    C,
    Data,
    Unit,
    counts,
    neighbours,
    table,
)
from tests.marginals.programs import (
    Adds,
    Chooses,
    plan_of,
    program_of,
    released_columns,
    resumed,
)
from tests.marginals.rows import group, joint_counts, steps_of
from tests.marginals.whole import SETTINGS, WIDE, WholeRun, whole_run, wide_plan

RELATIONS = [Relation.REPLACE_WITH_NULL, Relation.ADD_OR_REMOVE, Relation.REPLACE_ONE]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("cap", "most"), [(1, None), (CAP, None), (CAP, MOST)])
def test_counts_move_by_what_is_charged_at_most_and_by_all_of_it_somewhere(
    relation: Relation, cap: int, most: int | None
) -> None:
    bound = integer_sensitivity(relation)
    all_columns = bound * math.sqrt(COLUMNS.histograms)
    moved = []
    for one, other in neighbours(relation):
        for size in range(3):
            for others in itertools.combinations_with_replacement(UNITS, size):
                pair = counts((one, *others), cap, most), counts((other, *others), cap, most)
                moved.append(
                    [float(np.linalg.norm((x - y).ravel())) for x, y in zip(*pair, strict=True)]
                )
    most_moved = np.max(moved, axis=0)
    assert most_moved[0] <= all_columns
    assert (most_moved[1:] <= bound).all()
    if cap == 1 or relation is Relation.REPLACE_WITH_NULL or most is None:
        assert most_moved[0] > 0.999 * all_columns
        assert (most_moved[1:] > 0.999 * bound).all()


def own(rows: int, **settings: Any) -> tuple[float, float]:
    """Return by how much a unit of many equal rows moves columns and a joint count, in L2."""
    few = steps_of([A, B, C, B], [1, 2, 3, 0])
    with_it = few.select(np.concatenate([np.arange(3), np.full(rows, 3)]))
    bins = [np.arange(size) for size in COLUMNS.sizes]
    totals = []
    for data in (with_it, few.select(slice(0, 3))):
        workers = group(data, COLUMNS, **settings)
        tables = workers.call("tables", {"bins": bins, "cliques": [(0, 1, 2)]})
        totals.append((sum(workers.call("columns")), sum(one[0] for one in tables)))
    columns, joint = (float(np.linalg.norm((x - y).ravel())) for x, y in zip(*totals, strict=True))
    return columns / math.sqrt(COLUMNS.histograms), joint


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("rows", "share"), [(1, 0.5), (2, 1.0), (3, 1.0), (1000, 1.0), (2**17 + 1, 1.0)]
)
def test_many_rows_weigh_no_more_than_one_unit(rows: int, share: float, workers: int) -> None:
    for moved in own(rows, cap=CAP, workers=workers):
        assert moved <= UNIT_WEIGHT
        assert moved == pytest.approx(share * UNIT_WEIGHT, rel=0.13)


def test_a_million_rows_weigh_no_more_and_more_than_the_weight_has_parts_nothing() -> None:
    for rows, moved in ((1_000_000, 1_000_000), (2**20 + 1, 0)):
        assert own(rows, cap=10) == (pytest.approx(moved), moved)
    assert own(3000, cap=10, most=7)[1] == 7 * (UNIT_WEIGHT // 10)


def test_rows_of_one_number_are_one_units_wherever_they_lie_among_others() -> None:
    """Two people under one id, far apart in the dataset and in different chunks."""
    rows = steps_of([A, B, C, B, A, A], [6, 1, 2, 3, 4, 6])
    found = joint_counts(rows, COLUMNS, (0, 1), workers=4, chunk=1)
    without = joint_counts(rows.select(np.array([1, 2, 3, 4])), COLUMNS, (0, 1), workers=4)
    assert np.abs(found - without).sum() == UNIT_WEIGHT


@cache
def plan(relation: Relation) -> MarginalsPlan:
    """Return a plan whose joint counts have noise of a few units."""
    return plan_of(COLUMNS, relation=relation.value, epsilon=10.0)


@cache
def scores(units: Data, relation: Relation, released: int) -> tuple[int, ...]:
    """Return the scores of all candidates, given what columns were released."""
    chooser = Chooses()
    program = program_of(COLUMNS, plan(relation), chooser, rows=2000)
    tensors = released_columns(COLUMNS, units=released, deviation=0.2 * UNIT_WEIGHT)
    resumed(program, tensors).step(1, group(table(units), COLUMNS, cap=1), Adds(), 1)
    return tuple(chooser.asked[0][0])


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("released", [48, 6])
def test_scores_move_by_what_is_charged_at_most(relation: Relation, released: int) -> None:
    span = score_span(relation)
    widths, sides = [], []
    for one, other in neighbours(relation):
        for others in ((), ((B,), (B,)), ((A, B, C), (C,), (B,), (B,))):
            pair = [scores((unit, *others), relation, released) for unit in (one, other)]
            moves = [y - x for x, y in zip(*pair, strict=True)]
            widths.append(max(moves) - min(moves))
            sides += [max(moves), -min(moves)]
    assert max(widths) <= span
    assert max(sides) <= 2 / 3 * span
    if relation is not Relation.REPLACE_ONE:
        assert max(widths) > (0.66 if released == 48 else 0.83) * span
        assert max(sides) == pytest.approx(2 / 3 * span)


def test_the_candidates_are_the_same_for_neighbours() -> None:
    """Which joint counts may be chosen follows from what was released."""
    for relation in RELATIONS:
        lengths = {len(scores((unit,), relation, 48)) for unit in ALL}
        assert len(lengths) == 1
        assert lengths.pop() > 5


def test_one_unit_can_move_two_scores_by_all_that_a_choice_is_charged_for() -> None:
    """One candidate falls by 8 units and another one rises by 4 as one unit comes."""
    expected, noise = np.array([40, 40]) * UNIT_WEIGHT, 30 * UNIT_WEIGHT
    about: dict[str, Any] = {"noise": noise, "weight": LARGEST_WEIGHT, "ordered": [False]}
    moves = []
    for weight in ([10, 40], [60, 40]):  # below what is expected and hidden; above, and seen
        with_one = np.array([weight[0] + 1, weight[1]]) * UNIT_WEIGHT
        scores = [
            score(one, expected, **about) for one in (np.array(weight) * UNIT_WEIGHT, with_one)
        ]
        moves.append(scores[1] - scores[0])
    assert moves == [-8 * UNIT_WEIGHT, 4 * UNIT_WEIGHT]
    assert max(moves) - min(moves) == score_span(Relation.ADD_OR_REMOVE)


FAR: tuple[Unit, ...] = (
    ((0.0, 0, 0.0, 40.0, False),),
    ((40.0, 1, 1.0, 0.0, True),) * 3,
    ((20.0, 1, 0.5, 20.0, False), (21.0, 0, 0.55, 19.0, False)),
    ((-9.0, 0, 7.0, 99.0, True), (13.0, 1, 0.05, 14.0, False)),
    tuple((float(i), i % 2, i / 40, float(40 - i), i == 40) for i in range(41)),
)


def wide_scores(units: Data, workers: int = 1) -> tuple[list[int], list[JointCount]]:
    """Return the scores of all candidates of the wide table, and what they are of."""
    chooser = Chooses()
    plan = plan_of(WIDE, relation="add_or_remove", epsilon=2.0)
    program = program_of(WIDE, plan, chooser, **SETTINGS)
    resumed(program, released_columns(WIDE, units=400, deviation=0.2 * UNIT_WEIGHT))
    program.prepare(1)
    open_ = program._belief.worth_counting()
    program.step(1, group(table(units), WIDE, cap=2, workers=workers), Adds(), 1)
    return chooser.asked[0][0], open_


def test_parts_of_all_kinds_move_scores_by_what_is_charged_at_most() -> None:
    span, widths = score_span(Relation.ADD_OR_REMOVE), []
    for one in FAR:
        for others in ((), FAR, (one,) * 9, FAR[:2] * 30):
            without, open_ = wide_scores(others)
            with_one, again = wide_scores((*others, one), workers=3)
            assert open_ == again  # what may be counted does not depend on rows
            assert {count.parts for count in open_} == {0, *CUTS}
            moves = [y - x for x, y in zip(without, with_one, strict=True)]
            widths.append(max(moves) - min(moves))
    assert max(widths) <= span
    assert max(widths) > 0.6 * span


@cache
def whole(units: Data, relation: Relation) -> WholeRun:
    """Return a whole run on units, of whom one with more rows than two weighs as one with two."""
    return whole_run(table(units), relation.value, cap=2, workers=2)


def shares_of_charges(
    one: WholeRun, other: WholeRun, relation: Relation
) -> Iterator[tuple[str, float]]:
    """Yield how far all that was drawn from moved, as a share of what its event charges."""
    releases = iter(zip(one.noise.asked, other.noise.asked, strict=True))
    choices = iter(zip(one.chooser.asked, other.chooser.asked, strict=True))
    span = score_span(relation)
    for step in wide_plan(relation.value).releases:
        for event in step.events:
            for _ in range(event.count):
                if isinstance(event, DiscreteGaussianEvent):
                    (x, deviation, _), (y, *_) = next(releases)
                    assert deviation >= event.noise_multiplier * event.sensitivity
                    kind = "columns" if step.columns else "correlations" if step.vector else "joint"
                    yield kind, float(np.linalg.norm(x - y)) / event.sensitivity
                else:
                    assert isinstance(event, BoundedRangeEvent)
                    (x, scale, _), (y, *_) = next(choices)
                    assert scale >= span / event.epsilon
                    yield "scores", float(np.ptp(np.subtract(x, y))) / span
    assert not [*releases, *choices], "more is drawn than is charged"


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_whole_run_with_parts_of_all_kinds_moves_by_what_is_charged_at_most(
    relation: Relation,
) -> None:
    """All vectors and scores of a run, step after step, whose noisy answers are the same.

    Units lie in corners that are far apart, among a few others and among many: in the same corner,
    where the model expects fewer, and elsewhere, where it expects more.
    """
    few, many, spread = FAR[0], FAR[1], FAR[4]
    pairs = [(few, ABSENT), (few * 5, ABSENT), (many, ABSENT), (spread, ABSENT)]
    if relation is Relation.REPLACE_ONE:
        pairs = [(few, many), (few * 5, many), (many, spread), (few, FAR[2])]
    worst = {"columns": 0.0, "correlations": 0.0, "joint": 0.0, "scores": 0.0}
    for pair in pairs:
        for others in (FAR, (few, many) * 600):
            one, other = (whole((unit, *others), relation) for unit in pair)
            assert one.kinds == {0, *CUTS}
            assert one.decided() == other.decided()
            for kind, share in shares_of_charges(one, other, relation):
                worst[kind] = max(worst[kind], share)
    assert max(worst.values()) <= 1, worst
    assert min(worst["columns"], worst["joint"]) > 0.99
    assert worst["correlations"] > (0.4 if relation is Relation.REPLACE_ONE else 0.99)
    assert worst["scores"] > 0.45


def test_blocks_and_parts_move_a_score_by_no_more_than_cells_do() -> None:
    """A unit's weight, spread over a few cells of two wide numbers, wherever it lies."""
    random = np.random.default_rng(0)
    shape, ordered = (13, 9), [True, True]
    for _ in range(200):
        expected = random.poisson(3 * UNIT_WEIGHT, shape)
        counts = random.poisson(3 * UNIT_WEIGHT, shape)
        unit = random.multinomial(UNIT_WEIGHT, random.dirichlet(np.full(counts.size, 0.01)))
        about: dict[str, Any] = {"weight": LARGEST_WEIGHT, "ordered": ordered}
        about["noise"] = int(random.integers(1, 10 * UNIT_WEIGHT))
        for parts in (0, *CUTS):
            maps = tuple(
                parts_of(random.uniform(size=size), parts) if parts else np.arange(size)
                for size in shape
            )
            scores = [
                score(blocks(one, maps), blocks(expected, maps), **about)
                for one in (counts, counts + unit.reshape(shape))
            ]
            assert -8 * UNIT_WEIGHT <= scores[1] - scores[0] <= 4 * UNIT_WEIGHT
            assert blocks(unit.reshape(shape), maps).sum() == UNIT_WEIGHT
