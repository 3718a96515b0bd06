"""As much flows into each state as flows out of it: what that tells of changes, ends and starts."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Trajectories, Transitions, offsets_of
from distributed_privrl.marginals import belief, endings, flow, implied, outcomes
from distributed_privrl.marginals.bins import Bins
from distributed_privrl.marginals.column import STAYS
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import CountSpec, CountWorker
from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.flow import Noisy, flowing, led_to, told_by_flow
from distributed_privrl.marginals.loss import Measured
from distributed_privrl.marginals.model import estimated
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import Steps, steps_in_time, time_groups
from distributed_privrl.marginals.tables import ReleasedTable
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.marginals.programs import Chooses, plan_of, program_of

SPACES = Box(-4, 10, (2,)), Discrete(1)
YEARS, PEOPLE, KEPT = 10, 4000, 0.6
"""Years of a study; how much of a mood is left after a year."""


def study() -> Trajectories:
    """Return people who join in any year but the last, and stay: each has a year and a mood.

    A mood comes back to 0: what it becomes is 0.6 of it, and chance.
    """
    source = np.random.default_rng(1)
    begins = source.integers(0, YEARS - 1, PEOPLE)
    lengths = YEARS - begins
    offsets = offsets_of(lengths)
    year = np.arange(lengths.sum()) - np.repeat(offsets[:-1] - begins, lengths)
    mood = source.standard_normal(len(year))
    for time in range(1, YEARS):
        place = (offsets[:-1] + time)[lengths > time]
        mood[place] = KEPT * mood[place - 1] + np.sqrt(1 - KEPT**2) * mood[place]
    rows = np.column_stack([year, np.clip(np.round(4 * mood) / 4, -4, 4)])
    last = np.zeros(len(rows), bool)
    last[offsets[1:] - 1] = True
    return Trajectories(
        observations=np.repeat(rows, 1 + last, axis=0),  # nobody saw what follows: it is repeated
        actions=np.zeros(len(rows), np.int64),
        rewards=np.zeros(len(rows)),
        terminated=last,
        truncated=np.zeros(len(rows), bool),
        offsets=offsets,
        unit_ids=np.arange(PEOPLE),
    )


def columns() -> TableColumns:
    """Return those of the study: what follows a last row nobody saw."""
    bounds = Bounds(
        low=np.array([0.0, -4.0]),
        high=np.array([YEARS - 1.0, 4.0]),
        step=np.array([1.0, 0.25]),
        columns=("observation_0", "observation_1"),
    )
    steps = step_columns(
        *SPACES,
        bounds,
        next_observation="difference",
        ends=3,
        rising=(0,),
        has_reward=False,
    )
    table = trajectory_columns(
        steps, groups=time_groups(YEARS), previous=True, longest=YEARS, alike=float(YEARS)
    )
    return replace(table, ends_unseen=True)


class Study:
    """A source of the study's steps."""

    def __call__(self) -> Iterator[tuple[Steps, NDArray[np.uint64]]]:
        people = study()
        steps = people.transitions("trajectory")
        times = np.concatenate([np.arange(length) for length in people.lengths])
        yield steps_in_time(steps, times), steps.unit_ids


def counted(tables: int = 0) -> MarginalsProgram:
    """Return a program that has counted columns, and so many joint counts, without noise."""
    table = columns()
    plan = plan_of(table, epsilon=None, steps=1, tables=max(tables, 1))
    made = program_of(table, plan, Chooses(), rows=20_000)
    spec = CountSpec(source=Study(), columns=table, rows_per_unit=YEARS)
    workers = LocalExecutor().start(CountWorker, [spec])
    for step in range(1 + (tables > 0)):
        made.prepare(step)
        made.step(step, workers, None)
    made.prepare(1 + (tables > 0))
    return made


def walked(made: MarginalsProgram) -> Transitions:
    drawn = Rollout(made.model(), YEARS).draw(3000, np.random.default_rng(0))
    return drawn.transitions("trajectory")


def test_numbers_come_back_and_a_study_ends_though_columns_alone_were_counted() -> None:
    real, drawn = (study().transitions("trajectory"), walked(counted()))
    for rows in (real, drawn):
        year, mood = rows.observations.T
        after = rows.next_observations
        assert rows.terminated[year == YEARS - 1].mean() > 0.98
        goes_on = ~rows.terminated
        assert (after[goes_on, 0] == year[goes_on] + 1).mean() > 0.999
        fall = np.polyfit(mood[goes_on], (after[:, 1] - mood)[goes_on], 1)[0]
        assert fall == pytest.approx(KEPT - 1, abs=0.12)
        late = year == YEARS - 1
        assert mood[late].std() == pytest.approx(1.0, abs=0.12)
    assert drawn.terminated[drawn.observations[:, 0] < YEARS - 1].mean() < 0.05


