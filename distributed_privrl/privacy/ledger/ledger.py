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

from distributed_privrl.privacy.ledger import (
    budgets,
    certified,
    holds,
    releases,
    withdrawals,
)
from distributed_privrl.privacy.ledger.attempts import retried, retried_unless_done
from distributed_privrl.privacy.ledger.entry_secrets import new_secret
from distributed_privrl.privacy.ledger.records import (
    Account,
    Charge,
    LedgerEntry,
    as_entry,
    as_json,
)
from distributed_privrl.privacy.ledger.register import DataRegister, keep_sketch, key_path
from distributed_privrl.privacy.ledger.runs import RunLedger
from distributed_privrl.privacy.ledger.schema import ACCOUNTS, ENTRIES, SHOWN_ENTRIES
from distributed_privrl.privacy.ledger.storage import (
    Storage,
    ledger_reference,
    ledger_source,
    ledger_url,
)
from distributed_privrl.privacy.units import PrivacyBudget

_LARGE_DELTA = 1e-3


class Ledger(RunLedger):
    """Budgets and charges in one database; picklable, since it holds no more than where it is.

    Args:
        url: a SQLAlchemy URL of SQLite or PostgreSQL, or ``file:PATH`` of a file that holds one;
            None takes the environment variable ``PRIVRL_LEDGER``, else a SQLite file in the user's
            data folder.
        exists: it was opened before: one that was deleted since is not made again.
        source: what named it in the process that opened it first, for messages; None: this one.

    Raises:
        ConfigError: the URL is malformed.
        MissingExtraError: PostgreSQL without its driver.
        StorageError: the database cannot be opened, or it is gone and its key is not. Every method
            raises it when the database is locked, full, unwritable, corrupt or gone; nothing is
            charged or changed then, unless the message says that nobody knows.
    """

    def __init__(
        self, url: str | None = None, *, exists: bool = False, source: str | None = None
    ) -> None:
        self._reference, self._source = ledger_reference(url), source or ledger_source(url)
        self._url = ledger_url(url)
        local = self._url.get_backend_name() == "sqlite"  # a server's key may be mounted before
        key = key_path(self._url) if local else None
        self._storage = Storage(self._url, source=self._source, key=key, exists=exists)

    def __reduce__(self) -> tuple[Callable[[str, str], "Ledger"], tuple[str, str]]:
        """Travel as the URL, or the name of the file that holds it; the receiver opens it again."""
        return _opened_again, (self._reference, self._source)

    @property
    def register(self) -> DataRegister:
        """What is known of accounts' rows beside their names."""
        return DataRegister(self._storage, self._url)

    @retried
    def set_budget(
        self,
        *,
        dataset: str,
        fingerprint: str,
        budget: PrivacyBudget,
        sketch: bytes | None = None,
    ) -> Account:
        """Set or change the budget of a dataset.

        Args:
            dataset: id of the dataset.
            fingerprint: of its rows, and after a colon of their partition into the budget's units.
            budget: of its one account.
            sketch: by which parts of its rows are found in other datasets.

        Raises:
            BudgetError: less than what is spent.
            UnsafeError: the dataset has spent in another unit or relation or as other units, the
                id belongs to other data, or the data have an account under another id.

        Warns:
            UserWarning: delta is above 1e-3, or a limit goes down.
        """
        if budget.delta > _LARGE_DELTA:
            warnings.warn(
                f"delta={budget.delta:g} is large: it should be far below 1/units", stacklevel=3
            )
        rows, partition = budgets.rows_and_partition(fingerprint)
        values = {
            "partition": partition,
            "unit": budget.unit,
            "relation": budget.relation.value,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
        }
        with self._storage.transaction() as connection:
            account = budgets.same_data(connection, dataset, fingerprint)
            if account is None:
                connection.execute(
                    insert(ACCOUNTS).values(dataset=dataset, fingerprint=rows, revision=0, **values)
                )
            else:
                budgets.check_change(account, budget, fingerprint)
                connection.execute(
                    update(ACCOUNTS).where(ACCOUNTS.c.id == account.id).values(**values)
                )
            changed = budgets.same_data(connection, dataset, fingerprint)
            assert changed is not None
            if sketch is not None:
                keep_sketch(connection, changed.id, sketch)
            return changed

    @retried_unless_done
    def withdraw(self, dataset: str) -> Account:
        """Remove the account of a dataset of which nothing was ever charged.

        The same people may then be imported in another form, whose account is a new one.

        Args:
            dataset: its id.

        Returns:
            what it was.

        Raises:
            BudgetError: there is none.
            UnsafeError: a run has charged it or holds something of it, a settled one, too.

        Privacy: an account without a charge, or a hold that may become one, protects nothing yet:
            no release has read its rows. The database refuses to remove one that has any.
        """
        with self._storage.transaction() as connection:
            return withdrawals.withdraw(connection, dataset)

    @retried
    def open_together(
        self, charges: Sequence[Charge], *, closes: str | None = None
    ) -> list[LedgerEntry]:
        """Charge the costs of a run's parts, all or none; the same call again resumes the run.

        Args:
            charges: of rounds, one a part; each becomes the entry of its id.
            closes: the run whose last charges they are: what is left of its hold is freed.

        Raises:
            BudgetError: no budget, not enough left, or deltas that add up to 1/units.
            UnsafeError: unit, relation or data do not fit the account, an entry was opened with
                other values, or trajectories that it would read are another run's.
        """
        with self._storage.transaction() as connection:
            entries = [budgets.charge(connection, charge)[0] for charge in charges]
            if closes is not None:
                holds.close(connection, closes)
            return entries

    @retried
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

    def release_once(self, charge: Charge, *, draw: Callable[[], Any]) -> tuple[Any, LedgerEntry]:
        """Charge, draw and store one noisy answer; a repeated id returns it without drawing.

        Args:
            charge: of a release; its id names the query.
            draw: makes the noisy answer, of JSON values; called once, after the charge is on disk.

        Returns:
            The answer as read from JSON, and its entry.

        Raises:
            BudgetError: no budget, not enough left, or deltas that add up to 1/units.
            ConfigError: the answer or event is not of JSON values.
            UnsafeError: the id was charged without an answer (a crash, or another process that
                still draws), or for another query; the account does not fit; or the run holds less.
        """
        answer, entry = self._charge_release(charge, new_secret())
        if answer is None:
            answer = as_json("the answer", draw())
            entry = self._store_answer(charge.entry_id, answer)
        return json.loads(answer), entry

    @retried
    def answer(self, entry_id: str) -> Any | None:
        """Return the stored answer of a settled release, as read from JSON; None: there is none."""
        with self._storage.transaction() as connection:
            row = budgets.find_entry(connection, entry_id)
        settled = row is not None and row["status"] == "settled" and row["answer"] is not None
        return json.loads(row["answer"]) if row is not None and settled else None

    @retried
    def _charge_release(self, charge: Charge, secret: bytes) -> tuple[str | None, LedgerEntry]:
        """Charge a release, or return the answer that was drawn for it before."""
        with self._storage.transaction(pays_ahead=True) as connection:
            return releases.charge(connection, charge, secret)

    @retried
    def _store_answer(self, nonce: str, answer: str) -> LedgerEntry:
        with self._storage.transaction() as connection:
            return releases.answer(connection, nonce, answer)

    @retried
    def reserved(self, entry_id: str) -> LedgerEntry | None:
        """Return the entry with this id, or None: what a certificate is compared with."""
        with self._storage.transaction() as connection:
            row = budgets.find_entry(connection, entry_id)
            if row is None:
                return None
            return as_entry(row, beside=certified.digests_beside(connection, entry_id))

    @retried
    def accounts(self) -> list[Account]:
        """Return every account with what is spent, in the order they were made."""
        with self._storage.transaction() as connection:
            return budgets.find_accounts(connection)

    @retried
    def entries(self, dataset: str | None = None) -> list[LedgerEntry]:
        """Return every entry, or those of one dataset, by time, then by id."""
        query = select(*SHOWN_ENTRIES, ACCOUNTS.c.dataset).join_from(ENTRIES, ACCOUNTS)
        if dataset is not None:
            query = query.where(ACCOUNTS.c.dataset == dataset)
        query = query.order_by(ENTRIES.c.created, ENTRIES.c.id)
        with self._storage.transaction() as connection:
            return [as_entry(row) for row in connection.execute(query).mappings()]

    def close(self) -> None:
        """Close the database; every charge is on disk already."""
        self._storage.close()


def _opened_again(reference: str, source: str) -> Ledger:
    """Return the ledger that another process of the same run has open."""
    return Ledger(reference, exists=True, source=source)
