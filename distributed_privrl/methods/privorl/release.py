"""Drawing the synthetic rows: post-processing of the released model, in chunks, by any worker."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.progress import SAMPLING
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.privorl.config import PrivorlConfig
from distributed_privrl.methods.privorl.update import Synthesizer, private_network
from distributed_privrl.models.edm import Precision
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.devices import device_of
from distributed_privrl.updates.parameters import FlatParameters

PRETRAINED = "pretrained.safetensors"
TRAINED = "rounds.safetensors"
SYNTHETIC = "synthetic"
"""Files and a folder beside a run's checkpoint."""


class ChunkDrawer(Protocol):
    """Says how many chunks there are and draws any of them; picklable, holds no arrays."""

    @property
    def count(self) -> int:
        """The number of chunks."""
        ...

    def draw(self, network: nn.Module, index: int, *, streams: Streams, device: str) -> Tensor:
        """Return the rows ``(n, D)`` of chunk ``index``, the same whoever draws them.

        Args:
            network: with the trained parameters.
            index: of the chunk.
            streams: public random streams of this sampling.
            device: of the network.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SamplerSpec:
    """What a sampler is built from.

    Args:
        run_id: the run that trained them.
        checkpoint: the trained parameters; their moving average is sampled.
        pretrained: of the public pre-training, for parts that it alone taught.
        folder: where chunks are written.
        synthesizer: builds the network.
        drawer: draws a chunk.
        seed: the run's public seed.
        index: this sampler's number.
        count: the number of samplers.
        device: where to sample.
        stream: public stream that chunks are drawn from.
    """

    run_id: str
    checkpoint: Path
    pretrained: Path
    folder: Path
    synthesizer: Synthesizer
    drawer: ChunkDrawer
    seed: int
    index: int
    count: int
    device: str = "cpu"
    stream: str = "sampling"


class Sampler:
    """Draws every ``count``-th chunk and writes it; a chunk that exists is not drawn again.

    Privacy: post-processing of the released parameters; no event.
    """

    def __init__(self, spec: SamplerSpec) -> None:
        self._spec = spec
        self._network = private_network(
            spec.synthesizer, spec.seed, pretrained=spec.pretrained, run_id=spec.run_id
        ).to(spec.device)
        tensors, _ = load_checkpoint(spec.checkpoint, run_id=spec.run_id, stage="rounds")
        FlatParameters(self._network).load(tensors["ema"])
        self._chunks = [
            index
            for index in range(spec.index, spec.drawer.count, spec.count)
            if not chunk_path(spec.folder, index).exists()
        ]

    def advance(self) -> int:
        """Draw the next chunk and return how many are left for this sampler."""
        if self._chunks:
            spec, index = self._spec, self._chunks[0]
            streams = Streams(spec.seed).child(spec.stream)
            rows = spec.drawer.draw(self._network, index, streams=streams, device=spec.device)
            buffer = io.BytesIO()
            np.save(buffer, rows.float().cpu().numpy())
            write_atomically(chunk_path(spec.folder, index), buffer.getvalue(), mode=0o600)
            del self._chunks[0]
        return len(self._chunks)


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
            rows: NDArray[np.float32] = np.load(path, allow_pickle=False)
        yield rows


def native_precision(asked: str, device: str) -> Precision:
    """Return ``asked``; for ``auto``, bf16 where ``device`` multiplies it natively."""
    if asked != "auto":
        return "bf16" if asked == "bf16" else "fp32"
    if device == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_amx_tile_supported()
    return "bf16" if native else "fp32"


def draw_chunks(
    synthesizer: Synthesizer, drawer: ChunkDrawer, config: PrivorlConfig, context: RunContext
) -> None:
    """Draw the synthetic rows by samplers in parallel; chunks that exist are kept.

    Args:
        synthesizer: the model that was trained.
        drawer: draws a chunk of it.
        config: of the run.
        context: around the run.

    Privacy: post-processing of what the rounds released.
    """
    count = config.runtime.most_workers
    specs = [
        SamplerSpec(
            run_id=context.run_id,
            checkpoint=context.folder / TRAINED,
            pretrained=context.folder / PRETRAINED,
            folder=context.drawn_folder / SYNTHETIC,
            synthesizer=synthesizer,
            drawer=drawer,
            seed=config.seed,
            index=index,
            count=count,
            device=device_of(config.runtime),
            stream=context.stream,
        )
        for index in range(count)
    ]
    samplers = context.executor.start(Sampler, specs, repeat_lost_calls=True)
    total = left = drawer.count
    while left:
        left = sum(samplers.call("advance"))
        context.progress(SAMPLING, total - left, total)
    samplers.close()
