"""The key of the row hashes: one a ledger, apart from the database, found again where it is."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.register import KEY_VARIABLE, DataRegister
from distributed_privrl.privacy.ledger.storage import Storage
from tests.privacy import postgres

FILES = "platformdirs.user_data_dir"
SERVER = make_url("postgresql://db.internal/ledger")


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    if postgres.MISSING:
        pytest.skip(postgres.MISSING)
    with postgres.running() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared' / 'ledger.sqlite'}"
    server: postgres.Server = request.getfixturevalue("server")
    return server.database(f"keys_{len(request.node.name)}")


def _register(url: str) -> DataRegister:
    """Return the register of a server's ledger; one in a file stands for it in its tables alone."""
    place = make_url(url)
    return DataRegister(
        Storage(place, source="--ledger"), SERVER if place.get_backend_name() == "sqlite" else place
    )


def _key(url: str) -> bytes:
    Ledger(url).close()
    return _register(url).key()


def test_a_ledger_in_a_file_leaves_the_mounted_key_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of trials would make one first that the charged ledger, on a server, does not know."""
    mounted = tmp_path / "row_key"
    monkeypatch.setenv(KEY_VARIABLE, str(mounted))
    own = Ledger(f"sqlite:///{tmp_path / 'trial.sqlite'}")
    made = own.register.key()
    own.close()
    assert not mounted.exists()
    assert (tmp_path / "trial.sqlite.key").read_bytes() == made
    of_the_server = _key(f"sqlite:///{tmp_path / 'server.sqlite'}")
    assert mounted.read_bytes() == of_the_server != made


def test_a_fresh_machine_finds_the_key_where_it_is_mounted(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Budgets were set on one machine; another has the same database and another data folder."""
    monkeypatch.setattr(FILES, lambda _: str(tmp_path / "first"))
    key = _key(url)
    (kept,) = [*tmp_path.rglob("ledger*.key")]
    mounted = tmp_path / "secrets" / "row_key"
    mounted.parent.mkdir()
    mounted.write_bytes(kept.read_bytes())
    mounted.chmod(0o400)
    kept.unlink()
    monkeypatch.setattr(FILES, lambda _: str(tmp_path / "second"))
    with pytest.raises(StorageError, match=f"or name it by {KEY_VARIABLE}"):
        _key(url)
    monkeypatch.setenv(KEY_VARIABLE, str(mounted))
    assert _key(url) == key
    mounted.chmod(0o600)
    mounted.write_bytes(bytes(32))
    with pytest.raises(StorageError, match="must hold the key of this ledger's row hashes"):
        _key(url)


def _ask(url: str, path: str, barrier: "multiprocessing.synchronize.Barrier", keys: object) -> None:
    import os

    os.environ[KEY_VARIABLE] = path
    register = _register(url)
    barrier.wait(30)
    keys.put(register.key())  # type: ignore[attr-defined]


def test_two_that_begin_at_once_have_one_key(url: str, tmp_path: Path) -> None:
    Ledger(url).close()
    path, context = str(tmp_path / "row_key"), multiprocessing.get_context("fork")
    barrier, keys = context.Barrier(2), context.Queue()
    asking = [
        context.Process(target=_ask, args=(url, path, barrier, keys), daemon=True) for _ in "ab"
    ]
    for process in asking:
        process.start()
    found = {keys.get(timeout=60) for _ in asking}
    for process in asking:
        process.join(60)
    assert found == {Path(path).read_bytes()}
    assert Path(path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "said"), [("row_key", "no absolute path"), ("/open", "everybody can read")]
)
def test_a_place_that_is_none_is_refused(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("/"):
        path = tmp_path / name.strip("/")
        path.write_bytes(bytes(32))
        path.chmod(0o644)
        name = str(path)
    monkeypatch.setenv(KEY_VARIABLE, name)
    with pytest.raises(ConfigError, match=said):
        _key(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
