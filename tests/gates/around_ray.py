"""What lies around a run on Ray: files of its session, what its head keeps, and what it answers."""

import itertools
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed_privrl.core.executor import Executor
from distributed_privrl.core.progress import silent
from tests.gates.leak_secrets import Secrets
from tests.gates.leaks import scan_contents
from tests.gates.metadata import Case, Sought

PAGE = 4096
"""What memory is measured in."""
SPACES = (None, b"fun", b"job", b"session", b"cluster", b"dashboard", b"tracing")
"""Ray's namespaces of keys."""
SECONDS = 120.0
"""That an answer may take."""
LOOKS = 5
"""At the session's files, of which some are written by another name first."""
MOST_ROWS = 10_000
PLACE = re.compile(r"\{(\w+)\}")
ROUTE = re.compile(r"@routes\.get\(\s*\"([^\"]+)\"")
ASKED = (
    "/nodes?view=summary",
    "/nodes?view=hostNameList",
    "/nodes/{node_id}",
    "/logical/actors",
    "/logical/actors/{actor_id}",
    "/test/dump",
    "/events",
    "/events?job_id={job_id}",
    "/timezone",
    "/cluster_id",
    "/usage_stats_enabled",
    "/api/authentication_mode",
    "/api/version",
    "/api/ray/version",
    "/api/profiling_enabled",
    "/api/cluster_status",
    "/api/cluster_status?format=1",
    "/api/component_activities",
    "/api/gcs_healthz",
    "/api/grafana_health",
    "/api/prometheus_health",
    "/api/prometheus/sd",
    "/api/jobs/",
    "/api/jobs/{job_or_submission_id}",
    "/api/jobs/{job_or_submission_id}/logs",
    "/api/serve/applications/",
    "/api/data/datasets/{job_id}",
    "/api/train/v2/runs/v1",
    "/api/train/v2/runs",
    "/api/v0/cluster_metadata",
    "/api/v0/cluster_events?detail=1&limit=10000",
    "/api/v0/platform_events",
    "/api/v0/actors?detail=1&limit=10000",
    "/api/v0/actors/summarize",
    "/api/v0/jobs?detail=1&limit=10000",
    "/api/v0/nodes?detail=1&limit=10000",
    "/api/v0/placement_groups?detail=1&limit=10000",
    "/api/v0/workers?detail=1&limit=10000",
    "/api/v0/tasks?detail=1&limit=10000",
    "/api/v0/tasks/summarize",
    "/api/v0/tasks/timeline",
    "/api/v0/objects?detail=1&limit=10000",
    "/api/v0/objects/summarize",
    "/api/v0/runtime_envs?detail=1&limit=10000",
    "/api/v0/runtime_env_redaction",
    "/api/v0/logs?node_id={node_id}",
    "/api/v0/logs/file?{log}&lines=-1",
)
"""What the dashboard is asked; names in braces stand for all that there are."""
NOT_ASKED = {
    "/": "its page",
    "/favicon.ico": "its picture",
    "/api/packages/{protocol}/{package_name}": "whether a package is there, by its hash",
    "/api/jobs/{job_or_submission_id}/logs/tail": "the same logs, by a web socket",
    "/api/v0/delay/{delay_s}": "nothing, later",
    "/task/traceback": "starts a profiler in a worker",
    "/task/cpu_profile": "starts a profiler in a worker",
    "/worker/traceback": "starts a profiler in a worker",
    "/worker/cpu_profile": "starts a profiler in a worker",
    "/worker/gpu_profile": "starts a profiler in a worker",
    "/worker/jax_profile": "starts a profiler in a worker",
    "/memory_profile": "starts a profiler in a worker",
}
"""Routes that are left out, and what they would answer. Whoever has the token may start anything
in a cluster; the scan is of what lies ready.
"""


