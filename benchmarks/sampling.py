"""Drawing synthetic transitions: bfloat16 in chunks against float32 over the whole batch.

``--trajectories`` measures whole trajectories instead: a quarter of 1,000 of 300 steps, each drawn
to its last step, so that nothing but their number is scaled.

Every evaluation of the network costs the same, so few noise levels are timed and the figures are
given for the sampler of a run. That bfloat16 is good enough is shown on a trained denoiser: both
precisions draw from the same streams, and their marginal fidelity is compared.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import harness
from benchmarks.harness import SEED, Alternative, Result, Timing
from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import END_BITS, FragmentEncoder
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.methods.privorl.fragment_network import FragmentSynthesizer
from distributed_privrl.methods.privorl.model_config import DenoiserConfig, TransformerConfig
from distributed_privrl.methods.privorl.release import native_precision
from distributed_privrl.methods.privorl.sampling_config import SamplingConfig, StitchingConfig
from distributed_privrl.methods.privorl.stitching import stitched_steps
from distributed_privrl.methods.privorl.update import DiffusionRowLoss, build_denoiser
from distributed_privrl.models.ddpm import DDPMSampler
from distributed_privrl.models.denoiser import ResidualMLPDenoiser
from distributed_privrl.models.edm import Precision, SamplerConfig, sample, sample_chunks

ROW_WIDTH = 11
PAPER_MODEL = DenoiserConfig(width=1024, depth=6, normalise=False, activation="relu")
QUICK_MODEL = DenoiserConfig(width=32, depth=1, normalise=False, activation="relu")
CHUNK_ROWS = SamplingConfig().chunk_rows
SAMPLER = SamplingConfig().sampler()

FP32_WHOLE = "fp32, whole batch"
FP32_CHUNKS = f"fp32, chunks of {CHUNK_ROWS}"
BF16_WHOLE = "bf16, whole batch"
BF16_CHUNKS = f"bf16, chunks of {CHUNK_ROWS}"
FP32_BOUND = "bound: fp32 matrix products alone"
BF16_BOUND = "bound: bf16 matrix products alone"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        model: the network.
        rows: rows of the whole batch.
        noise_levels: noise levels that are timed.
        turns: timed turns of each alternative.
        training_steps: of the denoiser whose rows are compared.
        fidelity_rows: rows that each precision draws for the comparison.
        fidelity_sampler: its sampler.
    """

    model: DenoiserConfig
    rows: int
    noise_levels: int
    turns: int
    training_steps: int
    fidelity_rows: int
    fidelity_sampler: SamplerConfig


FULL = Size(
    model=PAPER_MODEL,
    rows=8192,
    noise_levels=2,
    turns=9,
    training_steps=300,
    fidelity_rows=2048,
    fidelity_sampler=SAMPLER,
)
QUICK = Size(
    model=QUICK_MODEL,
    rows=64,
    noise_levels=2,
    turns=3,
    training_steps=20,
    fidelity_rows=64,
    fidelity_sampler=SamplerConfig(steps=4, churn=0.0),
)


def run(quick: bool) -> Result:
    """Measure speed, and the marginal fidelity of both precisions."""
    size = QUICK if quick else FULL
    amx = torch.cpu._is_amx_tile_supported()
    network = build_denoiser(size.model, row_width=ROW_WIDTH, seed=SEED)
    timings = harness.interleave(_alternatives(size, network), turns=size.turns)
    marginals = _marginals(size, network)
    difference = abs(marginals["bf16"] - marginals["fp32"])
    speed = timings[FP32_WHOLE].cpu_median / timings[BF16_CHUNKS].cpu_median
    notes = [
        f"amx: {str(amx).lower()}",
        f"marginal fidelity of {size.fidelity_rows} rows of {size.fidelity_sampler.steps} noise"
        f" levels: fp32 {marginals['fp32']:.4f}, bf16 {marginals['bf16']:.4f}.",
    ]
    if not amx:
        notes.append("This processor has no AMX: bf16_vs_fp32 has no target here and is skipped.")
    return Result(
        cells=_cells(size, timings),
        ratios={"bf16_vs_fp32": speed if amx else None, "marginal_difference": difference},
        notes=notes,
        facts={"amx": amx},
    )


