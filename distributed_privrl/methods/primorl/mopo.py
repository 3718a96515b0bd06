"""MOPO, the reference without privacy: the same models and policy, trained as if nobody cared.

Reference: Yu et al. 2020, arXiv:2005.13239; PriMORL, section 5 and appendix E.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts
from distributed_privrl.methods.primorl.update import TransitionColumns
from distributed_privrl.models.dynamics import gaussian_nll
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.optimiser import ServerOptimiser
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.rounds.worker import ShardSource
from distributed_privrl.updates.parameters import FlatParameters

CHECKPOINT_EVERY = 1000


@dataclass(frozen=True, kw_only=True)
class MinibatchSpec:
    """What minibatch training of an ensemble is built from.

    Args:
        run_id: of the run.
        source: all rows.
        facts: of the ensemble.
        initial: checkpoint to start from.
        checkpoint: where it is kept.
        steps: gradient steps.
        batch_size: rows a member and step.
        optimiser: the step.
        seed: public seed.
        device: where to compute; checkpoints can be taken up on another one.
    """

    run_id: str
    source: ShardSource
    facts: EnsembleFacts
    initial: Path
    checkpoint: Path
    steps: int
    batch_size: int
    optimiser: OptimiserConfig
    seed: int
    device: str = "cpu"


def proper_rows(source: ShardSource) -> NDArray[np.float32]:
    """Return the encoded rows of a shard that are proper, ``(R, D)``. Private."""
    shard = source()
    return shard.rows[shard.valid]


class MinibatchTrainer:
    """Trains an ensemble on shuffled rows, a batch of its own for each member.

    Privacy: none. What comes of it belongs in ``private/``.
    """

    def __init__(self, spec: MinibatchSpec) -> None:
        torch.set_num_threads(1)
        self._spec = spec
        self._ensemble = spec.facts.build(spec.seed).to(spec.device)
        self._flat = FlatParameters(self._ensemble)
        self._optimiser = ServerOptimiser(self._flat.vector, spec.optimiser, total_steps=spec.steps)
        if spec.checkpoint.exists():
            tensors, state = load_checkpoint(spec.checkpoint, run_id=spec.run_id, stage="rounds")
            self._optimiser.restore(tensors, steps=state.round_index)
        self._columns = TransitionColumns.of(spec.facts.encoder.layout)
        self._rows = torch.from_numpy(proper_rows(spec.source)).to(spec.device)
        if not len(self._rows):
            raise ConfigError("no row of the dataset is proper: there is nothing to learn from")

    def progress(self) -> int:
        """Return the steps done."""
        return self._optimiser.steps

    def advance(self, steps: int) -> int:
        """Take up to ``steps`` steps and return how many are done in all."""
        spec = self._spec
        for _ in range(min(steps, spec.steps - self._optimiser.steps)):
            self._step()
            done = self._optimiser.steps
            if done % CHECKPOINT_EVERY == 0 or done == spec.steps:
                state = CheckpointState(run_id=spec.run_id, round_index=done, stage="rounds")
                save_checkpoint(spec.checkpoint, self._optimiser.tensors(), state)
        return self._optimiser.steps

    def _step(self) -> None:
        spec, columns = self._spec, self._columns
        streams = Streams(spec.seed).child(f"minibatch/{self._optimiser.steps}")
        shape = (self._ensemble.members, spec.batch_size)
        chosen = streams.numpy("rows").integers(len(self._rows), size=shape)
        rows = self._rows[torch.from_numpy(chosen).to(spec.device)]
        mean, log_variance = self._ensemble(rows[..., columns.inputs])
        loss = gaussian_nll(mean, log_variance, rows[..., columns.targets]).mean(dim=1).sum()
        for parameter in self._ensemble.parameters():
            parameter.grad = None
        torch.autograd.backward(loss)
        gradients = [p.grad.reshape(-1) for p in self._ensemble.parameters() if p.grad is not None]
        with torch.no_grad():
            self._optimiser.step(torch.cat(gradients))
