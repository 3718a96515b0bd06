import torch

from distributed_privrl.agents.networks import (
    TwinCritic,
    actor_widths,
    polyak_update,
    without_weights,
)
from distributed_privrl.models.layers import mlp


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_twin_critic_has_two_different_values() -> None:
    first, second = TwinCritic(3, (8,), generator())(torch.ones(4, 3))
    assert first.shape == second.shape == (4,)
    assert not torch.allclose(first, second)


def test_polyak_update_moves_by_the_rate() -> None:
    target, source = mlp((2, 2), generator(1)), mlp((2, 2), generator(2))
    before = target[0].weight.clone()  # type: ignore[union-attr]
    polyak_update(target, source, 0.25)
    expected = 0.75 * before + 0.25 * source[0].weight  # type: ignore[operator]
    torch.testing.assert_close(target[0].weight, expected)


def test_widths_can_be_read_back() -> None:
    assert actor_widths(mlp((4, 7, 5, 2), generator())) == [4, 7, 5, 2]


def test_a_network_without_weights_passes_gradients_to_its_inputs_alone() -> None:
    critic, pairs = TwinCritic(3, (8,), generator()), torch.ones(4, 3, requires_grad=True)
    first, second = without_weights(critic, pairs)
    torch.testing.assert_close((first, second), critic(pairs))
    torch.autograd.backward((first + second).sum())
    assert pairs.grad is not None
    assert all(one.grad is None and one.requires_grad for one in critic.parameters())
