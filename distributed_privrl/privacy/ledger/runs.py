"""What a run asks of the ledger: its hold, its blocks of rounds, its secret, and its end."""

from abc import ABC
from collections.abc import Sequence

from sqlalchemy import select

from distributed_privrl.core.checks import check_positive
from distributed_privrl.privacy.ledger import blocks, budgets, entry_secrets, holds
from distributed_privrl.privacy.ledger.attempts import retried, retried_unless_done
from distributed_privrl.privacy.ledger.records import (
    Charge,
    GivenUp,
    Hold,
    Holding,
    Reservation,
    as_hold,
)
from distributed_privrl.privacy.ledger.schema import ACCOUNTS, HOLDS
from distributed_privrl.privacy.ledger.storage import Storage


class RunLedger(ABC):
    """The part of `Ledger` that runs use once their dataset has a budget."""

    _storage: Storage

    @retried
    def open_hold(self, asked: Holding, charges: Sequence[Charge] = ()) -> Hold:
        """Hold all that a run may charge, at once and before it draws; the same call finds it.

        Until it is charged or freed it counts as spent for everybody else.

        Args:
            asked: the sum.
            charges: that the run will make, as far as they are known.

        Raises:
            BudgetError: no budget, not enough left, or deltas that add up to 1/units.
            UnsafeError: unit, relation or data do not fit the account, the run holds another sum,
                or trajectories that a charge is for are not free.
        """
        with self._storage.transaction() as connection:
            return budgets.hold(connection, asked, charges)

    @retried
    def free_hold(self, run_id: str) -> bool:
        """Free the hold of a run that was refused before anything was charged to it.

        Returns:
            Whether it is free; a hold that something was charged to stays.
        """
        with self._storage.transaction() as connection:
            return holds.free(connection, run_id)

    @retried
    def has_begun(self, run_id: str) -> bool:
        """Say whether a run that has not ended may have drawn some of its rounds or releases."""
        with self._storage.transaction() as connection:
            return holds.has_begun(connection, run_id)

    @retried_unless_done
    def give_up(self, run_id: str) -> GivenUp:
        """Close a run that nobody will resume.

        What it has begun nothing of is free again: the rest of its hold, and the cost of stages of
        which no round was reserved. What was drawn, or may have been, stays charged in full: a
        release, and a stage of which a round was reserved. Secrets are erased. Nothing can be drawn
        or charged under the run any more, so that it cannot be resumed.

        Raises:
            UnsafeError: the ledger knows no such run, or it has ended.
        """
        with self._storage.transaction() as connection:
            return holds.give_up(connection, run_id)

    @retried
    def holds(self, dataset: str | None = None) -> list[Hold]:
        """Return every open hold, or those of one dataset, by time, then by run."""
        query = select(HOLDS, ACCOUNTS.c.dataset).join_from(HOLDS, ACCOUNTS)
        query = query.where(HOLDS.c.status == "open")
        if dataset is not None:
            query = query.where(ACCOUNTS.c.dataset == dataset)
        query = query.order_by(HOLDS.c.created, HOLDS.c.run_id)
        with self._storage.transaction() as connection:
            return [as_hold(row) for row in connection.execute(query).mappings()]

    @retried
    def reserve_rounds(self, run_id: str, *, rounds: int, nonce: str) -> Reservation:
        """Reserve a block of rounds durably: on return they count, drawn or not.

        Args:
            run_id: an open run.
            rounds: size of the block.
            nonce: names the block; a repeated nonce returns the same reservation.

        Raises:
            BudgetError: beyond the run's ``max_rounds``.
            UnsafeError: the run is not open, or the nonce was used for another block.
        """
        check_positive("rounds", rounds)
        with self._storage.transaction(pays_ahead=True) as connection:
            entry = blocks.open_entry(connection, run_id)
            return blocks.reserve(connection, entry, rounds, nonce)

    @retried
    def commit_rounds(self, nonce: str, *, drawn: int, run_id: str | None = None) -> None:
        """Record that ``drawn`` rounds of a block are in a durable checkpoint; may be repeated.

        Raises:
            UnsafeError: the block is unknown, closed or of another run than ``run_id``, or
                ``drawn`` goes back or beyond it.
        """
        with self._storage.transaction() as connection:
            blocks.commit(connection, nonce, drawn, run_id=run_id)

    @retried
    def abandon_uncommitted(self, run_id: str) -> int:
        """Close a crashed run's blocks: rounds not committed count as drawn and stay charged.

        Returns:
            How many rounds that are.

        Raises:
            UnsafeError: no such run.
        """
        with self._storage.transaction() as connection:
            return blocks.abandon(connection, run_id)

    @retried
    def settle(self, run_id: str, *, reserved_rounds: int, epsilon: float, delta: float) -> None:
        """Lower a run's charge to the cost of the rounds it reserved, and close it.

        The caller computes that cost from ``reserved_rounds``. Rounds that were not reserved are
        free again only where the stop did not depend on what was released.

        Raises:
            UnsafeError: no such run, rounds reserved meanwhile, above its hold, or settled before.
        """
        with self._storage.transaction() as connection:
            budgets.settle(
                connection, run_id, reserved_rounds=reserved_rounds, epsilon=epsilon, delta=delta
            )

    @retried
    def secret(self, entry_id: str) -> bytes:
        """Return the 32 random bytes of an open entry, made when it was first charged.

        What must be drawn alike however often it is asked for, and never again under another
        charge, is a pseudo-random function of them: workers' coins, orders of draws.

        Raises:
            UnsafeError: no such entry, or settled: its secret is erased.

        Privacy: whoever holds it with the ledger knows who took part; it belongs into memory alone.
        """
        with self._storage.transaction() as connection:
            return entry_secrets.read_secret(connection, entry_id)