def _alternatives(size: Size, network: ResidualMLPDenoiser) -> dict[str, Alternative]:
    diffusion = size.model.diffusion()
    sampler = SamplerConfig(steps=size.noise_levels)

    def whole(precision: Precision) -> Callable[[], object]:
        shape = (size.rows, ROW_WIDTH)
        generator = torch.Generator().manual_seed(SEED)
        return lambda: sample(
            network, diffusion, sampler, shape, generator=generator, precision=precision
        )

    def chunks(precision: Precision) -> Callable[[], object]:
        return lambda: list(
            sample_chunks(
                network,
                diffusion,
                sampler,
                rows=size.rows,
                row_width=ROW_WIDTH,
                streams=Streams(SEED),
                chunk_rows=CHUNK_ROWS,
                precision=precision,
            )
        )

    evaluations = _evaluations(size.noise_levels)
    runs = {
        FP32_WHOLE: whole("fp32"),
        FP32_CHUNKS: chunks("fp32"),
        BF16_WHOLE: whole("bf16"),
        BF16_CHUNKS: chunks("bf16"),
        FP32_BOUND: _products(network, size.rows, evaluations, torch.float32),
        BF16_BOUND: _products(network, size.rows, evaluations, torch.bfloat16),
    }
    return {name: Alternative(run=function) for name, function in runs.items()}


