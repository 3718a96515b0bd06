"""The ledger on a real PostgreSQL, whatever the database's own settings are."""

import subprocess
import sys
import threading
import time

import pytest
from sqlalchemy import event, text

from distributed_privrl.core.errors import BudgetError, StorageError, UnsafeError
from distributed_privrl.privacy.ledger import Ledger, attempts, budgets, holds
from distributed_privrl.privacy.ledger import storage as storage_module
from tests.privacy import postgres
from tests.worlds.ledgers import (
    RACE,
    account,
    charge,
    freed_of,
    holding,
    open_run,
    release,
    set_budget,
)

LEVELS = ("read committed", "repeatable read", "serializable")

pytestmark = pytest.mark.skipif(bool(postgres.MISSING), reason=postgres.MISSING)


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed: `make dev`")
    with postgres.running() as server:
        yield server


@pytest.fixture
def url(server, request):
    name = f"ledger_{abs(hash(request.node.name)):x}"
    level = getattr(request, "param", "repeatable read")
    return server.database(name, default_transaction_isolation=level, synchronous_commit="off")


@pytest.fixture
def ledger(url):
    ledger = Ledger(url)
    set_budget(ledger)
    return ledger


# Sixteen processes


@pytest.mark.parametrize("url", LEVELS, indirect=True)
def test_sixteen_processes_never_overspend(url):
    ledger = Ledger(url)
    set_budget(ledger, epsilon=1.0)
    done = subprocess.run(
        [sys.executable, "-c", RACE, url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    entries = {entry.id for entry in ledger.entries()}
    ran = {name for name in entries if not name.endswith("/count")}
    assert len(ran) == 8
    assert entries == ran | {f"{name}/count" for name in ran}
    assert ledger.holds() == []
    assert account(ledger).spent_epsilon == pytest.approx(0.96)


# Two connections, one of which read what the other changes


def remove(guards, monkeypatch):
    """Take away what keeps transactions apart: the line, our isolation level, the account's row."""
    if "line" in guards:
        monkeypatch.setattr(storage_module, "_ONE_WRITER", text("SELECT 1"))
    if "level" in guards:
        monkeypatch.setattr(storage_module, "_ISOLATION", None)
    if "row" in guards:
        monkeypatch.setattr(holds, "revise", lambda *_: None)


def spent_by_two(url, server, monkeypatch):
    """Let a run of 7 be charged while another one of 7 waits; return what 10 were left of."""
    second, refused = Ledger(url), []

    def charge_second():
        try:
            open_run(second, "second", epsilon=7.0)
        except BudgetError as error:
            refused.append(error)

    waiter, right = threading.Thread(target=charge_second), budgets.check_affordable

    def check(*arguments, **named):
        right(*arguments, **named)
        if threading.current_thread() is waiter:
            return
        waiter.start()
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        for _ in range(600):
            if server.sql(blocked) == "1":
                return
            time.sleep(0.05)
        raise AssertionError("the second run does not wait for the first")

    ledger = Ledger(url)
    set_budget(ledger)
    monkeypatch.setattr(budgets, "check_affordable", check)
    open_run(ledger, "first", epsilon=7.0)
    waiter.join()
    spent = account(ledger).spent_epsilon
    assert len(refused) == (spent == 7.0)
    return spent


@pytest.mark.parametrize("guards", ["", "line", "line, level", "line, row"])
def test_each_guard_holds_alone(url, server, monkeypatch, guards):
    remove(guards, monkeypatch)
    assert spent_by_two(url, server, monkeypatch) == 7.0


def test_without_the_guards_the_databases_level_lets_them_overspend(url, server, monkeypatch):
    remove("line, level, row", monkeypatch)
    assert spent_by_two(url, server, monkeypatch) == 14.0


# One connection


@pytest.mark.parametrize("url", LEVELS, indirect=True)
def test_connections_have_our_settings_and_not_the_databases(ledger, server, url):
    name = url.split("?")[0].rsplit("/", 1)[1]
    assert server.sql("SHOW synchronous_commit", name) == "off"
    with ledger._storage.transaction() as connection:
        assert connection.execute(text("SHOW transaction_isolation")).scalar() == "serializable"
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"
        assert connection.execute(text("SHOW lock_timeout")).scalar() == "1min"


def reset_sessions(engine):
    """Have connections lose their settings, as behind a pooler, where each may be another one."""

    @event.listens_for(engine, "connect")
    def _on_connect(connection, _record):
        connection.execute("RESET ALL")
        connection.commit()


def test_settings_are_each_transactions_own(ledger):
    reset_sessions(ledger._storage.engine)
    with ledger._storage.transaction() as connection:
        assert connection.execute(text("SHOW transaction_isolation")).scalar() == "serializable"
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"
        assert connection.execute(text("SHOW lock_timeout")).scalar() == "1min"


@pytest.mark.parametrize("pooled", [False, True])
def test_a_reservation_outlives_the_server(ledger, server, pooled):
    """Killed by SIGQUIT just after the commit, while its write-ahead log would wait ten seconds."""
    if pooled:
        reset_sessions(ledger._storage.engine)
    open_run(ledger)
    ledger.reserve_rounds("run", rounds=10, nonce="a")
    server.pg_ctl("stop", "-m", "immediate")
    server.pg_ctl("start")
    assert ledger.reserved("run").reserved_rounds == 10


def test_a_ledger_is_the_same_there(ledger, url):
    open_run(ledger)
    secret = ledger.secret("run")
    assert len(secret) == 32
    assert Ledger(url).secret("run") == secret
    ledger.reserve_rounds("run", rounds=10, nonce="a")
    ledger.commit_rounds("a", drawn=5)
    assert ledger.abandon_uncommitted("run") == 5
    with pytest.raises(BudgetError):
        ledger.open_hold(holding(epsilon=7.0))
    ledger.open_hold(holding("held"))
    assert release(ledger, "held/count", lambda: {"n": 3}, hold="held")[0] == {"n": 3}
    assert release(ledger, "held/count", lambda: 4, hold="held")[0] == {"n": 3}
    ledger.open_together([charge("held", hold="held")], closes="held")
    assert freed_of(ledger.give_up("held")) == (4.0, 1e-6)
    ledger.settle("run", reserved_rounds=10, epsilon=1.0, delta=0.0)
    ledger.certify("run", "0" * 64)
    open_run(ledger, "begun", epsilon=0.5)
    ledger.reserve_rounds("begun", rounds=1, nonce="of a run that was left")
    assert ledger.has_begun("begun")
    assert ledger.give_up("begun").charged_epsilon == 0.5
    assert ledger.reserved("begun").status == "settled"
    with pytest.raises(UnsafeError, match="erased"):
        ledger.secret("run")
    assert account(ledger).spent_epsilon == 2.5
    assert {entry.status for entry in ledger.entries()} == {"settled"}


def test_conflicts_are_done_again_and_waiting_has_an_end(ledger, url, monkeypatch):
    open_run(ledger)
    tries = []

    @attempts.retried
    def conflicting():
        tries.append(1)
        with ledger._storage.transaction() as connection:
            if len(tries) < 3:
                connection.execute(
                    text("DO $$ BEGIN RAISE EXCEPTION 'met' USING ERRCODE = '40001'; END $$")
                )
            return len(tries)

    assert conflicting() == 3
    monkeypatch.setattr(attempts, "BUSY_SECONDS", 0)
    tries.clear()
    with pytest.raises(StorageError, match="met"):
        conflicting()
    assert len(tries) == 1
    monkeypatch.setattr(attempts, "BUSY_SECONDS", 1)
    impatient = Ledger(url)
    with (
        ledger._storage.transaction(),
        pytest.raises(StorageError, match="another process holds it") as refused,
    ):
        impatient.accounts()
    assert "\n" not in str(refused.value)
