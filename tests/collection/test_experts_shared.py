"""One policy for many experts: told of each one's setting, and trained as if never interrupted."""

from pathlib import Path

import numpy as np
import pytest
import torch

from distributed_privrl.collection import experts_training
from distributed_privrl.collection.experts_grids import GRIDS
from distributed_privrl.collection.experts_ppo import StackedPpo
from distributed_privrl.collection.experts_shared import (
    SHARED,
    ConditionedSimulator,
    SharedPpoConfig,
    SharedPpoTrainer,
)
from distributed_privrl.collection.experts_training import ExpertPlan
from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.classic_control import CARTPOLE, ClassicCartPole

GRID = GRIDS[CARTPOLE]
SETTINGS = GRID.settings(6, Streams(0))


def trainer() -> SharedPpoTrainer:
    config = SharedPpoConfig(
        max_steps=50,
        scale=(1.0, 1.0, 0.1, 1.0),
        hidden=(8,),
        environments=4,
        rollout_steps=8,
        updates=5,
        segment_updates=2,
        epochs=2,
    )
    return SharedPpoTrainer(config, ClassicCartPole(), GRID)


def prepared(folder: Path) -> torch.Tensor:
    made = trainer()
    made.prepare(SETTINGS, Streams(1), folder)
    networks = made.train(SETTINGS, Streams(2))
    return torch.cat([one.flatten() for one in networks.tensors])


def test_an_interrupted_training_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("whole", "broken")]
    for folder in folders:
        folder.mkdir()
    whole = prepared(folders[0])
    update, calls = StackedPpo.update, []

    def breaks(self: StackedPpo) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        update(self)

    with monkeypatch.context() as patch:
        patch.setattr(StackedPpo, "update", breaks)
        with pytest.raises(KeyboardInterrupt):
            prepared(folders[1])
    assert torch.equal(prepared(folders[1]), whole)
    again: list[int] = []
    monkeypatch.setattr(StackedPpo, "update", lambda self: again.append(1))
    assert torch.equal(prepared(folders[0]), whole)
    assert not again
    (folders[0] / SHARED).write_bytes(b"no tensors")
    with pytest.raises(StorageError, match="damaged"):
        prepared(folders[0])


def test_it_learns_from_what_it_is_told_of_each_row() -> None:
    simulator = ConditionedSimulator(ClassicCartPole(), GRID).with_physics(SETTINGS)
    states = simulator.reset(6, np.random.default_rng(0))
    shown = simulator.observe(states)
    assert shown.shape == (6, 7)
    assert np.abs(shown[:, 4:]).max() <= 1
    low, high, _ = GRID.axes["gravity"]
    np.testing.assert_allclose(
        (shown[:, 4] + 1) / 2 * (high - low) + low, SETTINGS["gravity"], rtol=1e-5
    )
    moved = simulator.step(states, np.ones(6, np.int64))
    wanted = ClassicCartPole().with_physics(SETTINGS).step(states, np.ones(6, np.int64))
    np.testing.assert_array_equal(moved.states, wanted.states)


def test_blocks_hold_one_network_and_each_experts_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts_training, "BLOCK_EXPERTS", 4)
    made = trainer()
    made.prepare(SETTINGS, Streams(1), tmp_path)
    plan = ExpertPlan(
        environment=CARTPOLE,
        experts=6,
        trajectories=2,
        max_length=10,
        minimum_probability=0.02,
        training={},
        seed=0,
    )
    experts_training.make_blocks(plan, made, ClassicCartPole(), SETTINGS, tmp_path)
    parts = [
        experts_training.ExpertPolicies.load(experts_training.policies_path(tmp_path, block))
        for block in range(2)
    ]
    policies = experts_training.ExpertPolicies.concatenate(parts)
    assert (len(policies), policies.widths) == (6, [7, 8, 2])
    assert policies.weights[0].shape == (1, 7, 8)
    assert policies.conditions is not None
    np.testing.assert_array_equal(policies.conditions.numpy(), GRID.normalised(SETTINGS))
    for block in range(2):
        played = experts_training.read_rows(tmp_path, block)
        assert len(played.trajectories) == 2 * len(parts[block])
