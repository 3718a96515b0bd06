"""Sensitivities equal the worst neighbouring pair found by enumeration; noise is made for them."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.methods.value_iteration.counts import (
    REWARD_UNIT,
    CountLayout,
    CountSpec,
    CountWorker,
)
from distributed_privrl.methods.value_iteration.sensitivity import tabular_sensitivities
from distributed_privrl.methods.value_iteration.step_noise import StepNoise
from distributed_privrl.methods.value_iteration.tabular import TabularProgram
from distributed_privrl.methods.value_iteration.tabular_settings import TabularSettings
from distributed_privrl.privacy.units import Relation
from tests.methods.value_iteration.tabular_data import (
    MemoryShard,
    SpyNoise,
    start,
    trajectories_of,
)

STATES = ACTIONS = HORIZON = 2
RELATIONS = [Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE, Relation.REPLACE_WITH_NULL]


def layout(**changed) -> CountLayout:
    return CountLayout(states=STATES, actions=ACTIONS, horizon=HORIZON, **changed)


def every_trajectory(rewards):
    step = list(itertools.product(range(STATES), range(ACTIONS), rewards))
    for length in range(HORIZON + 1):
        for steps in itertools.product(step, repeat=length):
            for final in range(STATES):
                yield list(steps), final, False
                if length:
                    yield list(steps), final, True


def vector(trajectories, of: CountLayout, step: int) -> np.ndarray:
    """Return the vector that the server would release, from the real worker's answers."""
    worker = CountWorker(CountSpec(source=MemoryShard(trajectories=trajectories), layout=of))
    answer = worker.counts(step)
    cells = np.zeros((of.pairs, of.successors))
    cells.ravel()[answer.cells] = answer.counts
    rewards = np.zeros(of.pairs if of.estimate_reward else 0)
    rewards[answer.pairs] = answer.reward_sums * REWARD_UNIT
    return np.concatenate([cells.ravel(), cells.sum(axis=1), rewards])


def worst(
    relation: Relation, of: CountLayout, units: int, step: int, rewards=(0.0, 1.0)
) -> tuple[float, float]:
    """Return the largest L1 and L2 distance over all pairs of neighbouring units."""
    paths = every_trajectory(rewards if of.estimate_reward else [0.0])
    single = np.unique([vector(trajectories_of([p]), of, step) for p in paths], axis=0)
    sums = single
    for _ in range(units - 1):
        sums = np.unique((sums[:, None] + single).reshape(-1, single.shape[1]), axis=0)
    return furthest(relation, sums)


def furthest(relation: Relation, sums: np.ndarray) -> tuple[float, float]:
    """Return the largest L1 and L2 distance of any two units' vectors, or of one and nothing."""
    others = sums if relation is Relation.REPLACE_ONE else np.zeros((1, sums.shape[1]))
    return float(cdist(sums, others, "cityblock").max()), float(cdist(sums, others).max())


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize(
    ("estimate_reward", "pooled"), [(False, False), (True, False), (False, True)]
)
def test_sensitivities_are_those_of_the_worst_pair(relation, most, estimate_reward, pooled):
    of = layout(max_trajectories_per_unit=most, estimate_reward=estimate_reward, pooled=pooled)
    stated = of.sensitivities(relation)
    for step in range(of.releases):
        l1, l2 = worst(relation, of, most, step)
        assert l1 == pytest.approx(stated.l1, rel=1e-12)
        assert l2 == pytest.approx(stated.l2, rel=1e-12)


@pytest.mark.parametrize("relation", RELATIONS)
def test_pooled_rewards_too(relation):
    of = layout(estimate_reward=True, pooled=True)
    l1, l2 = worst(relation, of, 1, 0)
    stated = of.sensitivities(relation)
    assert (l1, l2) == (pytest.approx(stated.l1), pytest.approx(stated.l2))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("estimate_reward", [False, True])
@pytest.mark.parametrize("terminal", [None, np.zeros(STATES, bool)])
def test_first_visits_move_as_far_as_is_stated_and_no_further(
    relation, most, estimate_reward, terminal
):
    rewards = (0.0, 1.0) if most == 1 else (1.0,)
    families = {"estimate_reward": estimate_reward, "terminal": terminal}
    of = layout(max_trajectories_per_unit=most, pooled=True, visits="first", **families)
    stated = of.sensitivities(relation)
    l1, l2 = worst(relation, of, most, 0, rewards)
    assert (l1, l2) == (pytest.approx(stated.l1), pytest.approx(stated.l2, rel=1e-12))
    every = layout(max_trajectories_per_unit=most, pooled=True, **families).sensitivities(relation)
    assert stated.l1 == every.l1
    assert every.l2 == pytest.approx(math.sqrt(HORIZON) * stated.l2)


