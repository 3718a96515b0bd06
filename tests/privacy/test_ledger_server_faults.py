"""A PostgreSQL server that restarts, freezes or loses a connection, and a ledger put back."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import event, text

from distributed_privrl.core.errors import BudgetError, StorageError
from distributed_privrl.privacy.ledger import Ledger, attempts, servers
from distributed_privrl.privacy.ledger.attempts import PassingError
from distributed_privrl.privacy.ledger.schema import VERSION
from tests.privacy import postgres
from tests.worlds.ledgers import RACE, account, charge, holding, open_run, release, set_budget

pytestmark = [
    pytest.mark.skipif(bool(postgres.MISSING), reason=postgres.MISSING),
    pytest.mark.filterwarnings("ignore:.*(trying again|has not answered)"),
]


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed: `make dev`")
    with postgres.running() as server:
        yield server


@pytest.fixture
def url(server, request):
    return server.database(f"faults_{abs(hash(request.node.name)):x}")


@pytest.fixture
def ledger(url):
    ledger = Ledger(url)
    set_budget(ledger)
    open_run(ledger)
    return ledger


def stop(server):
    server.pg_ctl("stop", "-m", "fast")


# Away for a moment, and for longer


def test_a_server_that_restarts_is_waited_for_and_somebody_is_told(ledger, server):
    stop(server)
    starter = threading.Timer(1.0, server.pg_ctl, ["start"])
    starter.start()
    with pytest.warns(UserWarning, match="see that its server runs.*: trying again for 30 s"):
        block = ledger.reserve_rounds("run", rounds=10, nonce="a")
    starter.join()
    assert block.first_round == 0
    assert ledger.reserved("run").reserved_rounds == 10


def test_a_server_that_stays_away_ends_the_wait(ledger, server, monkeypatch):
    usual = attempts.LOST_SECONDS
    monkeypatch.setattr(attempts, "LOST_SECONDS", 1)
    stop(server)
    try:
        begun = time.monotonic()
        with pytest.raises(StorageError, match="see that its server runs") as refused:
            ledger.reserve_rounds("run", rounds=10, nonce="a")
        assert 1 < time.monotonic() - begun < usual / 2
        assert refused.value.exit_code == 7
    finally:
        server.pg_ctl("start")
    assert ledger.reserved("run").reserved_rounds == 0


def test_a_database_that_was_never_reached_is_not_waited_for_long(server, url, monkeypatch):
    assert attempts.FIRST_SECONDS < attempts.LOST_SECONDS / 2
    monkeypatch.setattr(attempts, "FIRST_SECONDS", 0.5)
    begun = time.monotonic()
    with pytest.raises(StorageError, match="does not exist"):
        Ledger(url.replace("faults_", "nobody_"))
    with pytest.raises(StorageError, match="see that its server runs"):
        Ledger("postgresql://privrl@127.0.0.1:1/ledger")
    assert time.monotonic() - begun < 2 / 3 * attempts.LOST_SECONDS


@pytest.mark.parametrize(
    ("said", "comes_back"),
    [
        ("terminating connection due to administrator command", True),
        ("terminating connection because of crash of another server process", True),
        ("the database system is shutting down", True),
        ("the database system is not yet accepting connections", True),
        ('role "nobody" does not exist', False),
    ],
)
def test_a_server_that_restarts_while_it_is_called_is_waited_for(monkeypatch, said, comes_back):
    monkeypatch.setattr(attempts, "FIRST_SECONDS", 0.5)
    with postgres.refusing(said) as (refusing, asked):
        with pytest.raises(StorageError, match=said):
            Ledger(f"{refusing}?gssencmode=disable")
        assert (len(asked) > 1) is comes_back


@pytest.mark.parametrize("when", ["before it connects", "while it is asked"])
def test_a_frozen_server_is_left_in_time(ledger, server, monkeypatch, when):
    postmaster = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    monkeypatch.setattr(attempts, "LOST_SECONDS", 1)
    monkeypatch.setattr(servers, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(servers, "ANSWER_SECONDS", 2)
    # libpq takes 1 s for 2 s, and the patience of an engine is its own from when it is made.
    monkeypatch.setitem(servers._PATIENCE, "connect_timeout", 2)
    opened = Ledger(str(ledger._reference), exists=True)
    frozen: list[int] = []

    def freeze():
        frozen.append(postmaster)
        os.kill(postmaster, signal.SIGSTOP)  # which starts no more of them
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text()
        frozen.extend(map(int, children.split()))
        for pid in frozen[1:]:
            with contextlib.suppress(ProcessLookupError):  # one that ends by itself
                os.kill(pid, signal.SIGSTOP)

    begun = time.monotonic()
    try:
        if when == "before it connects":
            freeze()
            with pytest.raises(StorageError):
                opened.reserve_rounds("run", rounds=10, nonce="a")
        else:
            with (  # noqa: PT012, PT031  the server freezes inside the transaction
                pytest.warns(UserWarning, match="has not answered for 0.5 s"),
                pytest.raises(PassingError),
                opened._storage.transaction() as connection,
            ):
                freeze()
                connection.execute(text("SELECT 1"))
        assert time.monotonic() - begun < attempts.BUSY_SECONDS / 2
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert ledger.reserved("run").reserved_rounds == 0


# A commit of which nobody hears


def lose_next_commit(ledger, monkeypatch, times=1):
    """Let connections be lost just after their commit, before the server's answer is read."""
    dialect, left = ledger._storage.engine.dialect, [times]
    commit = dialect.do_commit

    def lost(connection):
        commit(connection)
        if left[0]:
            left[0] -= 1
            connection.dbapi_connection.close()
            commit(connection)  # raises, as a read from a lost connection does

    monkeypatch.setattr(dialect, "do_commit", lost)


