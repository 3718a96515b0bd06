"""A PostgreSQL server of the tests' own, in a folder of its own, reached through a socket alone."""

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [
    Path(found) for found in [shutil.which("initdb")] if found
]
_NOBODY = 65534
_TLS = 80877103  # the number of PostgreSQL's request for TLS

MISSING = "" if _BINARIES else "no PostgreSQL server is installed: `make postgres`, as root"


@dataclass(frozen=True)
class Server:
    """A server that runs; databases are made anew for each test."""

    folder: Path

    def pg_ctl(self, *arguments: str) -> None:
        """Start or stop it."""
        log, data = self.folder / "log", self.folder / "data"
        options = f"-k {self.folder} -c listen_addresses= -c wal_writer_delay=10s -c fsync=off"
        words = [*arguments, "-w", "-D", str(data), "-l", str(log), "-o", options]
        self.call("pg_ctl", *words)

    def call(self, name: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs, which refuse to run as root."""
        program = str(_BINARIES[-1].with_name(name))
        user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if not os.geteuid() else {}
        done = subprocess.run(
            [program, *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=60,
            **user,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}"
        return done.stdout

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Return what psql answers to a statement."""
        where = ("-h", str(self.folder), "-U", "privrl", "-d", database)
        return self.call("psql", *where, "-XAtqc", statement).strip()

    def database(self, name: str, **defaults: str) -> str:
        """Make a database whose sessions have these settings, and return its URL."""
        self.sql(f"CREATE DATABASE {name}")
        for setting, value in defaults.items():
            self.sql(f"ALTER DATABASE {name} SET {setting} = '{value}'")
        return f"postgresql://privrl@/{name}?host={self.folder}"


@contextmanager
def running() -> Iterator[Server]:
    """Yield a server, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="privrl-postgres-"))
    server = Server(folder)
    try:
        if not os.geteuid():
            os.chown(folder, _NOBODY, _NOBODY)
        data = str(folder / "data")
        server.call("initdb", "-D", data, "-U", "privrl", "-A", "trust", "--no-sync")
        server.pg_ctl("start")
        try:
            yield server
        finally:
            server.pg_ctl("stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder)


@contextmanager
def refusing(message: str) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the URL of something that ends each connection with this message, and who asked."""
    asked: list[bytes] = []

    def answer(caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError):
            while True:
                (length,) = struct.unpack("!I", caller.recv(4, socket.MSG_WAITALL))
                said = caller.recv(length - 4, socket.MSG_WAITALL)
                if int.from_bytes(said[:4], "big") != _TLS:
                    break
                caller.sendall(b"N")
            asked.append(said)
            fields = f"SFATAL\0VFATAL\0C57P01\0M{message}\0\0".encode()
            caller.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)

    def serve() -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                answer(door.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"postgresql://privrl@127.0.0.1:{door.getsockname()[1]}/ledger", asked
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join()
