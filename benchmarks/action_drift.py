"""How far the actions of `marginals_j` drift from real ones along a trajectory, and what stops it.

People are generated: an action is a rule of two of four numbers, three actions are common and three
rare, and long after the start few numbers ask for a rare one. A run of the product counts some of
them; trajectories are drawn from its model with actions held to their shares, as a release is, and
without. Shares are held against those of 20,000 other people; the rule says whether an action still
fits its state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import SEED, Result
from benchmarks.trajectory_models import DATASET, model_of
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.marginals import balancing
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.rollout import Rollout

ACTIONS, NUMBERS, LONGEST = 6, 4, 30
EDGES = (-0.2, 0.9, 1.8, 2.5, 3.2)
"""Of the rule: between its actions."""
TIMES = ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, LONGEST))
SCALES = {"quick": (300, (10.0,), 200), "full": (3000, (10.0, 4.0, 1.0), 3000)}
"""People of a run, epsilons, and trajectories that are drawn."""
OTHERS = 20_000
BOUNDS = "observation: {low: -5, high: 5}\nreward: [-6, 0]\n"


def people(count: int, stream: str) -> Trajectories:
    """Return whole trajectories of 15 to 30 steps."""
    source = Streams(SEED).numpy(f"action drift/{stream}")
    lengths = source.integers(15, LONGEST + 1, count)
    state = source.normal(size=(count, NUMBERS))
    states, actions = [state], []
    for _ in range(LONGEST):
        action = rule(state + source.normal(scale=0.2, size=state.shape) * [1, 0, 0, 0])
        moved = 0.95 * state + 0.25 * source.normal(size=state.shape)
        moved[:, 0] -= 0.05 * action
        state = np.clip(moved, -4.9, 4.9)
        states.append(state)
        actions.append(action)
    seen, done = np.stack(states, axis=1).astype(np.float32), np.stack(actions, axis=1)
    steps = np.arange(LONGEST) < lengths[:, None]
    last = np.arange(LONGEST) == lengths[:, None] - 1
    kept = np.arange(LONGEST + 1) <= lengths[:, None]
    return Trajectories(
        observations=seen[kept],
        actions=done[steps],
        rewards=-np.abs(seen[:, 1:, 0])[steps],
        terminated=last[steps],
        truncated=np.zeros(int(lengths.sum()), bool),
        offsets=offsets_of(lengths),
        unit_ids=np.arange(count, dtype=np.uint64),
    )


def rule(states: NDArray[Any]) -> NDArray[np.int64]:
    """Return the action (N,) that states (N, 4) ask for."""
    return np.searchsorted(EDGES, states[:, 0] + 0.5 * states[:, 1])


def shares(drawn: Trajectories) -> NDArray[np.float64]:
    """Return how actions are divided at each of `TIMES`, (T, A)."""
    times = np.concatenate([np.arange(length) for length in drawn.lengths])
    found = [drawn.actions[(times >= first) & (times < end)] for first, end in TIMES]
    return np.stack([np.bincount(one, minlength=ACTIONS) / max(len(one), 1) for one in found])


def run(quick: bool) -> Result:
    """Measure all epsilons."""
    units, epsilons, drawn = SCALES["quick" if quick else "full"]
    others = people(OTHERS // 10 if quick else OTHERS, "others")
    real, cells, late = shares(others), [], {}
    for epsilon in epsilons:
        model = _model(units, epsilon)
        for name, most in (("as a release", None), ("actions not held", 1.0)):
            with _raised(most):
                made = Rollout(model, LONGEST).draw(drawn, Streams(SEED).numpy("drawn"))
            off = np.abs(shares(made) - real).sum(axis=1) / 2
            late[epsilon, name] = float(off[-1])
            fits = rule(made.transitions("trajectory").observations) == made.actions
            steps = {f"steps {first} to {end - 1}": off[i] for i, (first, end) in enumerate(TIMES)}
            cells.append({"epsilon": epsilon, "actions": name, **steps, "fit": fits.mean()})
    return Result(
        cells=cells,
        ratios={
            f"late_drift_{epsilon:g}": late[epsilon, "as a release"]
            / max(late[epsilon, "actions not held"], 1e-9)
            for epsilon in epsilons
        },
        notes=(
            f"{units:,} people, delta 1e-6, one draw of the noise an epsilon; {drawn:,}"
            " trajectories. Steps: total variation distance of actions from real ones; fit: share"
            " of actions that the rule asks for in their state.",
        ),
    )


@contextmanager
def _raised(most: float | None) -> Iterator[None]:
    """Change by how much a share may be raised, for a while."""
    before = balancing._MOST_RAISED
    balancing._MOST_RAISED = before if most is None else most
    try:
        yield
    finally:
        balancing._MOST_RAISED = before


def _model(units: int, epsilon: float) -> TableModel:
    """Return the model of a run of the product, whose noise is seeded."""

    def write(store: DatasetStore) -> None:
        store.write_trajectories(
            DATASET,
            people(units, "sensitive"),
            observation_space=Box(-5, 5, (NUMBERS,), np.float32),
            action_space=Discrete(ACTIONS),
            layout="packed",
        )

    return model_of(
        write,
        bounds=BOUNDS,
        data={"unit": "trajectory", "units": units},
        epsilon=epsilon,
        model={"bins": 16, "draws": 10_000, "model_cells": 40_000},
        training={"steps": 1, "sampling": {"max_length": LONGEST}},
        seed=SEED,
    )


if __name__ == "__main__":
    harness.main("action_drift", run)
