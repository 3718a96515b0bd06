"""What follows is learned from the rows of which somebody saw it, whoever has no such rows."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.attack import ModelAttack
from distributed_privrl.marginals.program import MarginalsProgram
from tests.marginals.programs import Chooses, plan_of, program_of
from tests.marginals.rows import Listed, few_columns, group, steps_of

SEEN = few_columns(ends=3)
COLUMNS = replace(SEEN, ends_unseen=True)
PLAN = plan_of(COLUMNS, epsilon=None, steps=2, tables=8)
ENDS = (0.1, 0.2, 0.5, 0.9)
"""How often a row of each state is the last: whoever is in state 3 is rarely seen again."""


def rows_of(*, states: tuple[float, ...] = (0.25,) * 4, count: int = 4000) -> Transitions:
    """Return rows that lead from s to s + 1, or to the same by chance, if they go on."""
    source = np.random.default_rng(5)
    state = source.choice(4, count, p=states)
    action = source.integers(0, 2, count)
    last = source.random(count) < np.array(ENDS)[state]
    after = np.where(last, state, np.where(source.random(count) < 0.8, state + 1, state) % 4)
    return steps_of(list(zip(state, action, action * 1.0, after, last, strict=True)))


def released(rows: Transitions, plan: object = PLAN, **changes: object) -> MarginalsProgram:
    """Return a program that has released all counts of rows without noise."""
    made = program_of(COLUMNS, plan, Chooses(), rows=20_000, **changes)  # type: ignore[arg-type]
    for step in range(3):
        made.prepare(step)
        made.step(step, group(rows, COLUMNS), None)
    return made


def led_to(rows: Transitions) -> NDArray[np.float64]:
    """Return how often each state leads to each other one, ``(4, 4)``, in rows that go on."""
    table = np.zeros((4, 4))
    kept = ~rows.terminated
    pair = rows.observations[kept, 0].astype(int), rows.next_observations[kept, 0].astype(int)
    np.add.at(table, pair, 1)
    return table / table.sum(axis=1, keepdims=True)


def test_what_follows_is_as_it_was_seen_and_ends_stay_where_they_are() -> None:
    real = rows_of()
    drawn = released(real).model().transitions(20_000, np.random.default_rng(0))
    assert np.abs(led_to(drawn) - led_to(real)).max() < 0.06
    for state in range(4):
        shares = [one.terminated[one.observations[:, 0] == state].mean() for one in (drawn, real)]
        assert shares[0] == pytest.approx(shares[1], abs=0.04)
        weights = [(one.observations[:, 0] == state).mean() for one in (drawn, real)]
        assert weights[0] == pytest.approx(weights[1], abs=0.03)
    last = drawn.terminated
    assert (drawn.next_observations[last] == drawn.observations[last]).all()


def test_with_copies_that_count_rows_would_stay_far_more_often() -> None:
    """The same program over columns that do not say so: the test above would fail."""
    real = rows_of()
    made = program_of(SEEN, PLAN, Chooses(), rows=20_000)
    for step in range(3):
        made.prepare(step)
        made.step(step, group(real, SEEN), None)
    drawn = made.model().transitions(20_000, np.random.default_rng(0))
    assert np.abs(led_to(drawn) - led_to(real)).max() > 0.2


def test_a_resume_has_the_model_of_a_run_that_went_through() -> None:
    """What is said of all rows follows from what was released, not from how it came about."""
    made = released(rows_of())
    again = program_of(COLUMNS, PLAN, Chooses(), rows=20_000)
    again.restore(made.tensors(), 3)
    whole, resumed = made.model().field.potentials, again.model().field.potentials
    assert whole.keys() == resumed.keys()
    for clique, values in whole.items():
        np.testing.assert_allclose(resumed[clique], values)


def test_an_attack_sees_of_a_last_row_what_was_counted_of_it() -> None:
    """Whatever stands for what follows it; of other rows, what follows counts."""
    attack = ModelAttack(model=released(rows_of()).model(), rounds=3)
    losses = [
        attack.losses(steps_of([(1.0, 0, 0.0, after, last) for last in (True, False)]))[:, 0]
        for after in (1.0, 2.0)
    ]
    assert losses[0][0] == pytest.approx(losses[1][0])
    assert losses[0][1] > losses[1][1] + 0.5  # four in five go on to the next state
    rows = steps_of([(s, a, float(a), 0.0, True) for s in range(4) for a in range(2)])
    shares = np.exp(-attack.losses(rows)[:, 0])
    assert shares.sum() == pytest.approx(np.array(ENDS).mean(), abs=0.03)


@pytest.mark.parametrize("count", [1, 40])
def test_rows_that_nothing_ever_follows_make_a_model_all_the_same(count: int) -> None:
    rows = steps_of([(float(i % 4), i % 2, 0.0, float(i % 4), True) for i in range(count)])
    made = released(rows)
    after = set(COLUMNS.of("next_observation"))
    assert not any(after & set(table.clique) for table in made._belief.tables)
    drawn = made.model().transitions(200, np.random.default_rng(0))
    assert drawn.terminated.mean() > 0.95


def test_public_rows_say_what_follows_where_it_was_seen() -> None:
    public = Listed(rows_of())
    columns = program_of(COLUMNS, PLAN, public=(public,))
    columns.step(0, group(rows_of(count=400), COLUMNS), None)
    columns.prepare(1)
    drawn = columns.model().transitions(20_000, np.random.default_rng(0))
    assert np.abs(led_to(drawn) - led_to(rows_of())).max() < 0.12
