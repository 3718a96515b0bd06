"""The parameter server: asks the workers, adds the noise once, steps, reserves and commits."""

import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import NoiseSource, SecureNoise, SeededNoise
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.optimiser import OptimiserConfig, ServerOptimiser, as_gradient


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """What a parameter server is built from.

    Args:
        run_id: the ledger's entry for this run.
        workers: the group of `LocalUpdateWorker`.
        initial: checkpoint with the parameters to start from.
        checkpoint: where the run's checkpoint is written, and read on resume.
        mechanism: the calibrated round; None trains without privacy.
        expected_units: public ``q x units``, the fixed denominator.
        rounds: rounds to run.
        max_rounds: rounds that the ledger holds for this run (with the spare ones).
        block_rounds: rounds reserved at once.
        optimiser: the server's step.
        ledger: where rounds are reserved and committed; None without privacy.
        insecure_key: seeded noise for tests; the certificate is then invalid.
        draw_ahead: prepare the next noise vector on another core.
    """

    run_id: str
    workers: WorkerGroup
    initial: Path
    checkpoint: Path
    mechanism: PrivateRound | None
    expected_units: float
    rounds: int
    max_rounds: int
    block_rounds: int
    optimiser: OptimiserConfig
    ledger: Ledger | None = None
    insecure_key: int | None = None
    draw_ahead: bool = False


@dataclass(frozen=True, kw_only=True)
class RoundProgress:
    """Where a run stands: public facts only.

    Args:
        round_index: rounds done.
        target: rounds that this run will reach.
        reserved: rounds reserved in the ledger so far, lost ones included.
    """

    round_index: int
    target: int
    reserved: int

    @property
    def finished(self) -> bool:
        """Whether no round is left."""
        return self.round_index >= self.target


