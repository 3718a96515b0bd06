"""The elucidated diffusion model: preconditioning, training loss and stochastic sampler.

Reference: Karras, Aittala, Aila, Laine, "Elucidating the design space of diffusion-based generative
models" (2022), table 1 and algorithm 2; PrivORL, section V and appendix F-A.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.models.chunks import chunk_count

Network = Callable[[Tensor, Tensor], Tensor]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class EDM:
    """Preconditioning, noise levels and loss weighting of the diffusion model.

    Args:
        sigma_data: standard deviation of the data.
        sigma_min: smallest noise level of the sampler.
        sigma_max: largest noise level of the sampler.
        rho: curvature of the sampler's noise levels.
        p_mean: mean of the logarithm of the noise level in training.
        p_std: standard deviation of the logarithm of the noise level in training.

    Raises:
        ConfigError: a value is out of range.
    """

    sigma_data: float = 1.0
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    rho: float = 7.0
    p_mean: float = -1.2
    p_std: float = 1.2

    def __post_init__(self) -> None:
        for name in ("sigma_data", "sigma_min", "sigma_max", "rho", "p_std"):
            check_positive(name, getattr(self, name))
        if self.sigma_min >= self.sigma_max:
            raise ConfigError(
                f"sigma_min={self.sigma_min} must be below sigma_max={self.sigma_max}"
            )

    def denoise(self, network: Network, noisy: Tensor, sigma: Tensor) -> Tensor:
        """Return the denoised rows D(noisy; sigma) ``(N, R)``.

        Args:
            network: maps (scaled rows ``(N, R)``, noise condition ``(N,)``) to ``(N, R)``.
            noisy: rows with noise ``(N, R)``.
            sigma: noise level of each row ``(N,)``.

        Reference: Karras et al., equation 7 and table 1.
        """
        column = sigma.unsqueeze(-1)
        total = column.square() + self.sigma_data**2
        c_skip = self.sigma_data**2 / total
        c_out = column * self.sigma_data * total.rsqrt()
        return c_skip * noisy + c_out * self._predict(network, noisy, sigma, total)

    def loss(self, network: Network, rows: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
        """Return the weighted loss of each row ``(N,)``, a mean over its numbers.

        It is lambda(sigma) mean((D(rows + sigma noise; sigma) - rows)^2), computed as the mean
        squared error of the network's output against its target, which is the same number without
        the division by small noise levels.

        Args:
            network: see `denoise`.
            rows: clean rows ``(N, R)``.
            sigma: noise level of each row ``(N,)``.
            noise: standard normal numbers ``(N, R)``.

        Reference: Karras et al., equation 8; PrivORL, equation 3.
        """
        column = sigma.unsqueeze(-1)
        total = column.square() + self.sigma_data**2
        # (rows - c_skip noisy) / c_out, with the common factor sigma cancelled.
        target = (column * rows - self.sigma_data**2 * noise) * total.rsqrt() / self.sigma_data
        prediction = self._predict(network, rows + column * noise, sigma, total)
        return (prediction - target).square().mean(dim=-1)

    def training_sigma(self, normals: Tensor) -> Tensor:
        """Return the noise levels ``(N,)`` of training, log-normal in ``normals`` ``(N,)``."""
        return torch.exp(self.p_mean + self.p_std * normals)

    def sampling_sigmas(self, steps: int) -> list[float]:
        """Return the ``steps + 1`` noise levels of the sampler, from ``sigma_max`` to 0.

        Reference: Karras et al., equation 5.
        """
        first, last = self.sigma_max ** (1 / self.rho), self.sigma_min ** (1 / self.rho)
        ramp = (index / max(steps - 1, 1) for index in range(steps))
        return [(first + part * (last - first)) ** self.rho for part in ramp] + [0.0]

    @staticmethod
    def _predict(network: Network, noisy: Tensor, sigma: Tensor, total: Tensor) -> Tensor:
        return network(noisy * total.rsqrt(), sigma.log() / 4)


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Steps and stochasticity of the sampler; few steps and no churn make a cheap one.

    Args:
        steps: noise levels; ``2 steps - 1`` evaluations of the network.
        churn: total amount of fresh noise; 0 makes the sampler deterministic after its start.
        churn_min: smallest noise level that gets fresh noise.
        churn_max: largest noise level that gets fresh noise.
        churn_noise: standard deviation of the fresh noise.

    Raises:
        ConfigError: a value is out of range.

    Reference: Karras et al., table 5 (ImageNet); PrivORL, appendix F-A.
    """

    steps: int = 128
    churn: float = 80.0
    churn_min: float = 0.05
    churn_max: float = 50.0
    churn_noise: float = 1.003

    def __post_init__(self) -> None:
        check_positive("steps", self.steps)
        check_positive("churn_noise", self.churn_noise)
        if not self.churn >= 0:
            raise ConfigError(f"churn must be >= 0, got {self.churn!r}")

    def gamma(self, sigma: float) -> float:
        """Return the relative increase of the noise level ``sigma`` by fresh noise."""
        if not self.churn_min <= sigma <= self.churn_max:
            return 0.0
        return min(self.churn / self.steps, math.sqrt(2) - 1)


