import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.ddpm import DDPM, DDPMSampler, sample
from distributed_privrl.models.fragment_inputs import step_features
from distributed_privrl.models.layers import linear
from distributed_privrl.models.sizes import STEP_FEATURES
from distributed_privrl.models.trajectory_transformer import TrajectoryTransformer

SCHEDULES = ("cosine", "linear")
PREDICTIONS = ("noise", "velocity")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


class Exact:
    """The best prediction for a mixture of Gaussians of one spread, from Bayes' rule.

    Args:
        centres: ``(K, S)``.
        weights: ``(K,)``.
        spread: standard deviation of each Gaussian.
    """

    def __init__(self, ddpm: DDPM, centres: Tensor, weights: Tensor, spread: float) -> None:
        self.ddpm, self.spread = ddpm, spread
        self.centres, self.weights = centres.double(), weights.double()

    def __call__(self, noisy: Tensor, share: Tensor, condition: Tensor, mask: Tensor) -> Tensor:
        timestep = (share.double() * self.ddpm.steps).round().long()
        bar = self.ddpm.alpha_bars[timestep][:, None, None]
        variance = self.spread**2 * bar + 1 - bar
        errors = noisy.unsqueeze(-2) - bar.sqrt().unsqueeze(-1) * self.centres  # (N, H, K, S)
        logits = self.weights.log() - errors.square().sum(-1) / (2 * variance)
        parts = self.centres + (self.spread**2 * bar.sqrt() / variance).unsqueeze(-1) * errors
        clean = (logits.softmax(-1).unsqueeze(-1) * parts).sum(-2)
        noise = (noisy - bar.sqrt() * clean) / (1 - bar).sqrt()
        if self.ddpm.prediction == "noise":
            return noise
        return bar.sqrt() * noise - (1 - bar).sqrt() * clean


def test_linear_schedule_is_ho_et_al() -> None:
    ddpm = DDPM(steps=1000, schedule="linear")
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    torch.testing.assert_close(ddpm.betas[1:], betas, rtol=1e-12, atol=0)
    assert ddpm.alpha_bars[0] == 1
    product = 1.0
    for step, beta in enumerate(betas.tolist(), start=1):
        product *= 1 - beta
        assert ddpm.alpha_bars[step].item() == pytest.approx(product, rel=1e-9)
    # Fewer steps remove as much signal in all.
    few = DDPM(steps=200, schedule="linear").alpha_bars[-1].log() / ddpm.alpha_bars[-1].log()
    assert few.item() == pytest.approx(1, abs=0.05)


def test_cosine_schedule_is_nichol_and_dhariwal() -> None:
    ddpm = DDPM(steps=200)

    def level(step: int) -> float:
        return math.cos((step / 200 + 0.008) / 1.008 * math.pi / 2) ** 2

    for step in (1, 50, 100, 150, 199):
        assert ddpm.alpha_bars[step].item() == pytest.approx(level(step) / level(0), rel=1e-9)
    assert ddpm.betas.max().item() == 0.999
    assert (ddpm.alpha_bars[1:] < ddpm.alpha_bars[:-1]).all()
    assert ddpm.alpha_bars[-1] > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("timestep", [1, 2, 77, 200])
