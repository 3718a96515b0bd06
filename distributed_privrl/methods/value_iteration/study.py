"""The price of privacy in a known problem: the same algorithm on fresh simulated trajectories.

Nothing here reads a dataset: the problem is public, and its noise protects nobody, so that it may
be seeded.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import Progress
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.tabular import (
    TabularMdp,
    optimal_policy,
    policy_value,
    uniform_policy,
    with_horizon,
)
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.counts import CountSpec, CountWorker
from distributed_privrl.methods.value_iteration.linear import LinearProgram
from distributed_privrl.methods.value_iteration.linear_settings import statistics_spec
from distributed_privrl.methods.value_iteration.plan import linear_plan, tabular_plan
from distributed_privrl.methods.value_iteration.settings import linear_settings, tabular_settings
from distributed_privrl.methods.value_iteration.statistics import StatisticsWorker
from distributed_privrl.methods.value_iteration.tabular import TabularProgram
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.units import UnitCount

UNTIL_THE_END = 500
"""Time steps after which nothing is left of an episode that ends by itself."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """Gives a worker trajectories that are in this process.

    Args:
        trajectories: of a simulator.
    """

    trajectories: Trajectories

    def __call__(self) -> Trajectories:
        """Return them."""
        return self.trajectories


def simulate(problem: TabularMdp, *, units: int, horizon: int, seed: int) -> Simulated:
    """Return trajectories of the problem's behaviour.

    Args:
        problem: the MDP.
        units: number of trajectories.
        horizon: time steps at most.
        seed: public seed.
    """
    streams = Streams(seed).child("study")
    chunks = list(
        sample_trajectories(with_horizon(problem, horizon), trajectories=units, streams=streams)
    )
    return Simulated(Trajectories.concatenate(chunks))


def learn(
    program: Any, worker_cls: type, spec: Any, *, steps: int, private: bool, seed: int
) -> NDArray[np.int64]:
    """Run a program in this process and return its actions ``(H, S)``.

    Args:
        program: a fresh one.
        worker_cls: class of its worker.
        spec: what the one worker is built from.
        steps: of the program.
        private: whether it draws noise.
        seed: of the noise.
    """
    workers = LocalExecutor().start(worker_cls, [spec])
    noise = SeededNoise(seed) if private else None
    for index in range(steps):
        program.step(index, workers, noise)
    actions: NDArray[np.int64] = program.policy().actions
    return actions


def exact_value(problem: TabularMdp, policy: NDArray[Any], horizon: int) -> float:
    """Return the exact value of a policy; its last rule goes on where episodes end by themselves.

    Args:
        problem: the MDP.
        policy: see `policy_value`.
        horizon: of problems without terminal states.
    """
    return policy_value(problem, policy, horizon=_evaluated(problem, horizon))


def reference_values(problem: TabularMdp, horizon: int) -> dict[str, float]:
    """Return the exact values of the optimal, the behaviour's and the uniform policy.

    Args:
        problem: the MDP.
        horizon: of problems without terminal states.
    """
    evaluated = _evaluated(problem, horizon)
    _, values = optimal_policy(problem, horizon=evaluated)
    return {
        "optimal": float(problem.initial @ values[0]),
        "behaviour": exact_value(problem, problem.behaviour, horizon),
        "uniform": exact_value(problem, uniform_policy(problem), horizon),
    }


def _evaluated(problem: TabularMdp, horizon: int) -> int:
    unchanging = len(problem.transitions) == len(problem.rewards) == len(problem.behaviour) == 1
    if problem.terminal.any() and unchanging:
        return max(horizon, UNTIL_THE_END)
    return min(horizon, problem.horizon) if not unchanging else horizon


def run_study(
    config: ApviConfig | VapviConfig, problem: TabularMdp, *, progress: Progress
) -> list[dict[str, Any]]:
    """Return the exact value of the policy for each number of units, epsilon and seed.

    Args:
        config: of the run, whose ``evaluation`` says which cells.
        problem: the public problem.
        progress: told how many cells are done.

    Privacy: no event; every trajectory is drawn from the public problem.
    """
    study = config.evaluation
    cells = list(product(study.study_units, (*study.study_epsilons, None), range(study.seeds)))
    results = []
    for done, (units, epsilon, seed) in enumerate(cells):
        progress("price of privacy", done, len(cells))
        source = simulate(problem, units=units, horizon=config.model.horizon, seed=seed)
        actions = _learned(config, problem, source, units, epsilon, seed)
        value = exact_value(problem, actions, config.model.horizon)
        results.append({"units": units, "epsilon": epsilon, "seed": seed, "value": value})
    progress("price of privacy", len(cells), len(cells))
    return results


def _learned(
    config: ApviConfig | VapviConfig,
    problem: TabularMdp,
    source: Simulated,
    units: int,
    epsilon: float | None,
    seed: int,
) -> NDArray[np.int64]:
    # A tenth of 1/units where the run's own delta would be above it.
    delta = min(config.privacy.delta, 0.1 / units)
    privacy = config.privacy.model_copy(update={"epsilon": epsilon, "delta": delta})
    varied = config.model_copy(update={"privacy": privacy})
    count = UnitCount(value=units, source="declared")
    private, states, acts = epsilon is not None, problem.states, problem.actions
    if isinstance(varied, ApviConfig):
        plan = tabular_plan(varied, count, sizes=(states, acts))
        tabular = tabular_settings(varied, plan, states=states, actions=acts)
        program, spec = TabularProgram(tabular), CountSpec(source=source, layout=tabular.layout)
        return learn(program, CountWorker, spec, steps=plan.steps, private=private, seed=seed)
    plan = linear_plan(varied, count, sizes=(states, acts))
    linear = linear_settings(varied, plan, states=states, actions=acts)
    learner, sums = LinearProgram(linear), statistics_spec(linear, source)
    return learn(learner, StatisticsWorker, sums, steps=plan.steps, private=private, seed=seed)
