"""What counts of observations say of next observations, and what a rollout makes of it."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.belief import Belief, TableFacts
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.implied import Implied
from distributed_privrl.marginals.rollout import Rollout, known_before
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import Steps, steps_in_time
from distributed_privrl.marginals.successors import Successors
from distributed_privrl.marginals.tables import Clique, JointCount, ReleasedTable, counts_of
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT

PEOPLE, STEPS = 4000, 5
NOISE = 0.5 * UNIT_WEIGHT


def columns(
    *, lasting: tuple[int, ...] = (), previous: bool = True, alone: bool = False
) -> TableColumns:
    """Return columns of three categories, an action and a reward; of rows that are drawn alone."""
    bounds = Bounds(low=np.zeros(1), high=np.ones(1), columns=("reward",), step=np.ones(1))
    steps = step_columns(
        MultiDiscrete([3, 3, 2]),
        Discrete(3),
        bounds,
        next_observation="absolute",
        ends=3,
        lasting=lasting,
    )
    if alone:  # and nobody saw what follows an end
        return replace(steps, ends_unseen=True)
    return trajectory_columns(steps, groups=2, previous=previous)


def place(table: TableColumns, name: str) -> int:
    return next(i for i, one in enumerate(table.columns) if one.name == name)


def named(table: TableColumns, clique: Clique) -> list[str]:
    extra = ["next_action"] * 4
    return [([one.name for one in table.columns] + extra)[i] for i in clique]


@pytest.mark.parametrize(
    ("counted", "told"),
    [
        (("observation_0", "observation_1"), ["next_observation_0", "next_observation_1"]),
        (("observation_0", "action"), ["next_observation_0", "next_action"]),
        (("observation_0", "previous_action"), ["action", "next_observation_0"]),
        (("action", "previous_action"), ["action", "next_action"]),
        (
            ("observation_0", "observation_1", "action"),
            ["next_observation_0", "next_observation_1", "next_action"],
        ),
        (("observation_0", "observation_1", "end"), ["next_observation_0", "next_observation_1"]),
        (("observation_0", "reward"), None),
        (("observation_0", "next_observation_0"), None),
        (("observation_0", "time"), None),
    ],
)
def test_each_column_is_another_one_step_before(
    counted: tuple[str, ...], told: list[str] | None
) -> None:
    table = columns()
    clique = tuple(sorted(place(table, one) for one in counted))
    sizes = [table[i].size for i in clique]
    source = np.random.default_rng(0)
    found = Successors(table).told(clique, source.uniform(1, 2, sizes))
    assert (None if found is None else named(table, found[0])) == told
    if found is not None:
        assert found[1].shape == tuple(
            3 if name.endswith("action") else 2 if name.endswith("_2") else 3
            for name in named(table, found[0])
        )
        assert found[1].sum() == pytest.approx(1)


def test_what_lasts_stays_and_cells_go_along_with_their_columns() -> None:
    """Counts of (0, 1) where 0 stays: of (0, next 1); and no step has no action before it."""
    table = columns(lasting=(0,))
    pair = place(table, "observation_0"), place(table, "observation_1")
    counts = np.arange(9.0).reshape(3, 3)
    clique, shares = Successors(table).told(pair, counts) or ((), np.empty(0))
    assert named(table, clique) == ["observation_0", "next_observation_1"]
    np.testing.assert_allclose(shares, counts / 36)
    before = place(table, "action"), place(table, "previous_action")
    counts = np.arange(12.0).reshape(3, 4)
    clique, shares = Successors(table).told(before, counts) or ((), np.empty(0))
    assert named(table, clique) == ["action", "next_action"]
    # the action before is the action, and the action is the next one
    np.testing.assert_allclose(shares, counts[:, :3].T / counts[:, :3].sum())


def test_rows_that_stand_alone_tell_of_others_where_what_follows_is_a_row() -> None:
    table = columns()
    alone = replace(table, columns=table.columns[: place(table, "previous_action")])
    assert Successors(alone).told((0, 1), np.ones((3, 3))) is None
    unseen = replace(alone, ends_unseen=True)
    clique, shares = Successors(unseen).told((0, 1), np.eye(3)) or ((), np.empty(0))
    assert named(unseen, clique) == ["next_observation_0", "next_observation_1"]
    np.testing.assert_allclose(shares, np.eye(3) / 3)
    action = place(unseen, "action")  # of which row: there is no next step
    assert Successors(unseen).told((0, action), np.ones((3, 3))) is None
    for one in (alone, unseen):
        assert Successors(one).hidden == ()


def people(seed: int) -> Steps:
    """Return steps of people: two categories are the same, anew each time, and so is the action."""
    source = np.random.default_rng(seed)
    one = source.integers(0, 3, (PEOPLE, STEPS + 1))
    states = np.stack([one, one, source.integers(0, 2, one.shape)], axis=2)
    rows = PEOPLE * STEPS
    transitions = Transitions(
        observations=states[:, :-1].reshape(rows, 3),
        actions=one[:, :-1].reshape(rows),
        rewards=np.zeros(rows, np.float32),
        next_observations=states[:, 1:].reshape(rows, 3),
        terminated=np.tile(np.arange(STEPS) == STEPS - 1, PEOPLE),
        truncated=np.zeros(rows, np.bool_),
        unit_ids=np.repeat(np.arange(PEOPLE), STEPS).astype(np.uint64),
    )
    times = np.tile(np.arange(STEPS), PEOPLE)
    return steps_in_time(transitions, times)


def believed(
    counted: list[tuple[str, ...]], *, alone: bool = False, **settings: Any
) -> tuple[Belief, NDArray[np.int32]]:
    """Return what is believed after noisy counts of columns together, and the exact bins."""
    table = columns(alone=alone)
    cells = table.coded(people(1)).cells
    weight = UNIT_WEIGHT / STEPS
    source = np.random.default_rng(2)

    def noisy(counts: NDArray[np.float64]) -> NDArray[np.int64]:
        noise = NOISE * source.standard_normal(counts.shape)
        return np.rint(weight * counts + noise).astype(np.int64)

    given = () if alone else known_before(table)
    facts = TableFacts(columns=table, seed=4, rows=20_000, given=given, **settings)
    belief = Belief(facts, joint_deviation=NOISE, planned=len(counted))
    sizes = [one.size for one in table.columns]
    single = [
        noisy(counts_of(cells, (i,), sizes)) for i, one in enumerate(table.columns) if one.counted
    ]
    belief.shape(np.concatenate(single), NOISE)
    belief.estimate()
    for names in counted:
        clique = tuple(sorted(place(table, one) for one in names))
        belief.take(JointCount(clique), noisy(counts_of(cells, clique, sizes)), NOISE)
    return belief, cells


@cache
def told() -> Belief:
    """Return a belief that tests read: nothing was counted of next observations."""
    return believed([("observation_0", "observation_1"), ("observation_1", "action")])[0]


def test_observations_that_go_together_do_so_after_steps() -> None:
    """Nothing was counted of next observations, and all later states keep what first ones have."""
    belief = told()
    table = belief.bins.columns
    pair = place(table, "next_observation_0"), place(table, "next_observation_1")
    expected = belief.expected(pair)
    assert np.trace(expected) > 0.95 * expected.sum()  # so no choice would be spent on it
    drawn = Rollout(belief.model(), STEPS).draw(2000, np.random.default_rng(5))
    assert (drawn.observations[:, 0] == drawn.observations[:, 1]).mean() > 0.95
    steps = drawn.transitions("trajectory")
    assert (steps.observations[:, 1] == steps.actions).mean() > 0.95


def test_next_observations_of_rows_that_are_drawn_alone_go_together_as_observations_do() -> None:
    belief, cells = believed([("observation_0", "observation_1")], alone=True)
    table = belief.bins.columns
    pair = place(table, "next_observation_0"), place(table, "next_observation_1")
    goes_on = cells[table.followed(cells)]
    assert (goes_on[:, pair[0]] == goes_on[:, pair[1]]).all()
    belief.estimate()
    expected = belief.expected(pair)
    assert np.trace(expected) > 0.95 * expected.sum()


def test_next_observations_go_together_by_the_action_that_both_lead_to() -> None:
    """Each category is counted with the action alone: that they are the same follows from it."""
    belief, _ = believed([("observation_0", "action"), ("observation_1", "action")])
    drawn = Rollout(belief.model(), STEPS).draw(2000, np.random.default_rng(5))
    assert (drawn.observations[:, 0] == drawn.observations[:, 1]).mean() > 0.95
    belief, _ = believed([("observation_0", "action"), ("observation_1", "action")], model_cells=44)
    assert not belief.implied.told  # the model stays as small as it must


def test_what_a_model_has_no_room_for_is_told_where_rows_are_drawn() -> None:
    """The same with a model that holds what was counted, and no table more."""
    counted = [("observation_0", "observation_1"), ("observation_1", "action")]
    belief, _ = believed(counted, model_cells=44)
    table = belief.bins.columns
    pair = place(table, "next_observation_0"), place(table, "next_observation_1")
    assert pair not in belief.implied.told
    assert set(belief.implied.laterals) == {(0, 1)}
    assert not any(one.clique == pair for one in belief.worth_counting())
    model = belief.model()
    for laterals, least, most in ((model.laterals, 0.9, 1.0), ({}, 0.2, 0.5)):
        drawn = Rollout(replace(model, laterals=laterals), STEPS).draw(
            2000, np.random.default_rng(5)
        )
        later = drawn.transitions("trajectory").next_observations
        assert least < (later[:, 0] == later[:, 1]).mean() < most
        shares = np.bincount(later[:, 0].astype(int), minlength=3) / len(later)
        np.testing.assert_allclose(shares, 1 / 3, atol=0.04)


def test_a_finer_count_is_told_beside_a_coarse_one_of_more_columns_and_holds() -> None:
    """Whichever was released first: the triple in halves would say that two are hardly related."""
    belief = told()
    sizes = belief.bins.sizes
    triple = ReleasedTable((0, 1, 2), 2, np.ones(sizes[:3], np.int64), 1.0, np.ones(sizes[:3]))
    pair = ReleasedTable((0, 1), 0, np.eye(3, dtype=np.int64), 1.0, np.eye(3))
    for order in ([triple, pair], [pair, triple]):
        known = Implied(belief.bins, {one.clique: one for one in order}, {}, lambda _: False)
        assert list(known.laterals) == [(0, 1, 2), (0, 1)]
        np.testing.assert_allclose(known.laterals[0, 1], np.eye(3) / 3)
        assert len(known.without_room) == 2
    fine = replace(triple, parts=0)
    known = Implied(belief.bins, {one.clique: one for one in (fine, pair)}, {}, lambda _: False)
    assert list(known.laterals) == [(0, 1, 2)], "which tells the pair"


def test_what_was_counted_itself_overrules_what_is_told() -> None:
    pair = ("next_observation_0", "next_observation_1")
    belief, cells = believed([("observation_0", "observation_1"), pair])
    table = belief.bins.columns
    assert not belief.implied.told
    clique = place(table, pair[0]), place(table, pair[1])
    exact = counts_of(cells, clique, [one.size for one in table.columns])
    np.testing.assert_allclose(
        belief.expected(clique) / belief.bins.total, exact / exact.sum(), atol=0.02
    )


def test_what_is_told_is_the_same_after_a_resume() -> None:
    belief = told()
    again = Belief(belief._spec, joint_deviation=NOISE, planned=2)
    again._bins = belief.bins
    again.tables = list(belief.tables)
    assert again.implied.told.keys() == belief.implied.told.keys()
    for clique, one in again.implied.told.items():
        np.testing.assert_array_equal(one.counts, belief.implied.told[clique].counts)
