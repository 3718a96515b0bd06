import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from distributed_privrl.collection import replay_training
from distributed_privrl.collection.replay_training import (
    SimulatedEnvironment,
    SnapshotPlan,
    policies_folder,
    train_snapshots,
)
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.pendulum import Pendulum

PLAN = SnapshotPlan(
    environment="Pendulum-v1",
    sac={"hidden": [8], "environments": 4, "warmup": 20, "batch_size": 8, "capacity": 500},
    training_steps=18,
    snapshots=3,
    seed=0,
)


def train(folder: Path, *, stop_at: int | None = None) -> dict[str, bytes]:
    def told(done: int, total: int) -> None:
        assert total == 18
        if done == stop_at:
            raise KeyboardInterrupt

    folder.mkdir(exist_ok=True)
    train_snapshots(PLAN, Pendulum(), folder, progress=told)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_snapshots_lie_closer_in_the_beginning() -> None:
    assert dataclasses.replace(PLAN, training_steps=100, snapshots=4).schedule == (6, 25, 56, 100)
    assert PLAN.schedule == (2, 8, 18)
    with pytest.raises(ConfigError, match=r"training_steps=8 .* snapshots=3"):
        dataclasses.replace(PLAN, training_steps=8)


def test_a_plan_has_a_folder_of_its_own() -> None:
    others = [
        dataclasses.replace(PLAN, seed=1),
        dataclasses.replace(PLAN, snapshots=2),
        dataclasses.replace(PLAN, training_steps=19),
        dataclasses.replace(PLAN, sac={**PLAN.sac, "batch_size": 9}),
        dataclasses.replace(PLAN, environment="privrl/CartpoleBalance-v0"),
        dataclasses.replace(PLAN, sac={**PLAN.sac, "reward_offset": 2.0}),
    ]
    names = {plan.folder_name for plan in (PLAN, *others)}
    assert len(names) == 7
    assert dataclasses.replace(PLAN).folder_name in names
    assert all(name.startswith(".policies-") and "/" not in name for name in names)


def test_an_interrupted_training_ends_with_the_same_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_training, "CHECKPOINT_STEPS", 5)
    whole = train(tmp_path / "whole")
    assert set(whole) == {
        "policy-2.safetensors",
        "policy-8.safetensors",
        "policy-18.safetensors",
        "training.safetensors",
    }
    for stop in (2, 5, 8, 15, 18):  # at snapshots and between them
        folder = tmp_path / f"stopped at {stop}"
        with pytest.raises(KeyboardInterrupt):
            train(folder, stop_at=stop)
        assert train(folder) == whole
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "whole").iterdir()}
    assert train(tmp_path / "whole") == whole
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_seed_decides_the_policies(tmp_path: Path) -> None:
    policies = []
    for name, plan in (("a", PLAN), ("b", PLAN), ("c", dataclasses.replace(PLAN, seed=1))):
        (tmp_path / name).mkdir()
        policies.append(train_snapshots(plan, Pendulum(), tmp_path / name))
    rows = np.ones((1, 3), np.float32)
    first, again, other = ([policy.act(rows).item() for policy in three] for three in policies)
    assert first == again
    assert len({*first, *other}) == 6


def test_the_folder_stays_after_an_error_and_goes_after_success(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), policies_folder(tmp_path, PLAN, keep=False) as folder:
        raise KeyboardInterrupt
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    with policies_folder(tmp_path, PLAN, keep=True):
        pass
    assert folder.is_dir()
    with policies_folder(tmp_path, PLAN, keep=False):
        pass
    assert not list(tmp_path.iterdir())


def test_two_processes_do_not_train_the_same_policies(tmp_path: Path) -> None:
    with (
        policies_folder(tmp_path, PLAN, keep=False) as folder,
        pytest.raises(ConfigError, match=r"another process .* another seed"),
        policies_folder(tmp_path, PLAN, keep=False),
    ):
        raise AssertionError
    assert not folder.exists()


def test_rows_that_go_on_do_so_from_their_true_states() -> None:
    simulator, generator = Pendulum(), torch.Generator().manual_seed(0)
    environment = SimulatedEnvironment(simulator)
    shown = environment.reset(4, generator)
    states = simulator.states_of(shown.numpy())
    actions = torch.full((4, 1), 1.7)
    for _ in range(30):
        shown, rewards, terminated = environment.step(shown, actions, generator)
        states, expected, _ = simulator.step(states, actions.numpy())
        np.testing.assert_array_equal(shown.numpy(), simulator.observe(states))
        np.testing.assert_array_equal(rewards.numpy(), expected.astype(np.float32))
        assert not terminated.any()
    fresh = environment.reset(1, generator)
    mixed = torch.cat((shown[:2], fresh, shown[3:]))
    states[2] = simulator.states_of(fresh.numpy())
    following, _, _ = environment.step(mixed, actions, generator)
    expected_states = simulator.step(states, actions.numpy()).states
    np.testing.assert_array_equal(following.numpy(), simulator.observe(expected_states))
    environment.forget()
    seen, _, _ = environment.step(mixed, actions, generator)
    read = simulator.step(simulator.states_of(mixed.numpy()), actions.numpy()).states
    np.testing.assert_array_equal(seen.numpy(), simulator.observe(read))
    np.testing.assert_allclose(seen, following, atol=1e-5)


def test_starts_come_from_the_generator() -> None:
    environment = SimulatedEnvironment(Pendulum())
    first, again, other = (
        environment.reset(3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
