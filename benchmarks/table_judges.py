"""What a policy learned from a table earns: exactly in ICU-Sepsis and by a grid in mazes.

Agents learn from mazes, too, as many as are asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cells import store_of
from benchmarks.protocol import grid_judge
from benchmarks.protocol.grid_judge import GridSettings
from benchmarks.protocol.rows import rows_of
from benchmarks.sepsis import problem
from benchmarks.sepsis_variants import HORIZON
from benchmarks.tables.source import BenchmarkTable
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import silent
from distributed_privrl.data.trajectories import TRANSITION, Transitions
from distributed_privrl.environments import reference_returns
from distributed_privrl.environments.tabular import TabularMdp
from distributed_privrl.evaluation.returns import normalised
from distributed_privrl.experiments.trials import TrialSpec, content_of, learning_curve, run_trials
from distributed_privrl.methods.value_iteration.study import exact_value

_SWEEPS = 200


@dataclass(frozen=True, kw_only=True)
class JudgeScale:
    """How much the judges do.

    Args:
        caution: penalty of a pair of state and action seen once, in units of the reward; it falls
            with the root of the visits. Chosen on 20,000 patients of the public simulator.
        agent: settings of IQL.
        agent_steps: its gradient steps.
        episodes: of each evaluation.
        agents: seeds; none train where it is 0.
        grid: of the judge of mazes.
    """

    caution: float = 0.25
    agent: Mapping[str, Any]
    agent_steps: int
    episodes: int
    agents: int
    grid: GridSettings = field(default_factory=GridSettings)


def judged(
    table: BenchmarkTable, dataset: str, work: Path, scale: JudgeScale, *, name: str
) -> dict[str, float | None]:
    """Return what policies learned from a dataset earn; nothing where there is no simulator.

    Args:
        table: the table; its ``judge`` says how.
        dataset: what is learned from.
        work: folder of datasets and of finished agents.
        scale: of the judges.
        name: of the folder of this cell's agents.
    """
    rows = store_of(work).read_transitions(dataset, unit=TRANSITION)
    found = solved(table, rows, scale)
    if table.judge == "agents" and scale.agents:
        found["iql"] = _agents(table, dataset, work, scale, name)
    return found


def solved(table: BenchmarkTable, rows: Transitions, scale: JudgeScale) -> dict[str, float | None]:
    """Return what the best policy of the rows' empirical model earns, without any seed.

    Args:
        table: of the rows.
        rows: real or synthetic.
        scale: of the judges.

    Returns:
        in ICU-Sepsis the exact survival; in a maze points of 100 (0 uniform forces, 100 the
        planner) and the share of starts from which the goal is reached; elsewhere nothing.
    """
    if table.judge == "exact":
        actions = cautious_policy(rows, problem(), caution=scale.caution)
        return {"exact value": exact_value(problem(), actions, HORIZON)}
    if table.maze is not None:
        mean, _ = grid_judge.judge(rows_of(rows), table.maze, scale.grid)
        return {"grid points": mean.normalised, "grid reach": mean.reach}
    return {}


def cautious_policy(
    rows: Transitions, mdp: TabularMdp, *, caution: float, discount: float = 1.0
) -> NDArray[np.int64]:
    """Return the policy of value iteration on counted rows, cautious where they are few.

    Values are those of the counted means less ``caution`` over the root of the visits, within the
    range of a survival, [0, 1]; pairs that nobody visited are worth 0.

    Args:
        rows: N transitions of categories; those of the terminal flag end, whatever follows.
        mdp: tells the numbers of states S and actions A.
        caution: see `JudgeScale`.
        discount: of values a step later.

    Returns:
        (1, S) actions.
    """
    states, actions = mdp.states, mdp.actions
    pairs = rows.observations * actions + rows.actions
    visits = np.bincount(pairs, minlength=states * actions).astype(np.float64)
    seen = np.maximum(visits, 1)
    rewards = np.bincount(pairs, rows.rewards, minlength=states * actions) / seen
    goes_on = ~rows.terminated
    led, count = np.unique(
        pairs[goes_on] * states + rows.next_observations[goes_on], return_counts=True
    )
    origin, target = led // states, led % states
    penalty = caution / np.sqrt(seen)
    values = np.zeros(states)
    best = np.zeros((states, actions))
    for _ in range(_SWEEPS):
        later = np.bincount(origin, count * values[target], minlength=states * actions) / seen
        worth = np.clip(rewards + discount * later - penalty, 0, 1)
        best = np.where(visits > 0, worth, 0.0).reshape(states, actions)
        values = best.max(axis=1)
    chosen: NDArray[np.int64] = best.argmax(axis=1)[None].astype(np.int64)
    return chosen


def _agents(table: BenchmarkTable, dataset: str, work: Path, scale: JudgeScale, name: str) -> float:
    """Return the mean normalised return of IQL's seeds."""
    store = store_of(work)
    assert table.environment is not None
    specs = [
        TrialSpec(
            root=str(store.root.absolute()),
            dataset=dataset,
            content=content_of(store, dataset),
            environment=table.environment,
            trainer="iql",
            seed=seed,
            steps=scale.agent_steps,
            episodes=scale.episodes,
            options=scale.agent,
        )
        for seed in range(scale.agents)
    ]
    trials = run_trials(
        specs, LocalExecutor(), parallel=1, progress=silent, kept=work / "agents" / name
    )
    reference = reference_returns(table.environment)
    figures = [
        normalised(learning_curve(trial).figure(), reference)
        for trial in trials
        if "failed" not in trial
    ]
    return float(np.mean(figures)) if figures else float("nan")
