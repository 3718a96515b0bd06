"""The secret of an entry: made with its charge, the same while it is open, gone when it settles."""

import logging
from dataclasses import asdict
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import text

from distributed_privrl.core.errors import BudgetError, StorageError, UnsafeError
from distributed_privrl.privacy.ledger import Ledger
from tests.worlds.ledgers import open_run, release, url_of


def test_each_entry_keeps_one_secret_of_its_own_while_it_is_open(ledger, tmp_path):
    open_run(ledger, "one")
    open_run(ledger, "two")
    secret = ledger.secret("one")
    assert len(secret) == 32
    assert len({secret, ledger.secret("two"), bytes(32)}) == 3
    open_run(ledger, "one")  # a resume
    ledger.reserve_rounds("one", rounds=10, nonce="a")
    ledger.abandon_uncommitted("one")
    assert Ledger(url_of(tmp_path)).secret("one") == secret


def test_the_secret_is_charged_in_the_transaction_of_the_charge(ledger):
    written: list[tuple[int, str]] = []

    @sqlalchemy_event.listens_for(ledger._storage.engine, "before_cursor_execute")
    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("INSERT INTO entries", "UPDATE entries")):
            written.append((id(connection), statement))

    open_run(ledger)
    ((_, statement),) = written
    assert "secret" in statement
    with pytest.raises(BudgetError):
        open_run(ledger, "dear", epsilon=100.0)
    with pytest.raises(UnsafeError, match="never opened"):
        ledger.secret("dear")


def test_settling_erases_the_secret_from_the_file(ledger, tmp_path):
    open_run(ledger)
    secret = ledger.secret("run")
    assert secret in (tmp_path / "ledger.sqlite").read_bytes()
    for _ in range(2):
        ledger.settle("run", reserved_rounds=0, epsilon=0.0, delta=0.0)
    with pytest.raises(UnsafeError, match="erased"):
        ledger.secret("run")
    assert secret not in (tmp_path / "ledger.sqlite").read_bytes()
    open_run(ledger)  # a resume of a settled run makes no other
    with pytest.raises(UnsafeError, match="erased"):
        ledger.secret("run")


def test_an_answer_erases_the_secret_of_its_release(ledger, tmp_path):
    seen = []

    def draw() -> int:
        seen.append(ledger.secret("count"))
        return 7

    assert release(ledger, "count", draw)[0] == 7
    assert len(seen[0]) == 32
    with pytest.raises(UnsafeError, match="erased"):
        ledger.secret("count")
    assert seen[0] not in (tmp_path / "ledger.sqlite").read_bytes()


def test_no_other_answer_error_or_log_has_the_secret(ledger, caplog):
    caplog.set_level(logging.DEBUG)
    ledger._storage.engine.echo = "debug"
    open_run(ledger)
    secret = ledger.secret("run")
    shown = [repr(ledger), repr(ledger.reserved("run")), repr(ledger.accounts())]
    shown += [repr(entry) + repr(asdict(entry)) for entry in ledger.entries()]
    with pytest.raises(UnsafeError) as refused:
        open_run(ledger, epsilon=1.0)
    shown.append(str(refused.value))
    twice = "INSERT INTO entries SELECT * FROM entries"
    with pytest.raises(StorageError) as failed, ledger._storage.transaction() as connection:
        connection.execute(text(twice))
    with pytest.raises(StorageError) as bound, ledger._storage.transaction() as connection:
        connection.execute(text("INSERT INTO entries (secret) VALUES (:it)"), {"it": secret})
    for error in (failed, bound):
        shown += [str(error.value), str(error.value.__cause__)]
    shown.append(caplog.text)
    assert "INSERT INTO entries" in caplog.text
    for part in (secret, secret[:8], secret[-8:]):
        told = (part.hex(), repr(part)[2:-1], str(part))
        assert not any(words in text for words in told for text in shown)
