"""Marginals that are measured at once: what they cost, and what a unit moves, by enumeration."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.random import Streams
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.one_shot import check_paid, split, weighted
from distributed_privrl.marginals.plan import MarginalsPlan, integer_sensitivity
from distributed_privrl.methods.privsyn.plan import difference_sensitivity
from distributed_privrl.methods.privsyn.selection import (
    FINEST_WEIGHT,
    independent_difference,
    weights_of,
)
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.schedules import merged
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.verdict import Grade
from tests.gates.one_shot import METHODS, declared, plan_of, watched_program
from tests.marginals.neighbours import CLIQUES, UNITS, Data, counts, neighbours
from tests.marginals.programs import chained
from tests.marginals.rows import few_columns, steps_of

COLUMNS = few_columns()
DELTA = 1e-5
NULL, ONE = Relation.REPLACE_WITH_NULL, Relation.REPLACE_ONE


def planned(method: str, asked: float = 10.0, relation: str = "replace_with_null") -> MarginalsPlan:
    run = declared(method, privacy__epsilon=asked, privacy__delta=DELTA, privacy__relation=relation)
    return plan_of(run, COLUMNS)


def rho_of(plan: MarginalsPlan) -> float:
    """Return rho of a plan's zero-concentrated privacy, as the papers add it up."""
    return sum(1 / (2 * one.gaussian.noise_multiplier**2) for one in plan.releases)


def published(rho: float) -> float:
    """Return the epsilon of rho-zCDP as private-PGM's ``cdp_eps`` has it.

    Canonne, Kamath and Steinke 2020, proposition 12: of all orders a, the least epsilon at which
    exp((a - 1) (a rho - epsilon)) / (a - 1) (1 - 1 / a)^a is delta.
    """

    def by_order(log_order: float) -> float:
        a = 1 + math.exp(log_order)
        spread = a * math.log1p(-1 / a) - math.log(a - 1) - math.log(DELTA)
        return a * rho + spread / (a - 1)

    return float(minimize_scalar(by_order, bounds=(-6, 8), method="bounded").fun)


def gaussian(rho: float) -> float:
    """Return the epsilon of one Gaussian release of the same rho: Balle and Wang 2018."""
    mu = math.sqrt(2 * rho)

    def missing(asked: float) -> float:
        first = norm.cdf(mu / 2 - asked / mu)
        second = math.exp(asked) * norm.cdf(-mu / 2 - asked / mu)
        return float(first - second - DELTA)

    return float(brentq(missing, 1e-6, 100))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("asked", [0.5, 1.0, 4.0])
def test_epsilon_is_that_of_the_published_formula(method: str, asked: float) -> None:
    """rho-zCDP, then to (epsilon, delta); the default accountant is tighter, and exact."""
    plan = planned(method, asked)
    rho, events = rho_of(plan), merged(plan.schedule)
    by_orders = epsilon(events, delta=DELTA, relation=NULL, accountant="rdp")
    assert by_orders == pytest.approx(published(rho), rel=5e-3)
    spent = plan.epsilon(plan.steps, certified=True)
    assert spent == pytest.approx(gaussian(rho), rel=1e-2)
    assert 0.99 * asked < spent <= asked
    loose = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))  # Bun and Steinke 2016, as PrivSyn
    assert spent < by_orders < loose


@pytest.mark.parametrize("method", METHODS)
def test_the_budget_is_shared_as_the_configuration_says(method: str) -> None:
    plan = planned(method)
    rho = rho_of(plan)
    shares = [1 / (2 * one.gaussian.noise_multiplier**2) / rho for one in plan.releases]
    expected = {"pgm": [0.35, 0.65], "privsyn": [0.1, 0.1, 0.8]}[method]
    assert shares == pytest.approx(expected)
    assert plan.verdict is not None
    assert plan.verdict.grade is Grade.NOT_JUDGED


@pytest.mark.parametrize("relation", [NULL, ONE])
def test_sensitivities_that_are_charged(relation: Relation) -> None:
    one = UNIT_WEIGHT * math.sqrt(relation.contributions)
    first, tables = planned("pgm", relation=relation.value).releases
    assert first.gaussian.sensitivity == pytest.approx(one * math.sqrt(COLUMNS.histograms))
    assert tables.gaussian.sensitivity == pytest.approx(one * math.sqrt(tables.count))
    assert tables.count == len(planned("pgm").cliques) == 5
    _, scores, pairs = planned("privsyn", relation=relation.value).releases
    drawn = COLUMNS.drawn
    assert scores.gaussian.sensitivity == pytest.approx(
        relation.contributions * UNIT_WEIGHT * math.sqrt(math.comb(drawn, 2))
    )
    assert pairs.gaussian.sensitivity == pytest.approx(FINEST_WEIGHT * one)