class ParameterServer:
    """Runs private rounds.

    Privacy: unit and relation of the mechanism; one Gaussian draw of standard deviation
    ``noise_multiplier x clip_norm`` a round, added to the sum of all workers' clipped sums before
    anything else sees it; the denominator is the public ``expected_units``. Event:
    ``poisson_gaussian``, counted in the ledger before it is drawn (committed <= drawn <= reserved).
    Partial sums and the noise's key stay in this process and are never written.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._ledger = spec.ledger
        if (spec.mechanism is None) != (spec.ledger is None):
            raise UnsafeError("noise and ledger go together: what is drawn must be charged")
        tensors, _ = load_checkpoint(spec.initial, run_id=spec.run_id, stage="pretraining")
        vector = tensors["parameters"].clone()
        self._optimiser = ServerOptimiser(vector, spec.optimiser, total_steps=spec.rounds)
        self._noise = self._noise_source(vector.numel())
        self._total = np.empty(vector.numel())
        self._gradient = torch.empty_like(vector)
        self._round = 0
        self._nonce = ""
        self._block_left = 0
        self._block_drawn = 0
        if spec.checkpoint.exists():
            self._restore()
        if self._ledger is not None:
            self._ledger.abandon_uncommitted(spec.run_id)
        self._target = self._reachable_target()

    def _noise_source(self, dimension: int) -> NoiseSource | None:
        spec = self._spec
        if spec.mechanism is None:
            return None
        if spec.insecure_key is not None:
            return SeededNoise(spec.insecure_key)
        return SecureNoise(draw_ahead=dimension if spec.draw_ahead else None)

    @property
    def _noise_name(self) -> str:
        return "" if self._noise is None else self._noise.name

    def _restore(self) -> None:
        tensors, state = load_checkpoint(
            self._spec.checkpoint, run_id=self._spec.run_id, stage="rounds"
        )
        if state.noise_source != self._noise_name:
            raise UnsafeError(
                f"{self._spec.checkpoint} holds noise of source {state.noise_source!r}, this run"
                f" draws from {self._noise_name!r}: start the run anew"
            )
        self._optimiser.restore(tensors, steps=state.round_index)
        self._round = state.round_index
        if self._ledger is not None and state.block_nonce:
            # The process may have ended after the checkpoint and before the commit.
            self._ledger.commit_rounds(
                state.block_nonce, drawn=state.block_drawn, run_id=self._spec.run_id
            )

    def _reachable_target(self) -> int:
        """Return the rounds that can still be reached: blocks lost to a crash stay spent."""
        if self._ledger is None:
            return self._spec.rounds
        left = self._spec.max_rounds - self._reserved()
        return min(self._spec.rounds, self._round + left)

    def _reserved(self) -> int:
        if self._ledger is None:
            return self._round
        entry = self._ledger.reserved(self._spec.run_id)
        if entry is None:
            raise BudgetError(f"run {self._spec.run_id} has no entry in the ledger: start it anew")
        return entry.reserved_rounds

    def progress(self) -> RoundProgress:
        """Return where the run stands."""
        return RoundProgress(
            round_index=self._round, target=self._target, reserved=self._reserved()
        )

    def advance(self, rounds: int) -> RoundProgress:
        """Run up to ``rounds`` rounds; stop early at the target.

        Raises:
            BudgetError: the ledger refuses the next block.
            StorageError: the checkpoint or the ledger cannot be written; nothing is lost that a
                resume cannot find.
        """
        for _ in range(min(rounds, self._target - self._round)):
            if self._block_left == 0:
                self._reserve_block()
            self._run_round()
            if self._block_left == 0:
                self._close_block()
        return self.progress()

    def _reserve_block(self) -> None:
        size = min(self._spec.block_rounds, self._target - self._round)
        self._nonce = f"{self._spec.run_id}/{self._round}/{uuid.uuid4().hex}"
        if self._ledger is not None:
            self._ledger.reserve_rounds(self._spec.run_id, rounds=size, nonce=self._nonce)
        self._block_left, self._block_drawn = size, 0

    def _run_round(self) -> None:
        partial_sums = self._spec.workers.call(
            "clipped_sum",
            {"parameters": self._parameters(), "round_index": self._round},
        )
        total = _sum(partial_sums, out=self._total)
        self._block_left -= 1
        self._block_drawn += 1
        if self._spec.mechanism is not None and self._noise is not None:
            total = self._spec.mechanism.add_noise(
                total, self._noise, round_index=self._round, out=self._total
            )
        self._optimiser.step(as_gradient(total, self._spec.expected_units, out=self._gradient))
        self._round += 1

    def _parameters(self) -> NDArray[np.floating]:
        view: NDArray[np.floating] = self._optimiser.vector.detach().cpu().numpy()
        return view

    def _close_block(self) -> None:
        self._save()
        if self._ledger is not None:
            self._ledger.commit_rounds(
                self._nonce, drawn=self._block_drawn, run_id=self._spec.run_id
            )
        self._block_left = self._block_drawn = 0

    def _save(self) -> None:
        state = CheckpointState(
            run_id=self._spec.run_id,
            round_index=self._round,
            block_nonce=self._nonce,
            block_drawn=self._block_drawn,
            stage="rounds",
            noise_source=self._noise_name,
        )
        save_checkpoint(self._spec.checkpoint, self._optimiser.tensors(), state)

    def suspend(self) -> RoundProgress:
        """Write a checkpoint now; what is left of the open block stays charged."""
        if self._block_drawn:
            self._close_block()
        self._target = self._reachable_target()
        return self.progress()

    def close(self) -> None:
        """Drop the noise source's key."""
        close = getattr(self._noise, "close", None)
        if close is not None:
            close()


def _sum(
    partial_sums: list[NDArray[np.floating]], *, out: NDArray[np.float64]
) -> NDArray[np.floating]:
    """Add the workers' sums in shard order, in float64; a single one is returned as it is."""
    if len(partial_sums) == 1:
        return partial_sums[0]
    np.copyto(out, partial_sums[0])
    for partial in partial_sums[1:]:
        out += partial
    return out