class Surroundings:
    """What has come into a Ray's session and head since this was made.

    The session's folder holds logs, and, where Ray spills, what it spilled. The head's keys hold
    what processes are made from; its tables and events are what a dashboard answers from.

    Args:
        dashboard: of the head, which is asked, too; None: there is none.
    """

    def __init__(self, dashboard: "Dashboard | None" = None) -> None:
        self._dashboard = dashboard
        self._answered: dict[tuple[str, bytes], None] = {}
        self._sizes = {path: len(content) for path, content in self._files({}).items()}
        self._keys = set(_keys())

    @property
    def session(self) -> Path:
        """The folder of this process's Ray."""
        import ray

        return Path(ray._private.worker._global_node.get_session_dir_path())

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Yield what each file, key, table and event holds now, of files what was added."""
        for path, content in self._files(self._sizes).items():
            yield f"session/{path.relative_to(self.session)}", content
        for key, value in _values(set(_keys()) - self._keys):
            yield f"key {key!r}", key + b" " + value
        yield from _answers()
        yield from self._answered
        if self._dashboard is not None:
            yield from self._dashboard.answers()

    @contextmanager
    def asked_again_and_again(self) -> Iterator[None]:
        """Ask the dashboard meanwhile; each of its answers is among the contents.

        Raises:
            AssertionError: it was not asked once.
        """
        over = threading.Event()

        def ask() -> None:
            while self._dashboard is not None and not over.is_set():
                self._answered |= dict.fromkeys(self._dashboard.answers())

        with ThreadPoolExecutor(1) as thread:
            asking = thread.submit(ask)
            try:
                yield
            finally:
                over.set()
            asking.result()
        assert self._answered or self._dashboard is None, "the dashboard was not asked"

    def scan(self, secrets: Secrets) -> None:
        """Fail if anything holds a secret, as text or in bytes.

        Half units are multiples of `PAGE`, and so are the sizes of memory that a dashboard tells
        of each process.
        """
        secrets = replace(secrets, unit=PAGE)
        contents = list(self.contents())
        assert len(contents) > 10, "a session has logs, and a head keeps something"
        for is_text in (True, False):
            scan_contents(((name, is_text, content) for name, content in contents), secrets)

    def _files(self, sizes: Mapping[Path, int]) -> dict[Path, bytes]:
        """Return what files hold beyond some sizes; anew if Ray has renamed one meanwhile."""
        for _ in range(LOOKS):
            try:
                return {
                    path: _content(path, sizes.get(path, 0))
                    for path in sorted(self.session.rglob("*"))
                    if path.is_file()
                }
            except FileNotFoundError as error:
                gone = error
        raise gone


def gate_around_ray(case: Case, executor: Executor, dashboard: "Dashboard | None" = None) -> None:
    """Nothing that a sensitive dataset is, or says of itself, lies around a run of it on Ray.

    Args:
        case: the run.
        executor: of workers on this process's Ray, which no run has to itself.
        dashboard: of this Ray, asked while the run goes on and after it; None: there is none.
    """
    sought, around = Sought.planted_in(case), Surroundings(dashboard)
    with around.asked_again_and_again():
        case.start(silent, executor)
    contents = list(around.contents())
    assert any(b"Worker" in content for _, content in contents), "nothing ran on Ray"
    told = {name: sorted(sought.found_in(name.encode() + content)) for name, content in contents}
    leaks = {name: found for name, found in told.items() if found}
    assert not leaks, f"what lies around Ray holds the sensitive dataset's: {leaks}"


def _content(path: Path, beyond: int) -> bytes:
    with path.open("rb") as file:
        file.seek(beyond)
        return file.read()


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


class Dashboard:
    """The dashboard of this process's Ray, asked as whoever has its token could.

    Args:
        address: ``http://HOST:PORT``.
    """

    def __init__(self, address: str) -> None:
        import ray

        self.address = address
        tokens: Any = ray._raylet.AuthenticationTokenLoader.instance()  # type: ignore[attr-defined]
        self._headers: dict[str, str] = tokens.get_token_for_http_header()
        assert self._headers, "there is no token"

    def wait(self, seconds: float) -> None:
        """Wait until it answers of files of logs, which its agents have to be there for."""
        end = time.monotonic() + seconds
        while True:
            try:
                if self._known()["log"]:
                    return
            except (AssertionError, OSError, KeyError, ValueError):
                if time.monotonic() > end:
                    raise
            assert time.monotonic() < end, "the dashboard knows no logs"
            time.sleep(0.5)

    def answers(self) -> Iterator[tuple[str, bytes]]:
        """Yield what each of `ASKED` answers, for each node, actor, task, job and file of logs."""
        known = self._known()
        for route in ASKED:
            wanted = PLACE.findall(route)
            for values in itertools.product(*(known[name] for name in wanted)):
                path = route
                for name, value in zip(wanted, values, strict=True):
                    path = path.replace(f"{{{name}}}", urllib.parse.quote(value, safe="=&%"))
                yield f"the dashboard's {path}", self._get(path)

    def _known(self) -> dict[str, list[str]]:
        """Return what routes are asked for."""
        rows = {what: self._rows(what) for what in ("nodes", "actors", "jobs", "tasks")}
        nodes = [row["node_id"] for row in rows["nodes"]]
        logs = [
            f"node_id={node}&filename={urllib.parse.quote(name)}"
            for node in nodes
            for names in self._result(f"/api/v0/logs?node_id={node}").values()
            for name in names
        ]
        return {
            "node_id": nodes,
            "actor_id": [row["actor_id"] for row in rows["actors"]],
            "task_id": [row["task_id"] for row in rows["tasks"]],
            "job_or_submission_id": [row["job_id"] for row in rows["jobs"]],
            "job_id": [row["job_id"] for row in rows["jobs"]],
            "log": logs,
        }

    def _rows(self, what: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self._result(f"/api/v0/{what}?limit={MOST_ROWS}")["result"]
        return found

    def _result(self, path: str) -> dict[str, Any]:
        content = self._get(path)
        assert content.startswith(b"{"), f"the dashboard says to {path}: {content.decode()}"
        answer = json.loads(content)
        assert answer["result"], f"the dashboard says to {path}: {answer['msg']}"
        found: dict[str, Any] = answer["data"]["result"]
        return found

    def _get(self, path: str) -> bytes:
        """Return an answer; one that refuses is an answer, too."""
        asked = urllib.request.Request(self.address + path, headers=self._headers)
        try:
            with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
                content: bytes = answer.read()
        except urllib.error.HTTPError as refused:
            if refused.code in (401, 403):  # it does not take the token: nothing was asked
                raise
            content = refused.read()
        return content


def routes_of_ray() -> set[str]:
    """Return what the dashboard of the installed Ray can be asked by GET, as its code has it."""
    import ray.dashboard

    folder = Path(ray.dashboard.__file__).parent
    sources = [folder / "http_server_head.py", *sorted(folder.glob("modules/**/*_head.py"))]
    return {route for path in sources for route in ROUTE.findall(path.read_text())}