def test_what_may_have_committed_is_asked_for_and_not_done_twice(ledger, monkeypatch):
    def lose():
        lose_next_commit(ledger, monkeypatch)

    lose()
    assert ledger.reserve_rounds("run", rounds=10, nonce="a").first_round == 0
    assert ledger.reserved("run").reserved_rounds == 10
    lose()
    ledger.commit_rounds("a", drawn=4)
    lose()
    ledger.abandon_uncommitted("run")
    assert ledger.reserved("run").drawn_rounds == 10
    lose()
    ledger.open_hold(holding("held", epsilon=2.0))
    lose()
    ledger.open_together([charge("held", hold="held", epsilon=1.0)], closes="held")
    lose()
    ledger.settle("run", reserved_rounds=10, epsilon=1.0, delta=0.0)
    assert account(ledger).spent_epsilon == 2.0


@pytest.mark.parametrize("commits", [1, 2])
def test_a_release_whose_charge_was_not_heard_of_is_drawn_once(ledger, monkeypatch, commits):
    drawn = []
    lose_next_commit(ledger, monkeypatch, times=commits)
    answer, entry = release(ledger, "count", lambda: drawn.append(1) or 5)
    assert (answer, drawn, entry.status) == (5, [1], "settled")
    assert release(ledger, "count", lambda: drawn.append(1) or 6)[0] == 5
    assert drawn == [1]


def test_what_must_not_be_done_twice_stops_and_says_what_is_not_known(ledger, monkeypatch):
    lose_next_commit(ledger, monkeypatch)
    with pytest.raises(StorageError, match="whether the last change was made is not known"):
        ledger.give_up("run")
    assert ledger.reserved("run").status == "settled"


# Killed, and raced, while it reserves


def reserve_and_die(url: str, before: int) -> int:
    """Reserve in a fork that is killed before a step of it; return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        ledger, steps = Ledger(url, exists=True), [0]

        def step(*_):
            steps[0] += 1
            if steps[0] == before:
                os.kill(os.getpid(), signal.SIGKILL)

        for name in ("begin", "before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(ledger._storage.engine, name, step)
        event.listen(ledger._storage.engine, "close", step)  # the commit is on the disk
        ledger.reserve_rounds("run", rounds=10, nonce="a")
        os._exit(0)
    finally:
        os._exit(1)


def test_a_kill_at_any_step_of_a_reservation_leaves_all_of_it_or_nothing(ledger, url):
    found = []
    for before in range(1, 100):
        code = reserve_and_die(url, before)
        rounds = ledger.reserved("run").reserved_rounds
        found.append(rounds)
        assert rounds in (0, 10)
        if rounds:  # under this nonce it is the same one
            assert ledger.reserve_rounds("run", rounds=10, nonce="a").repeated
            assert ledger.reserved("run").reserved_rounds == 10
            break
        assert code == -signal.SIGKILL
    assert code == -signal.SIGKILL  # after the commit, before anybody heard of it
    assert len(found) > 10
    assert found.index(10) == len(found) - 1


def test_sixteen_processes_never_overspend_while_the_server_restarts(server, url):
    ledger = Ledger(url)
    set_budget(ledger, epsilon=1.0)
    with subprocess.Popen([sys.executable, "-c", RACE, url], stderr=subprocess.PIPE) as race:
        while not ledger.holds() and not ledger.entries():
            time.sleep(0.05)
        server.pg_ctl("restart", "-m", "fast")
        _, said = race.communicate(timeout=120)
    assert race.returncode == 0, said[-2000:]
    ran = {entry.id for entry in ledger.entries() if not entry.id.endswith("/count")}
    assert len(ran) == 8
    assert ledger.holds() == []
    assert account(ledger).spent_epsilon == pytest.approx(0.96)


# Other versions, and a backup


def test_a_ledger_of_the_version_before_is_brought_forward(ledger, url, server):
    name = url.split("?")[0].rsplit("/", 1)[1]
    for table in ("entries", "holds"):
        server.sql(f"ALTER TABLE {table} DROP COLUMN made_by", name)
    server.sql(f"UPDATE schema_versions SET version = {VERSION - 1}", name)
    forward = Ledger(url)
    assert server.sql("SELECT version FROM schema_versions", name) == str(VERSION)
    (entry,) = forward.entries()
    assert (entry.id, entry.epsilon, entry.made_by) == ("run", 4.0, None)
    forward.open_hold(holding("new", epsilon=1.0))
    assert "@" in forward.holds()[0].made_by


def test_a_backup_that_is_restored_forgets_what_was_charged_since(ledger, url, server):
    name = url.split("?")[0].rsplit("/", 1)[1]
    where, backup = ("-h", str(server.folder), "-U", "privrl"), str(server.folder / "backup")
    server.call("pg_dump", *where, "-Fc", "-f", backup, name)
    open_run(ledger, "later", epsilon=6.0)
    with pytest.raises(BudgetError):
        open_run(ledger, "more", epsilon=6.0)
    server.call("pg_restore", *where, "--clean", "--if-exists", "-d", name, backup)
    restored = Ledger(url)
    assert restored.secret("run") == ledger.secret("run")
    assert account(restored).spent_epsilon == 4.0  # the budget is back, and this tells of it:
    assert restored.reserved("later") is None
    with pytest.warns(UserWarning, match="goes down"):  # the rule: lower it by what is missing
        set_budget(restored, epsilon=4.0)
    with pytest.raises(BudgetError):
        open_run(restored, "more", epsilon=6.0)
    assert Path(backup).stat().st_size > 0
