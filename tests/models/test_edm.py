import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.models.denoiser import ResidualMLPDenoiser
from distributed_privrl.models.edm import EDM, SamplerConfig, sample, sample_chunks

Denoiser = Callable[[Tensor, Tensor], Tensor]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network_of(denoiser: Denoiser, edm: EDM) -> Denoiser:
    """Turn the ideal D(x; sigma) into the network that the preconditioning makes of it."""

    def network(scaled: Tensor, condition: Tensor) -> Tensor:
        sigma = (4 * condition).exp().unsqueeze(-1)
        total = sigma**2 + edm.sigma_data**2
        noisy = scaled * total.sqrt()
        skip = edm.sigma_data**2 / total * noisy
        return (denoiser(noisy, sigma) - skip) / (sigma * edm.sigma_data / total.sqrt())

    return network


def gaussian(mean: float, std: float) -> Denoiser:
    return lambda noisy, sigma: (std**2 * noisy + sigma**2 * mean) / (std**2 + sigma**2)


def test_denoise_is_the_preconditioned_network() -> None:
    edm = EDM(sigma_data=0.5)
    seen: list[Tensor] = []

    def network(rows: Tensor, condition: Tensor) -> Tensor:
        seen.extend((rows, condition))
        return torch.ones_like(rows)

    # sigma = 1: c_skip = .25/1.25 = .2, c_out = .5/sqrt(1.25), c_in = 1/sqrt(1.25), c_noise = 0
    result = edm.denoise(network, torch.tensor([[2.0, -1.0]]), torch.tensor([1.0]))
    root = math.sqrt(1.25)
    torch.testing.assert_close(result, torch.tensor([[0.4 + 0.5 / root, -0.2 + 0.5 / root]]))
    torch.testing.assert_close(seen[0], torch.tensor([[2 / root, -1 / root]]))
    torch.testing.assert_close(seen[1], torch.tensor([0.0]))


def test_loss_is_the_weighted_squared_error_of_each_row() -> None:
    edm = EDM(sigma_data=0.7)
    network = ResidualMLPDenoiser(3, width=16, depth=2, generator=generator()).double()
    rows = torch.randn(5, 3, generator=generator(1), dtype=torch.float64)
    noise = torch.randn(5, 3, generator=generator(2), dtype=torch.float64)
    sigma = torch.tensor([0.01, 0.1, 1.0, 5.0, 60.0], dtype=torch.float64)
    column = sigma.unsqueeze(-1)
    error = edm.denoise(network, rows + column * noise, sigma) - rows
    weight = (sigma**2 + 0.7**2) / (sigma * 0.7) ** 2
    expected = weight * error.square().mean(dim=1)
    torch.testing.assert_close(edm.loss(network, rows, sigma, noise), expected)


def test_training_noise_levels_are_log_normal() -> None:
    edm = EDM(p_mean=-1.0, p_std=2.0)
    sigma = edm.training_sigma(torch.tensor([0.0, 1.0, -0.5]))
    torch.testing.assert_close(sigma.log(), torch.tensor([-1.0, 1.0, -2.0]))


