"""A store in a temporary folder that plain Minari sees too, and rows with known successors."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, offsets_of

OBSERVATION_SPACE = Box(-np.inf, np.inf, (2,), np.float32)
ACTION_SPACE = Box(-1.0, 1.0, (1,), np.float32)
CATEGORIES = Discrete(5, start=2)
SPACES = {"observation_space": OBSERVATION_SPACE, "action_space": ACTION_SPACE}
DISCRETE_SPACES = {"observation_space": CATEGORIES, "action_space": Discrete(3)}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return DatasetStore()


def walk(lengths=(3, 1, 4), *, discrete=False):
    """Observation t of trajectory k is (k, t): the successor of (k, t) is (k, t + 1)."""
    offsets = offsets_of(lengths)
    pairs = [(k, t) for k, length in enumerate(lengths) for t in range(length + 1)]
    steps = [(k, t) for k, length in enumerate(lengths) for t in range(length)]
    last = np.zeros(len(steps), dtype=bool)
    last[offsets[1:][np.asarray(lengths) > 0] - 1] = True
    odd = np.array([k % 2 == 1 for k, _ in steps], dtype=bool)
    observations = np.array(pairs, dtype=np.float32).reshape(-1, 2)
    actions = np.array([(k - t) / 10 for k, t in steps], dtype=np.float32).reshape(-1, 1)
    if discrete:
        observations, actions = np.array([2 + t for _, t in pairs]), np.array([t for _, t in steps])
    return Trajectories(
        observations=observations,
        actions=actions % 3 if discrete else actions,
        rewards=np.arange(len(steps), dtype=np.float32),
        terminated=last & odd,
        truncated=last & ~odd,
        offsets=offsets,
        unit_ids=np.arange(len(lengths), dtype=np.uint64) * 7 + 2**63,
    )


def random_walk(count, length, seed=0, width=2):
    """Trajectories of independent normal numbers."""
    generator = np.random.default_rng(seed)
    steps = count * length
    return Trajectories(
        observations=generator.standard_normal((count * (length + 1), width)),
        actions=generator.uniform(-1, 1, (steps, 1)),
        rewards=generator.standard_normal(steps),
        terminated=np.zeros(steps, dtype=bool),
        truncated=np.zeros(steps, dtype=bool),
        offsets=np.arange(count + 1) * length,
        unit_ids=generator.integers(0, 2**63, count),
    )


def assert_same(first, second, *, but=()):
    """Compare every field of two sets of rows."""
    for name in first.__dataclass_fields__:
        if name not in but:
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name), name)
