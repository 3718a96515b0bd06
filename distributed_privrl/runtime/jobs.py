"""Runs as jobs of a Ray cluster: handing one in, following it, and what a job may not do.

A job may be started again on new machines, with nothing of the old ones left. So it may not keep
its ledger or its folder there: it would find a fresh budget.
"""

import contextlib
import itertools
import json
import logging
import os
import re
import shlex
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from distributed_privrl.core.errors import ConfigError, StorageError, UnsafeError
from distributed_privrl.core.places import Place
from distributed_privrl.privacy.ledger.storage import ledger_url
from distributed_privrl.runtime.session import prepare_environment

OF_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray sets this in the process that a job begins with, whoever handed it in."""
OF_A_SCRIPT = "PRIVRL_JOB"
"""`cluster/run.py` sets this: no job of Ray, but repeated all the same."""
SHARED_VARIABLE = "PRIVRL_SHARED"
"""Folders that outlive the cluster's machines, as their owner says; separated by colons."""
CERTIFICATE_MARK = "privrl certificate: "
"""Begins the line by which a job tells its certificate."""
UPLOAD_BYTES = 10 * 2**20
START_SECONDS = 60
"""A head that has just begun takes no jobs for so long at most."""
_STARTING = "No available agent"
STOP_SECONDS = 60
"""So long a job that is stopped may take for its last checkpoint; Ray's own limit is 3 seconds."""
POLL_SECONDS = 1.0
"""Between two looks at a job, but for the first few, which follow each other sooner."""
MOST_MISSED = 60
"""So many looks in a row may fail before following is given up."""
NETWORK_FILES = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"}
    | {"fuse.gcsfuse", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "virtiofs", "wekafs"}
)
"""Kinds of file systems that lie on other machines."""
_OCTAL = re.compile(r"\\([0-7]{3})")
"""How the system writes a space in the place of a mount."""


def in_job() -> bool:
    """Say whether this process is what a job of Ray began with."""
    return OF_A_JOB in os.environ or OF_A_SCRIPT in os.environ


def check_job(out: Place, ledger: str | None) -> None:
    """Refuse, in a job, what its next start on other machines would not find.

    Args:
        out: the run's folder, or its URI.
        ledger: its URL, or None.

    Raises:
        UnsafeError: the ledger is a SQLite file, or the folder lies on this machine alone.

    Privacy: a budget that is kept on a machine of the cluster is a fresh one on the next.
    """
    if not in_job():
        return
    if ledger_url(ledger).get_backend_name() == "sqlite":
        raise UnsafeError(
            "a job's ledger must outlive its cluster, and SQLite is a file on it: a retry would"
            " find a fresh budget; give PostgreSQL by --ledger file:/secrets/ledger"
        )
    if isinstance(out, Path) and not outlives(out):
        raise UnsafeError(
            f"--out {out} lies on a machine of the cluster: a retried job would not find it; give"
            " s3://BUCKET/KEY or a folder on a network file system, or name the shared folder that"
            f" it is in by {SHARED_VARIABLE} (privrl submit --shared DIR)"
        )


@contextlib.contextmanager
def rows_kept_from_log(out: Path) -> Iterator[None]:
    """In a job, write what tells of sensitive rows into ``private/`` and say only where it lies.

    Raises:
        UnsafeError: in place of a `RowsError`, without its words.
        StorageError: likewise, where they cannot be kept.

    Privacy: whoever has the cluster's token reads a job's log.
    """
    if not in_job():
        yield
        return
    from distributed_privrl.experiments.withholding import rows_withheld

    with rows_withheld(out):
        yield


def outlives(folder: Path) -> bool:
    """Say whether a folder is on a network file system, or in one that is declared as shared.

    Raises:
        UnsafeError: what is declared is no folder of its own: a job's working folder, to which a
            path that is not absolute belongs, and the root lie on each machine.
    """
    there = folder.absolute().resolve()
    declared = [Path(one) for one in os.environ.get(SHARED_VARIABLE, "").split(os.pathsep) if one]
    for one in declared:
        if not one.is_absolute() or one.resolve() == Path(one.anchor):
            raise UnsafeError(
                f"{SHARED_VARIABLE} names {one}, which each machine has for itself: give the"
                " absolute path of the folder that outlives the cluster"
            )
    if any(there.is_relative_to(one.resolve()) for one in declared):
        return True
    return _kind_of(there) in NETWORK_FILES


def _kind_of(path: Path) -> str:
    """Return the kind of file system that a path is on; empty where the system does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    mounts = [line.split()[1:3] for line in lines]
    found = [
        (len(place), number, kind)  # of two at one place the later one covers the other
        for number, (written, kind) in enumerate(mounts)
        if path.is_relative_to(place := _OCTAL.sub(lambda one: chr(int(one[1], 8)), written))
    ]
    return max(found, default=(0, 0, ""))[2]


class JobClient(Protocol):
    """What is asked of Ray's `JobSubmissionClient`."""

    def submit_job(
        self, *, entrypoint: str, runtime_env: dict[str, Any], metadata: dict[str, str]
    ) -> str:
        """Hand a job in and return its id."""
        ...

    def get_job_status(self, job_id: str) -> Any:
        """Return a status with ``is_terminal()``."""
        ...

    def get_job_info(self, job_id: str) -> Any:
        """Return what is known, ``driver_exit_code`` among it."""
        ...

    def get_job_logs(self, job_id: str) -> str:
        """Return all that the job has printed."""
        ...

    def stop_job(self, job_id: str) -> bool:
        """Ask the job to stop."""
        ...


