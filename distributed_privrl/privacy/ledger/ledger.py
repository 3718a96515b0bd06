"""The privacy ledger: it refuses before a run, never after.

Order of every release: reserve (durable) -> draw -> publish -> commit, each under a nonce. A crash
after a reservation keeps the charge; a repeated nonce returns what is stored and never draws again.
Charges of an account add up by basic composition of (epsilon, delta): a filter that holds when runs
are chosen adaptively (Rogers, Roth, Ullman and Vadhan, 2016, section 4).
"""

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import insert, select, update

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.ledger import blocks, budgets, certified
from distributed_privrl.privacy.ledger.records import (
    Account,
    Charge,
    LedgerEntry,
    Reservation,
    as_entry,
    as_json,
)
from distributed_privrl.privacy.ledger.schema import ACCOUNTS, ENTRIES
from distributed_privrl.privacy.ledger.storage import Storage, ledger_url
from distributed_privrl.privacy.units import PrivacyBudget, Relation

_LARGE_DELTA = 1e-3


class Ledger:
    """Budgets and charges in one database; picklable, since it holds no more than its URL.

    Args:
        url: a SQLAlchemy URL of SQLite or PostgreSQL; None takes the environment variable
            ``PRIVRL_LEDGER``, else a SQLite file in the user's data folder.

    Raises:
        ConfigError: the URL is malformed.
        MissingExtraError: PostgreSQL without its driver.
        StorageError: the database cannot be opened. Every method raises it when the database is
            locked, full, unwritable or corrupt; nothing is charged or changed then.
    """

    def __init__(self, url: str | None = None) -> None:
        self._url = ledger_url(url)
        self._storage = Storage(self._url)

    def __reduce__(self) -> tuple[type["Ledger"], tuple[str]]:
        """Travel as the URL; the receiver opens it again."""
        return Ledger, (self._url.render_as_string(hide_password=False),)

    def set_budget(self, *, dataset: str, fingerprint: str, budget: PrivacyBudget) -> Account:
        """Set or change the budget of a dataset.

        Args:
            dataset: id of the dataset.
            fingerprint: hash of its rows.
            budget: of its one account.

        Raises:
            BudgetError: less than what is spent.
            UnsafeError: the dataset has spent in another unit or relation, the id belongs to other
                data, or the data have an account under another id.

        Warns:
            UserWarning: delta is above 1e-3, or a limit goes down.
        """
        if budget.delta > _LARGE_DELTA:
            warnings.warn(
                f"delta={budget.delta:g} is large: it should be far below 1/units", stacklevel=2
            )
        limits = {"epsilon": budget.epsilon, "delta": budget.delta}
        with self._storage.transaction() as connection:
            account = budgets.same_data(connection, dataset, fingerprint)
            if account is None:
                connection.execute(
                    insert(ACCOUNTS).values(
                        dataset=dataset,
                        fingerprint=fingerprint,
                        unit=budget.unit,
                        relation=budget.relation.value,
                        **limits,
                    )
                )
            else:
                budgets.check_change(account, budget)
                connection.execute(
                    update(ACCOUNTS)
                    .where(ACCOUNTS.c.id == account.id)
                    .values(unit=budget.unit, relation=budget.relation.value, **limits)
                )
            changed = budgets.same_data(connection, dataset, fingerprint)
            assert changed is not None
            return changed

    def account_for(
        self,
        *,
        dataset: str,
        fingerprint: str,
        unit: str,
        relation: Relation,
        cost: tuple[float, float] | None = None,
    ) -> Account:
        """Return the account that a run in this unit and relation is charged to.

        Raises:
            BudgetError: no budget is set; the message has the line that sets one, of ``cost``
                (epsilon, delta).
            UnsafeError: the data have changed, the account's unit is coarser than the run's, or
                its relation another.
        """
        with self._storage.transaction() as connection:
            return budgets.chargeable_account(
                connection,
                dataset=dataset,
                fingerprint=fingerprint,
                unit=unit,
                relation=relation,
                cost=cost,
            )

    def open_run(
        self,
        *,
        run_id: str,
        dataset: str,
        fingerprint: str,
        unit: str,
        relation: Relation,
        epsilon: float,
        delta: float,
        max_rounds: int,
        event: dict[str, Any],
        units: int | None = None,
    ) -> LedgerEntry:
        """Hold the whole cost of a run, or refuse it; the same call again resumes the run.

        Args:
            run_id: of the run; becomes the entry's id.
            dataset: id of the dataset.
            fingerprint: hash of its rows.
            unit: that the run protects.
            relation: under which it does.
            epsilon: cost of all ``max_rounds``, >= 0.
            delta: cost of all ``max_rounds``.
            max_rounds: rounds the run may reserve, spare ones included.
            event: what the run releases, as JSON.
            units: how many there are; the account's deltas must stay below 1/units.

        Raises:
            BudgetError: no budget, not enough left, or deltas that add up to 1/units.
            UnsafeError: unit, relation or data do not fit the account, ``run_id`` was opened with
                other values, or trajectories that it would read are another run's.
        """
        request = Charge(
            entry_id=run_id,
            kind="rounds",
            dataset=dataset,
            fingerprint=fingerprint,
            unit=unit,
            relation=relation,
            epsilon=epsilon,
            delta=delta,
            max_rounds=max_rounds,
            event=event,
            units=units,
        )
        return self.open_together([request])[0]

    def open_together(self, requests: Sequence[Charge]) -> list[LedgerEntry]:
        """Hold the costs of a run's parts, all or none; otherwise as `open_run`."""
        with self._storage.transaction() as connection:
            return [budgets.charge(connection, request)[0] for request in requests]

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
        with self._storage.transaction() as connection:
            entry = blocks.open_entry(connection, run_id)
            return blocks.reserve(connection, entry, rounds, nonce)

    def record_drawn(self, nonce: str, *, drawn: int, run_id: str | None = None) -> None:
        """Record that ``drawn`` rounds of a block have been drawn so far.

        Raises:
            UnsafeError: the block is unknown, closed or of another run than ``run_id``, or
                ``drawn`` goes back or beyond it.
        """
        with self._storage.transaction() as connection:
            blocks.record(connection, nonce, drawn, commit=False, run_id=run_id)

    def commit_rounds(self, nonce: str, *, drawn: int, run_id: str | None = None) -> None:
        """Record that ``drawn`` rounds of a block are in a durable checkpoint; may be repeated.

        Raises:
            UnsafeError: as for `record_drawn`.
        """
        with self._storage.transaction() as connection:
            blocks.record(connection, nonce, drawn, commit=True, run_id=run_id)

    def abandon_uncommitted(self, run_id: str) -> int:
        """Close a crashed run's blocks: rounds not committed count as drawn and stay charged.

        Returns:
            How many rounds that are.

        Raises:
            UnsafeError: no such run.
        """
        with self._storage.transaction() as connection:
            return blocks.abandon(connection, run_id)

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

    def certify(self, entry_id: str, certificate_digest: str, *, output: str | None = None) -> None:
        """Store which certificate states a settled entry, once; may be repeated with the same.

        Args:
            entry_id: of the entry.
            certificate_digest: the certificate's.
            output: id of a dataset that is released beside it, under a certificate of its own.

        Raises:
            UnsafeError: no such entry, still open, or stated by another certificate.
        """
        with self._storage.transaction() as connection:
            certified.certify(connection, entry_id, certificate_digest, output)

    def release_once(
        self,
        *,
        nonce: str,
        dataset: str,
        fingerprint: str,
        unit: str,
        relation: Relation,
        epsilon: float,
        delta: float,
        event: dict[str, Any],
        draw: Callable[[], Any],
        units: int | None = None,
    ) -> tuple[Any, LedgerEntry]:
        """Charge, draw and store one noisy answer; a repeated nonce returns it without drawing.

        Args:
            nonce: names the query; becomes the entry's id.
            dataset: id of the dataset.
            fingerprint: hash of its rows.
            unit: that the release protects.
            relation: under which it does.
            epsilon: cost, >= 0.
            delta: cost.
            event: what is released, as JSON.
            units: as in `open_run`.
            draw: makes the noisy answer, of JSON values; called once, after the charge is on disk.

        Returns:
            The answer as read from JSON, and its entry.

        Raises:
            BudgetError: no budget, not enough left, or deltas that add up to 1/units.
            ConfigError: the answer or event is not of JSON values.
            UnsafeError: the nonce was charged without an answer (a crash, or another process that
                still draws), or for another query; or the account does not fit.
        """
        request = Charge(
            entry_id=nonce,
            kind="release",
            dataset=dataset,
            fingerprint=fingerprint,
            unit=unit,
            relation=relation,
            epsilon=epsilon,
            delta=delta,
            max_rounds=1,
            event=event,
            units=units,
        )
        with self._storage.transaction() as connection:
            entry, is_new = budgets.charge(connection, request)
            if not is_new:
                answer = budgets.stored_entry(connection, nonce)["answer"]
                if answer is None:
                    raise UnsafeError(
                        f"release {nonce!r} was charged but its answer was lost: it is spent, ask"
                        " again under a new nonce"
                    )
                return json.loads(answer), entry
            blocks.reserve(connection, entry, 1, nonce)
        answer = as_json("the answer", draw())
        with self._storage.transaction() as connection:
            blocks.record(connection, nonce, 1, commit=True)
            connection.execute(
                update(ENTRIES).where(ENTRIES.c.id == nonce).values(answer=answer, status="settled")
            )
            return json.loads(answer), as_entry(budgets.stored_entry(connection, nonce))

    def reserved(self, entry_id: str) -> LedgerEntry | None:
        """Return the entry with this id, or None: what a certificate is compared with."""
        with self._storage.transaction() as connection:
            row = budgets.find_entry(connection, entry_id)
            if row is None:
                return None
            return as_entry(row, beside=certified.digests_beside(connection, entry_id))

    def accounts(self) -> list[Account]:
        """Return every account with what is spent, in the order they were made."""
        with self._storage.transaction() as connection:
            return budgets.find_accounts(connection)

    def entries(self, dataset: str | None = None) -> list[LedgerEntry]:
        """Return every entry, or those of one dataset, in the order they were made."""
        query = select(ENTRIES, ACCOUNTS.c.dataset).join(ACCOUNTS)
        if dataset is not None:
            query = query.where(ACCOUNTS.c.dataset == dataset)
        query = query.order_by(ENTRIES.c.created, ENTRIES.c.id)
        with self._storage.transaction() as connection:
            return [as_entry(row) for row in connection.execute(query).mappings()]

    def close(self) -> None:
        """Close the database; every charge is on disk already."""
        self._storage.close()
