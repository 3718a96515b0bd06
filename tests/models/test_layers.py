import pytest
import torch
from torch import nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.layers import Waves, linear, mlp


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


def test_waves_are_sines_and_cosines_of_each_number_at_doubling_frequencies() -> None:
    rows = torch.tensor([[0.5, -1.0]])
    found = Waves(2)(rows)
    phase = torch.pi * torch.tensor([0.25, 0.5, -0.5, -1.0])
    expected = torch.cat((rows[0], phase.sin(), phase.cos()))
    torch.testing.assert_close(found[0], expected)
    assert Waves(0)(rows) is rows
    fragments = torch.stack((rows, 2 * rows), dim=1)
    torch.testing.assert_close(Waves(2)(fragments)[:, 0], found)
    assert Waves(2)(fragments).shape == (1, 2, Waves(2).width(2))
    with pytest.raises(ConfigError, match="column_frequencies must be >= 0, got -1"):
        Waves(-1)
