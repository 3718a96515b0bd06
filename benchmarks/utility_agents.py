"""What agents earn on recorded public rows: through RLlib, as plain loops, and by cloning.

Each task is one `privrl evaluate` of a dataset that is declared public. Agents are kept as they
end; the same command goes on where it stopped.

Reference: PrivORL, section IX; Fu et al., "D4RL" (2020), for normalised returns.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import cells, harness
from benchmarks.harness import Result
from distributed_privrl.collection.recipes import collect
from distributed_privrl.environments import reference_returns, register
from distributed_privrl.evaluation.intervals import mean_interval
from distributed_privrl.evaluation.returns import normalised
from distributed_privrl.experiments.comparison import is_maze
from distributed_privrl.experiments.evaluate import (
    EvaluationRequest,
    Surroundings,
    evaluate_datasets,
)
from distributed_privrl.experiments.trials import AGENTS, learning_curve
from distributed_privrl.runtime.rllib.trainer import RLLIB_TRAINERS

NAME = "utility_agents"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Recorded rows and the agents that are trained on them.

    Args:
        recipe: of the recording.
        steps: recorded.
        trainers: agents.
        agent_steps: gradient steps of each.
        options: settings of agents that differ from their defaults.
        episodes: of each evaluation.
    """

    recipe: str
    steps: int
    trainers: tuple[str, ...]
    agent_steps: int
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    episodes: int = 20


FAST_IQL: Mapping[str, Any] = {
    "hidden": [128, 128],
    "learning_rate": 3e-4,
    "polyak": 0.05,
    "discount": 0.98,
    "beta": 10.0,
    "expectile": 0.9,
}
"""At CORL's learning rate, as RLlib's agent was measured; the maze tables take a larger one."""

TASKS: Mapping[str, Task] = {
    "umaze": Task(
        recipe="maze2d-umaze",
        steps=1_000_000,
        trainers=("iql", "rllib_iql"),
        agent_steps=10_000,
        options={"iql": FAST_IQL},
    ),
    "pendulum": Task(
        recipe="pendulum-mixed",
        steps=50_000,
        trainers=("td3bc", "rllib_td3bc", "bc"),
        agent_steps=5_000,
    ),
    "cartpole": Task(
        recipe="cartpole-mixed",
        steps=50_000,
        trainers=("discrete_cql", "discrete_bcq", "bc"),
        agent_steps=5_000,
    ),
}
RATIOS = {"rllib_iql_vs_plain": ("umaze", "rllib_iql", "iql")}
"""Mean returns of the first agent over the second's, both positive."""

QUICK = Task(
    recipe="pendulum-mixed", steps=400, trainers=("td3bc", "bc"), agent_steps=10, episodes=2
)


def evaluate_task(name: str, task: Task, work: Path, *, seeds: int) -> list[dict[str, Any]]:
    """Record a task's rows unless they are there, train its agents, and return a line for each.

    Privacy: rows are simulated and declared public; nothing is released.
    """
    store, dataset = cells.store_of(work), f"{name}/recorded-v0"
    if dataset not in store.ids():
        collect(
            task.recipe,
            dataset=dataset,
            store=store,
            steps=task.steps,
            seed=cells.DATA_SEED,
            options={},
            public=True,
        )
    out = work / name
    evaluate_datasets(
        EvaluationRequest(
            synthetic=dataset,
            trainers=task.trainers,
            options=task.options,
            seeds=seeds,
            steps=task.agent_steps,
            episodes=task.episodes,
        ),
        Surroundings(
            store=store,
            more_trainers=RLLIB_TRAINERS,
            ledger_url=f"sqlite:///{(work / 'ledger.sqlite').absolute()}",
            progress=harness.heartbeat(work / "logs" / name),
        ),
        out=out,
        resume=out.exists(),
    )
    return [_line(name, task, trainer, seeds, out / AGENTS) for trainer in task.trainers]


def _line(name: str, task: Task, trainer: str, seeds: int, folder: Path) -> dict[str, Any]:
    trials = [json.loads((folder / f"{trainer}-{seed}.json").read_text()) for seed in range(seeds)]
    environment = trials[0]["environment"]
    figures = [learning_curve(trial).figure() for trial in trials]
    if is_maze(environment):
        figures = [normalised(figure, reference_returns(environment)) for figure in figures]
    interval = mean_interval(figures)
    return {
        "task": name,
        "rows": task.steps,
        "agent": trainer,
        "steps": task.agent_steps,
        "return": float(np.mean(figures)),
        "95 %": None if interval is None else f"{interval:.4g}",
        "seeds": figures,
    }


def result_of(lines: Sequence[Mapping[str, Any]]) -> Result:
    """Return the table and its ratios."""
    earned = {(line["task"], line["agent"]): line["return"] for line in lines}
    ratios = {
        ratio: earned[task, ours] / earned[task, plain]
        for ratio, (task, ours, plain) in RATIOS.items()
        if (task, ours) in earned
    }
    return Result(
        cells=lines,
        ratios=ratios,
        notes=[
            "Returns are the mean of the last five of ten evaluations of 20 episodes; umaze's are"
            " normalised (0 the random policy, 100 the planner), 95 % of"
            " the mean over agent seeds, in brackets how it was made.",
            f"IQL's settings on umaze: {json.dumps(FAST_IQL)}; all others are defaults.",
        ],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the agents that are missing and print the table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}")
    parser.add_argument("--scale", choices=("cpu", "quick"), default="cpu")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=tuple(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path(NAME), help="kept between commands")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    register()
    tasks = {name: TASKS[name] for name in options.tasks}
    if options.scale == "quick":
        tasks = {"pendulum": QUICK}
    about = {"scale": options.scale, "data_seed": cells.DATA_SEED, **harness.machine()}
    lines = [
        line
        for name, task in tasks.items()
        for line in evaluate_task(name, task, options.work, seeds=options.seeds)
    ]
    folder = options.out or (harness.RESULTS if options.save else None)
    harness.publish(NAME, result_of(lines), about, folder=folder)


if __name__ == "__main__":
    main()
