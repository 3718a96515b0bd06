"""Curiosity-driven pre-training on public rows.

Reference: PrivORL, algorithm 1, lines 2 to 12; algorithm 2, lines 8 to 18; sections V-A, V-B.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.config import NoisyBounds
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.random import Streams
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.privorl.config import PrivorlConfig
from distributed_privrl.methods.privorl.curiosity import NovelRows
from distributed_privrl.methods.privorl.pretraining_config import PretrainingConfig
from distributed_privrl.methods.privorl.release import PRETRAINED
from distributed_privrl.methods.privorl.update import Synthesizer
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.optimiser import ServerOptimiser
from distributed_privrl.rounds.worker import ShardSource
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.devices import device_of
from distributed_privrl.stages.public_work import take_steps
from distributed_privrl.updates.parameters import FlatParameters

CHECKPOINT_EVERY = 1000
_ROWS = "rows"


class PublicRows(Protocol):
    """Reads and encodes public datasets; picklable, holds no arrays."""

    def public(self, store: DatasetStore, dataset: str) -> NDArray[np.float32]:
        """Return a public dataset's rows ``(N, D)``."""
        ...


class Rows(PublicRows, Protocol):
    """Reads and encodes what the model learns from; picklable, holds no arrays."""

    @property
    def encoder(self) -> str:
        """JSON of what encodes the rows."""
        ...

    def shard(self, ref: ShardRef) -> ShardSource:
        """Return the source of a worker's sensitive rows."""
        ...


@dataclass(frozen=True, kw_only=True)
class KeptRows:
    """Encoded rows in a file of the run's folder: drawn from what the run released.

    Args:
        path: of the file.
        run_id: entry of the ledger that paid for what they were drawn from.
    """

    path: Path
    run_id: str

    def save(self, rows: NDArray[np.float32]) -> None:
        """Write rows ``(N, D)``, atomically.

        Raises:
            StorageError: they cannot be written.
        """
        state = CheckpointState(run_id=self.run_id, round_index=0, stage="pretraining")
        save_checkpoint(self.path, {_ROWS: torch.from_numpy(rows)}, state)

    def read(self) -> NDArray[np.float32]:
        """Return the rows ``(N, D)``.

        Raises:
            StorageError: the file cannot be read.
            UnsafeError: it is of another run.
        """
        tensors, _ = load_checkpoint(self.path, run_id=self.run_id, stage="pretraining")
        rows: NDArray[np.float32] = tensors[_ROWS].numpy()
        return rows


@dataclass(frozen=True, kw_only=True)
class PretrainerSpec:
    """What pre-training is built from.

    Args:
        run_id: names the run in the checkpoint.
        root: the dataset store's folder.
        public: ids of the public datasets.
        rows: reads their rows.
        synthesizer: the model.
        config: steps, batch and curiosity.
        seed: the run's public seed.
        checkpoint: where the parameters go, and where a resumed run finds them.
        coding: see `coding_digest`; a checkpoint of another one is refused.
        drawn: rows that stand for public ones; None: there are none.
        kept: where the finished parameters are kept for runs with the same `pretraining_key`.
        device: where to compute; checkpoints can be taken up on another one.
    """

    run_id: str
    root: str
    public: tuple[str, ...]
    rows: PublicRows
    synthesizer: Synthesizer
    config: PretrainingConfig
    seed: int
    checkpoint: Path
    coding: str = ""
    drawn: KeptRows | None = None
    kept: Path | None = None
    device: str = "cpu"


def coding_digest(encoder: str, synthesizer: Synthesizer) -> str:
    """Return a digest of what rows and parameters mean: scaling, bins, the model's settings.

    Args:
        encoder: JSON of what encodes the rows.
        synthesizer: the model, a dataclass of public facts.
    """
    assert is_dataclass(synthesizer)
    assert not isinstance(synthesizer, type)
    return _digest({"encoder": encoder, "synthesizer": asdict(synthesizer)})


def pretraining_key(
    *, public: Mapping[str, str], coding: str, config: PretrainingConfig, seed: int
) -> str:
    """Return a name for all that pre-training depends on, public facts alone.

    Args:
        public: fingerprint of each public dataset, by its id.
        coding: see `coding_digest`.
        config: steps, batch and curiosity; where it is kept, or computed, does not count, nor what
            else rows could come from.
        seed: the run's public seed.
    """
    settings = config.model_dump(mode="json", exclude={"source", "marginals"})
    facts = {"public": dict(public), "coding": coding, "config": settings, "seed": seed}
    return f"pretraining-{_digest(facts)}"


