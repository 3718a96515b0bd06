"""Off-policy estimates of policies whose actions are forces, against returns that are exact.

Half of the recorded runs of a maze train agents, the other half judges them, as `privrl evaluate
--offline` does. The simulator and the policies are deterministic, so that a policy's return from a
recorded start is exact: it is driven from the start of each judging run, for as many steps.

    python -m benchmarks.off_policy_maze [--scale quick|full] [--save]
"""

import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import SEED, Result
from distributed_privrl.collection import collect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories
from distributed_privrl.environments import register
from distributed_privrl.evaluation.off_policy.judge import ESTIMATORS, Estimate, Judge, decided
from distributed_privrl.evaluation.returns import ActingPolicy
from distributed_privrl.evaluation.trainer import Spaces, find_trainer

MAZE = "eval-umaze"
ENVIRONMENT = f"privrl/Maze2D-{MAZE}-v0"
DATASET = "benchmark/runs-v0"
NETWORK = {"hidden": [64, 64], "batch_size": 256}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        runs: recorded, of which half judges.
        steps: of a run.
        training: steps of gradient of an agent, in the order in which they are judged.
        seeds: of recording and agents.
        resamples: of the runs.
        starts: of exact returns.
    """

    runs: int
    steps: int
    training: Mapping[str, int]
    seeds: int
    resamples: int
    starts: int


FULL = Size(
    runs=3000,
    steps=64,
    training={"bc": 5000, "iql": 5000, "td3bc": 5000},
    seeds=3,
    resamples=40,
    starts=500,
)
QUICK = Size(runs=120, steps=16, training={"bc": 20}, seeds=1, resamples=10, starts=10)


class Still:
    """Pushes nowhere."""

    def act(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Return no force for each observation."""
        return np.zeros((len(observations), 2), np.float32)


def exact_returns(policy: ActingPolicy, starts: NDArray[Any], steps: int) -> NDArray[np.float64]:
    """Return what a policy earns from each start ``(N, 4)`` in so many steps, ``(N,)``."""
    places = [gymnasium.make(ENVIRONMENT, max_episode_steps=steps + 1) for _ in starts]
    seen = np.stack(
        [
            place.reset(options={"state": tuple(map(float, start))})[0]
            for place, start in zip(places, starts, strict=True)
        ]
    )
    earned = np.zeros(len(starts))
    for _ in range(steps):
        actions = np.asarray(policy.act(seen), np.float32)
        moved = [place.step(a) for place, a in zip(places, actions, strict=True)]
        seen = np.stack([one[0] for one in moved])
        earned += [float(one[1]) for one in moved]
    return earned


def halves(store: DatasetStore) -> tuple[Trajectories, Trajectories]:
    """Return the runs that train, and those that judge."""
    runs = Trajectories.concatenate(list(store.iter_trajectories(DATASET, unit=TRAJECTORY)))
    every = np.arange(len(runs))
    return runs.select(every[::2]), runs.select(every[1::2])


def judged_seed(size: Size, seed: int) -> dict[str, dict[str, Any]]:
    """Return, for each policy, its exact return and what the estimators say."""
    with tempfile.TemporaryDirectory() as folder:
        store = DatasetStore(Path(folder))
        options = {"trajectories": size.runs, "episode_steps": size.steps, "layout": "packed"}
        collect(f"maze2d-{MAZE}", dataset=DATASET, store=store, seed=seed, options=options)
        info = store.info(DATASET)
        spaces = Spaces(observation=info.observation_space, action=info.action_space)
        training, judging = halves(store)
    judge = Judge(
        judging,
        observation_space=spaces.observation,
        action_space=spaces.action,
        resamples=size.resamples,
    )
    policies: dict[str, ActingPolicy] = {"no force": Still()}
    for name, steps in size.training.items():
        policies[name] = find_trainer(name, NETWORK).train(
            training.transitions(TRAJECTORY),
            spaces,
            seed=seed,
            steps=steps,
            evaluate_every=steps,
            on_evaluation=lambda *_: None,
        )
    starts = judging.transitions(TRAJECTORY).observations[_firsts(judging)][: size.starts]
    found: dict[str, dict[str, Any]] = {
        "who acted": {
            "exact": judge.mean_return().value,
            "judgement": judge.who_acted(),
        }
    }
    for name, policy in policies.items():
        exact = float(exact_returns(policy, starts, size.steps).mean())
        found[name] = {"exact": exact, "judgement": judge.judged(decided(policy, judge.actions))}
        print(f"seed {seed}: {name}", file=sys.stderr, flush=True)
    return found


def _firsts(runs: Trajectories) -> NDArray[np.int64]:
    """Return the rows at which runs start."""
    starts: NDArray[np.int64] = np.cumsum(np.r_[0, runs.lengths[:-1]]).astype(np.int64)
    return starts


def cell(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a row of the table: means over seeds, and how often intervals hold."""
    exact = [run["exact"] for run in runs]
    row: dict[str, Any] = {"policy": name, "exact": float(np.mean(exact))}
    for estimator in ESTIMATORS:
        found = [run["judgement"].estimates[estimator] for run in runs]
        mean = float(np.mean([one.value for one in found]))
        row[estimator] = mean if math.isfinite(mean) else None
        held = [
            one.interval is not None and one.interval.low <= truth <= one.interval.high
            for one, truth in zip(found, exact, strict=True)
        ]
        row[f"{estimator}: holds"] = f"{sum(held)}/{len(held)}"
    row["effective"] = float(np.median([run["judgement"].effective_episodes for run in runs]))
    row["unseen"] = float(np.mean([run["judgement"].unseen for run in runs]))
    row["runs"] = {
        "exact": exact,
        **{e: [_known(run["judgement"].estimates[e]) for run in runs] for e in ESTIMATORS},
    }
    return row


def _known(estimate: Estimate) -> float | None:
    return estimate.value if math.isfinite(estimate.value) else None


def run(quick: bool) -> Result:
    """Judge every policy, for every seed."""
    size = QUICK if quick else FULL
    register()
    seeds = [judged_seed(size, seed) for seed in range(SEED, SEED + size.seeds)]
    cells = [cell(name, [seed[name] for seed in seeds]) for name in seeds[0]]
    return Result(
        cells=cells,
        ratios={
            f"{one['policy']}_fitted_q_error".replace(" ", "_"): one["fitted Q"] - one["exact"]
            for one in cells
        },
        notes=(
            f"{MAZE}, {size.runs:,} runs of {size.steps} steps, half of them judge; return: steps"
            f" at the goal; mean of {size.seeds} seeds from {SEED}; {size.resamples} resamples.",
            f"exact: driven from {size.starts} starts of the judging runs; of who acted the mean"
            " return of the runs.",
            "effective: episodes that carry the importance weights. unseen: share of the policy's"
            " actions that no row of the cell shows.",
        ),
    )


if __name__ == "__main__":
    harness.main("off_policy_maze", run)
