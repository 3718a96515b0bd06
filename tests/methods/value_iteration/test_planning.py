"""A plan's noise is a field: what is shown of it decides nothing."""

from dataclasses import replace

import numpy as np
import pytest

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.plan import (
    StatisticsPlan,
    linear_plan,
    tabular_plan,
)
from distributed_privrl.methods.value_iteration.settings import linear_settings, tabular_settings
from distributed_privrl.methods.value_iteration.step_noise import StepNoise
from distributed_privrl.privacy.events import GaussianEvent, ParallelEvent
from distributed_privrl.privacy.exact_releases import EXACT_CELLS
from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.privacy.units import UnitCount
from tests.worlds.grid import config

SIZES = {"states": 16, "actions": 4}
COUNT = UnitCount(value=400, source="declared")
WEAK = GaussianEvent(noise_multiplier=1e3)


def multiplier(found: ApviConfig | VapviConfig, plan: StatisticsPlan) -> float | None:
    if isinstance(found, ApviConfig):
        noise = tabular_settings(found, plan, **SIZES).noise
        return None if noise is None else noise.noise_multiplier
    return linear_settings(found, plan, **SIZES).noise_multiplier


@pytest.mark.parametrize("method", ["apvi", "vapvi"])
def test_what_a_plan_shows_decides_nothing(method: str) -> None:
    found = config(method)
    plan = plan_run(found)
    drawn = multiplier(found, plan)
    assert drawn is not None
    for about in ({}, {**plan.details, "noise_multiplier": 1e-6}, {**plan.details, "rho": 0.0}):
        assert multiplier(found, replace(plan, details=about)) == drawn


@pytest.mark.parametrize("method", ["apvi", "vapvi"])
def test_budget_noise_and_event_go_together(method: str) -> None:
    plan = plan_run(config(method))
    free = plan_run(config(method, privacy={"epsilon": None}))
    assert plan.step_noise is not None
    assert free.step_noise is None
    weaker = replace(plan.step_noise, noise_multiplier=plan.step_noise.noise_multiplier / 2)
    for broken in (
        lambda: replace(plan, step_noise=None),
        lambda: replace(plan, step_noise=None, schedule=()),
        lambda: replace(plan, step_noise=weaker),
        lambda: replace(plan, schedule=()),
        lambda: replace(plan, schedule=same_each_step([WEAK], plan.max_rounds)),
        lambda: replace(plan, schedule=(*plan.schedule[:-1], (WEAK,))),
        lambda: replace(plan, schedule=plan.schedule[:-1]),
        lambda: replace(free, step_noise=plan.step_noise),
        lambda: replace(free, step_noise=plan.step_noise, schedule=plan.schedule),
    ):
        with pytest.raises(UnsafeError, match=r"go together|must charge"):
            broken()


def test_a_million_numbers_get_noise_that_is_named_for_what_it_is() -> None:
    own = {"data": {"environment": None}, "model": {"reward_range": [0, 1]}}
    few = tabular_plan(config("apvi", **own), COUNT, sizes=(16, 4))
    many = tabular_plan(config("apvi", **own), COUNT, sizes=(600, 4))
    unknown = tabular_plan(config("apvi", **own), COUNT, sizes=None)
    (event,), (lattice,) = few.schedule[0], many.schedule[0]
    assert event.kind == "discrete_gaussian"
    assert unknown.schedule == few.schedule == ((event,),) * few.max_rounds
    assert few.step_noise is not None
    assert lattice == GaussianEvent(noise_multiplier=few.step_noise.noise_multiplier)
    assert "exact integers" in few.summary()
    assert "float64" in many.summary()
    plan = linear_plan(config("vapvi"), COUNT, sizes=(16, 4))
    (halves,) = plan.schedule[0]
    assert isinstance(halves, ParallelEvent)
    assert {one.kind for branch in halves.branches for one in branch} == {"discrete_gaussian"}
    laplace = config("apvi", **own, privacy={"delta": 0.0}, training={"mechanism": "laplace"})
    (event,) = tabular_plan(laplace, COUNT, sizes=(16, 4)).schedule[0]
    (lattice,) = tabular_plan(laplace, COUNT, sizes=(600, 4)).schedule[0]
    assert (event.kind, lattice.kind) == ("discrete_laplace", "laplace")


def test_all_statistics_of_a_run_have_noise_of_one_kind() -> None:
    wide = FeatureMap(table=np.eye(1500), actions=1)
    assert wide.gram_size > EXACT_CELLS > wide.dimension
    noise = StepNoise(noise_multiplier=2.0, exact=False)
    for dimension in (wide.gram_size, wide.dimension):
        release = noise.gaussian(sensitivity=1.0, dimension=dimension)
        assert not release.exact
        assert release.event == noise.event == GaussianEvent(noise_multiplier=2.0)


def test_what_is_charged_covers_every_release_of_a_step() -> None:
    """A step is charged as on the coarsest lattice there is: releases have no coarser ones."""
    noise = StepNoise(noise_multiplier=3.0)
    charged = noise.event
    assert charged.kind == "discrete_gaussian"
    for sensitivity in (1e-3, 1.0, 2.0, 7.3, 1e4):
        for dimension in (1, 2, 10, 1000, EXACT_CELLS - 1):
            event = noise.gaussian(sensitivity=sensitivity, dimension=dimension).event
            assert event.kind == "discrete_gaussian"
            assert event.noise_multiplier == charged.noise_multiplier
            assert event.sensitivity >= charged.sensitivity
