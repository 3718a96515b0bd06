"""What public rows add to a belief, and what they never overrule."""

import numpy as np
import pytest

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.prior import PublicRows, public_cells
from distributed_privrl.marginals.tables import counts_of
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.marginals.programs import Adds, Chooses, chained, plan_of, program_of, released_columns
from tests.marginals.rows import Listed, few_columns, group, steps_of

COLUMNS = few_columns()
PLAN = plan_of(COLUMNS, steps=2, tables=3)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "estimated", chained)


def related(action_of: tuple[int, int]) -> Transitions:
    """Return rows of the states 0 and 3, each with one action."""
    states = ((0.0, action_of[0]), (3.0, action_of[1]))
    return steps_of([(s, a, 0.0, 1.0, False) for s, a in states] * 100)


def test_public_rows_that_do_not_count_are_left_out_and_many_are_drawn_from() -> None:
    rows = steps_of(
        [(np.nan, 0, 0.0, 0.0, False), *[(float(i % 4), 1, 0.0, 0.0, False) for i in range(40)]]
    )
    found = public_cells(
        COLUMNS, [Listed(rows), Listed(rows)], most=100, random=np.random.default_rng(0)
    )
    assert found.shape == (80, len(COLUMNS))
    few = public_cells(COLUMNS, [Listed(rows)], most=8, random=np.random.default_rng(0))
    assert few.shape == (8, len(COLUMNS))
    assert len(public_cells(COLUMNS, [], most=8, random=np.random.default_rng(0))) == 0


def test_pairs_that_go_together_come_first_and_unrelated_ones_never() -> None:
    source, sizes = np.random.default_rng(1), (4, 4, 2)
    first = source.integers(0, 4, 3000)
    rows = np.stack(
        [first, (first + source.integers(0, 2, 3000)) % 4, source.integers(0, 2, 3000)], axis=1
    )
    margins = {
        (0,): np.array([1.0, 1, 1, 5]),
        (1,): np.array([3.0, 1, 1, 3]),
        (2,): np.array([1.0, 1]),
    }
    known = PublicRows(
        rows.astype(np.int32),
        sizes,
        {(0, 1): 1, (0, 2): 4, (1, 2): 4, (0, 1, 2): 4},
        margins,
        COLUMNS,
    )
    assert known.cliques == ((0, 1),)
    shares = known.tables([(0, 1)], {})[0, 1]
    np.testing.assert_allclose(shares.sum(axis=1), [1 / 8, 1 / 8, 1 / 8, 5 / 8], atol=0.03)
    released = {(0, 2): np.array([[8.0, 0], [8, 0], [8, 0], [0, 40]])}
    told = known.tables([(1, 2)], released)[1, 2]
    assert told[:, 0].sum() == pytest.approx(24 / 64, abs=0.03)


def test_what_public_rows_know_is_expected_before_anything_is_measured() -> None:
    state, action = COLUMNS.of("observation", "action")
    pair = (state, action)
    tensors = released_columns(COLUMNS, units=4000, deviation=0.2 * UNIT_WEIGHT)
    shares = {}
    for name, sources in (("alone", ()), ("public", (Listed(related((0, 1))),))):
        made = program_of(COLUMNS, PLAN, public=sources)
        made.restore(made.tensors() | tensors, 1)
        made.prepare(1)
        table = made._belief.expected(pair)
        shares[name] = table / table.sum()
    np.testing.assert_allclose(shares["alone"], 1 / 8, atol=0.05)
    assert shares["public"][0, 0] > 3 * shares["public"][0, 1]
    assert shares["public"][3, 1] > 3 * shares["public"][3, 0]


def test_what_was_measured_overrules_public_rows() -> None:
    state, action = COLUMNS.of("observation", "action")
    sensitive = related((1, 0))
    made = program_of(COLUMNS, PLAN, Chooses(), public=(Listed(related((0, 1))),))
    for step in (0, 1, 2):
        made.prepare(step)
        made.step(step, group(sensitive, COLUMNS), Adds(), step)
    assert any({state, action} <= set(table.clique) for table in made._belief.tables)
    rows = made.model().transitions(2000, np.random.default_rng(0))
    found = counts_of(np.stack([rows.observations[:, 0] > 1, rows.actions], axis=1), (0, 1), (2, 2))
    assert found[0, 1] + found[1, 0] > 0.95 * found.sum()


def test_a_resume_with_other_public_rows_is_refused() -> None:
    half = program_of(COLUMNS, PLAN, public=(Listed(related((0, 1))),))
    half.step(0, group(related((0, 1)), COLUMNS), Adds(), 0)
    program_of(COLUMNS, PLAN, public=(Listed(related((0, 1))),)).restore(half.tensors(), 1)
    for others in ((), (Listed(related((1, 1))),)):
        with pytest.raises(UnsafeError, match="settings"):
            program_of(COLUMNS, PLAN, public=others).restore(half.tensors(), 1)