def test_ancestral_step_is_the_posterior_of_ho_et_al(schedule: str, timestep: int) -> None:
    ddpm = DDPM(schedule=schedule)  # type: ignore[arg-type]
    noisy, noise = normals(6, 3, 4), normals(6, 3, 4, seed=1)
    beta, bar = ddpm.betas[timestep], ddpm.alpha_bars[timestep]
    before, alpha = ddpm.alpha_bars[timestep - 1], 1 - beta
    mean, deviation = ddpm.reverse_step(noisy, noise, timestep, timestep - 1)
    # Equation 11, PrivORL's equation 8; the posterior's variance is equation 7's.
    expected = (noisy - beta / (1 - bar).sqrt() * noise) / alpha.sqrt()
    torch.testing.assert_close(mean, expected, rtol=1e-7, atol=1e-7)
    variance = (1 - before) / (1 - bar) * beta
    assert deviation**2 == pytest.approx(variance.item(), rel=1e-9, abs=1e-15)
    # Equation 7 from clean steps: a cut estimate enters the mean in their place.
    low, high = torch.full((4,), -0.5), torch.full((4,), 0.5)
    clean = ((noisy - (1 - bar).sqrt() * noise) / bar.sqrt()).clamp(-0.5, 0.5)
    expected = before.sqrt() * beta / (1 - bar) * clean
    expected = expected + alpha.sqrt() * (1 - before) / (1 - bar) * noisy
    mean, _ = ddpm.reverse_step(noisy, noise, timestep, timestep - 1, bounds=(low, high))
    torch.testing.assert_close(mean, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("stochasticity", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("timestep", "earlier"), [(200, 150), (60, 20), (10, 0)])
def test_step_over_several_is_song_et_al(stochasticity: float, timestep: int, earlier: int) -> None:
    ddpm = DDPM()
    noisy, noise = normals(6, 3, 4), normals(6, 3, 4, seed=1)
    now, then = ddpm.alpha_bars[timestep], ddpm.alpha_bars[earlier]
    sigma = stochasticity * ((1 - then) / (1 - now)).sqrt() * (1 - now / then).sqrt()
    clean = (noisy - (1 - now).sqrt() * noise) / now.sqrt()
    expected = then.sqrt() * clean + (1 - then - sigma**2).clamp(min=0).sqrt() * noise
    mean, deviation = ddpm.reverse_step(
        noisy, noise, timestep, earlier, stochasticity=stochasticity
    )
    torch.testing.assert_close(mean, expected, rtol=1e-7, atol=1e-7)
    assert deviation == pytest.approx(sigma.item())


@pytest.mark.parametrize("timestep", [1, 77, 200])
def test_velocity_and_noise_give_the_same_step(timestep: int) -> None:
    clean, noise = normals(6, 3, 4), normals(6, 3, 4, seed=1)
    bar = DDPM().alpha_bars[timestep]
    noisy = bar.sqrt() * clean + (1 - bar).sqrt() * noise
    velocity = bar.sqrt() * noise - (1 - bar).sqrt() * clean
    one = DDPM().reverse_step(noisy, noise, timestep, 0, stochasticity=0.0)
    other = DDPM(prediction="velocity").reverse_step(noisy, velocity, timestep, 0)
    torch.testing.assert_close(one[0], clean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(other[0], clean, rtol=1e-6, atol=1e-6)
    assert one[1] == other[1] == 0  # clean steps have no noise


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("kind", ["l1", "huber", "l2"])
def test_loss_is_the_mean_distance_over_real_entries(prediction: str, kind: str) -> None:
    ddpm = DDPM(steps=20, prediction=prediction)  # type: ignore[arg-type]
    steps, noise, condition = normals(3, 4, 6), normals(3, 4, 6, seed=1), normals(3, 6, seed=2)
    output = 2 * normals(3, 4, 6, seed=3)
    lengths, timesteps = [4, 1, 3], [1, 11, 20]
    mask = torch.tensor([[step < length for step in range(4)] for length in lengths])
    seen: list[Tensor] = []

    def network(noisy: Tensor, share: Tensor, condition: Tensor, mask: Tensor) -> Tensor:
        seen.extend((noisy, share, condition, mask))
        return output

    losses = ddpm.loss(
        network,
        steps,
        mask,
        condition,
        torch.tensor(timesteps),
        noise,
        kind=kind,  # type: ignore[arg-type]
    )
    for row, (length, timestep) in enumerate(zip(lengths, timesteps, strict=True)):
        bar = ddpm.alpha_bars[timestep]
        clean, drawn = steps[row, :length], noise[row, :length]
        noisy = bar.sqrt() * clean + (1 - bar).sqrt() * drawn
        torch.testing.assert_close(seen[0][row, :length], noisy)
        target = drawn if prediction == "noise" else bar.sqrt() * drawn - (1 - bar).sqrt() * clean
        error = (output[row, :length] - target).abs()
        distances = {
            "l1": error,
            "huber": torch.where(error < 1, error**2 / 2, error - 0.5),
            "l2": error**2,
        }
        torch.testing.assert_close(losses[row], distances[kind].mean())
    torch.testing.assert_close(seen[1], torch.tensor([0.05, 0.55, 1.0], dtype=torch.float64))
    assert seen[2] is condition
    assert torch.equal(seen[3], mask)


def test_training_timesteps_are_uniform() -> None:
    ddpm = DDPM(steps=8)
    drawn = ddpm.training_timestep(normals(80_000))
    counts = torch.bincount(drawn, minlength=9)
    assert counts[0] == 0
    assert len(counts) == 9
    statistic = ((counts[1:] - 10_000).double() ** 2 / 10_000).sum().item()
    assert 0.05 < statistic < 45  # chi-square, 7 degrees of freedom: both tails below 1e-6
    extremes = ddpm.training_timestep(torch.tensor([-60.0, 60.0, -1e-9, 1e-9]).double())
    assert extremes.tolist() == [1, 8, 4, 5]


DDIM = DDPMSampler(steps=40, stochasticity=0.0)
CENTRES, WEIGHTS, SPREAD = torch.tensor([[-1.0, -0.5], [1.0, 0.5]]), torch.tensor([0.3, 0.7]), 0.3
samplers = pytest.mark.parametrize("sampler", [DDPMSampler(), DDIM], ids=["ancestral", "ddim"])


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@samplers
def test_samples_of_a_gaussian_have_its_moments(
    prediction: str, schedule: str, sampler: DDPMSampler
) -> None:
    ddpm = DDPM(prediction=prediction, schedule=schedule)  # type: ignore[arg-type]
    numbers, mean, std = 20_000, -1.0, 0.6
    network = Exact(ddpm, torch.full((1, 5), mean), torch.ones(1), std)
    condition = torch.zeros(numbers // 10, 5, dtype=torch.float64)
    drawn = sample(network, ddpm, sampler, condition, horizon=2, generator=generator(5))
    assert drawn.shape == (numbers // 10, 2, 5)
    assert abs(drawn.mean().item() - mean) < 5 * std / math.sqrt(numbers)
    # Steps of finite size narrow the samples: by 2 % under cosine, 6 % under linear.
    assert abs(drawn.std().item() / std - 1) < (0.04 if schedule == "cosine" else 0.09)


def check_mixture(drawn: Tensor, tolerance: float) -> None:
    """Check modes, mean and variance of rows ``(N, 2)``; each wrong by a third fails."""
    right = drawn[:, 0] > 0
    assert abs(right.double().mean().item() - 0.7) < tolerance / 2
    for part, centre in zip((drawn[~right], drawn[right]), CENTRES, strict=True):
        assert (part.mean(dim=0) - centre).abs().max() < tolerance
        assert (part.std(dim=0) / SPREAD - 1).abs().max() < 2 * tolerance
    mean = WEIGHTS @ CENTRES
    variance = SPREAD**2 + WEIGHTS @ (CENTRES - mean).square()
    assert (drawn.mean(dim=0) - mean).abs().max() < tolerance
    assert (drawn.var(dim=0) / variance - 1).abs().max() < 2 * tolerance


@pytest.mark.parametrize("prediction", PREDICTIONS)
@samplers
def test_samples_of_a_mixture_have_its_modes(prediction: str, sampler: DDPMSampler) -> None:
    ddpm = DDPM(prediction=prediction)  # type: ignore[arg-type]
    network = Exact(ddpm, CENTRES, WEIGHTS, SPREAD)
    condition = torch.zeros(4000, 2, dtype=torch.float64)
    drawn = sample(network, ddpm, sampler, condition, horizon=1, generator=generator(5))
    check_mixture(drawn[:, 0], tolerance=0.06)


class TinyNetwork(nn.Module):
    def __init__(self, source: torch.Generator, width: int = 48) -> None:
        super().__init__()
        self.input = linear(2 + STEP_FEATURES, width, source)
        self.blocks = nn.ModuleList(linear(width, width, source) for _ in range(2))
        self.output = linear(width, 2, source)

    def forward(self, noisy: Tensor, share: Tensor, condition: Tensor, mask: Tensor) -> Tensor:
        hidden = F.silu(self.input(torch.cat((2 * noisy[:, 0], step_features(share)), dim=-1)))
        for block in self.blocks:
            hidden = hidden + F.silu(block(hidden))
        return torch.as_tensor(self.output(hidden)).unsqueeze(1)


def test_trained_network_recovers_a_mixture() -> None:
    source, rows, rounds = generator(0), 384, 800
    ddpm, network = DDPM(prediction="velocity"), TinyNetwork(source)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2, fused=True)
    decay = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, rounds)
    ones, zeros = torch.ones(rows, 1), torch.zeros(rows, 2)
    for _ in range(rounds):
        right = (torch.rand(rows, generator=source) < 0.7).long()
        steps = CENTRES[right] + SPREAD * torch.randn(rows, 2, generator=source)
        timestep = ddpm.training_timestep(torch.randn(rows, generator=source))
        noise = torch.randn(rows, 1, 2, generator=source)
        losses = ddpm.loss(network, steps[:, None], ones, zeros, timestep, noise, kind="l2")
        optimiser.zero_grad()
        losses.mean().backward()
        optimiser.step()
        decay.step()
    for sampler in (DDPMSampler(), DDIM):
        none, bounds = torch.zeros(3000, 2), (torch.full((2,), -2.5), torch.full((2,), 2.5))
        drawn = sample(
            network, ddpm, sampler, none, horizon=1, generator=generator(1), bounds=bounds
        )
        check_mixture(drawn[:, 0], tolerance=0.1)
        assert drawn.abs().max() <= 2.5


def small_transformer() -> TrajectoryTransformer:
    return TrajectoryTransformer(1, 1, horizon=4, width=16, depth=1, heads=2, generator=generator())


@pytest.mark.parametrize("steps", [None, 7, 1])
def test_network_sees_each_visited_step_once(steps: int | None) -> None:
    shares: list[float] = []

    def network(noisy: Tensor, share: Tensor, condition: Tensor, mask: Tensor) -> Tensor:
        assert (share == share[0]).all()
        assert mask.shape == noisy.shape[:2]
        shares.append(share[0].item())
        return torch.zeros_like(noisy)

    sampler = DDPMSampler(steps=steps)
    sample(network, DDPM(steps=20), sampler, torch.zeros(2, 6), horizon=3, generator=generator())
    assert shares == pytest.approx([step / 20 for step in sampler.timesteps(20)[:-1]])
    assert len(shares) == (steps or 20)
    assert shares[0] == 1


def draw(
    network: nn.Module, *, seed: int = 0, stochasticity: float = 1.0, **options: Any
) -> Tensor:
    """Return three fragments of a short diffusion."""
    ddpm, sampler = DDPM(steps=12, prediction="velocity"), DDPMSampler(stochasticity=stochasticity)
    source = generator(seed)
    return sample(network, ddpm, sampler, torch.zeros(3, 6), horizon=4, generator=source, **options)


def test_padded_steps_stay_zero_and_unseen() -> None:
    mask = torch.ones(3, 4)
    mask[0, 2:] = 0
    drawn = draw(small_transformer(), mask=mask)
    assert (drawn[0, 2:] == 0).all()
    assert (drawn[0, :2] != 0).all()
    assert (drawn[1:] != 0).all()


def test_bf16_changes_samples_a_little_and_keeps_their_type() -> None:
    network, seen = small_transformer(), list[torch.dtype]()
    network.blocks[0].widen.register_forward_hook(  # type: ignore[union-attr]
        lambda _module, _inputs, output: seen.append(output.dtype)
    )
    full = draw(network, stochasticity=0.0)
    assert set(seen) == {torch.float32}
    reduced = draw(network, stochasticity=0.0, precision="bf16")
    assert seen[-1] == torch.bfloat16
    assert reduced.dtype == torch.float32
    assert 0 < (full - reduced).abs().mean() < 0.02 * full.abs().mean()


def test_samples_come_from_the_generator_and_may_enter_training() -> None:
    network, state = small_transformer(), torch.get_rng_state()
    assert torch.equal(draw(network, seed=1), draw(network, seed=1))
    assert not torch.equal(draw(network, seed=1), draw(network, seed=2))
    assert torch.equal(torch.get_rng_state(), state)
    steps = draw(network)
    network(steps, torch.ones(3), torch.zeros(3, 6), torch.ones(3, 4)).sum().backward()


def test_wrong_settings_are_named() -> None:
    for values in ({"steps": 1}, {"schedule": "sigmoid"}, {"prediction": "score"}):
        with pytest.raises(ConfigError, match=next(iter(values))):
            DDPM(**values)  # type: ignore[arg-type]
    for values in ({"steps": 0}, {"stochasticity": 1.5}, {"stochasticity": math.nan}):
        with pytest.raises(ConfigError, match=next(iter(values))):
            DDPMSampler(**values)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="steps=30"):
        DDPMSampler(steps=30).timesteps(20)
    inputs = torch.zeros(1, 4, 6), torch.ones(1, 4), torch.zeros(1, 6), torch.ones(1).long()
    with pytest.raises(ConfigError, match="kind"):
        DDPM().loss(small_transformer(), *inputs, inputs[0], kind="l3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="precision"):
        draw(small_transformer(), precision="fp8")