def sample(
    network: Network,
    edm: EDM,
    config: SamplerConfig,
    shape: tuple[int, int],
    *,
    generator: torch.Generator,
    precision: Precision = "fp32",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return rows ``(N, R)`` drawn by the stochastic Heun sampler, on the generator's device.

    Args:
        network: see `EDM.denoise`.
        edm: noise levels and preconditioning.
        config: steps and stochasticity.
        shape: (N, R).
        generator: source of the initial and the fresh noise.
        precision: ``bf16`` computes the network in bfloat16; the rows stay in ``dtype``.
        dtype: type of the rows.

    Raises:
        ConfigError: an unknown precision.

    Reference: Karras et al., algorithm 2.
    """
    if precision not in ("fp32", "bf16"):
        raise ConfigError(f"precision must be fp32 or bf16, got {precision!r}")
    device = generator.device
    reduced = (
        torch.autocast(device.type, dtype=torch.bfloat16)
        if precision == "bf16"
        else contextlib.nullcontext()
    )
    with torch.inference_mode(), reduced:
        rows = _heun(network, edm, config, shape, generator, dtype)
    return rows.clone()  # a plain tensor: what inference mode returns cannot enter training


def _heun(
    network: Network,
    edm: EDM,
    config: SamplerConfig,
    shape: tuple[int, int],
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Tensor:
    def normals() -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)

    def slope(rows: Tensor, sigma: float) -> Tensor:
        levels = torch.full(shape[:1], sigma, device=generator.device, dtype=dtype)
        return (rows - edm.denoise(network, rows, levels)) / sigma

    sigmas = edm.sampling_sigmas(config.steps)
    rows = sigmas[0] * normals()
    for sigma, following in itertools.pairwise(sigmas):
        gamma = config.gamma(sigma)
        raised = sigma * (1 + gamma)
        if gamma > 0:
            rows = rows + config.churn_noise * math.sqrt(raised**2 - sigma**2) * normals()
        first = slope(rows, raised)
        euler = rows + (following - raised) * first
        if following == 0:
            return euler
        rows = rows + (following - raised) / 2 * (first + slope(euler, following))
    return rows


def sample_chunks(
    network: Network,
    edm: EDM,
    config: SamplerConfig,
    *,
    rows: int,
    row_width: int,
    streams: Streams,
    chunk_rows: int = 1024,
    chunks: Iterable[int] | None = None,
    precision: Precision = "fp32",
    device: str = "cpu",
) -> Iterator[Tensor]:
    """Yield sampled rows chunk by chunk, each ``(chunk_rows, R)``; the last one may be shorter.

    A chunk draws from the stream named after its index, so that the rows do not depend on who
    draws which chunk. Chunks of about a thousand rows keep the activations in cache.

    Args:
        network: see `EDM.denoise`.
        edm: noise levels and preconditioning.
        config: steps and stochasticity.
        rows: rows of all chunks together.
        row_width: numbers in a row (R).
        streams: public random streams of this sampling.
        chunk_rows: rows of a chunk.
        chunks: indices of the chunks to draw; all by default.
        precision: see `sample`.
        device: where to sample.

    Raises:
        ConfigError: a size is not positive, or a chunk's index does not exist.
    """
    check_positive("rows", rows)
    check_positive("chunk_rows", chunk_rows)
    count = chunk_count(rows, chunk_rows)
    for index in range(count) if chunks is None else chunks:
        if not 0 <= index < count:
            raise ConfigError(f"chunk {index} does not exist: {rows} rows are {count} chunks")
        generator = torch.Generator(device).manual_seed(streams.integer(f"chunk/{index}"))
        size = min(chunk_rows, rows - index * chunk_rows)
        shape = (size, row_width)
        yield sample(network, edm, config, shape, generator=generator, precision=precision)
