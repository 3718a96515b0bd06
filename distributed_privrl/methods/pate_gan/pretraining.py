"""Public pre-training: generator and student as an ordinary GAN on public rows.

Reference: paper 000, appendix E (PrePATE-GAN).
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.pate_gan.config import PrePateGanConfig
from distributed_privrl.methods.pate_gan.game import Pair, normals
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.public_work import take_steps

PRETRAINED = "pretrained.safetensors"
PRETRAINING = "public pre-training"
CHECKPOINT_EVERY = 1000


@dataclass(frozen=True, kw_only=True)
class PublicGameSpec:
    """What pre-training is built from: public facts.

    Args:
        run_id: names the run in the checkpoint.
        root: of the dataset store.
        encoder: JSON of the `TransitionEncoder`.
        config: of the run.
        checkpoint: where the networks go, and where a resumed run finds them.
    """

    run_id: str
    root: str
    encoder: str
    config: PrePateGanConfig
    checkpoint: Path

    @property
    def coding(self) -> str:
        """A digest of what rows and parameters mean."""
        facts = repr((self.encoder, self.config.model, self.config.data.public))
        return hashlib.sha256(facts.encode()).hexdigest()[:24]


class PublicGame:
    """The student tells public rows from generated ones, and the generator learns to deceive it.

    Nothing here sees a sensitive row.

    Args:
        spec: public facts.
    """

    def __init__(self, spec: PublicGameSpec) -> None:
        self._spec = spec
        config = spec.config
        self._streams = Streams(config.seed).child("pate_gan pre-training")
        encoder = TransitionEncoder.from_json(spec.encoder)
        self._pair = Pair(config.model, config.training.optimiser, encoder, self._streams)
        self._done = 0
        if spec.checkpoint.exists():
            tensors, state = load_checkpoint(
                spec.checkpoint, run_id=spec.run_id, stage="pretraining", coding=spec.coding
            )
            self._pair.restore(tensors)
            self._done = state.round_index
        store = DatasetStore(spec.root)
        encoded = [
            encoder.encode(chunk)
            for dataset in config.data.public
            for chunk in store.iter_transitions(dataset, unit="transition")
        ]
        self._rows = torch.from_numpy(np.concatenate([one.rows[one.valid] for one in encoded]))

    def progress(self) -> int:
        """Return the steps done."""
        return self._done

    def advance(self, steps: int) -> int:
        """Take up to so many steps, and return how many are done in all."""
        total = self._spec.config.training.pretraining.steps
        for _ in range(min(steps, total - self._done)):
            self._step()
            if self._done % CHECKPOINT_EVERY == 0 or self._done == total:
                self._save()
        return self._done

    def _step(self) -> None:
        size = self._spec.config.training.pretraining.batch_size
        random = self._streams.numpy(f"step/{self._done}")
        real = self._rows[torch.from_numpy(random.integers(len(self._rows), size=size))]
        latent = self._spec.config.model.latent
        with torch.no_grad():
            fake = self._pair.rows(normals(random, size, latent))
        labels = torch.cat([torch.ones(size), torch.zeros(size)])
        self._pair.teach_student(torch.cat([real, fake]), labels)
        self._pair.teach_generator(normals(random, size, latent))
        self._done += 1

    def _save(self) -> None:
        spec = self._spec
        state = CheckpointState(
            run_id=spec.run_id, round_index=self._done, stage="pretraining", coding=spec.coding
        )
        save_checkpoint(spec.checkpoint, self._pair.tensors(), state)


def pretrain(config: PrePateGanConfig, context: RunContext, encoder: TransitionEncoder) -> None:
    """Pre-train generator and student on the public datasets, or go on with it.

    Args:
        config: of the run.
        context: around it.
        encoder: of rows.
    """
    spec = PublicGameSpec(
        run_id=context.run_id,
        root=context.store.place,
        encoder=encoder.to_json(),
        config=config,
        checkpoint=context.folder / PRETRAINED,
    )
    total = config.training.pretraining.steps
    take_steps(PublicGame, [spec], context, total=total, label=PRETRAINING)


def pretrained(context: RunContext) -> dict[str, Tensor]:
    """Return what pre-training ended with: both networks and their moments.

    Raises:
        StorageError: the checkpoint cannot be read.
    """
    path = context.folder / PRETRAINED
    return load_checkpoint(path, run_id=context.run_id, stage="pretraining")[0]
