"""The noise of a count in visits: what the plan says is what is drawn."""

import math
from typing import Any

import numpy as np
import pytest

from distributed_privrl.environments import tabular_problem
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.counts import CountSpec, CountWorker
from distributed_privrl.methods.value_iteration.linear import LinearProgram
from distributed_privrl.methods.value_iteration.linear_settings import statistics_spec
from distributed_privrl.methods.value_iteration.settings import linear_settings, tabular_settings
from distributed_privrl.methods.value_iteration.statistics import StatisticsWorker
from distributed_privrl.methods.value_iteration.study import learn, simulate
from distributed_privrl.methods.value_iteration.tabular import TabularProgram
from tests.worlds.grid import GRID, HORIZON, UNITS, config

CHANCE = math.erfc(2 / math.sqrt(2)) / 2
"""Of noise above two standard deviations: 1 in 44."""


def program(found: ApviConfig | VapviConfig) -> tuple[Any, Any, Any]:
    mdp = tabular_problem(GRID)
    assert mdp is not None
    about = {"states": mdp.states, "actions": mdp.actions}
    source = simulate(mdp, units=UNITS, horizon=HORIZON, seed=1)
    if isinstance(found, ApviConfig):
        tabular = tabular_settings(found, plan_run(found), **about)
        return TabularProgram(tabular), CountWorker, CountSpec(source=source, layout=tabular.layout)
    linear = linear_settings(found, plan_run(found), **about)
    return LinearProgram(linear), StatisticsWorker, statistics_spec(linear, source)


CASES = {
    "counts": config("apvi"),
    "pooled": config("apvi", model={"pooled": True}),
    "first visits": config("apvi", model={"pooled": True, "visits": "first", "reward": "known"}),
    "laplace": config("apvi", privacy={"delta": 0.0}, training={"mechanism": "laplace"}),
    "capped": config("apvi", model={"pooled": True}, data={"max_length": 7}),
    "halves": config("vapvi"),
    "unsplit": config("vapvi", model={"split": False}),
    "one matrix": config("vapvi", model={"split": False, "reuse_gram": True}),
    "pevi": config("vapvi", model={"regression": "pevi"}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_states_the_noise_that_is_drawn(name: str) -> None:
    facts = plan_run(CASES[name]).facts()
    learner, worker, spec = program(CASES[name])
    learn(learner, worker, spec, steps=plan_run(CASES[name]).rounds, private=True, seed=3)
    stated = float(learner.policy().count_noise)
    assert facts["count_noise"] == pytest.approx(stated, rel=5e-3)  # but for the lattice
    assert f"{facts['count_noise']:.4g} visits" in facts["resolution"]


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("counts", UNITS),
        ("pooled", UNITS * HORIZON),
        ("capped", UNITS * 7),
        ("laplace", UNITS),
        ("halves", UNITS / 2),
        ("pevi", UNITS),
    ],
)
def test_the_visits_are_an_upper_bound_spread_over_pairs(name: str, most: float) -> None:
    facts, mdp = plan_run(CASES[name]).facts(), tabular_problem(GRID)
    assert mdp is not None
    assert facts["most_visits"] == most
    assert facts["mean_visits"] == pytest.approx(most / (mdp.states * mdp.actions))


def test_what_is_not_known_before_the_data_are_opened_is_not_said() -> None:
    model = {"reward_range": [0, 1]}
    facts = plan_run(config("apvi", model=model, data={"environment": None})).facts()
    assert facts["mean_visits"] is None
    assert facts["resolution"].endswith(f"there are {UNITS} at most")
    facts = plan_run(config("apvi", privacy={"epsilon": None})).facts()
    assert "count_noise" not in facts


@pytest.mark.parametrize("name", ["pooled", "pevi"])
def test_known_is_what_was_visited_more_than_the_noise_can_feign(name: str) -> None:
    """Without noise all visited pairs are known; with it many visits are, and no empty pair."""
    found = CASES[name]
    open_one = found.model_copy(
        update={"privacy": found.privacy.model_copy(update={"epsilon": None})}
    )
    steps = plan_run(found).rounds
    learner, worker, spec = program(open_one)
    learn(learner, worker, spec, steps=steps, private=False, seed=0)
    visited = learner.policy().known
    trajectories = spec.source()
    pairs = np.zeros_like(visited)
    ends = np.cumsum(trajectories.lengths + 1)  # a final observation after the steps of each
    states = np.delete(trajectories.observations, ends - 1)
    times = np.concatenate([np.arange(length) for length in trajectories.lengths])
    pairs[times, states, trajectories.actions] = True
    if name == "pooled":
        pairs[:] = pairs.any(axis=0)
    assert np.array_equal(visited, pairs)
    learner, worker, spec = program(found)
    learn(learner, worker, spec, steps=steps, private=True, seed=0)
    known = learner.policy().known
    assert 0 < known.sum() < visited.sum()
    once = slice(0, 1) if name == "pooled" else slice(None)
    chances = (~visited[once]).sum() * CHANCE
    feigned = (known & ~visited)[once].sum()
    assert abs(feigned - chances) <= 5 * math.sqrt(chances) + 1
