"""Values of policies that may leave (`policy_value`), in ICU-Sepsis, against exact ones.

Models are fitted on rows of one kind, patients of another draw are judged, and the four sums get
noise. Rows are as good as a release can be (other patients of the same simulator), or worse by
known amounts, so that the table tells what a bad release does to a value.

    python -m benchmarks.released_values [--scale quick|full] [--save]
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from benchmarks import harness
from benchmarks.harness import SEED, Result
from benchmarks.off_policy import HORIZON, policies
from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories, Transitions
from distributed_privrl.environments.problems import icu_sepsis
from distributed_privrl.environments.tabular import TabularMdp, policy_value
from distributed_privrl.evaluation.off_policy.estimators import Floats
from distributed_privrl.evaluation.off_policy.released import ReleasedModels
from distributed_privrl.methods.policy_value.plan import deviation_of
from distributed_privrl.methods.policy_value.sums import (
    NUMBERS,
    Value,
    release_of_sums,
    unit_integers,
    value_of,
)
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.units import Relation

EPSILON, RETURNS = 0.5, (0.0, 1.0)
SCALES = {"quick": (300, 300, 2), "full": (2000, 10_000, 6)}
"""Patients that are judged, patients whose rows are the release, seeds."""
KINDS = ("as real rows", "shuffled", "flattered")
SHUFFLED, FLATTERED = 0.2, 0.15
NORMAL_95 = 1.96


def release_of(mdp: TabularMdp, kind: str, patients: int, seed: int) -> Transitions:
    """Return rows of other patients, perhaps with some parts shuffled, or deaths made survivals."""
    drawn = sample_trajectories(mdp, trajectories=patients, streams=Streams(10_000 + seed))
    rows = Trajectories.concatenate(list(drawn)).transitions(TRAJECTORY)
    source = np.random.default_rng(seed)
    if kind == "shuffled":
        moved = source.random(len(rows)) < SHUFFLED
        following = np.where(
            moved, source.permutation(rows.next_observations), rows.next_observations
        )
        moved = source.random(len(rows)) < SHUFFLED
        actions = np.where(moved, source.permutation(rows.actions), rows.actions)
        return replace(rows, next_observations=following, actions=actions)
    if kind == "flattered":
        saved = rows.terminated & (source.random(len(rows)) < FLATTERED)
        return replace(rows, rewards=np.where(saved, 1.0, rows.rewards))
    return rows


def judged(models: ReleasedModels, policy: Floats, real: Trajectories, seed: int) -> Value:
    """Return what a run's figures would be."""
    release = release_of_sums(EPSILON, Relation.REPLACE_ONE)
    total = np.zeros(NUMBERS, np.int64)
    units = 0
    for episodes in real.by_unit():
        total += unit_integers(models.figures(episodes, lambda states: policy[states]), RETURNS)
        units += 1
    sums = release.release(total, SeededNoise(seed))
    return value_of(
        sums.astype(np.float64), units=units, returns=RETURNS, deviation=deviation_of(release)
    )


def run(quick: bool) -> Result:
    """Value every policy by every kind of release, for every seed."""
    patients, released, seeds = SCALES["quick" if quick else "full"]
    mdp = icu_sepsis(HORIZON)
    known = policies(mdp)
    truths = {name: policy_value(mdp, policy[None]) for name, policy in known.items()}
    found: dict[tuple[str, str], list[Value]] = {}
    for seed in range(SEED, SEED + seeds):
        drawn = sample_trajectories(mdp, trajectories=patients, streams=Streams(seed))
        real = Trajectories.concatenate(list(drawn))
        for kind in KINDS:
            rows = release_of(mdp, kind, released, seed)
            for name, policy in known.items():
                models = ReleasedModels.fit(
                    rows,
                    lambda states, policy=policy: policy[states],
                    observation_space=Discrete(mdp.states),
                    action_space=Discrete(mdp.actions),
                    horizon=HORIZON,
                    streams=Streams(seed),
                )
                value = judged(models, policy, real, seed)
                found.setdefault((kind, name), []).append(value)
        print(f"seed {seed}: done", file=sys.stderr, flush=True)
    acted = truths["clinicians"]
    cells = [
        _cell(kind, name, values, truths[name], acted) for (kind, name), values in found.items()
    ]
    return Result(
        cells=cells,
        ratios={
            f"{one['policy']}_{one['release']}_error".replace(" ", "_"): one["value"] - one["exact"]
            for one in cells
        },
        notes=(
            f"{patients} patients are judged at epsilon {EPSILON} (replace_one), models are fitted"
            f" on rows of {released} others; survival within {HORIZON} steps, exact by dynamic"
            f" programming; means of {seeds} seeds from {SEED}, and the least and largest error.",
            f"shuffled: {SHUFFLED:.0%} of the actions and of the next states are other rows';"
            f" flattered: {FLATTERED:.0%} of the deaths are survivals.",
            "holds: seeds whose interval of 95 % contains the exact value.",
        ),
    )


def _cell(kind: str, name: str, values: list[Value], truth: float, acted: float) -> dict[str, Any]:
    errors = [one.policy - truth for one in values]
    gains = [one.policy - one.acted - (truth - acted) for one in values]
    return {
        "release": kind,
        "policy": name,
        "exact": truth,
        "value": float(np.mean([one.policy for one in values])),
        "least error": min(errors),
        "largest error": max(errors),
        "standard error": float(np.mean([one.policy_error for one in values])),
        "of it noise": float(np.mean([one.noise_error for one in values])),
        "holds": _held(errors, [one.policy_error for one in values]),
        "gain, exact": truth - acted,
        "gain": float(np.mean([one.policy - one.acted for one in values])),
        "gain holds": _held(gains, [one.gain_error for one in values]),
    }


def _held(errors: list[float], standard: list[float]) -> str:
    held = [abs(one) <= NORMAL_95 * reach for one, reach in zip(errors, standard, strict=True)]
    return f"{sum(held)}/{len(held)}"


if __name__ == "__main__":
    harness.main("released_values", run)
