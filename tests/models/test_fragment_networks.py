"""What both networks of fragments promise: `TrajectoryTransformer` and `TrajectoryUNet`."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.ddpm import DDPM
from distributed_privrl.models.trajectory_transformer import TrajectoryTransformer
from distributed_privrl.models.trajectory_unet import TrajectoryUNet

HORIZON = 5  # odd, so that halving it rounds
WIDTH = 13

Build = Callable[..., nn.Module]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def transformer(**options: int) -> nn.Module:
    sizes = {"horizon": HORIZON, "width": 16, "depth": 2, "heads": 2, **options}
    return TrajectoryTransformer(4, 2, generator=generator(), **sizes)


def unet(**options: int) -> nn.Module:
    sizes = {"horizon": HORIZON, "width": 8, "depth": 3, **options}
    return TrajectoryUNet(4, 2, generator=generator(), **sizes)


def with_waves(build: Build) -> Build:
    return functools.partial(build, column_frequencies=3)


networks = {"transformer": transformer, "unet": unet}
both = pytest.mark.parametrize(
    "build",
    [*networks.values(), *map(with_waves, networks.values())],
    ids=[*networks, *(f"{name} with waves" for name in networks)],
)


def fragments(rows: int = 4, seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return noisy steps, step conditions, conditions (row 0: none) and masks (row 1: padded)."""
    source = generator(seed)
    noisy = torch.randn(rows, HORIZON, WIDTH, generator=source)
    condition = torch.randn(rows, WIDTH, generator=source)
    condition[0] = 0
    mask = torch.ones(rows, HORIZON)
    mask[1, 2:] = 0
    return noisy, torch.rand(rows, generator=source), condition, mask


@both
def test_output_has_the_fragments_form(build: Build) -> None:
    noisy, share, condition, mask = fragments()
    output = build()(noisy, share, condition, mask)
    assert output.shape == noisy.shape
    assert torch.isfinite(output).all()
    assert (output[1, 2:] == 0).all()
    assert (output[1, :2] != 0).all()


@both
def test_mask_may_be_boolean(build: Build) -> None:
    noisy, share, condition, mask = fragments()
    network = build()
    assert torch.equal(
        network(noisy, share, condition, mask), network(noisy, share, condition, mask.bool())
    )


@both
def test_trainable_parameters_are_of_linear_layers_that_run_once_with_the_batch_first(
    build: Build,
) -> None:
    network = build()
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    held = {id(parameter) for layer in linears for parameter in layer.parameters()}
    assert held == {id(parameter) for parameter in network.parameters()}
    assert all(type(layer) is nn.Linear for layer in linears)
    calls: list[tuple[nn.Module, torch.Size]] = []
    for layer in linears:
        layer.register_forward_hook(lambda module, x, _: calls.append((module, x[0].shape)))
    network(*fragments(rows=3))
    assert sorted(id(layer) for layer, _ in calls) == sorted(id(layer) for layer in linears)
    assert all(len(shape) in (2, 3) and shape[0] == 3 for _, shape in calls)


