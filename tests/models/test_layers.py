import torch
from torch import nn

from distributed_privrl.models.layers import linear, mlp


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_layer_is_drawn_from_the_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = linear(5, 3, generator()), linear(5, 3, generator())
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)
    assert torch.equal(torch.get_rng_state(), state)


def test_layer_weights_fill_the_default_interval() -> None:
    layer = linear(400, 300, generator())
    bound = 400**-0.5
    assert 0.99 * bound < layer.weight.abs().max().item() <= bound
    standard = bound / 3**0.5
    assert abs(layer.weight.std().item() / standard - 1) < 0.01


def test_mlp_has_nonlinearities_between_layers_only() -> None:
    network = mlp((4, 8, 6, 2), generator())
    kinds = [type(layer) for layer in network]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert network(torch.zeros(7, 4)).shape == (7, 2)
