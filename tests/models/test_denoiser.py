import math

import pytest
import torch
from torch import nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.denoiser import FourierFeatures, ResidualMLPDenoiser


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(**options: object) -> ResidualMLPDenoiser:
    sizes = {"width": 32, "depth": 3, "time_width": 16, **options}
    return ResidualMLPDenoiser(5, generator=generator(), **sizes)  # type: ignore[arg-type]


def test_default_size_is_the_papers() -> None:
    network = ResidualMLPDenoiser(11, generator=generator())
    assert sum(parameter.numel() for parameter in network.parameters()) == 6_461_323


@pytest.mark.parametrize("normalise", [False, True])
def test_every_trainable_parameter_belongs_to_a_linear_layer_that_runs_once(
    normalise: bool,
) -> None:
    network = small(normalise=normalise)
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    held = {id(parameter) for layer in linears for parameter in layer.parameters()}
    assert held == {id(parameter) for parameter in network.parameters()}
    calls: list[nn.Module] = []
    for layer in linears:
        layer.register_forward_hook(lambda module, *_: calls.append(module))
    network(torch.randn(4, 5, generator=generator(1)), torch.zeros(4))
    assert {id(layer) for layer in calls} == {id(layer) for layer in linears}
    assert len(calls) == len(linears)


def test_rows_do_not_influence_each_other() -> None:
    network = small(normalise=True)
    rows = torch.randn(6, 5, generator=generator(1))
    levels = torch.linspace(-1, 1, 6)
    together = network(rows, levels)
    alone = torch.cat([network(rows[i : i + 1], levels[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(together, alone)


def test_output_depends_on_rows_and_noise_level() -> None:
    network = small()
    rows = torch.randn(2, 5, generator=generator(1))
    base = network(rows, torch.zeros(2))
    assert not torch.allclose(base, network(rows, torch.ones(2)))
    assert not torch.allclose(base, network(rows + 1, torch.zeros(2)))


def test_skip_connections_carry_the_input_past_the_blocks() -> None:
    network = small()
    for block in network.blocks:
        nn.init.zeros_(block.weight)  # type: ignore[arg-type]
        nn.init.zeros_(block.bias)  # type: ignore[arg-type]
    rows, levels = torch.randn(3, 5, generator=generator(1)), torch.zeros(3)
    hidden = network.widen(network.input(rows) + network.time(levels))
    torch.testing.assert_close(network(rows, levels), network.output(hidden.relu()))


def test_initialisation_comes_from_the_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = small(), small()
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_fourier_features_are_the_formula() -> None:
    features = FourierFeatures(4, generator=generator())
    features.frequencies.copy_(torch.tensor([0.5, 2.0]))
    expected = [0.25, math.sin(math.pi / 4), math.sin(math.pi), math.cos(math.pi / 4), -1.0]
    torch.testing.assert_close(features(torch.tensor([0.25])), torch.tensor([expected]))
    assert not list(features.parameters())


@pytest.mark.parametrize(
    ("option", "value"), [("width", 0), ("depth", 0), ("fourier_features", 3), ("activation", "x")]
)
def test_wrong_sizes_are_named(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=option):
        small(**{option: value})


def test_waves_widen_the_first_layer_alone_and_negative_numbers_of_them_are_refused() -> None:
    def parameters(frequencies: int) -> int:
        network = ResidualMLPDenoiser(
            3,
            width=8,
            depth=1,
            time_width=4,
            column_frequencies=frequencies,
            generator=torch.Generator().manual_seed(0),
        )
        assert network(torch.zeros(2, 3), torch.zeros(2)).shape == (2, 3)
        return sum(p.numel() for p in network.parameters())

    assert parameters(4) - parameters(0) == 3 * 8 * 4
    with pytest.raises(ConfigError, match="column_frequencies"):
        parameters(-1)
