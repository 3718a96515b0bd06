"""Trajectories that go on from where a step led to, and end as often as lengths say."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from scipy.stats import norm

from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.marginals import balancing, rollout
from distributed_privrl.marginals.column import Part
from distributed_privrl.marginals.coupling import Coupling, Couplings
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.outcomes import Outcomes
from distributed_privrl.marginals.rollout import Rollout, known_before
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import (
    cleaned_lengths,
    length_starts,
    time_groups,
    time_starts,
)
from distributed_privrl.marginals.tables import counts_of
from distributed_privrl.marginals.unit_sizes import UnitSizes
from tests.marginals.fields import model_of
from tests.marginals.rows import columns_of

LONGEST = 12


def states(drawn: Trajectories, one: int) -> np.ndarray:
    start = drawn.offsets[one] + one
    return drawn.observations[start : start + drawn.lengths[one] + 1]


def test_steps_are_told_apart_at_first_and_in_groups_later() -> None:
    assert time_starts(2).tolist() == [0, 1]
    assert time_groups(1) == time_groups(2) == 2
    groups = time_groups(40)
    starts = time_starts(groups)
    assert starts[-1] < 40 <= time_starts(groups + 1)[-1]
    assert (np.diff(starts) > 0).all()


def test_time_what_came_before_and_state_are_known_before_a_step() -> None:
    columns = columns_of()
    names = [columns[i].name for i in known_before(columns)]
    assert names == ["observation_0", "previous_action", "time"]
    previous = columns[columns.of("previous")[0]]
    assert previous.categories == 3  # nothing came before the first


@pytest.mark.parametrize("difference", [False, True])
def test_steps_join_and_last_ones_say_how_they_end(difference: bool) -> None:
    drawn = Rollout(model_of(columns_of(difference=difference)), LONGEST).draw(
        400, np.random.default_rng(0)
    )
    assert len(drawn) == 400
    assert drawn.lengths.min() >= 1
    assert drawn.lengths.max() <= LONGEST
    ended = drawn.terminated | drawn.truncated
    last = drawn.offsets[1:] - 1
    assert ended[last].all()
    assert ended.sum() == len(drawn)  # nothing goes on after an end
    assert not (drawn.terminated & drawn.truncated).any()
    assert set(np.unique(drawn.observations)) <= set(range(10))
    steps = drawn.transitions("trajectory")
    inner = np.setdiff1d(np.arange(len(steps)), last)
    assert (steps.next_observations[inner] == steps.observations[inner + 1]).all()


def test_drawing_tells_how_far_it_is() -> None:
    told: list[tuple[str, int, int]] = []
    chunks = Rollout(model_of(columns_of()), LONGEST).chunks(
        5,
        at_once=3,
        streams=Streams(0),
        progress=lambda stage, done, total, note="": told.append((stage, done, total)),
    )
    assert sum(map(len, chunks)) == 5
    assert {(stage, total) for stage, _, total in told} == {("sampling", 5 * LONGEST)}
    done = [one for _, one, _ in told]
    assert done == sorted(done)
    assert {0, 3, 3 * LONGEST} <= set(done)
    assert done[-1] == 5 * LONGEST


def test_lengths_are_those_that_were_counted() -> None:
    columns = columns_of()
    lengths = np.zeros(columns.lengths)
    lengths[[1, 4, 7]] = 30.0, 60.0, 10.0  # trajectories of two, five and eight steps
    drawn = Rollout(model_of(columns, lengths.tolist()), LONGEST).draw(
        4000, np.random.default_rng(1)
    )
    share = np.bincount(drawn.lengths, minlength=LONGEST + 1) / 4000
    assert share[[2, 5, 8]] == pytest.approx([0.3, 0.6, 0.1], abs=0.04)
    assert share.sum() == pytest.approx(share[[2, 5, 8]].sum())


@pytest.mark.parametrize("length", [1, 10, 23, 40])
def test_a_panel_whose_people_all_have_one_length_keeps_it(length: int) -> None:
    columns = columns_of(longest=length)
    lengths = np.zeros(columns.lengths)
    lengths[-1] = 1.0
    model = model_of(columns, lengths.tolist())
    assert (Rollout(model, length).draw(200, np.random.default_rng(1)).lengths == length).all()
    further = Rollout(model, 2 * length).draw(200, np.random.default_rng(1))
    assert further.lengths.min() == length


def group_widths(longest: int) -> np.ndarray:
    return np.diff(np.append(length_starts(longest), longest + 1))


def test_noise_on_lengths_neither_shortens_trajectories_nor_breaks_panels() -> None:
    random, starts = np.random.default_rng(0), length_starts(60)
    real = 3000 * np.exp(-starts / 5) / np.exp(-starts / 5).sum()
    panel = np.where(starts == 60, 500.0, 0.0)
    means, kept = [], []
    for _ in range(40):
        found = cleaned_lengths(real + random.normal(0, 12, len(starts)), 60, 12)
        assert found.min() >= 0
        means.append(found @ starts / found.sum())
        found = cleaned_lengths(panel + random.normal(0, 12, len(starts)), 60, 12)
        kept.append(found[-1] / found.sum())
    assert np.mean(means) == pytest.approx(real @ starts / real.sum(), rel=0.03)
    assert np.mean(kept) > 0.93
    assert not cleaned_lengths(np.full(len(starts), -1.0), 60, 12).any()


@pytest.mark.parametrize("scale", [3.0, 20.0, 60.0])
def test_a_little_noise_on_lengths_that_nobody_has_is_not_many_steps(scale: float) -> None:
    """As on months of more than a hundred flights, which no plane has."""
    random, starts, widths = np.random.default_rng(0), length_starts(150), group_widths(150)
    middle = starts + (widths - 1) / 2
    real = widths * np.exp(-middle / scale)
    real *= 4000 / real.sum()
    means = []
    for _ in range(60):
        found = cleaned_lengths(real + random.normal(0, 12, len(starts)), 150, 12)
        assert found.min() >= 0
        means.append(found @ middle / found.sum())
    exact = real @ middle / real.sum()
    assert np.mean(np.abs(np.array(means) / exact - 1) < 0.1) > 0.9


def test_lengths_that_were_counted_without_noise_stay() -> None:
    weights = np.zeros(len(length_starts(150)))
    weights[[0, 9, 27]] = 5.0, 1.0, 0.5
    np.testing.assert_allclose(cleaned_lengths(weights, 150, 0.0), weights)


def test_lengths_of_a_group_are_equally_many() -> None:
    columns = columns_of(longest=200)
    starts = length_starts(200)
    group = int(np.flatnonzero(np.diff(starts) > 5)[0])
    lengths = np.eye(columns.lengths)[group]
    drawn = Rollout(model_of(columns, lengths.tolist()), 200).draw(4000, np.random.default_rng(1))
    share = np.bincount(drawn.lengths, minlength=201)[starts[group] : starts[group + 1]] / 4000
    assert share == pytest.approx(np.full(len(share), 1 / len(share)), abs=0.03)


@pytest.mark.parametrize("floor", [-np.inf, -12.0])
def test_ends_that_no_state_expects_are_of_the_kinds_that_were_seen(floor: float) -> None:
    """Lengths say that all end; the model expects no end anywhere, and nobody has terminated."""
    columns = columns_of()
    (end,) = columns.of("end")
    model = model_of(columns, [30.0] * columns.lengths)
    masses = np.array([300.0, 0.0, 30.0])
    shapes = [
        replace(one, masses=masses) if i == end else one for i, one in enumerate(model.shapes)
    ]
    never = {**model.field.potentials, (end,): np.array([0.0, floor, floor])}
    model = replace(model, shapes=tuple(shapes), field=replace(model.field, potentials=never))
    drawn = Rollout(model, LONGEST).draw(500, np.random.default_rng(0))
    assert drawn.truncated[drawn.offsets[1:] - 1].all()
    assert drawn.lengths.min() < LONGEST / 2


def test_trajectories_of_one_seed_are_the_same() -> None:
    rollout = Rollout(model_of(columns_of()), LONGEST)
    one, other = (rollout.draw(50, np.random.default_rng(3)) for _ in range(2))
    assert (one.observations == other.observations).all()
    assert (one.lengths == other.lengths).all()
    assert len(states(one, 0)) == one.lengths[0] + 1


def test_categories_among_numbers_stay_one_each_from_step_to_step() -> None:
    space = TableBox(np.zeros(5, np.float32), np.array([9, 1, 1, 1, 1], np.float32), [(1, 4)])
    bounds = Bounds(
        low=np.zeros(5),
        high=np.array([9.0, 1.0, 9.0, 1.0, 1.0]),
        columns=("observation_0", "observation_4", "action_0", "action_4", "reward"),
    )
    steps = step_columns(space, space, bounds, next_observation="absolute", ends=3)
    columns = trajectory_columns(steps, groups=time_groups(LONGEST), previous=True)
    drawn = Rollout(model_of(columns), LONGEST).draw(200, np.random.default_rng(0))
    for part in (drawn.observations, drawn.actions):
        assert (part[:, 1:4].sum(axis=1) == 1).all()
        assert set(np.unique(part[:, 1:4])) == {0.0, 1.0}
        assert (part[:, 1:4].mean(axis=0) > 0.2).all(), "all categories come up"


def test_trajectories_are_of_large_units_as_often_as_there_are_and_stay_with_their_unit() -> None:
    """The class of a unit, which weighs alike, decides its actions, and never changes."""
    sizes = UnitSizes(2, 8)
    columns = columns_of().with_unit_sizes(sizes)
    plain = model_of(columns)
    (action,), (unit,) = columns.of("action"), columns.of("unit")
    told = np.full((2, sizes.count), -30.0)
    told[0, 0] = told[1, 1:] = 0.0  # small units act 0, and larger ones 1
    potentials = {**plain.field.potentials, (action, unit): told}
    model = replace(plain, field=Field(plain.field.sizes, potentials))
    drawn = Rollout(model, LONGEST).draw(4000, np.random.default_rng(0))
    first = drawn.actions[drawn.offsets[:-1]]
    expected = sizes.rows[1:].sum() / sizes.rows.sum()
    assert np.mean(first == 1) == pytest.approx(expected, abs=0.03)
    assert (drawn.actions == np.repeat(first, drawn.lengths)).all()


def drifting() -> TableModel:
    """Return a model of states that lead where it knows of no action: 9 in 10 of a step's are 0.

    Below 5 actions are known, above all are alike; few states lie there, but each step leads on.
    """
    model, columns = model_of(columns_of()), columns_of()
    (state,), (action,) = columns.of("observation"), columns.of("action")
    (after,) = columns.of("next_observation")
    places = model.shapes[state].bins[columns.recoded(state, np.arange(10.0))]
    known, sizes = places[:5], model.field.sizes
    mass, odds = np.full(sizes[state], -6.0), np.zeros((sizes[state], sizes[action]))
    mass[known], odds[known] = 0.0, np.log([0.9, 0.1])
    leads = np.full((sizes[state], sizes[after]), -9.0)
    leads[places, places[np.minimum(np.arange(10) + 2, 9)]] = 0.0
    (end,) = columns.of("end")
    goes_on = np.array([0.0, -5.0, -5.0])
    pairs = {(state,): mass, (state, action): odds, (state, after): leads, (end,): goes_on}
    return replace(model, field=Field(sizes, model.field.potentials | pairs))


@pytest.mark.parametrize(
    ("raised", "cells", "kept"), [(1.0, 10**6, False), (8.0, 10**6, True), (8.0, 0, False)]
)
def test_actions_do_not_drift_to_even_shares(
    raised: float, cells: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "_MOST_RAISED", raised)
    monkeypatch.setattr(rollout, "_MOST_CELLS", cells)
    drawn = Rollout(drifting(), LONGEST).draw(3000, np.random.default_rng(0))
    times = np.concatenate([np.arange(length) for length in drawn.lengths])
    shares = [float((drawn.actions[times == time] == 0).mean()) for time in (0, 4, 8)]
    assert shares[0] == pytest.approx(0.9, abs=0.03)
    assert (min(shares[1:]) > 0.85) == kept, shares


def ageing(*, told: Part | None) -> TableModel:
    """Return a model of people from 4 to 9 who become a year older at each of five steps.

    ``told``: it was counted how many of them are of which age at which time, or after what was done
    before, which nothing was at first.
    """
    columns = columns_of(difference=True, longest=5)
    model = model_of(columns, [0.0, 0.0, 0.0, 0.0, 1.0])
    sizes = model.field.sizes
    (age,), (after,) = columns.of("observation"), columns.of("next_observation")
    ages = model.shapes[age].bins[columns.recoded(age, np.arange(10.0))]
    mass, moved = np.full(sizes[age], -9.0), np.full(sizes[after], -9.0)
    mass[ages[4:]] = 0.0
    moved[model.shapes[after].bins[columns.recoded(after, np.ones(1))]] = 0.0
    pairs = {(age,): mass, (after,): moved}
    for place in columns.of(told) if told else ():
        pairs[age, place] = np.zeros((sizes[age], sizes[place]))
    return replace(model, field=Field(sizes, model.field.potentials | pairs))


@pytest.mark.parametrize("told", [None, "time", "previous"])
def test_first_states_are_such_that_all_steps_together_are_as_they_were_counted(
    told: Part | None,
) -> None:
    rollout = Rollout(ageing(told=told), 5)
    drawn = rollout.draw(3000, np.random.default_rng(0))
    _, firsts = rollout._balance
    assert not firsts._seen, "only walks on trial are noted"
    states = drawn.transitions("trajectory").observations[:, 0]
    first = drawn.observations[drawn.offsets[:-1] + np.arange(3000), 0]
    assert (drawn.lengths == 5).all()
    if told:  # who was counted begins as they were counted
        assert first.mean() == pytest.approx(6.5, abs=0.1)
        return
    assert first.mean() < 5.2
    assert states.mean() < 7.0  # from any age it would be above 8


def far_apart(correlation: float) -> TableModel:
    """Return a model whose reward follows the state, both normal; bins are thirds of the rows."""
    bounds = Bounds(
        low=np.zeros(2), high=np.full(2, 9.0), step=np.zeros(2), columns=("observation_0", "reward")
    )
    steps = step_columns(Box(0, 9, (1,)), Discrete(2), bounds, next_observation="absolute", ends=3)
    columns = trajectory_columns(steps, groups=2, previous=False, longest=LONGEST)
    made, shapes = model_of(columns), []
    for column, shape in zip(columns.columns, made.shapes, strict=True):
        if column.cells is None:
            shapes.append(shape)
            continue
        widths = column.cells.widths
        thirds = np.minimum((np.cumsum(widths) - widths / 2) // 3, 2).astype(np.int64)
        shapes.append(ColumnShape(widths, thirds, widths, 1.0, np.empty(0)))
    sizes = tuple(shape.size for shape in shapes)
    both = np.random.default_rng(2).multivariate_normal(
        [0, 0], [[1, correlation], [correlation, 1]], 200_000
    )
    bins = np.searchsorted(norm.ppf([1 / 3, 2 / 3]), both)
    (state,), (reward,) = columns.of("observation"), columns.of("reward")
    shares = counts_of(bins, (0, 1), (3, 3)) / len(bins)
    potentials = {(i,): np.zeros(size) for i, size in enumerate(sizes)}
    potentials[state, reward] = np.log(shares)
    found = Couplings({reward: Coupling.of_bins(state, shares, correlation)})
    return replace(made, shapes=tuple(shapes), couplings=found, field=Field(sizes, potentials))


def test_what_follows_a_known_number_knows_where_it_lies_in_its_bin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A state is drawn in the step before, when nobody knows the reward that will follow it."""

    def later() -> float:
        drawn = Rollout(far_apart(0.9), LONGEST).draw(3000, np.random.default_rng(3))
        steps = drawn.transitions("trajectory")
        first = np.zeros(len(steps), np.bool_)
        first[drawn.offsets[:-1]] = True
        places = np.stack([steps.observations[:, 0], steps.rewards])[:, ~first] / 9
        scores = norm.ppf(np.clip(places, 1e-4, 1 - 1e-4))
        return float(np.corrcoef(scores)[0, 1])

    with_places = later()
    monkeypatch.setattr(Outcomes, "_following", [])
    assert with_places > later() + 0.03
    assert with_places == pytest.approx(0.9, abs=0.05)
