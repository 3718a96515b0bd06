"""Drawing the synthetic rows: post-processing of the released model, in chunks, by any worker."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.privorl.config import DenoiserConfig, SamplingConfig
from distributed_privrl.methods.privorl.network import build_denoiser
from distributed_privrl.models.edm import Precision, chunk_count, sample_chunks
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.parameters import FlatParameters


@dataclass(frozen=True, kw_only=True)
class SamplerSpec:
    """What a sampler is built from.

    Args:
        run_id: the run that trained them.
        checkpoint: the trained parameters; their moving average is sampled.
        folder: where chunks are written.
        model: the denoiser.
        config: the sampler.
        row_width: numbers in a row.
        rows: rows of all samplers together.
        seed: the run's public seed.
        index: this sampler's number.
        count: the number of samplers.
        device: where to sample.
    """

    run_id: str
    checkpoint: Path
    folder: Path
    model: DenoiserConfig
    config: SamplingConfig
    row_width: int
    rows: int
    seed: int
    index: int
    count: int
    device: str = "cpu"


class Sampler:
    """Draws every ``count``-th chunk and writes it; a chunk that exists is not drawn again.

    Privacy: post-processing of the released parameters; no event.
    """

    def __init__(self, spec: SamplerSpec) -> None:
        self._spec = spec
        network = build_denoiser(spec.model, row_width=spec.row_width, seed=spec.seed)
        self._network = network.to(spec.device)
        tensors, _ = load_checkpoint(spec.checkpoint, run_id=spec.run_id, stage="rounds")
        FlatParameters(self._network).load(tensors["ema"])
        self._chunks = [
            index
            for index in range(spec.index, _chunk_count(spec), spec.count)
            if not chunk_path(spec.folder, index).exists()
        ]

    def advance(self) -> int:
        """Draw the next chunk and return how many are left for this sampler."""
        if self._chunks:
            index = self._chunks[0]
            rows = next(
                sample_chunks(
                    self._network,
                    self._spec.model.diffusion(),
                    self._spec.config.sampler(),
                    rows=self._spec.rows,
                    row_width=self._spec.row_width,
                    streams=Streams(self._spec.seed).child("sampling"),
                    chunk_rows=self._spec.config.chunk_rows,
                    chunks=[index],
                    precision=_precision(self._spec.config, self._spec.device),
                    device=self._spec.device,
                )
            )
            buffer = io.BytesIO()
            np.save(buffer, rows.float().cpu().numpy())
            write_atomically(chunk_path(self._spec.folder, index), buffer.getvalue())
            del self._chunks[0]
        return len(self._chunks)


def _chunk_count(spec: SamplerSpec) -> int:
    return chunk_count(rows=spec.rows, chunk_rows=spec.config.chunk_rows)


def chunk_path(folder: Path, index: int) -> Path:
    """Return where chunk ``index`` is written."""
    return folder / f"rows-{index:06d}.npy"


def read_chunks(folder: Path, count: int) -> Iterator[NDArray[np.float32]]:
    """Yield the chunks ``(n, D)`` in order.

    Raises:
        StorageError: a chunk is missing.
    """
    for index in range(count):
        path = chunk_path(folder, index)
        with storage_errors(f"read {path}"):
            rows: NDArray[np.float32] = np.load(path)
        yield rows


def _precision(config: SamplingConfig, device: str) -> Precision:
    if config.precision != "auto":
        return config.precision
    if device == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_amx_tile_supported()
    return "bf16" if native else "fp32"
