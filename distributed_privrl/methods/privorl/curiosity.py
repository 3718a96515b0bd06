"""Curiosity: the model's own samples that random network distillation knows worst.

Reference: PrivORL, algorithm 1, lines 4 to 9, and section V-B.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.random import Streams
from distributed_privrl.methods.privorl.update import (
    DiffusionUpdate,
    Synthesizer,
    private_network,
)
from distributed_privrl.models.distillation import RandomNetworkDistillation
from distributed_privrl.rounds.server import PublicUpdate
from distributed_privrl.updates.local_update import UnitBatch
from distributed_privrl.updates.parameters import FlatParameters


class NovelRows:
    """Draws rows from a denoiser with a cheap sampler and keeps the most novel.

    Args:
        synthesizer: that built the network.
        network: the denoiser, sampled as it is at each call.
        sampler_steps: noise levels of the cheap sampler.
        streams: public; ``distillation`` makes the networks that score.
        device: of the network.
    """

    def __init__(
        self,
        synthesizer: Synthesizer,
        network: nn.Module,
        *,
        sampler_steps: int,
        streams: Streams,
        device: str = "cpu",
    ) -> None:
        self._synthesizer = synthesizer
        self._network = network
        self._sampler_steps = sampler_steps
        generator = torch.Generator().manual_seed(streams.integer("distillation"))
        self.distillation = RandomNetworkDistillation(
            synthesizer.row_width, generator=generator
        ).to(device)

    def draw(self, keep: int, *, given: Tensor, generator: torch.Generator) -> Tensor:
        """Return the most novel of fresh rows ``(keep, D)``; the predictor learns from all of them.

        Args:
            keep: rows to return (p x B).
            given: ``(B, D)``, a row for each one to draw and score: a fragment's condition.
            generator: public, on the network's device.
        """
        rows = self._synthesizer.draft(  # line 4
            self._network, given, steps=self._sampler_steps, generator=generator
        )
        scores = self.distillation.update(rows)  # lines 5 to 8
        return rows[scores.argsort(descending=True)[:keep]]  # line 9


@dataclass(frozen=True, kw_only=True)
class NovelUpdateFactory:
    """Builds the novel samples' part of a private round, in the server's process.

    Args:
        update: of the workers: a sample's vector is clipped and averaged over copies as a unit's.
        samples: that take part in a round (p x expected batch size).
        candidates: that they are chosen from (expected batch size).
        copies: noise levels of each sample.
        sampler_steps: noise levels of the cheap sampler.
        seed: the run's public seed.
        pretrained: checkpoint of the public pre-training, for parts that it alone taught.
        run_id: of the run.
    """

    update: DiffusionUpdate
    samples: int
    candidates: int
    copies: int
    sampler_steps: int
    seed: int
    pretrained: Path
    run_id: str

    def __call__(self) -> "NovelUpdate":
        """Return the public update."""
        return NovelUpdate(self)


class NovelUpdate(PublicUpdate):
    """Sums the vectors of the current model's most novel samples; no row is ever replaced by one.

    Privacy: post-processing; it is given parameters that earlier rounds released and the round's
    number, draws from public streams named after that number, and its predictor has learned from
    earlier samples alone. No event.
    """

    def __init__(self, spec: NovelUpdateFactory) -> None:
        self._spec = spec
        self._streams = Streams(spec.seed).child("curiosity")
        synthesizer, device = spec.update.synthesizer, spec.update.device
        network = private_network(
            synthesizer, spec.seed, pretrained=spec.pretrained, run_id=spec.run_id
        ).to(device)
        self._flat = FlatParameters(network)
        self._given = torch.zeros(spec.candidates, synthesizer.row_width, device=device)
        self._rows = NovelRows(
            synthesizer,
            network,
            sampler_steps=spec.sampler_steps,
            streams=self._streams,
            device=device,
        )
        self._update = spec.update()

    def vector_sum(
        self, parameters: NDArray[np.floating], round_index: int
    ) -> NDArray[np.floating]:
        """Return the sum ``(P,)`` of the samples' clipped vectors; see `PublicUpdate`."""
        spec = self._spec
        streams = self._streams.child(f"round/{round_index}")
        self._flat.load(parameters)
        generator = torch.Generator(spec.update.device).manual_seed(streams.integer("samples"))
        rows = self._rows.draw(spec.samples, given=self._given, generator=generator)
        shape = (spec.samples, spec.copies)
        batch = UnitBatch(
            rows=np.repeat(rows.cpu().numpy()[:, None], spec.copies, axis=1),
            valid=np.ones(shape, dtype=bool),
            draws=streams.numpy("draws").standard_normal((*shape, spec.update.draw_count)),
        )
        return self._update.clipped_sum(parameters, batch)

    def tensors(self) -> dict[str, Tensor]:
        """Return the predictor and its optimiser's moments."""
        return self._rows.distillation.tensors()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from the tensors of a checkpoint."""
        self._rows.distillation.restore(tensors)
