import math

import pytest
import torch
from torch import nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.dynamics import DynamicsEnsemble, gaussian_nll, soft_bounds


def ensemble(members: int = 3, *, seed: int = 0) -> DynamicsEnsemble:
    generator = torch.Generator().manual_seed(seed)
    return DynamicsEnsemble(4, 3, members=members, hidden=(6, 5), generator=generator)


def network(owner: DynamicsEnsemble, member: int) -> nn.Sequential:
    """Return one member as a plain network."""
    layers: list[nn.Module] = []
    for weight, bias in owner.layers:
        layer = nn.Linear(weight.shape[1], weight.shape[2])
        layer.weight.data, layer.bias.data = weight[member].T.clone(), bias[member].clone()
        layers += [layer, nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def test_parameters_are_stacked_in_the_order_of_layers() -> None:
    assert [(name, tuple(p.shape)) for name, p in ensemble().named_parameters()] == [
        ("weight_0", (3, 4, 6)),
        ("bias_0", (3, 6)),
        ("weight_1", (3, 6, 5)),
        ("bias_1", (3, 5)),
        ("weight_2", (3, 5, 6)),
        ("bias_2", (3, 6)),
    ]


def test_each_member_is_the_plain_network_with_its_parameters() -> None:
    owner, rows = ensemble(), torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    mean, log_variance = owner(rows)
    assert mean.shape == log_variance.shape == (3, 7, 3)
    for member in range(3):
        raw = network(owner, member)(rows)
        torch.testing.assert_close(mean[member], raw[:, :3])
        torch.testing.assert_close(log_variance[member], soft_bounds(raw[:, 3:], -10.0, 1.0))


def test_members_may_be_given_inputs_of_their_own() -> None:
    owner, rows = ensemble(), torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(1))
    together = owner(rows)
    for member in range(3):
        alone = owner(rows[member])
        for values, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(values[member], expected[member])


def test_initial_members_differ_and_come_from_the_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = ensemble(), ensemble()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(first.weight_0[0], first.weight_0[1])
    assert not torch.equal(first.weight_0, ensemble(seed=1).weight_0)


def test_initial_parameters_fill_the_interval_of_linear_layers() -> None:
    generator = torch.Generator().manual_seed(0)
    owner = DynamicsEnsemble(100, 1, members=2, hidden=(300,), generator=generator)
    for values in owner.layers[0]:
        assert 0.098 < values.abs().max().item() <= 0.1
    assert abs(owner.layers[0][0].std().item() / (0.1 / 3**0.5) - 1) < 0.01


def test_log_variances_are_bounded_and_smooth() -> None:
    values = torch.linspace(-200, 200, 4001, dtype=torch.float64, requires_grad=True)
    bent = soft_bounds(values, -10.0, 1.0)
    assert bent.min().item() >= -10
    assert bent.max().item() <= math.log(math.exp(-10) + math.e) + 1e-12
    (slopes,) = torch.autograd.grad(bent.sum(), values)
    assert 0 <= slopes.min().item() <= slopes.max().item() < 1
    assert slopes[2000 - 45].item() > 0.98  # at -4.5, in the middle
    expected = torch.log(math.exp(-10) + 1 / (math.exp(-1) + torch.exp(-values)))
    torch.testing.assert_close(bent[1500:2500], expected[1500:2500])


def test_nll_is_that_of_the_normal_density() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(2, 2, 5, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    density = torch.distributions.Normal(mean, torch.exp(0.5 * log_variance))
    expected = -density.log_prob(targets).sum(dim=-1) - 1.5 * math.log(2 * math.pi)
    torch.testing.assert_close(gaussian_nll(mean, log_variance, targets), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 0}, "members must be at least 1, got 0"),
        ({"hidden": ()}, "layers must be at least 1, got 0"),
        ({"hidden": (4, 0)}, r"hidden=\(4, 0\) must be at least 1, got 0"),
        ({"log_variance_range": (1.0, 1.0)}, "two rising numbers"),
    ],
)
def test_wrong_sizes_are_refused(settings: dict[str, object], message: str) -> None:
    given = {"members": 2, "hidden": (4,), "generator": torch.Generator(), **settings}
    with pytest.raises(ConfigError, match=message):
        DynamicsEnsemble(4, 3, **given)  # type: ignore[arg-type]