def test_without_it_numbers_spread_and_people_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above sees what it is for."""
    monkeypatch.setattr(implied, "told_by_flow", lambda *_: {})
    monkeypatch.setattr(endings, "stuck", lambda _: {})
    monkeypatch.setattr(outcomes, "headrooms", lambda _: [])
    drawn = walked(counted())
    year, mood = drawn.observations.T
    fall = np.polyfit(mood, drawn.next_observations[:, 1] - mood, 1)[0]
    assert fall > -0.15
    assert drawn.terminated[year == YEARS - 1].mean() < 0.6


def test_a_stationary_chain_is_found_again() -> None:
    """Of a Gaussian chain all of it: by its states, its changes, and how many begin and end."""
    bins, shifts = np.linspace(-3, 3, 25), np.linspace(-3, 3, 25)
    states = np.exp(-(bins**2) / 2)
    leads = np.exp(-((bins[:, None] + shifts - KEPT * bins[:, None]) ** 2) / 2 / (1 - KEPT**2))
    places = np.arange(25)[:, None] + np.arange(25) - 12
    inside = (places >= 0) & (places < 25)
    chain = states[:, None] * leads * inside
    chain *= 9000 / chain.sum()
    for _ in range(200):  # as many come as go
        out = chain.sum(axis=1)
        into = np.bincount(places[inside], weights=chain[inside], minlength=25)
        chain *= np.sqrt(into / out)[:, None]
    reached = np.zeros((25, 25, 25))
    reached[(*np.nonzero(inside), places[inside])] = 1.0
    masses = chain.sum(axis=1) / 0.9
    found = flowing(Noisy(masses, 0.1), chain.sum(axis=0), 1000.0, reached)
    alike = np.outer(chain.sum(axis=1), chain.sum(axis=0)) / chain.sum()
    assert np.abs(alike - chain).sum() / 18_000 > 0.15
    assert np.abs(found.goes_on - chain).sum() / 18_000 < 0.01
    for some in (found.ends, found.begins):
        assert np.abs(some - masses / 10).sum() / 2000 < 0.1


def test_noise_is_not_taken_for_a_flow() -> None:
    """Under much noise rows are alike, whatever the counts are."""
    source = np.random.default_rng(0)
    reached = np.tile(np.eye(6), (6, 1, 1))
    masses = np.full(6, 100.0) + source.normal(0, 60, 6)
    pair = source.normal(0, 60, (6, 6)) + 15.0
    found = flowing(Noisy(masses, 600.0), np.full(6, 90.0), 60.0, reached, Noisy(pair, 600.0))
    shares = masses / masses.sum()
    assert found.ends == pytest.approx(60 * shares, rel=0.1)
    assert found.goes_on == pytest.approx(np.outer(shares, np.full(6, 90.0)), rel=0.15)


def test_noise_in_a_number_is_not_told_by_changes_that_nobody_makes() -> None:
    """Everybody grows a year older, and ages are as ragged as noise makes them."""
    source = np.random.default_rng(0)
    reached = np.zeros((20, 2, 20))  # a year more, or none
    reached[np.arange(19), 0, np.arange(1, 20)] = reached[np.arange(20), 1, np.arange(20)] = 1.0
    masses = Noisy(30.0 + source.normal(0, 10, 20), 10.0)
    found = flowing(masses, np.array([500.0, 0.0]), 100.0, reached)
    assert found.goes_on[:, 1].sum() < 0.001 * found.goes_on.sum()
    into = np.einsum("kl,klm->m", found.goes_on, reached) + found.begins
    assert np.abs(into - masses.values).mean() < 6.0


def test_what_was_counted_is_believed_where_it_has_little_noise() -> None:
    reached = np.tile(np.eye(3), (3, 1, 1))
    pair = np.array([[80.0, 10.0, 0.0], [0.0, 80.0, 10.0], [10.0, 0.0, 80.0]])
    noisy = pair + np.array([[2.0, -2.0, -1.0], [1.0, 0.0, 2.0], [-1.0, 1.0, 1.0]])
    found = flowing(Noisy(np.full(3, 100.0), 2.0), pair.sum(0), 30.0, reached, Noisy(noisy, 2.0))
    assert np.abs(found.goes_on - pair).max() < 3.0
    assert found.goes_on.min() > 0


def test_a_step_leads_to_bins_and_not_out_of_the_bounds() -> None:
    made = counted()
    table, shapes = made._belief.bins.columns, made._belief.bins.shapes
    state, change = table.of("observation")[0], table.of("next_observation")[0]
    parts = led_to([table[state], table[change]], [shapes[state], shapes[change]])
    assert table[change].cells is not None
    assert table[change].cells.low == 0.0, "years never fall"
    one = int(shapes[change].bins[table[change].cells.cells_of(np.array([1.0]))[0]])
    assert parts[:, one].sum(axis=1).tolist() == [1.0] * (YEARS - 1) + [0.0]
    assert parts[3, one].argmax() == 4
    assert flow.stuck(made.model())[state].tolist() == [False] * (YEARS - 1) + [True]


def test_a_category_stays_or_becomes_another() -> None:
    space = TableBox(np.zeros(11, np.float32), np.ones(11, np.float32), ((0, 10),))
    bounds = Bounds(low=np.zeros(1), high=np.ones(1), columns=("observation_10",), step=np.ones(1))
    steps = step_columns(
        space, Discrete(1), bounds, next_observation="counted", ends=3, has_reward=False
    )
    names = [column.name for column in steps.columns]
    shapes = counted()._belief.bins.shapes  # numbers have shapes, categories have none but sizes
    pair = steps[names.index("observation_0")], steps[names.index("change_observation_0")]
    sized = [replace(shapes[0], bins=np.arange(one.size)) for one in pair]
    parts = led_to(pair, sized)
    assert parts.shape == (10, 11, 10)
    assert parts[4, STAYS].argmax() == 4
    assert parts[4, 8].argmax() == 7
    assert (parts.sum(axis=2) == 1).all()


def test_ends_are_told_by_what_they_depend_on_alone() -> None:
    made = counted()
    table, told = made._belief.bins.columns, made._belief.implied.by_flow
    year, mood = table.of("observation")
    (end,) = table.of("end")
    changes = table.of("next_observation")
    assert {(year, changes[0]), (mood, changes[1]), (year, end)} <= set(told)
    alike = made._belief.bins.own_margin(mood)
    noisy = replace(alike, deviations=np.full(len(alike.masses), 30.0 * UNIT_WEIGHT))
    assert not flow._differ(0.1 * alike.masses / UNIT_WEIGHT + 2.0, noisy)
    ends = told[year, end].counts
    assert (ends[:-1, 1] < 0.02 * ends[:-1].sum(axis=1)).all()
    assert ends[-1, 1] > 0.98 * ends[-1].sum()


def test_a_count_with_the_end_and_one_of_numbers_as_they_are_stand() -> None:
    """Flows overrule neither: what was asked for and counted would be lost."""
    made = counted()
    bins, (year, _) = made._belief.bins, made._belief.bins.columns.of("observation")
    (end,) = bins.columns.of("end")
    ones = np.ones((YEARS, 3), np.int64)
    table = ReleasedTable((year, end), 0, ones, 1.0, ones.astype(float))
    assert (year, end) in told_by_flow(bins, {})
    assert (year, end) not in told_by_flow(bins, {(year, end): table})
    as_it_is = tuple(replace(one, difference=False) for one in bins.columns.columns)
    other = Bins(replace(bins.columns, columns=as_it_is), bins.shapes, bins.total)
    pair = year, bins.columns.of("next_observation")[0]
    assert told_by_flow(other, {pair: replace(table, clique=pair)}) == {}


def test_the_model_that_rows_are_drawn_from_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; models between choices take less, and their fields are not drawn from."""
    asked, right = list[bool](), belief.estimated

    def noted(*given: object, last: bool = False, **named: object) -> object:
        asked.append(last)
        return right(*given, last=last, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(belief, "estimated", noted)
    made = counted(tables=1)
    made.model()
    made.model()
    assert asked.count(True) == 1
    assert asked[-1]


def test_states_that_were_counted_otherwise_make_no_change_that_nobody_makes() -> None:
    """Least squares would take what a state has too much of from all changes alike."""
    made = counted()
    told = next(iter(made._belief.implied.by_flow.values()))
    often = np.linspace(0.5, 1.5, YEARS) * told.counts.sum(axis=1)
    other = Measured((0, 2), np.outer(often, [0.5, 0.5]), UNIT_WEIGHT)
    strays = []
    for deviations in (np.median(told.deviations), told.deviations):
        flows = Measured((0, 1), told.counts, deviations)
        sizes = (*told.counts.shape, 2)
        field = estimated(sizes, [flows, other], total=float(often.sum()), last=True)
        rows = np.zeros((20_000, 3), np.int32)
        Drawer(field).fill(rows, np.random.default_rng(0))
        usual = told.counts.argmax(axis=1)[rows[:, 0]]
        strays.append(float((rows[:, 1] != usual).mean()))
    assert strays[0] > 0.02
    assert strays[1] < 0.005


def test_an_estimate_is_told_which_cells_of_a_count_are_surely_empty() -> None:
    """Of a count in bins; one in parts is off alike in all of them."""
    made = counted()
    one = 5.0 * UNIT_WEIGHT
    noisy = np.rint(np.random.default_rng(0).normal(0, one, (YEARS, YEARS))).astype(np.int64)
    full = 200.0 * UNIT_WEIGHT * np.eye(YEARS)
    bins = ReleasedTable((0, 0), 0, noisy + full.astype(np.int64), one, full)
    ones = np.ones((YEARS, made._belief.bins.sizes[1]))
    halves = ReleasedTable((0, 1), 2, np.ones((2, 2), np.int64), one, ones)
    made._belief.tables = [bins, halves]
    known = made._belief._measured(bins).deviations
    assert isinstance(known, np.ndarray)
    assert known[0, 0] == pytest.approx(one, rel=0.02)
    assert known[0, 1] < 0.3 * one
    assert made._belief._measured(halves).deviations == one


def test_what_was_counted_has_its_room_first() -> None:
    made = counted()
    known = made._belief.implied
    assert replace(known, allows=lambda _: False).by_flow == {}
    (year, change), *_ = known.by_flow
    release = ReleasedTable(
        (year, change), 0, np.ones((YEARS, 3), np.int64), 1e9, np.ones((YEARS, 3))
    )
    table = ReleasedTable((0, 1, change), 0, release.noisy, 1e9, release.cleaned)
    assert (year, change) not in replace(known, counted={(0, 1, change): table}).by_flow


def test_in_a_panel_lengths_say_who_ends() -> None:
    """Whoever comes to a bound too early has as many rows as all others all the same."""
    model = counted().model()
    panel = np.zeros_like(model.lengths)
    panel[-1] = model.lengths.sum()
    for lengths, ends in ((model.lengths, True), (panel, False)):
        assert bool(Rollout(replace(model, lengths=lengths), YEARS)._endings._stuck) == ends


def test_categories_of_hundreds_of_values_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each leads to would take gigabytes."""
    monkeypatch.setattr(flow, "_MOST_CELLS", YEARS * 10 * YEARS)
    bins = counted()._belief.bins
    (year, mood), changes = bins.columns.of("observation"), bins.columns.of("next_observation")
    found = told_by_flow(bins, {})
    assert (year, changes[0]) in found
    assert (mood, changes[1]) not in found


def test_where_no_change_leads_anywhere_rows_go_on_as_they_usually_do() -> None:
    """As of weekly visits, of whom nobody near the end of a study has another one."""
    bins = counted()._belief.bins
    state, change = bins.columns.of("observation")[0], bins.columns.of("next_observation")[0]
    shapes = list(bins.shapes)
    shapes[change] = replace(shapes[change], bins=np.zeros_like(shapes[change].bins))
    pair = [bins.columns[i] for i in (state, change)], [shapes[i] for i in (state, change)]
    assert led_to(*pair).sum(axis=(1, 2)).tolist() == [1.0] * (YEARS - 1) + [0.0]
    told = told_by_flow(Bins(bins.columns, shapes, bins.total, followed=bins.followed), {})
    for one in told.values():
        assert np.isfinite(one.counts).all()
    assert told[state, change].counts[:, 0] == pytest.approx(bins.own_margin(state).masses)


def test_numbers_and_changes_that_contradict_each_other_make_numbers_all_the_same() -> None:
    found = flowing(Noisy(np.full(3, 100.0), 2.0), np.full(2, 90.0), 30.0, np.zeros((3, 2, 3)))
    for some in (found.goes_on, found.ends, found.begins):
        assert np.isfinite(some).all()
        assert some.min() > 0


def test_rows_that_stand_alone_have_no_flow() -> None:
    bins = counted()._belief.bins
    alone = TableColumns(bins.columns.columns[:-1], *SPACES)
    assert not alone.of("time")
    assert told_by_flow(Bins(alone, bins.shapes[:-1], bins.total), {}) == {}
