"""Training of many experts at once: as if each were alone, and good enough."""

import numpy as np
import pytest
import torch

from distributed_privrl.collection.experts_ppo import (
    Networks,
    PpoConfig,
    PpoTrainer,
    _advantages,
    clip_each,
)
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.classic_control import ClassicCartPole

CARTPOLE = PpoConfig(max_steps=200, scale=(1.0, 1.0, 0.1, 1.0))
PHYSICS = {
    "gravity": np.full(6, 9.8),
    "force": np.full(6, 10.0),
    "cart_mass": np.linspace(0.8, 1.25, 6),
}


def returns_of(networks: Networks, trainer: PpoTrainer, episodes: int = 20) -> np.ndarray:
    offset, scale = trainer.normalisation
    experts, simulator = len(networks.weights[0]), ClassicCartPole()
    states = simulator.reset(experts * episodes, np.random.default_rng(0))
    alive, earned = np.ones(len(states), bool), np.zeros(len(states))
    for _ in range(200):
        shown = (torch.from_numpy(simulator.observe(states)) - offset) / scale
        actions = networks(shown.view(experts, episodes, -1)).argmax(dim=2).flatten().numpy()
        states, rewards, ended = simulator.step(states, actions)
        earned += rewards * alive
        alive &= ~ended
        states[~alive] = 0.0
    means: np.ndarray = earned.reshape(experts, episodes).mean(axis=1)
    return means


def test_experts_learn_to_balance_and_stop_at_different_points() -> None:
    config = PpoConfig(**{**vars(CARTPOLE), "updates": 20, "least_updates": 20})
    trainer = PpoTrainer(config, ClassicCartPole())
    assert np.median(returns_of(trainer.train(PHYSICS, Streams(0)), trainer)) > 150
    early = PpoTrainer(
        PpoConfig(**{**vars(CARTPOLE), "updates": 20, "least_updates": 1}), ClassicCartPole()
    )
    found = returns_of(early.train(PHYSICS, Streams(1)), early)
    assert found.min() < 60 < found.max()


def test_an_experts_gradient_is_its_own() -> None:
    generator = torch.Generator().manual_seed(0)
    networks = Networks.drawn(3, (4, 5, 2), 1.0, generator)
    for parameter in networks.tensors:
        parameter.requires_grad_()
    rows = torch.randn(3, 7, 4, generator=generator)
    networks(rows)[1].square().sum().backward()
    for parameter in networks.tensors:
        assert parameter.grad is not None
        assert bool((parameter.grad[[0, 2]] == 0).all())
        assert bool((parameter.grad[1] != 0).any())
    clip_each(networks.tensors, 0.1)
    norm = sum(
        float(one.grad[1].square().sum()) for one in networks.tensors if one.grad is not None
    )
    assert norm == pytest.approx(0.01, rel=1e-5)
    before = [one.grad.clone() for one in networks.tensors if one.grad is not None]
    clip_each(networks.tensors, 5.0)
    after = [one.grad for one in networks.tensors if one.grad is not None]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


def test_networks_are_orthogonal() -> None:
    networks = Networks.drawn(3, (4, 8, 2), 0.5, torch.Generator().manual_seed(0))
    for expert in range(3):
        wide, narrow = networks.weights[0][expert], networks.weights[1][expert]
        torch.testing.assert_close(wide @ wide.T, 2 * torch.eye(4), atol=1e-5, rtol=0)
        torch.testing.assert_close(narrow.T @ narrow, 0.25 * torch.eye(2), atol=1e-5, rtol=0)


def test_advantages_stop_where_an_episode_does() -> None:
    errors = torch.tensor([1.0, 2.0, 4.0, 8.0]).view(4, 1, 1)
    going = torch.tensor([1.0, 0.0, 1.0, 1.0]).view(4, 1, 1)
    found = _advantages(errors, going, 0.5).flatten().tolist()
    assert found == [1 + 0.5 * 2, 2, 4 + 0.5 * 8, 8]
