"""The server's part: what is measured together is drawn together, in one vector."""

from typing import Any

import numpy as np
import pytest

from distributed_privrl.marginals import belief
from distributed_privrl.marginals.tables import counts_of
from distributed_privrl.methods.pgm.program import PgmProgram
from tests.gates.one_shot import declared, fresh, plan_of
from tests.marginals.programs import Adds, chained
from tests.marginals.rows import few_columns, group, steps_of

COLUMNS = few_columns()


def test_a_pair_that_was_measured_is_drawn_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    run = declared("pgm", training__pairs=1, training__triples=0)
    plan = plan_of(run, COLUMNS)
    (clique,) = plan.cliques
    random, exact = np.random.default_rng(0), 2000
    kinds = random.integers(0, 2, exact)
    data = steps_of([(3.0 * k, k, float(k), 3.0 * k, bool(k)) for k in kinds.tolist()])
    program, noise = fresh(run, COLUMNS, plan), Adds()
    source: Any = noise
    for step in range(plan.steps):
        program.prepare(step)
        program.step(step, group(data, COLUMNS), source, step)
    assert isinstance(program, PgmProgram)
    model = program.model()
    rows = model.transitions(exact, random)
    assert len(noise.asked) == 2
    drawn = program._belief._rows
    table = counts_of(drawn, clique, program._belief.bins.sizes) / len(drawn)
    first, last = table.reshape(-1)[[0, -1]]
    assert first == pytest.approx(1 - kinds.mean(), abs=0.05)
    assert last == pytest.approx(kinds.mean(), abs=0.05)
    assert len(rows) == exact