@both
@pytest.mark.parametrize("content", [1e3, float("nan"), float("inf")])
def test_padded_content_moves_neither_outputs_nor_loss_nor_gradients(
    build: Build, content: float
) -> None:
    network, diffusion = build(), DDPM(steps=10)
    steps, _, condition, mask = fragments()
    noise = torch.randn(steps.shape, generator=generator(2))
    share, timestep = torch.full((4,), 0.3), torch.tensor([1, 4, 7, 10])
    changed_steps, changed_noise = steps.clone(), noise.clone()
    changed_steps[1, 2:], changed_noise[1, 2:] = content, -content

    def results(steps: Tensor, noise: Tensor) -> list[Tensor]:
        output = network(steps, share, condition, mask)
        losses = diffusion.loss(network, steps, mask, condition, timestep, noise)
        return [output, losses, *torch.autograd.grad(losses.sum(), list(network.parameters()))]

    pairs = zip(results(steps, noise), results(changed_steps, changed_noise), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@both
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_padded_fragment_acts_like_a_shorter_one(build: Build, length: int) -> None:
    noisy, share, condition, mask = fragments()
    mask[:, :length], mask[:, length:] = 1, 0
    padded = build()(noisy, share, condition, mask)[:, :length]
    short = build(horizon=length)
    cut = short(noisy[:, :length], share, condition, torch.ones(4, length))
    torch.testing.assert_close(padded, cut, rtol=1e-4, atol=1e-5)


@both
def test_fragment_without_a_real_step_has_no_loss_and_no_gradient(build: Build) -> None:
    network = build()
    steps, _, condition, mask = fragments()
    mask[:] = 0
    losses = DDPM().loss(network, steps, mask, condition, torch.full((4,), 9), steps)
    assert torch.equal(losses, torch.zeros(4))
    gradients = torch.autograd.grad(losses.sum(), list(network.parameters()))
    assert all((gradient == 0).all() for gradient in gradients)


@both
def test_rows_never_meet(build: Build) -> None:
    network = build()
    inputs = fragments()
    before = network(*inputs)
    changed = [part.clone() for part in inputs]
    for part, new in zip(changed, fragments(seed=7), strict=True):
        part[2] = new[2]
    changed[3][2, 3:] = 0
    after = network(*changed)
    others = [0, 1, 3]
    torch.testing.assert_close(after[others], before[others], rtol=0, atol=1e-6)
    assert (after[2, :3] - before[2, :3]).abs().max() > 1e-3
    alone = torch.cat([network(*(part[i : i + 1] for part in inputs)) for i in range(4)])
    torch.testing.assert_close(alone, before, rtol=1e-5, atol=1e-6)


@both
def test_every_real_step_sees_every_real_step_the_condition_and_the_diffusion_step(
    build: Build,
) -> None:
    network = build()
    noisy, share, condition, mask = (part[2:3] for part in fragments())
    before = network(noisy, share, condition, mask)
    for step in range(HORIZON):
        moved = noisy.clone()
        moved[0, step] += 1
        assert ((network(moved, share, condition, mask) - before).abs().amax(-1) > 1e-7).all()
    for other in (
        network(noisy, share + 0.1, condition, mask),
        network(noisy, share, condition + 1, mask),
    ):
        assert ((other - before).abs().amax(-1) > 1e-5).all()


@both
def test_no_condition_is_told_from_a_tiny_one(build: Build) -> None:
    network = build()
    noisy, share, condition, mask = (part[:1] for part in fragments())
    assert not condition.any()
    none = network(noisy, share, condition, mask)
    tiny = network(noisy, share, condition + 1e-12, mask)
    assert (none - tiny).abs().max() > 1e-3


@both
def test_initialisation_comes_from_the_generator_alone(build: Build) -> None:
    state = torch.get_rng_state()
    first, second = build(), build()
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@both
def test_networks_run_in_float64(build: Build) -> None:
    network = build().double()
    output = network(*(part.double() for part in fragments()))
    assert output.dtype == torch.float64


@both
@pytest.mark.parametrize("option", ["horizon", "width", "depth"])
def test_wrong_sizes_are_named(build: Build, option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        build(**{option: 0})


@pytest.mark.parametrize("build", networks.values(), ids=networks)
def test_waves_of_columns_enter_by_the_first_layers_alone(build: Build) -> None:
    plain, shown = (dict(build(column_frequencies=f).named_parameters()) for f in (0, 3))
    wider = {name for name in plain if plain[name].shape != shown[name].shape}
    firsts = {
        "transformer": {f"embed.{part}.0.weight" for part in range(5)},
        "unet": {"input.weight"},
    }
    assert wider in [names | {"condition.0.weight"} for names in firsts.values()]
    for name in wider:
        without = 1 if name.startswith("condition") else 0  # whether there is a condition
        assert shown[name].shape[1] - without == 7 * (plain[name].shape[1] - without)


def test_waves_of_the_noisy_steps_have_the_slowest_one_s_period() -> None:
    network = transformer(column_frequencies=3)
    noisy, share, condition, mask = fragments()
    with torch.no_grad():
        for part, layers in zip(network.parts, network.embed, strict=True):  # type: ignore[arg-type]
            layers[0].weight[:, :part] = 0  # the number itself
    before = network(noisy, share, condition, mask)
    same, other = (network(noisy + shift, share, condition, mask) for shift in (4.0, 1.0))
    torch.testing.assert_close(same, before, rtol=1e-3, atol=1e-4)
    assert (other - before).abs().max() > 1e-2


@pytest.mark.parametrize("network", [TrajectoryTransformer, TrajectoryUNet])
@pytest.mark.parametrize("widths", [(0, 2), (4, 0)])
def test_wrong_parts_are_named(network: Build, widths: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="_width must be"):
        network(*widths, horizon=2, generator=generator())