def _products(
    network: nn.Module, rows: int, evaluations: int, dtype: torch.dtype
) -> Callable[[], None]:
    """Return the matrix products of the evaluations, chunk by chunk, and nothing else."""
    chunk = min(rows, CHUNK_ROWS)
    weights = [m.weight.detach().to(dtype) for m in network.modules() if isinstance(m, nn.Linear)]
    operands = [(torch.ones(chunk, weight.shape[1], dtype=dtype), weight) for weight in weights]

    def multiply() -> None:
        for _ in range(evaluations * (rows // chunk)):
            for inputs, weight in operands:
                nn.functional.linear(inputs, weight)

    return multiply


def _evaluations(noise_levels: int) -> int:
    return 2 * noise_levels - 1


def _cells(size: Size, timings: dict[str, Timing]) -> list[dict[str, Any]]:
    base = timings[FP32_WHOLE].cpu_median
    share = _evaluations(size.noise_levels) / _evaluations(SAMPLER.steps)
    return [
        {
            "sampler": name,
            "CPU s": timing.cpu_median,
            f"transitions of {SAMPLER.steps} levels per core-second": size.rows
            * share
            / timing.cpu_median,
            "of fp32 whole": base / timing.cpu_median,
        }
        for name, timing in timings.items()
    ]


def _marginals(size: Size, network: ResidualMLPDenoiser) -> dict[Precision, float]:
    """Train on public rows and return the marginal fidelity of each precision's samples."""
    rows = public_rows(16 * size.fidelity_rows)
    _train(size, network, rows)
    found: dict[Precision, float] = {}
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for precision in precisions:
        drawn = sample_chunks(
            network,
            size.model.diffusion(),
            size.fidelity_sampler,
            rows=size.fidelity_rows,
            row_width=ROW_WIDTH,
            streams=Streams(SEED),
            precision=precision,
        )
        found[precision] = fidelity(rows, torch.cat(list(drawn)).numpy()).marginal
    return found


def public_rows(count: int) -> NDArray[np.float32]:
    """Return rows ``(count, D)`` of eight clusters, correlated, the last column binary."""
    generator = Streams(SEED).numpy("rows")
    centres = generator.normal(size=(8, ROW_WIDTH))
    mixing = 0.4 * generator.normal(size=(ROW_WIDTH, ROW_WIDTH)) / ROW_WIDTH**0.5
    cluster = generator.integers(8, size=count)
    rows = centres[cluster] + generator.normal(size=(count, ROW_WIDTH)) @ mixing
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    rows[:, -1] = np.where(cluster == 0, 1.0, -1.0)
    result: NDArray[np.float32] = rows.astype(np.float32)
    return result


def _train(size: Size, network: ResidualMLPDenoiser, rows: NDArray[np.float32]) -> None:
    loss = DiffusionRowLoss(size.model.diffusion(), ROW_WIDTH)
    adam = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    streams = Streams(SEED)
    generator = torch.Generator().manual_seed(streams.integer("noise"))
    chosen = streams.numpy("batches").integers(len(rows), size=(size.training_steps, 256))
    for batch in chosen:
        draws = torch.randn(len(batch), loss.draw_count, generator=generator)
        adam.zero_grad(set_to_none=True)
        torch.autograd.backward(loss(network, torch.from_numpy(rows[batch]), draws).mean())
        adam.step()


@dataclass(frozen=True, kw_only=True)
class TrajectorySize:
    """How many trajectories are drawn, and by what.

    Args:
        model: the network.
        trajectories: that are drawn and timed.
        length: steps of each.
    """

    model: TransformerConfig
    trajectories: int
    length: int


FULL_TRAJECTORIES = TrajectorySize(model=TransformerConfig(), trajectories=250, length=300)
QUICK_TRAJECTORIES = TrajectorySize(
    model=TransformerConfig(width=8, depth=1, heads=2, horizon=8), trajectories=5, length=20
)
ASKED, CORES, MINUTES = 1000, 2, 20


class Endless(FragmentSynthesizer):
    """Fragments that hold no end: every trajectory is as long as the cap."""

    def sample(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Return fragments whose end bits are -1."""
        drawn = super().sample(*arguments, **keywords)
        drawn[..., -END_BITS:] = -1.0
        return drawn


def endless_synthesizer(model: TransformerConfig) -> Endless:
    """Return a model of Maze2D's columns; values do not matter to the time."""
    spaces = Box(-9.0, 9.0, (4,), np.float32), Box(-1.0, 1.0, (2,), np.float32)
    columns = 2 * 4 + 2 + 2
    scaling = Scaling(offset=np.zeros(columns), scale=np.ones(columns))
    encoder = FragmentEncoder(TransitionEncoder(*spaces, scaling), model.horizon, time_limit=300)
    return Endless(model=model, encoder=encoder.to_json())


def run_trajectories(quick: bool) -> Result:
    """Measure the CPU seconds of whole trajectories in both precisions."""
    size = QUICK_TRAJECTORIES if quick else FULL_TRAJECTORIES
    synthesizer, config = endless_synthesizer(size.model), StitchingConfig()
    network = synthesizer.build(SEED)
    automatic = native_precision("auto", "cpu")
    cells: list[dict[str, Any]] = []
    ratios: dict[str, float | None] = {}
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for precision in precisions:
        start = time.process_time()
        steps = stitched_steps(
            network,
            synthesizer,
            DDPMSampler(steps=config.steps, stochasticity=config.stochasticity),
            count=size.trajectories,
            max_length=size.length,
            generator=torch.Generator().manual_seed(SEED),
            precision=precision,
        )
        seconds = time.process_time() - start
        assert len(steps) == size.trajectories * size.length
        minutes = seconds * ASKED / size.trajectories / CORES / 60
        cells.append(
            {
                "precision": precision,
                "trajectories drawn": size.trajectories,
                "CPU s": seconds,
                "steps per core-second": len(steps) / seconds,
                f"minutes for {ASKED} on {CORES} cores": minutes,
                f"of {MINUTES} minutes": minutes / MINUTES,
            }
        )
        ratios[f"of_{MINUTES}_minutes_{precision}"] = minutes / MINUTES
    ratios[f"of_{MINUTES}_minutes"] = ratios[f"of_{MINUTES}_minutes_{automatic}"]
    notes = (
        f"{size.trajectories} trajectories of {size.length} steps were drawn to the last, on one"
        f" thread; {ASKED} take {ASKED / size.trajectories:g} times that, shared by {CORES} cores.",
        f"Width {size.model.width}, depth {size.model.depth}, fragments of {size.model.horizon}"
        f" steps, {config.steps} evaluations each; precision auto is {automatic} here.",
    )
    return Result(cells=cells, ratios=ratios, notes=notes, facts={"auto": automatic})


def main(arguments: Sequence[str] | None = None) -> Result:
    """Run from the command line; ``--trajectories`` chooses what is drawn."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--trajectories" in given:
        given.remove("--trajectories")
        return harness.main("sampling_trajectories", run_trajectories, given)
    return harness.main("sampling", run, given)


if __name__ == "__main__":
    main()
