"""Small bridges of random rows."""

from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete

from distributed_privrl.data.spaces import Space
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.clearance import Release, ReleasedTransitions, proven
from distributed_privrl.privacy.certificate import Certificate
from distributed_privrl.runtime.rllib.bridge import Bridge, write_bridge

OBSERVATIONS = Box(-np.inf, np.inf, (3,))
BOX_ACTIONS = Box(np.float32([-1, 0]), np.float32([1, 10]))
DISCRETE_ACTIONS: Discrete[np.int64] = Discrete(3, start=5)


def transitions(space: Space, rows: int = 300) -> Transitions:
    """Return rows whose columns have means and scales of their own."""
    generator = np.random.default_rng(0)
    if isinstance(space, Discrete):
        actions = generator.integers(5, 8, rows)
    else:
        actions = generator.uniform([-1, 0], [1, 10], (rows, 2)).astype(np.float32)
    centre, scale = np.float32([5, 0, -100]), np.float32([1, 0.1, 20])
    return Transitions(
        observations=centre + scale * generator.standard_normal((rows, 3), dtype=np.float32),
        actions=actions,
        rewards=generator.standard_normal(rows, dtype=np.float32),
        next_observations=centre + scale * generator.standard_normal((rows, 3), dtype=np.float32),
        terminated=generator.random(rows) < 0.1,
        truncated=np.zeros(rows, bool),
        unit_ids=np.arange(rows, dtype=np.uint64),
    )


def released(space: Space, rows: int = 300) -> ReleasedTransitions:
    """Return the rows as a release of ``a/b-v0``, with the digest "abc"."""
    values = {"digest": "abc"}
    return proven(
        transitions(space, rows),
        Release(dataset="a/b-v0", certificate=Certificate.model_construct(**values)),
    )


def bridge(folder: Path, space: Space, rows: int = 300) -> Bridge:
    return write_bridge(
        released(space, rows),
        folder,
        observation_space=OBSERVATIONS,
        action_space=space,
        seed=3,
    )