def _digest(facts: Mapping[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, default=lambda model: model.model_dump(mode="json"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Pretrainer:
    """Trains the denoiser on public rows, part of which are replaced by novel synthetic ones.

    Nothing here sees a sensitive row. Rows drawn from what the run released are public, too.
    """

    def __init__(self, spec: PretrainerSpec) -> None:
        self._spec = spec
        self._streams = Streams(spec.seed).child("pretraining")
        self._network = spec.synthesizer.build(spec.seed).to(spec.device)
        self._row_loss = spec.synthesizer.row_loss
        self._losses: list[float] = []
        self._optimiser = ServerOptimiser(
            FlatParameters(self._network).vector,
            spec.config.optimiser,
            total_steps=spec.config.steps,
        )
        self._curiosity = NovelRows(
            spec.synthesizer,
            self._network,
            sampler_steps=spec.config.curiosity_sampler_steps,
            streams=self._streams,
            device=spec.device,
        )
        if spec.checkpoint.exists():
            self._restore(spec.checkpoint, spec.run_id)
        elif spec.kept is not None and spec.kept.exists():
            self._restore(spec.kept, spec.kept.stem)
            self._save()
        self._rows = self._public_rows()
        if spec.config.steps == 0 and not spec.checkpoint.exists():
            self._save()

    def _restore(self, path: Path, run_id: str) -> None:
        tensors, state = load_checkpoint(
            path, run_id=run_id, stage="pretraining", coding=self._spec.coding
        )
        self._optimiser.restore(tensors, steps=state.round_index)

    def _public_rows(self) -> NDArray[np.float32]:
        """Return all public rows ``(N, D)``, none once nothing is left to do."""
        spec, store = self._spec, DatasetStore(self._spec.root)
        parts = [spec.rows.public(store, name) for name in spec.public if self._left()]
        if spec.drawn is not None and self._left():
            parts.append(spec.drawn.read())
        return np.concatenate([np.empty((0, spec.synthesizer.row_width), np.float32), *parts])

    def _left(self) -> int:
        return self._spec.config.steps - self._optimiser.steps

    def progress(self) -> int:
        """Return the steps done."""
        return self._optimiser.steps

    def loss(self) -> float | None:
        """Return the mean loss on public rows of the last call's steps; None before any."""
        return float(np.mean(self._losses)) if self._losses else None

    def advance(self, steps: int) -> int:
        """Take up to ``steps`` steps and return how many are done in all."""
        self._losses = []
        for _ in range(min(steps, self._left())):
            self._step()
            if self._left() == 0 or self._optimiser.steps % CHECKPOINT_EVERY == 0:
                self._save()
        return self._optimiser.steps

    def _step(self) -> None:
        """One iteration of algorithm 1, lines 3 to 11; of algorithm 2, lines 9 to 17."""
        streams = self._streams.child(f"step/{self._optimiser.steps}")
        chosen = streams.numpy("rows").integers(len(self._rows), size=self._spec.config.batch_size)
        device = self._spec.device
        batch = torch.from_numpy(self._rows[chosen]).to(device)  # line 3
        generator = torch.Generator(device).manual_seed(streams.integer("noise"))
        novel = self._novel_rows(batch, generator)
        batch[: len(novel)] = novel  # line 10; in random order, so its first rows are any rows
        draws = self._row_loss.draw_count
        first, rest = (
            torch.randn(len(batch), count, generator=generator, device=device)
            for count in (min(draws, 1), max(draws - 1, 0))
        )
        for parameter in self._network.parameters():
            parameter.grad = None
        loss = self._row_loss(self._network, batch, torch.cat((first, rest), dim=1)).mean()
        torch.autograd.backward(loss)
        self._losses.append(loss.item())
        gradient = torch.cat(
            [p.grad.reshape(-1) for p in self._network.parameters() if p.grad is not None]
        )
        with torch.no_grad():
            self._optimiser.step(gradient)  # line 11

    def _novel_rows(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        """Return the most novel of B fresh synthetic rows (lines 4 to 9)."""
        config = self._spec.config
        keep = round(config.curiosity_rate * config.batch_size)
        if keep == 0:
            return batch[:0]
        return self._curiosity.draw(keep, given=batch, generator=generator)

    def _save(self) -> None:
        tensors = self._optimiser.tensors()
        if self._left() == 0:
            # Fine-tuning starts from the average of the iterates, with fresh moments.
            tensors["parameters"] = tensors["ema"].clone()
        paths = {self._spec.checkpoint: self._spec.run_id}
        if self._left() == 0 and self._spec.kept is not None:
            paths[self._spec.kept] = self._spec.kept.stem
        for path, run_id in paths.items():
            state = CheckpointState(
                run_id=run_id,
                round_index=self._optimiser.steps,
                stage="pretraining",
                coding=self._spec.coding,
            )
            save_checkpoint(path, tensors, state)


def pretrain(
    config: PrivorlConfig,
    context: RunContext,
    rows: Rows,
    synthesizer: Synthesizer,
    *,
    drawn: KeptRows | None,
) -> None:
    """Algorithm 1, lines 2 to 12; algorithm 2, lines 3 to 18.

    Args:
        config: of the run.
        context: around the run.
        rows: reads and encodes public datasets.
        synthesizer: the model.
        drawn: rows that stand for public ones; None: there are none.

    Privacy: reads public rows, and rows drawn from what the run released. Parameters that follow
    from private answers (bounds, marginals) are this run's, and are not kept for others.
    """
    settings = config.training.pretraining
    coding, kept = coding_digest(rows.encoder, synthesizer), None
    own = isinstance(config.data.bounds, NoisyBounds) or drawn is not None
    if config.runtime.pretrained is not None and not own:
        key = pretraining_key(
            public={name: inspect(context.store, name).fingerprint for name in config.data.public},
            coding=coding,
            config=settings,
            seed=config.seed,
        )
        kept = config.runtime.pretrained.absolute() / f"{key}.safetensors"
    spec = PretrainerSpec(
        run_id=context.run_id,
        root=context.store.place,
        public=config.data.public,
        rows=rows,
        synthesizer=synthesizer,
        config=settings,
        seed=config.seed,
        checkpoint=context.folder / PRETRAINED,
        coding=coding,
        drawn=drawn,
        kept=kept,
        device=device_of(config.runtime),
    )
    take_steps(
        Pretrainer,
        [spec],
        context,
        total=settings.steps,
        label="public pre-training",
        service=spec.device == "cpu",  # on a GPU it takes a worker's place
        note=_public_loss,
    )


def _public_loss(group: WorkerGroup) -> str:
    loss = group.call("loss")[0]
    return "" if loss is None else f"loss on public rows {loss:.4g}"
