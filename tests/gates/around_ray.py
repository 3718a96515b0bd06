"""What lies around a run on Ray: files of its session, and what its head keeps and answers from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gates.leaks import Secrets, scan_contents

SPACES = (None, b"fun", b"job", b"session", b"cluster", b"dashboard", b"tracing")
"""Ray's namespaces of keys."""


class Surroundings:
    """What has come into a Ray's session and head since this was made.

    The session's folder holds logs, and, where Ray spills, what it spilled. The head's keys hold
    what processes are made from; its tables and events are what a dashboard answers from.
    """

    def __init__(self) -> None:
        self._sizes = {path: path.stat().st_size for path in self._files()}
        self._keys = set(_keys())

    @property
    def session(self) -> Path:
        """The folder of this process's Ray."""
        import ray

        return Path(ray._private.worker._global_node.get_session_dir_path())

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Yield what each file, key, table and event holds now, of files what was added."""
        for path in self._files():
            with path.open("rb") as file:
                file.seek(self._sizes.get(path, 0))
                yield f"session/{path.relative_to(self.session)}", file.read()
        for key, value in _values(set(_keys()) - self._keys):
            yield f"key {key!r}", key + b" " + value
        yield from _answers()

    def scan(self, secrets: Secrets) -> None:
        """Fail if anything holds a secret, as text or in bytes."""
        contents = list(self.contents())
        assert len(contents) > 10, "a session has logs, and a head keeps something"
        for is_text in (True, False):
            scan_contents(((name, is_text, content) for name, content in contents), secrets)

    def _files(self) -> list[Path]:
        return [path for path in sorted(self.session.rglob("*")) if path.is_file()]


def _keys() -> Iterator[tuple[bytes | None, bytes]]:
    """Yield the head's keys with their namespaces."""
    client = _client()
    for space in SPACES:
        for key in client.internal_kv_keys(b"", space):
            yield space, key


def _values(keys: set[tuple[bytes | None, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for space, key in sorted(keys, key=repr):
        yield key, _client().internal_kv_get(key, space) or b""


def _client() -> Any:
    import ray

    return ray._private.worker.global_worker.gcs_client


def _answers() -> Iterator[tuple[str, bytes]]:
    """Yield the rows of the head's tables, and its events of calls."""
    import ray

    head = ray._private.state.state._connect_and_get_accessor()
    tables = {
        "actors": head.get_actor_table(None, None),
        "jobs": head.get_job_table(skip_submission_job_info_field=False),
        "placement groups": head.get_placement_group_table(),
        "workers": head.get_worker_table(),
        "calls": head.get_task_events(),
    }
    for name, rows in tables.items():
        yield from ((f"the table of {name}", row) for row in rows)
