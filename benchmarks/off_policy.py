"""Off-policy estimates in ICU-Sepsis against exact values: are the intervals to be trusted?

Episodes of the clinicians' policy judge four policies, whose survival within the horizon is known
by dynamic programming. The estimates are of a policy that acts as who acted wherever the rows of a
state do not show its own action; its exact value is in the table, too.

    python -m benchmarks.off_policy [--scale quick|full] [--save]
"""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from benchmarks import harness
from benchmarks.harness import SEED, Result
from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.problems import icu_sepsis
from distributed_privrl.environments.tabular import (
    TabularMdp,
    optimal_policy,
    policy_value,
    uniform_policy,
)
from distributed_privrl.evaluation.off_policy.estimators import Floats
from distributed_privrl.evaluation.off_policy.judge import ESTIMATORS, Judge, Judgement

HORIZON = 20
SCALES = {"quick": ((300,), 2, 10), "full": ((1000, 10_000), 6, 100)}
"""Numbers of patients, seeds of each, resamples."""


def policies(mdp: TabularMdp) -> dict[str, Floats]:
    """Return the policies (S, A) that are judged."""
    best = np.eye(mdp.actions)[optimal_policy(mdp)[0][0]]
    clinicians = mdp.behaviour[0]
    return {
        "clinicians": clinicians,
        "uniform": uniform_policy(mdp)[0],
        "half optimal": 0.5 * clinicians + 0.5 * best,
        "optimal": best,
    }


def shown_part(policy: Floats, counts: Floats, behaviour: Floats) -> Floats:
    """Return a policy (S, A) that acts as ``behaviour`` instead of by actions without a row.

    Args:
        policy: (S, A).
        counts: (S, A) rows of each pair.
        behaviour: (S, A); of states without rows it is the policy itself.
    """
    seen = policy * (counts > 0)
    unseen = 1 - seen.sum(axis=1, keepdims=True)
    visited = counts.sum(axis=1, keepdims=True) > 0
    found: Floats = np.where(visited, seen + unseen * behaviour, policy)
    return found / found.sum(axis=1, keepdims=True)


def cell(
    name: str, patients: int, runs: list[tuple[Judgement, float]], truth: float
) -> dict[str, Any]:
    """Return a row of the table: means over seeds, and how often intervals hold.

    Args:
        name: of the policy.
        patients: that judge.
        runs: of each seed, the judgement and the exact value of the policy that rows show.
        truth: the policy's exact value.
    """
    row: dict[str, Any] = {
        "patients": patients,
        "policy": name,
        "exact": truth,
        "exact, as rows show it": float(np.mean([shown for _, shown in runs])),
    }
    for estimator in ESTIMATORS:
        found = [(one.estimates[estimator], shown) for one, shown in runs]
        row[estimator] = float(np.mean([estimate.value for estimate, _ in found]))
        row[f"{estimator}: holds"] = _held([(estimate, truth) for estimate, _ in found])
        row[f"{estimator}: holds as shown"] = _held(found)
    row["effective"] = float(np.median([one.effective_episodes for one, _ in runs]))
    row["mean weight"] = float(np.median([one.mean_weight for one, _ in runs]))
    row["unseen"] = float(np.mean([one.unseen for one, _ in runs]))
    row["runs"] = _runs(runs)
    return row


def _held(found: list[tuple[Any, float]]) -> str:
    held = [
        interval is not None and interval.low <= value <= interval.high
        for interval, value in ((estimate.interval, value) for estimate, value in found)
    ]
    return f"{sum(held)}/{len(held)}"


def _runs(runs: list[tuple[Judgement, float]]) -> Mapping[str, Any]:
    return {
        name: [
            [estimate.value, *((interval.low, interval.high) if interval else ())]
            for estimate in (one.estimates[name] for one, _ in runs)
            for interval in (estimate.interval,)
        ]
        for name in ESTIMATORS
    }


def run(quick: bool) -> Result:
    """Judge every policy, for every number of patients and seed."""
    sizes, seeds, resamples = SCALES["quick" if quick else "full"]
    mdp = icu_sepsis(HORIZON)
    known = policies(mdp)
    truths = {name: policy_value(mdp, policy[None]) for name, policy in known.items()}
    cells = []
    for patients in sizes:
        runs: dict[str, list[tuple[Judgement, float]]] = {name: [] for name in known}
        for seed in range(SEED, SEED + seeds):
            drawn = sample_trajectories(mdp, trajectories=patients, streams=Streams(seed))
            judge = Judge(
                Trajectories.concatenate(list(drawn)),
                observation_space=Discrete(mdp.states),
                action_space=Discrete(mdp.actions),
                resamples=resamples,
            )
            counts = judge.rows.pair_counts(np.ones(len(judge.rows.pairs)))
            for name, policy in known.items():
                judgement = judge.judged(lambda states, policy=policy: policy[states])
                shown = shown_part(policy, counts, mdp.behaviour[0])
                runs[name].append((judgement, policy_value(mdp, shown[None])))
            print(f"{patients} patients, seed {seed}: done", file=sys.stderr, flush=True)
        cells += [cell(name, patients, found, truths[name]) for name, found in runs.items()]
    return Result(
        cells=cells,
        ratios={
            f"{one['policy']}_{one['patients']}_fitted_q_error".replace(" ", "_"): (
                one["fitted Q"] - one["exact"]
            )
            for one in cells
        },
        notes=(
            f"Survival within {HORIZON} steps, exact by dynamic programming; mean of {seeds} seeds"
            f" from {SEED} (those of the episodes); {resamples} resamples of the patients.",
            "holds: seeds whose interval of 95 % contains the exact value; as shown: that of the"
            " policy that acts as the clinicians do where the state's rows lack its action.",
            "effective: episodes that carry the importance weights; mean weight: 1 if the episodes"
            " hold their share of those that follow the policy. Both are medians of the seeds.",
            "unseen: share of the policy's actions, at visited states, that no row of the state"
            " shows.",
        ),
    )


if __name__ == "__main__":
    harness.main("off_policy", run)
