"""Noiseless steps on released prefixes and the target network, between private rounds or alone.

Reference: Expert-level DP, algorithm 3, with a public schedule in place of the coin.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.agents.replay import sampled_rows
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.expert.facts import AgentFacts
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.optimiser import ServerOptimiser
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.rounds.server import PublicUpdate
from distributed_privrl.updates.parameters import FlatParameters

ROWS = "rows"
STEPS_A_CHECKPOINT = 500


def steps_after(round_index: int, steps: float) -> int:
    """Return how many noiseless steps follow a round, where ``steps`` of them do on average.

    Example:
        >>> [steps_after(one, 0.25) for one in range(8)]
        [0, 0, 0, 1, 0, 0, 0, 1]
    """
    return math.floor((round_index + 1) * steps) - math.floor(round_index * steps)


def save_rows(path: Path, rows: Tensor, run_id: str) -> None:
    """Keep the encoded rows ``(N, D)`` of the released prefixes for the server's process.

    Raises:
        StorageError: they cannot be written.
    """
    state = CheckpointState(run_id=run_id, round_index=0, stage="pretraining")
    save_checkpoint(path, {ROWS: rows}, state)


@dataclass(frozen=True, kw_only=True)
class StableSpec:
    """What noiseless steps are built from: released rows and public facts.

    Args:
        facts: of the agent.
        run_id: the run's name in the ledger.
        rows: file of the released prefixes' rows, from `save_rows`; None: there are none.
        steps: noiseless steps after each round, on average; see `steps_after`.
        rounds: how many rounds there will be.
        ema_decay: of the parameters' average, where noiseless steps are all there is.
    """

    facts: AgentFacts
    run_id: str
    rows: Path | None
    steps: float
    rounds: int
    ema_decay: float = 0.0

    def __call__(self) -> "SelectiveUpdate":
        """Return what surrounds the noise of a run's rounds."""
        return SelectiveUpdate(self)

    def read_rows(self) -> Tensor:
        """Return the released rows ``(N, D)``."""
        if self.rows is None:
            return torch.zeros(0, self.facts.encoder.width)
        tensors, _ = load_checkpoint(self.rows, run_id=self.run_id, stage="pretraining")
        return tensors[ROWS]


class StableTraining:
    """An agent's minibatch steps on released rows, by an Adam of their own, and its target network.

    Privacy: post-processing of released prefixes, and of parameters that earlier rounds released;
    rows of a batch come from public streams. No event.

    Args:
        spec: released rows and public facts.
    """

    def __init__(self, spec: StableSpec) -> None:
        self._spec = spec
        self._algorithm, self._loss = spec.facts.algorithm, spec.facts.row_loss
        self._rows = spec.read_rows()
        self._networks = spec.facts.networks()
        self._trained = [one for one in self._networks.parameters() if one.requires_grad]
        self.flat = FlatParameters(self._networks)
        settings = OptimiserConfig(
            learning_rate=self._algorithm.config.learning_rate, ema_decay=spec.ema_decay
        )
        self.optimiser = ServerOptimiser(self.flat.vector, settings, total_steps=1)
        self._moves = 0

    @property
    def _total(self) -> int:
        return self._spec.rounds + math.floor(self._spec.rounds * self._spec.steps)

    def move_target(self) -> None:
        """Do what the agent does after a step, noisy or not: its target network moves."""
        self._moves += 1
        rule: Any = None  # no discrete agent changes the rule's rate
        self._algorithm.after_step(self._networks, rule, step=self._moves, steps=self._total)

    def steps(self, round_index: int) -> None:
        """Take the noiseless steps that follow a round, if there are released rows."""
        if not len(self._rows):
            return
        generator = torch.Generator().manual_seed(
            Streams(self._spec.facts.seed).child("stable").integer(f"round/{round_index}")
        )
        size = self._algorithm.config.batch_size
        for _ in range(steps_after(round_index, self._spec.steps)):
            rows = sampled_rows(self._rows, size, generator)
            loss = self._loss(self._networks, rows, rows[:, :0]).mean()
            gradients = torch.autograd.grad(loss, self._trained)
            with torch.no_grad():
                self.optimiser.step(torch.cat([one.reshape(-1) for one in gradients]))
            self.move_target()

    def tensors(self) -> dict[str, Tensor]:
        """Return what `restore` needs."""
        return {
            **self.optimiser.tensors(),
            "fixed": torch.from_numpy(self.flat.fixed_numpy()),
            "counts": torch.tensor([self.optimiser.steps, self._moves]),
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from the tensors of a checkpoint."""
        steps, self._moves = tensors["counts"].tolist()
        self.optimiser.restore(tensors, steps=steps)
        self.flat.load(torch.cat([tensors["parameters"], tensors["fixed"]]))


class SelectiveUpdate(PublicUpdate):
    """After each noisy step: the target network's move, then the noiseless steps.

    Privacy: post-processing, see `StableTraining`: whether and when a step is noiseless is a public
    schedule, known before the run, and lowers no round's cost.

    Args:
        spec: released rows and public facts.
    """

    def __init__(self, spec: StableSpec) -> None:
        self._training = StableTraining(spec)

    def fixed(self) -> NDArray[np.floating]:
        """Return the target network ``(F,)``; see `PublicUpdate`."""
        return self._training.flat.fixed_numpy()

    def after_round(self, parameters: Tensor, round_index: int) -> None:
        """Go on from ``parameters`` ``(P,)``, in place; see `PublicUpdate`."""
        training = self._training
        training.flat.load(parameters)
        training.move_target()
        training.steps(round_index)
        parameters.copy_(training.flat.vector)

    def tensors(self) -> dict[str, Tensor]:
        """Return the noiseless steps' moments and the target network."""
        return self._training.tensors()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from the tensors of a checkpoint."""
        self._training.restore(tensors)


@dataclass(frozen=True, kw_only=True)
class StableTrainerSpec:
    """Training by noiseless steps alone.

    Args:
        stable: released rows and public facts.
        checkpoint: where the state is kept.
    """

    stable: StableSpec
    checkpoint: Path


class StableTrainer:
    """Trains the agent on the released prefixes alone, in an actor of its own, resumable.

    Privacy: post-processing; see `StableTraining`.

    Args:
        spec: released rows and public facts.
    """

    def __init__(self, spec: StableTrainerSpec) -> None:
        torch.set_num_threads(1)
        self._spec = spec
        self._training = StableTraining(spec.stable)
        self._done = 0
        if spec.checkpoint.exists():
            run_id = spec.stable.run_id
            tensors, state = load_checkpoint(spec.checkpoint, run_id=run_id, stage="policy")
            self._training.restore(tensors)
            self._done = state.round_index

    def progress(self) -> int:
        """Return the rounds' worth of steps done."""
        return self._done

    def advance(self, steps: int) -> int:
        """Take the steps of up to ``steps`` rounds and return how many are done in all."""
        total = self._spec.stable.rounds
        for _ in range(min(steps, total - self._done)):
            self._training.steps(self._done)
            self._done += 1
            if self._done % STEPS_A_CHECKPOINT == 0 or self._done == total:
                run_id = self._spec.stable.run_id
                state = CheckpointState(run_id=run_id, round_index=self._done, stage="policy")
                save_checkpoint(self._spec.checkpoint, self._training.tensors(), state)
        return self._done