def test_shares_that_leave_nothing_are_refused() -> None:
    for method, share in (("pgm", "columns_share"), ("privsyn", "scores_share")):
        run = declared(method, **{f"training__{share}": 1.0})
        with pytest.raises(ConfigError, match="leave nothing for joint counts"):
            plan_of(run, COLUMNS)


def test_without_privacy_nothing_is_charged() -> None:
    for method in METHODS:
        run = declared(method, privacy__epsilon=None)
        plan = plan_of(run, COLUMNS)
        assert (plan.budget, plan.schedule, plan.releases) == (None, (), ())


def datasets(relation: Relation) -> list[tuple[Data, Data]]:
    """Return all neighbouring datasets of a unit or two beside the one that differs."""
    beside = [
        others
        for size in range(3)
        for others in itertools.combinations_with_replacement(UNITS, size)
    ]
    return [
        ((one, *others), (other, *others))
        for one, other in neighbours(relation)
        for others in beside
    ]


@pytest.mark.parametrize("relation", [NULL, Relation.ADD_OR_REMOVE, ONE])
@pytest.mark.parametrize("cap", [1, 2])
def test_vectors_move_by_what_is_charged_at_most_and_by_all_of_it_somewhere(
    relation: Relation, cap: int
) -> None:
    """Joint counts, with weights and without, and differences of pairs, of all small datasets."""
    pairs = [place for place, clique in enumerate(CLIQUES, 1) if len(clique) == 2]
    uneven = [5, 1, 1, 3, 2, 1, 4]
    expected = {place: counts((UNITS[1],) * 2, cap, None)[place] for place in pairs}
    most = {"alike": 0.0, "weighted": 0.0, "differences": 0.0}

    def vectors(data: Data) -> dict[str, np.ndarray]:
        tables = counts(data, cap, None)
        joint = list(tables[1:])
        differences = [independent_difference(tables[i], expected[i]) for i in pairs]
        return {
            "alike": weighted(joint, [1] * len(joint)),
            "weighted": weighted(joint, uneven),
            "differences": np.array(differences),
        }

    for one, other in datasets(relation):
        for (name, x), y in zip(vectors(one).items(), vectors(other).values(), strict=True):
            most[name] = max(most[name], float(np.linalg.norm(x - y)))
    paid = {
        "alike": integer_sensitivity(relation) * math.sqrt(len(CLIQUES)),
        "weighted": integer_sensitivity(relation) * math.sqrt(sum(one**2 for one in uneven)),
        "differences": difference_sensitivity(relation, len(pairs)),
    }
    for name, charged in paid.items():
        assert most[name] <= charged * (1 + 1e-12), name
        # Units of one row weigh half: none becomes another of whole weight and the same size.
        halved = name == "differences" and cap > 1 and relation is ONE
        assert most[name] > (0.8 if halved else 0.99) * charged, name


def test_a_vector_that_a_unit_moves_by_more_than_is_paid_is_refused() -> None:
    release = IntegerGaussianRelease(sensitivity=UNIT_WEIGHT * 5.0, noise_multiplier=1.0)
    check_paid(release, [3, 4], NULL)
    for weights, relation in (([3, 4, 1], NULL), ([3, 4], ONE)):
        with pytest.raises(UnsafeError, match=r"the plan pays for a sensitivity of 5\.24288e"):
            check_paid(release, weights, relation)


@pytest.mark.parametrize("cells", [[4], [1024] * 7, [4, 20_000, 9], [2] * 4950])
def test_weights_of_pairs_cost_no_more_than_one(cells: Sequence[int]) -> None:
    weights = weights_of(np.array(cells))
    assert sum(one**2 for one in weights) <= FINEST_WEIGHT**2
    assert sum(one**2 for one in weights) > 0.9 * FINEST_WEIGHT**2
    assert min(weights) > 0


def test_a_vector_comes_apart_as_it_was_put_together() -> None:
    tables = [np.arange(6).reshape(2, 3), np.arange(4).reshape(2, 2)]
    flat = weighted(tables, [1, 3])
    one, other = split(flat, [(0, 1), (0, 2)], [2, 3, 2])
    np.testing.assert_array_equal(one, tables[0])
    np.testing.assert_array_equal(other, 3 * tables[1])


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_nothing_follows_are_counted_and_drawn_alone(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(belief, "estimated", chained)
    alone = COLUMNS.without_successors()
    seen = watched_program(method, steps_of([(0.0, 1, 1.0, 0.0, True)] * 50), columns=alone)
    assert {i for _, cliques in seen.asked for clique in cliques for i in clique} == {0, 1, 2}
    model = seen.program.model()
    if method == "privsyn":
        model = model.pool(400, iterations=2, streams=Streams(0))
    rows = model.transitions(500, np.random.default_rng(0))
    assert len(rows) == 500
    assert rows.terminated.all()
    np.testing.assert_array_equal(rows.next_observations, rows.observations)