@functools.cache
def every_capped_unit(visits: str, pooled: bool, most: int, rows: int, estimated: bool):
    """Return a layout, and the vectors of a unit with any trajectories, by the worker at once."""
    of = layout(
        max_trajectories_per_unit=most,
        max_rows_per_unit=rows,
        pooled=pooled,
        visits=visits,
        estimate_reward=estimated,
        terminal=np.zeros(STATES, bool),
    )
    paths = [path for path in every_trajectory([1.0]) if not path[2]]
    found = [
        vector(trajectories_of(unit, unit_ids=[7] * most), of, 0)
        for unit in itertools.product(paths, repeat=most)
    ]
    return of, np.unique(found, axis=0)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("most", "rows"), [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize(
    ("visits", "pooled", "estimated"),
    [("every", False, False), ("every", True, False), ("first", True, True)],
)
def test_a_cap_on_a_units_rows_is_a_cap_on_what_it_moves(
    relation, most, rows, visits, pooled, estimated
):
    of, units = every_capped_unit(visits, pooled, most, rows, estimated)
    stated = of.sensitivities(relation)
    l1, l2 = furthest(relation, units)
    assert (l1, l2) == (pytest.approx(stated.l1), pytest.approx(stated.l2, rel=1e-12))


def test_first_visits_in_figures():
    """L2 of a family: m sqrt(H), and sqrt(min(H, max_length)) with one trajectory."""

    def squared(**changed) -> float:
        found = tabular_sensitivities(
            Relation.ADD_OR_REMOVE, horizon=20, pooled=True, visits="first", **changed
        )
        return found.l2**2 / 2

    assert squared() == pytest.approx(20)
    assert squared(max_trajectories_per_unit=3) == pytest.approx(9 * 20)
    assert squared(max_rows_per_unit=8) == pytest.approx(8)
    assert squared(max_rows_per_unit=30) == pytest.approx(20)
    # Eight rows in three trajectories: two pairs in all of them, and one in two.
    assert squared(max_trajectories_per_unit=3, max_rows_per_unit=8) == pytest.approx(9 + 9 + 4)


def test_a_unit_with_more_trajectories_than_it_may_have_adds_no_more():
    of = layout(max_trajectories_per_unit=2, estimate_reward=True)
    paths = [([(0, 0, 1.0)], 1, False)] * 5
    many = vector(trajectories_of(paths, unit_ids=[7] * 5), of, 0)
    two = vector(trajectories_of(paths[:2], unit_ids=[7] * 2), of, 0)
    assert np.array_equal(many, two)
    assert np.abs(many).sum() == of.sensitivities(Relation.ADD_OR_REMOVE).l1


def test_the_papers_figures():
    stated = tabular_sensitivities(Relation.REPLACE_ONE, horizon=20)
    assert stated.releases * stated.l2**2 == pytest.approx(4 * 20)
    assert stated.releases * stated.l1 == pytest.approx(4 * 20)
    rho, epsilon = 0.3, 2.0
    spread = stated.gaussian(rho).noise_multiplier * stated.l2
    assert spread**2 == pytest.approx(2 * 20 / rho, rel=1e-12)
    assert stated.laplace(epsilon).noise_multiplier * stated.l1 == pytest.approx(4 * 20 / epsilon)
    pooled = tabular_sensitivities(Relation.REPLACE_ONE, horizon=20, pooled=True)
    assert (pooled.l1, pooled.l2**2) == (80, pytest.approx(4 * 20**2))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("pooled", "visits"), [(False, "every"), (True, "every"), (True, "first")])
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_noise_that_is_drawn_fits_the_worst_pair(relation, pooled, visits, kind):
    of, budget = layout(pooled=pooled, visits=visits, max_trajectories_per_unit=2), 0.7
    sensitivities = of.sensitivities(relation)
    settings = TabularSettings(
        layout=of,
        rewards=np.zeros((STATES, ACTIONS)),
        noise=getattr(sensitivities, kind)(budget),
        relation=relation,
    )
    program = TabularProgram(settings)
    spy, group = SpyNoise(), start(trajectories_of([([(0, 0, 0.0)], 1, False)]), of)
    for index in range(program.steps):
        program.step(index, group, spy)
    # One draw a release that is charged, over the whole vector.
    assert len(spy.calls) == sensitivities.releases == program.steps
    assert {call["dimension"] for call in spy.calls} == {of.dimension}
    l1, l2 = worst(relation, of, 2, 0)
    share = budget / program.steps
    for call in spy.calls:
        if kind == "gaussian":
            variance = (call["standard_deviation"] * settings.unit) ** 2
            assert variance == pytest.approx(l2**2 / (2 * share), rel=6e-5)
        else:
            assert call["scale"] * settings.unit == pytest.approx(l1 / share, rel=3e-5)


def test_impossible_sensitivities_are_refused():
    with pytest.raises(UnsafeError, match="policy_level"):
        tabular_sensitivities(Relation.POLICY_LEVEL, horizon=2)
    with pytest.raises(ConfigError, match="horizon"):
        tabular_sensitivities(Relation.REPLACE_ONE, horizon=0)
    with pytest.raises(ConfigError, match="visits"):
        tabular_sensitivities(Relation.REPLACE_ONE, horizon=2, visits="last")
    with pytest.raises(ConfigError, match="max_rows_per_unit"):
        tabular_sensitivities(Relation.REPLACE_ONE, horizon=2, max_rows_per_unit=0)
    with pytest.raises(ConfigError, match="rho"):
        tabular_sensitivities(Relation.REPLACE_ONE, horizon=1).gaussian(0.0)
    with pytest.raises(ConfigError, match="epsilon"):
        tabular_sensitivities(Relation.REPLACE_ONE, horizon=1).laplace(-1.0)


def test_a_release_is_made_for_the_counts_and_the_relation_of_its_settings():
    noise, rewards = StepNoise(noise_multiplier=2.0), np.zeros((2, 2))
    for of in (layout(), layout(pooled=True), layout(pooled=True, visits="first")):
        for relation in RELATIONS:
            settings = TabularSettings(layout=of, rewards=rewards, noise=noise, relation=relation)
            assert settings.release.sensitivity == of.sensitivities(relation).l2
            assert settings.release.dimension == of.dimension


def test_noise_that_was_planned_for_vectors_of_another_size_is_refused():
    for exact, of in ((False, layout()), (True, CountLayout(states=800, actions=2, horizon=1))):
        with pytest.raises(UnsafeError, match=f"releases of {of.dimension} numbers"):
            TabularSettings(
                layout=of,
                rewards=np.zeros((of.states, 2)),
                noise=StepNoise(noise_multiplier=2.0, exact=exact),
            )
