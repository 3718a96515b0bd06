"""What every server of private rounds does: reserve, run, checkpoint, commit, resume."""

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import NoiseSource, SecureNoise, SeededNoise
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint


@dataclass(frozen=True, kw_only=True)
class RoundServerSpec:
    """What a server of charged rounds is built from.

    Args:
        run_id: the ledger's entry for this run.
        checkpoint: where the run's checkpoint is written, and read on resume.
        rounds: rounds to run.
        max_rounds: rounds that the ledger holds for this run (with the spare ones).
        block_rounds: rounds reserved at once.
        ledger: where rounds are reserved and committed; None without privacy.
        insecure_key: seeded noise for tests; the certificate is then invalid.
        draw_ahead: prepare the next noise vector on another core.
    """

    run_id: str
    checkpoint: Path
    rounds: int
    max_rounds: int
    block_rounds: int
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


class RoundServer(ABC):
    """Runs rounds that are reserved before they are drawn and committed after they are saved.

    Privacy: committed <= drawn <= reserved, always. A round that was drawn and is in no checkpoint
    is spent: after a crash its block stays charged, and the run pays from its spare rounds. The
    noise's key stays in this process and is never written.

    Args:
        spec: what the run is.
        dimension: of the vectors that noise is drawn ahead for.
    """

    on_head = True
    """An idle node that a cluster gives back takes actors without CPUs with it; the head stays."""

    def __init__(self, spec: RoundServerSpec, *, dimension: int | None = None) -> None:
        self._plan = spec
        self._ledger = spec.ledger
        self._noise = self._noise_source(dimension)
        self._round = 0
        self._nonce = ""
        self._block_first = 0
        self._block_left = 0
        self._block_drawn = 0
        if spec.checkpoint.exists():
            self._resume()
        if self._ledger is not None:
            self._ledger.abandon_uncommitted(spec.run_id)
        self._target = self._reachable_target()

    def _prepare_round(self) -> None:  # noqa: B027  nothing to prepare is the rule
        """Do public work for round ``self._round``, before its block is reserved."""

    @abstractmethod
    def _run_round(self) -> None:
        """Run round ``self._round`` and call `_count_round` before its noise is drawn."""

    @abstractmethod
    def _tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps: noisy or public values alone."""

    @abstractmethod
    def _restore(self, tensors: dict[str, Tensor], rounds: int) -> None:
        """Take up the state after ``rounds`` rounds."""

    def _noise_source(self, dimension: int | None) -> NoiseSource | None:
        if self._ledger is None:
            return None
        if self._plan.insecure_key is not None:
            return SeededNoise(self._plan.insecure_key)
        return SecureNoise(draw_ahead=dimension if self._plan.draw_ahead else None)

    @property
    def _noise_name(self) -> str:
        return "" if self._noise is None else self._noise.name

    def _resume(self) -> None:
        path = self._plan.checkpoint
        tensors, state = load_checkpoint(path, run_id=self._plan.run_id, stage="rounds")
        if state.noise_source != self._noise_name:
            raise UnsafeError(
                f"{path} holds noise of source {state.noise_source!r}, this run draws from"
                f" {self._noise_name!r}: start the run anew"
            )
        self._restore(tensors, state.round_index)
        self._round = state.round_index
        if self._ledger is not None and state.block_nonce:
            # The process may have ended after the checkpoint and before the commit.
            self._ledger.commit_rounds(
                state.block_nonce, drawn=state.block_drawn, run_id=self._plan.run_id
            )

    def _reachable_target(self) -> int:
        """Return the rounds that can still be reached: blocks lost to a crash stay spent."""
        if self._ledger is None:
            return self._plan.rounds
        left = self._plan.max_rounds - self._reserved()
        return min(self._plan.rounds, self._round + left)

    def _reserved(self) -> int:
        if self._ledger is None:
            return self._round
        entry = self._ledger.reserved(self._plan.run_id)
        if entry is None:
            raise BudgetError(f"run {self._plan.run_id} has no entry in the ledger: start it anew")
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
            self._prepare_round()
            if self._block_left == 0:
                self._reserve_block()
            self._run_round()
            if self._block_left == 0:
                self._close_block()
        return self.progress()

    def _reserve_block(self) -> None:
        self._reserve(min(self._plan.block_rounds, self._target - self._round))

    def _reserve(self, size: int) -> None:
        self._nonce = f"{self._plan.run_id}/{self._round}/{uuid.uuid4().hex}"
        if self._ledger is not None:
            block = self._ledger.reserve_rounds(self._plan.run_id, rounds=size, nonce=self._nonce)
            self._block_first = block.first_round
        self._block_left, self._block_drawn = size, 0

    def _count_round(self, rounds: int = 1) -> None:
        """Count a round of the block, or several, before its noise is drawn."""
        self._block_left -= rounds
        self._block_drawn += rounds

    @property
    def _reserved_round(self) -> int | None:
        """Number of the counted round among all that the ledger reserved; None without one."""
        return None if self._ledger is None else self._block_first + self._block_drawn - 1

    def _close_block(self) -> None:
        self._save()
        if self._ledger is not None:
            self._ledger.commit_rounds(
                self._nonce, drawn=self._block_drawn, run_id=self._plan.run_id
            )
        self._block_left = self._block_drawn = 0

    def _save(self) -> None:
        state = CheckpointState(
            run_id=self._plan.run_id,
            round_index=self._round,
            block_nonce=self._nonce,
            block_drawn=self._block_drawn,
            stage="rounds",
            noise_source=self._noise_name,
        )
        save_checkpoint(self._plan.checkpoint, self._tensors(), state)

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