def test_sampling_noise_levels_fall_from_largest_to_zero() -> None:
    sigmas = EDM(rho=1.0, sigma_min=1.0, sigma_max=3.0).sampling_sigmas(3)
    assert sigmas == pytest.approx([3.0, 2.0, 1.0, 0.0])
    default = EDM().sampling_sigmas(128)
    assert default[0] == pytest.approx(80)
    assert default[-2] == pytest.approx(0.002)
    # index 64 of 0..127, by the formula of equation 5
    middle = (80 ** (1 / 7) + 64 / 127 * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7
    assert default[64] == pytest.approx(middle)


def test_churn_is_bounded_and_stays_in_its_range() -> None:
    config = SamplerConfig(steps=128)
    assert config.gamma(1.0) == pytest.approx(math.sqrt(2) - 1)  # 80/128 is above the bound
    assert SamplerConfig(steps=400).gamma(1.0) == pytest.approx(0.2)
    assert config.gamma(0.049) == 0
    assert config.gamma(50.1) == 0


@pytest.mark.parametrize(("steps", "evaluations"), [(1, 1), (8, 15), (128, 255)])
def test_network_evaluations(steps: int, evaluations: int) -> None:
    calls = 0

    def network(rows: Tensor, condition: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        assert condition.shape == rows.shape[:1]
        return torch.zeros_like(rows)

    sample(network, EDM(), SamplerConfig(steps=steps), (2, 3), generator=generator())
    assert calls == evaluations


def test_deterministic_sampler_is_second_order() -> None:
    # The flow of a Gaussian is known: x(sigma) - mean grows as sqrt(std^2 + sigma^2).
    edm, mean, std = EDM(), 0.5, 0.8
    start = 80 * torch.randn((200, 1), generator=generator(3), dtype=torch.float64)
    exact = mean + (start - mean) * std / math.sqrt(std**2 + 80**2)

    def error(steps: int) -> float:
        rows = sample(
            network_of(gaussian(mean, std), edm),
            edm,
            SamplerConfig(steps=steps, churn=0.0),
            (200, 1),
            generator=generator(3),
            dtype=torch.float64,
        )
        return (rows - exact).square().mean().sqrt().item()

    ratios = [error(steps) / error(2 * steps) for steps in (16, 32)]
    assert all(3.3 < ratio < 5 for ratio in ratios)  # first order would give 2


@pytest.mark.parametrize(
    ("config", "tolerance"),
    [(SamplerConfig(steps=48, churn=0.0), 0.02), (SamplerConfig(), 0.03)],
)
def test_samples_of_a_gaussian_have_its_moments(config: SamplerConfig, tolerance: float) -> None:
    edm, rows = EDM(), 20_000
    network = network_of(gaussian(-1.0, 0.6), edm)
    drawn = sample(network, edm, config, (rows, 1), generator=generator(5))
    assert abs(drawn.mean().item() + 1.0) < 5 * 0.6 / math.sqrt(rows)
    # Steps of finite size and churn_noise > 1 widen the samples a little.
    assert abs(drawn.std().item() / 0.6 - 1) < tolerance


def test_samples_of_a_mixture_have_its_weights() -> None:
    edm, std, rows = EDM(), 0.2, 10_000

    def denoiser(noisy: Tensor, sigma: Tensor) -> Tensor:
        variance = std**2 + sigma**2
        parts = []
        logits = []
        for centre, weight in ((-1.0, 0.3), (1.0, 0.7)):
            parts.append((std**2 * noisy + sigma**2 * centre) / variance)
            logits.append(math.log(weight) - (noisy - centre) ** 2 / (2 * variance))
        posterior = torch.softmax(torch.stack(logits), dim=0)
        return (posterior * torch.stack(parts)).sum(dim=0)

    drawn = sample(
        network_of(denoiser, edm), edm, SamplerConfig(steps=64), (rows, 1), generator=generator(6)
    )
    right = drawn > 0
    assert abs(right.double().mean().item() - 0.7) < 5 * math.sqrt(0.21 / rows)
    assert abs(drawn[right].mean().item() - 1) < 0.02
    assert abs(drawn[right].std().item() / std - 1) < 0.05


def test_bf16_changes_samples_a_little_and_keeps_their_type() -> None:
    network = ResidualMLPDenoiser(4, width=64, depth=2, generator=generator())
    seen: list[torch.dtype] = []
    network.blocks[0].register_forward_hook(lambda _m, _i, output: seen.append(output.dtype))
    config = SamplerConfig(steps=8, churn=0.0)
    full = sample(network, EDM(), config, (50, 4), generator=generator(1))
    reduced = sample(network, EDM(), config, (50, 4), generator=generator(1), precision="bf16")
    assert seen[0] == torch.float32
    assert seen[-1] == torch.bfloat16
    assert reduced.dtype == torch.float32
    assert not torch.equal(full, reduced)
    assert (full - reduced).abs().mean() < 0.02 * full.abs().mean()


def test_samples_may_enter_training() -> None:
    network = ResidualMLPDenoiser(4, width=16, depth=1, generator=generator())
    rows = sample(network, EDM(), SamplerConfig(steps=2), (3, 4), generator=generator())
    assert not rows.requires_grad
    network(rows, torch.zeros(3)).sum().backward()


def test_chunks_do_not_depend_on_who_draws_them() -> None:
    network = ResidualMLPDenoiser(4, width=16, depth=1, generator=generator())
    settings = {"rows": 10, "row_width": 4, "chunk_rows": 4, "streams": Streams(3)}
    config = SamplerConfig(steps=3)
    whole = list(sample_chunks(network, EDM(), config, **settings))  # type: ignore[arg-type]
    assert [chunk.shape[0] for chunk in whole] == [4, 4, 2]
    assert not torch.equal(whole[0], whole[1])
    for index in (2, 0, 1):
        (alone,) = sample_chunks(network, EDM(), config, chunks=[index], **settings)  # type: ignore[arg-type]
        assert torch.equal(alone, whole[index])
    with pytest.raises(ConfigError, match="chunk 3 does not exist"):
        next(sample_chunks(network, EDM(), config, chunks=[3], **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [{"sigma_data": 0.0}, {"sigma_min": 90.0}, {"rho": -1.0}])
def test_wrong_levels_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        EDM(**values)


def test_wrong_sampler_is_refused() -> None:
    with pytest.raises(ConfigError, match="steps"):
        SamplerConfig(steps=0)
    with pytest.raises(ConfigError, match="churn"):
        SamplerConfig(churn=-1.0)
    with pytest.raises(ConfigError, match="precision"):
        sample(
            lambda rows, _: rows,
            EDM(),
            SamplerConfig(),
            (1, 1),
            generator=generator(),
            precision="fp8",  # type: ignore[arg-type]
        )
