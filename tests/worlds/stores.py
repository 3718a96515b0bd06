"""Servers of object stores on this machine, apart from what the project runs with.

`make s3` installs one of S3 (moto), `make gs` one of Google Cloud Storage (gcp-storage-emulator).
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SECRET = "nobodyshallseethis"
SECONDS = 60
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class StoreKind:
    """A kind of object store that a server on this machine stands for.

    Args:
        scheme: of its URIs.
        program: the server's; it may not be installed.
        arguments: of the server, with ``{port}`` in them.
        variables: of whoever uses it, with ``{endpoint}`` in them.
    """

    scheme: str
    program: Path
    arguments: tuple[str, ...]
    variables: dict[str, str]

    @property
    def root(self) -> str:
        """URI of the bucket that tests use."""
        return f"{self.scheme}://clinic"

    @property
    def missing(self) -> str:
        """Why tests that need the server are skipped; empty where it is installed."""
        there = self.program.exists()
        return "" if there else f"no server of {self.scheme}://: make {self.scheme} installs one"

    @contextmanager
    def started(self) -> Iterator[str]:
        """Run a server without any object; yield its address."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [str(self.program), *(word.format(port=port) for word in self.arguments)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + SECONDS
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None, f"{self.program} ended"
                    assert time.monotonic() < deadline, f"{self.program} does not answer"
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()

    def reached(self, endpoint: str, patch: pytest.MonkeyPatch) -> None:
        """Set the variables by which this process, and those that it starts, reach the server."""
        for name, value in self.variables.items():
            patch.setenv(name, value.format(endpoint=endpoint))


def _program(variable: str, path: str) -> Path:
    return Path(os.environ.get(variable, _ROOT / path))


S3 = StoreKind(
    scheme="s3",
    program=_program("PRIVRL_S3_SERVER", ".venv-s3/bin/moto_server"),
    arguments=("-H", "127.0.0.1", "-p", "{port}"),
    variables={
        "AWS_ENDPOINT_URL": "{endpoint}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    },
)
GS = StoreKind(
    scheme="gs",
    program=_program("PRIVRL_GS_SERVER", ".venv-gs/bin/gcp-storage-emulator"),
    arguments=("start", "--host=127.0.0.1", "--port={port}", "--in-memory"),
    variables={
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": "{endpoint}",
        "GOOGLE_CLOUD_PROJECT": "clinic",  # whose the bucket is
    },
)
AWS = S3.program.with_name("aws")
"""Amazon's own command line, where `make s3` installed it."""
