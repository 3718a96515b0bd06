"""The discrete-time diffusion model of fragments: schedules, training loss and samplers.

Reference: Ho, Jain, Abbeel, "Denoising diffusion probabilistic models" (2020); Song, Meng, Ermon,
"Denoising diffusion implicit models" (2021); PrivORL, section VI and appendix F-A.
"""

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.edm import Precision
from distributed_privrl.models.fragment_inputs import FragmentNetwork

LossKind = Literal["l1", "huber", "l2"]
Bounds = tuple[Tensor, Tensor]
_DISTANCES: dict[LossKind, Callable[..., Tensor]] = {
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "l2": F.mse_loss,
}
_LARGEST_BETA = 0.999
_COSINE_OFFSET = 0.008


@dataclass(frozen=True, kw_only=True)
class DDPM:
    """Noise schedule, training loss and one reverse step of the diffusion model.

    Diffusion steps count as in the papers: 1 .. ``steps``; step 0 is clean data.

    Args:
        steps: diffusion steps (T).
        schedule: ``cosine`` (Nichol and Dhariwal 2021, equation 17), or ``linear`` in beta, with
            Ho et al.'s range scaled by 1000 / T.
        prediction: what the network gives: the ``noise`` e, or the ``velocity``
            sqrt(abar) e - sqrt(1 - abar) x0 (Salimans and Ho 2022), from which x0 follows without
            division by small numbers, so that few sampling steps work without bounds.

    Raises:
        ConfigError: fewer than 2 steps, or an unknown schedule or prediction.
    """

    steps: int = 200
    schedule: Literal["cosine", "linear"] = "cosine"
    prediction: Literal["noise", "velocity"] = "noise"

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise ConfigError(f"steps must be at least 2, got {self.steps}")
        if self.schedule not in ("cosine", "linear"):
            raise ConfigError(f"schedule must be cosine or linear, got {self.schedule!r}")
        if self.prediction not in ("noise", "velocity"):
            raise ConfigError(f"prediction must be noise or velocity, got {self.prediction!r}")

    @cached_property
    def betas(self) -> Tensor:
        """Variances of the forward steps, ``(T + 1,)`` float64; entry 0 is 0."""
        share = torch.arange(self.steps + 1, dtype=torch.float64) / self.steps
        if self.schedule == "cosine":
            level = torch.cos((share + _COSINE_OFFSET) / (1 + _COSINE_OFFSET) * math.pi / 2) ** 2
            betas = 1 - level[1:] / level[:-1]
        else:
            betas = torch.linspace(0.1, 20, self.steps, dtype=torch.float64) / self.steps
        padded: Tensor = F.pad(betas.clamp(max=_LARGEST_BETA), (1, 0))
        return padded

    @cached_property
    def alpha_bars(self) -> Tensor:
        """Share of the signal's variance left after each step, ``(T + 1,)`` float64; from 1 on."""
        alpha_bars: Tensor = (1 - self.betas).cumprod(dim=0)
        return alpha_bars

    def training_timestep(self, normals: Tensor) -> Tensor:
        """Return diffusion steps ``(N,)``, uniform on 1 .. T for standard normals ``(N,)``."""
        uniforms = torch.special.ndtr(normals.double())
        timestep: Tensor = (uniforms * self.steps).long().clamp(0, self.steps - 1) + 1
        return timestep

    def loss(
        self,
        network: FragmentNetwork,
        steps: Tensor,
        mask: Tensor,
        condition: Tensor,
        timestep: Tensor,
        noise: Tensor,
        *,
        kind: LossKind = "l1",
    ) -> Tensor:
        """Return the loss of each fragment ``(N,)``, a mean over the numbers of its real steps.

        Padded steps are neither seen nor counted; a fragment without a real step has loss 0.

        Args:
            network: see `FragmentNetwork`.
            steps: clean steps ``(N, H, S)`` in standardised units.
            mask: ``(N, H)``; non-zero where a step is real.
            condition: linking transitions ``(N, S)``.
            timestep: diffusion steps ``(N,)``, integers in 1 .. T.
            noise: standard normal numbers ``(N, H, S)``.
            kind: ``l1`` is the paper's: it learns the median of the noise instead of its mean, so
                that samples lean to the larger modes. ``l2`` is unbiased; ``huber`` lies between,
                quadratic for errors below 1.

        Raises:
            ConfigError: an unknown ``kind``.

        Reference: PrivORL, equation 6; Ho et al., equation 14.
        """
        if kind not in _DISTANCES:
            raise ConfigError(f"kind must be l1, huber or l2, got {kind!r}")
        padded = ~mask.bool().unsqueeze(-1)
        steps, noise = steps.masked_fill(padded, 0), noise.masked_fill(padded, 0)
        signal, level = self._rates(timestep, steps)
        target = noise if self.prediction == "noise" else signal * noise - level * steps
        share = (timestep / self.steps).to(steps.dtype)
        prediction = network(signal * steps + level * noise, share, condition, mask)
        errors = _DISTANCES[kind](prediction, target, reduction="none").masked_fill(padded, 0)
        count = mask.bool().sum(dim=1).clamp(min=1) * steps.shape[-1]
        return errors.sum(dim=(1, 2)) / count

    def reverse_step(
        self,
        noisy: Tensor,
        prediction: Tensor,
        timestep: int,
        earlier: int,
        *,
        stochasticity: float = 1.0,
        bounds: Bounds | None = None,
    ) -> tuple[Tensor, float]:
        """Return mean ``(..., S)`` and standard deviation of the steps at step ``earlier``.

        With ``stochasticity`` 1 they are the posterior's of Ho et al. given the estimated clean
        steps; PrivORL's equations 8 and 9 when ``earlier`` is ``timestep - 1``. With 0 the step
        is deterministic.

        Args:
            noisy: steps at ``timestep``.
            prediction: the network's output for them.
            timestep: diffusion step of ``noisy``.
            earlier: diffusion step to reach, below ``timestep``.
            stochasticity: share of the posterior's standard deviation (eta).
            bounds: lowest and highest values ``(S,)`` of clean steps, public; the estimate is cut
                to them. None does not cut.

        Reference: Ho et al., equations 6, 7 and 11; Song et al., equations 12 and 16.
        """
        now, then = self.alpha_bars[timestep].item(), self.alpha_bars[earlier].item()
        if self.prediction == "noise":
            clean = (noisy - math.sqrt(1 - now) * prediction) / math.sqrt(now)
        else:
            clean = math.sqrt(now) * noisy - math.sqrt(1 - now) * prediction
        if bounds is not None:
            clean = clean.clamp(*bounds)
        direction = (noisy - math.sqrt(now) * clean) / math.sqrt(1 - now)
        deviation = stochasticity * math.sqrt((1 - then) / (1 - now) * (1 - now / then))
        rest = math.sqrt(max(1 - then - deviation**2, 0.0))
        return math.sqrt(then) * clean + rest * direction, deviation

    def _rates(self, timestep: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of signal and noise ``(N, 1, 1)`` at ``timestep`` ``(N,)``."""
        alpha_bar = self.alpha_bars.to(like.device)[timestep][:, None, None]
        return alpha_bar.sqrt().to(like.dtype), (1 - alpha_bar).sqrt().to(like.dtype)


@dataclass(frozen=True, kw_only=True)
class DDPMSampler:
    """How the reverse process is walked.

    Args:
        steps: evaluations of the network; None takes every diffusion step.
        stochasticity: 1 is the ancestral sampler, 0 DDIM (eta).

    Raises:
        ConfigError: no step, or a stochasticity outside [0, 1].
    """

    steps: int | None = None
    stochasticity: float = 1.0

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_positive("steps", self.steps)
        if not 0 <= self.stochasticity <= 1:
            raise ConfigError(f"stochasticity must lie in [0, 1], got {self.stochasticity!r}")

    def timesteps(self, diffusion_steps: int) -> list[int]:
        """Return the diffusion steps to visit, from T down to 0, evenly spaced.

        Raises:
            ConfigError: more sampling steps than diffusion steps.

        Example:
            >>> DDPMSampler(steps=4).timesteps(10)
            [10, 8, 5, 2, 0]
        """
        count = diffusion_steps if self.steps is None else self.steps
        if count > diffusion_steps:
            raise ConfigError(
                f"steps={count} of the sampler are more than the {diffusion_steps} trained"
            )
        return [round(diffusion_steps * left / count) for left in range(count, -1, -1)]


def sample(
    network: FragmentNetwork,
    ddpm: DDPM,
    sampler: DDPMSampler,
    condition: Tensor,
    *,
    horizon: int,
    generator: torch.Generator,
    mask: Tensor | None = None,
    bounds: Bounds | None = None,
    precision: Precision = "fp32",
) -> Tensor:
    """Return fragments ``(N, H, S)`` that follow ``condition``, on its device and in its dtype.

    Args:
        network: see `FragmentNetwork`.
        ddpm: schedule and prediction that the network was trained with.
        sampler: number of steps and stochasticity.
        condition: linking transitions ``(N, S)``; zeros start an episode.
        horizon: steps of a fragment (H).
        generator: source of the initial and the fresh noise.
        mask: ``(N, H)``; zero where a step shall stay zero and unseen. None: all are real.
        bounds: public range of clean steps, see `DDPM.reverse_step`.
        precision: ``bf16`` computes the network in bfloat16; the steps stay in their type.

    Raises:
        ConfigError: an unknown precision, or more steps than the diffusion has.

    Reference: Ho et al., algorithm 2; Song et al., equation 12; PrivORL, section VI-C.
    """
    if precision not in ("fp32", "bf16"):
        raise ConfigError(f"precision must be fp32 or bf16, got {precision!r}")
    rows, width = condition.shape
    reduced = (
        torch.autocast(condition.device.type, dtype=torch.bfloat16)
        if precision == "bf16"
        else contextlib.nullcontext()
    )
    seen = condition.new_ones(rows, horizon) if mask is None else mask
    real = seen.bool().unsqueeze(-1).to(condition.dtype)

    def normals() -> Tensor:
        shape = (rows, horizon, width)
        drawn = torch.randn(
            shape, generator=generator, device=condition.device, dtype=condition.dtype
        )
        return drawn * real

    with torch.inference_mode(), reduced:
        steps = normals()
        for timestep, earlier in itertools.pairwise(sampler.timesteps(ddpm.steps)):
            share = condition.new_full((rows,), timestep / ddpm.steps)
            prediction = network(steps, share, condition, seen).to(steps.dtype)
            steps, deviation = ddpm.reverse_step(
                steps,
                prediction,
                timestep,
                earlier,
                stochasticity=sampler.stochasticity,
                bounds=bounds,
            )
            steps = steps * real
            if deviation > 0:
                steps = steps + deviation * normals()  # PrivORL, equation 9
    return steps.clone()  # a plain tensor: what inference mode returns cannot enter training