def open_client(address: str) -> JobClient:
    """Return a client of a cluster's Jobs API, which must ask for a token.

    Args:
        address: ``http://HOST:PORT`` of the dashboard; ``https`` as well.

    Raises:
        ConfigError: it is no such address, nothing answers, or the token is not the cluster's.
        UnsafeError: it answers without a token.
    """
    if not address.lower().startswith(("http://", "https://")):
        raise ConfigError(
            f"--address {address} is no dashboard's: give http://HOST:8265 of the cluster's head"
        )
    check_token_asked(address)
    prepare_environment()
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard_sdk", "packaging"):  # they tell of each upload
        for logger in (f"ray.dashboard.modules.{name}", f"ray._private.runtime_env.{name}"):
            logging.getLogger(logger).setLevel(logging.WARNING)
    try:
        client: JobClient = JobSubmissionClient(address)
    except ConnectionError as error:
        raise ConfigError(f"no Ray dashboard answers at {address}: {error}") from error
    except (RuntimeError, AuthenticationError) as error:
        raise ConfigError(
            f"the cluster at {address} does not know this token: give its own as RAY_AUTH_TOKEN,"
            " or the file that holds it as RAY_AUTH_TOKEN_PATH"
        ) from error
    return client


def check_token_asked(address: str) -> None:
    """Refuse a dashboard that lists its jobs to somebody who shows no token.

    Raises:
        UnsafeError: it does, or gives another answer than that the token is missing.
        ConfigError: nothing answers.
    """
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/api/jobs/", timeout=10) as answer:
            code = answer.status
    except urllib.error.HTTPError as error:
        code = error.code
    except (OSError, ValueError) as error:
        raise ConfigError(f"no Ray dashboard answers at {address}: {error}") from error
    if code in (401, 403):
        return
    if code == 200:
        raise UnsafeError(
            f"the cluster at {address} lets in anybody who reaches it: start every node with"
            " RAY_AUTH_MODE=token"
        )
    raise UnsafeError(f"whether the cluster at {address} needs a token cannot be told ({code})")


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What a job is given: nothing else travels.

    Args:
        files: of its working folder, by name; their content.
        words: of the command that it begins with.
        variables: of its environment.
        name: shown in the dashboard.
    """

    files: Mapping[str, bytes]
    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = "privrl"


def hand_in(client: JobClient, upload: Upload) -> str:
    """Hand a job in and return its id.

    Raises:
        ConfigError: more than 10 MB would travel.
        StorageError: the cluster refused it.
    """
    size = sum(map(len, upload.files.values()))
    if size > UPLOAD_BYTES:
        raise ConfigError(
            f"{size / 1e6:.0f} MB would be uploaded, {UPLOAD_BYTES / 1e6:.0f} at most: data and"
            " models lie where the cluster reads them, and travel by name"
        )
    with tempfile.TemporaryDirectory(prefix="privrl-job-") as folder:
        for name, content in upload.files.items():
            (Path(folder) / name).write_bytes(content)
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), **upload.variables}
        environment = {"working_dir": folder, "env_vars": variables}
        last = time.monotonic() + START_SECONDS
        for seconds in _pauses():
            try:
                return client.submit_job(
                    entrypoint=shlex.join(upload.words),
                    runtime_env=environment,
                    metadata={"name": upload.name},
                )
            except RuntimeError as error:
                if _STARTING not in str(error) or time.monotonic() > last:
                    raise StorageError(f"the cluster took no job: {_first_line(error)}") from error
            time.sleep(seconds)
    raise AssertionError("unreachable")


def _pauses() -> Iterator[float]:
    """Yield the seconds between looks: a tenth, then twice as many each time, without end."""
    seconds = 0.1
    while True:
        yield min(seconds, POLL_SECONDS)
        seconds = min(2 * seconds, POLL_SECONDS)


def follow(
    client: JobClient, job: str, *, pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield the lines that a job prints, until it has ended; not that of its certificate."""
    shown = missed = 0
    pauses = _pauses()
    while True:
        try:
            ended = client.get_job_status(job).is_terminal()
            text = client.get_job_logs(job)
        except (OSError, RuntimeError) as error:
            missed += 1
            if missed > MOST_MISSED:
                raise StorageError(
                    f"no answer from the dashboard: {_first_line(error)}; job {job} goes on: follow"
                    f" it with --attach {job}"
                ) from error
            pause(next(pauses))
            continue
        missed = 0
        whole = len(text) if ended else text.rfind("\n") + 1
        for line in text[shown:whole].splitlines():
            if not line.startswith(CERTIFICATE_MARK):
                yield line
        if whole > shown:
            shown, pauses = whole, _pauses()
        if ended:
            return
        pause(next(pauses))


def exit_code_of(client: JobClient, job: str) -> int:
    """Return the exit code of a job that has ended; 1 where it had none."""
    code = client.get_job_info(job).driver_exit_code
    return 1 if code is None else int(code)


def certificate_of(client: JobClient, job: str) -> dict[str, Any] | None:
    """Return the certificate that a job told, or None."""
    lines = [line for line in client.get_job_logs(job).splitlines() if CERTIFICATE_MARK in line]
    if not lines:
        return None
    found: dict[str, Any] = json.loads(lines[-1].partition(CERTIFICATE_MARK)[2])
    return found


def stop(client: JobClient, job: str, *, pause: Callable[[float], None] = time.sleep) -> bool:
    """Ask a job to stop, and wait for it; say whether it has ended."""
    client.stop_job(job)
    for seconds in itertools.islice(_pauses(), 2 * STOP_SECONDS):
        if client.get_job_status(job).is_terminal():
            return True
        pause(seconds)
    return False


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason"])[0][:300]
