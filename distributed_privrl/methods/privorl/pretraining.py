"""Curiosity-driven pre-training on public rows.

Reference: paper 000, algorithm 1, lines 2 to 12, and section V-A, V-B.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.config import DenoiserConfig, PretrainingConfig
from distributed_privrl.methods.privorl.network import build_denoiser
from distributed_privrl.models.distillation import RandomNetworkDistillation
from distributed_privrl.models.edm import SamplerConfig, sample
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.optimiser import ServerOptimiser
from distributed_privrl.rounds.parameters import FlatParameters

CHECKPOINT_EVERY = 1000


@dataclass(frozen=True, kw_only=True)
class PretrainerSpec:
    """What pre-training is built from.

    Args:
        run_id: names the run in the checkpoint.
        root: the dataset store's folder.
        public: ids of the public datasets.
        encoder: JSON of the `TransitionEncoder`.
        model: the denoiser.
        config: steps, batch and curiosity.
        seed: the run's public seed.
        checkpoint: where the parameters go, and where a resumed run finds them.
    """

    run_id: str
    root: str
    public: tuple[str, ...]
    encoder: str
    model: DenoiserConfig
    config: PretrainingConfig
    seed: int
    checkpoint: Path


class Pretrainer:
    """Trains the denoiser on public rows, part of which are replaced by novel synthetic ones.

    Nothing here sees a sensitive row.
    """

    def __init__(self, spec: PretrainerSpec) -> None:
        self._spec = spec
        self._streams = Streams(spec.seed).child("pretraining")
        encoder = TransitionEncoder.from_json(spec.encoder)
        self._network = build_denoiser(spec.model, row_width=encoder.width, seed=spec.seed)
        self._flat = FlatParameters(self._network)
        self._diffusion = spec.model.diffusion()
        self._optimiser = ServerOptimiser(
            self._flat.vector, spec.config.optimiser, total_steps=spec.config.steps
        )
        self._curiosity = RandomNetworkDistillation(
            encoder.width,
            generator=torch.Generator().manual_seed(self._streams.integer("distillation")),
        )
        if spec.checkpoint.exists():
            tensors, state = load_checkpoint(
                spec.checkpoint, run_id=spec.run_id, stage="pretraining"
            )
            self._optimiser.restore(tensors, steps=state.round_index)
        self._rows = self._public_rows(encoder) if self._left() else np.empty((0, encoder.width))
        if spec.config.steps == 0 and not spec.checkpoint.exists():
            self._save()

    def _public_rows(self, encoder: TransitionEncoder) -> NDArray[np.float32]:
        store = DatasetStore(Path(self._spec.root))
        return np.concatenate(
            [
                encoder.encode(chunk).rows
                for dataset in self._spec.public
                for chunk in store.iter_transitions(dataset, unit="transition")
            ]
        )

    def _left(self) -> int:
        return self._spec.config.steps - self._optimiser.steps

    def progress(self) -> int:
        """Return the steps done."""
        return self._optimiser.steps

    def advance(self, steps: int) -> int:
        """Take up to ``steps`` steps and return how many are done in all."""
        for _ in range(min(steps, self._left())):
            self._step()
            if self._left() == 0 or self._optimiser.steps % CHECKPOINT_EVERY == 0:
                self._save()
        return self._optimiser.steps

    def _step(self) -> None:
        """One iteration of algorithm 1, lines 3 to 11."""
        streams = self._streams.child(f"step/{self._optimiser.steps}")
        chosen = streams.numpy("rows").integers(len(self._rows), size=self._spec.config.batch_size)
        batch = torch.from_numpy(self._rows[chosen])
        generator = torch.Generator().manual_seed(streams.integer("noise"))
        novel = self._novel_rows(generator)
        batch[: len(novel)] = novel  # the batch is in random order: its first rows are any rows
        sigma = self._diffusion.training_sigma(torch.randn(len(batch), generator=generator))
        noise = torch.randn(batch.shape, generator=generator)
        for parameter in self._network.parameters():
            parameter.grad = None
        loss = self._diffusion.loss(self._network, batch, sigma, noise).mean()
        torch.autograd.backward(loss)
        gradient = torch.cat(
            [p.grad.reshape(-1) for p in self._network.parameters() if p.grad is not None]
        )
        with torch.no_grad():
            self._optimiser.step(gradient)

    def _novel_rows(self, generator: torch.Generator) -> Tensor:
        """Return the most novel of B fresh synthetic rows (lines 4 to 9)."""
        config = self._spec.config
        keep = round(config.curiosity_rate * config.batch_size)
        if keep == 0:
            return torch.empty(0, self._network.row_width)
        cheap = SamplerConfig(steps=config.curiosity_sampler_steps, churn=0.0)
        synthetic = sample(
            self._network,
            self._diffusion,
            cheap,
            (config.batch_size, self._network.row_width),
            generator=generator,
        )
        scores = self._curiosity.update(synthetic)
        return synthetic[scores.argsort(descending=True)[:keep]]

    def _save(self) -> None:
        state = CheckpointState(
            run_id=self._spec.run_id, round_index=self._optimiser.steps, stage="pretraining"
        )
        tensors = self._optimiser.tensors()
        if self._left() == 0:
            # Fine-tuning starts from the average of the iterates, with fresh moments.
            tensors["parameters"] = tensors["ema"].clone()
        save_checkpoint(self._spec.checkpoint, tensors, state)
