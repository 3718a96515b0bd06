"""Ray is started and joined with a token, or not at all."""

import os
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.executor import Executor
from distributed_privrl.runtime import session
from distributed_privrl.runtime.executor import RayExecutor
from tests.runtime.heads import free_port, head, whole_ray
from tests.runtime.probe import TIMELINE


def test_the_token_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "auth_token"
    token.write_text("secret")
    token.chmod(0o644)
    monkeypatch.setattr(session, "TOKEN_FILE", token)
    session.prepare_environment()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    token.unlink()
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    session.prepare_environment()
    assert not token.exists()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_a_cluster_without_a_token_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UnsafeError, match="RAY_AUTH_MODE is not token"):
        session.connect(address=address)


@pytest.mark.parametrize("given", [None, "", "  ", "local", " LOCAL "])
@pytest.mark.parametrize("through", ["argument", "environment"])
def test_only_an_empty_address_starts_a_local_ray(
    monkeypatch: pytest.MonkeyPatch, given: str | None, through: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if through == "environment" and given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    assert session.cluster_address(given if through == "argument" else None) is None


@pytest.mark.parametrize(
    "given", ["10.0.0.1:6379", " Head.Internal:6379\n", "[::1]:6379", "ray-head.ns.svc:6380"]
)
def test_host_and_port_are_what_is_joined(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://elsewhere:10001")
    assert session.cluster_address(given) == given.strip()
    monkeypatch.setenv("RAY_ADDRESS", given)
    assert session.cluster_address() == given.strip()


UNKNOWN = [
    "ray://10.0.0.1:10001",
    " RAY://10.0.0.1:10001 ",
    "ray:10.0.0.1:10001",
    "auto",
    "Auto",
    "head.internal",
    "10.0.0.1",
    ":6379",
    "10.0.0.1:",
    "10.0.0.1:6379,10.0.0.2:6379",
    "10.0.0.1:6379/path",
    "user@10.0.0.1:6379",
    "::1:6379",
    "anyscale://cluster",
    "redis://10.0.0.1:6379",
]


@pytest.mark.parametrize("given", UNKNOWN)
@pytest.mark.parametrize("through", ["argument", "environment"])
def test_an_address_that_cannot_be_probed_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: str, through: str
) -> None:
    if through == "environment":
        monkeypatch.setenv("RAY_ADDRESS", given)
    with pytest.raises(UnsafeError, match=r"cannot be probed .*: give host:port of its head"):
        session.connect(address=given if through == "argument" else None)


@pytest.mark.parametrize("given", ["http://10.0.0.1:8265", "HTTPS://ray.internal", "http://"])
def test_a_dashboard_is_no_cluster(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", given)
    with pytest.raises(ConfigError, match="is a dashboard's: give host:port of its head, such as"):
        session.connect()


def test_a_real_cluster_without_a_token_is_not_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with head(tmp_path, RAY_AUTH_MODE="disabled") as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UnsafeError, match=f"{address} lets in anybody"):
            session.connect()


def test_a_real_cluster_with_a_token_passes(tmp_path: Path) -> None:
    with head(tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="5" * 64) as address:
        session.check_token_needed(address)


def test_a_probe_that_cannot_tell_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PROBE_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silence:  # accepts, and never answers
        address = f"127.0.0.1:{silence.getsockname()[1]}"
        with pytest.raises(UnsafeError, match=r"cannot be told \(it answered: nothing\)"):
            session.check_token_needed(address)


@pytest.mark.parametrize("code", ["raise RuntimeError('a strange port')", "print('hello')"])
def test_another_answer_than_a_refusal_is_no_pass(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(session, "_PROBE", code)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UnsafeError, match=r"cannot be told .*(a strange port|hello)"):
            session.check_token_needed(address)


def test_an_address_where_nothing_listens_is_said() -> None:
    with pytest.raises(ConfigError, match="no Ray cluster answers at 127"):
        session.connect(address=f"127.0.0.1:{free_port()}")


def test_another_cluster_s_token_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**_: Any) -> None:
        raise ray.exceptions.AuthenticationError("InvalidAuthToken")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session, "check_token_needed", lambda _: None)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:6379 does not know this token"):
        session.connect(address="10.0.0.1:6379")


def test_processes_on_a_cluster_keep_no_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes do not have our environment."""
    import ray

    asked: dict[str, Any] = {}
    monkeypatch.setattr(ray, "init", lambda **options: asked.update(options))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session, "check_token_needed", lambda _: None)
    monkeypatch.setattr(session, "_STARTED", [])
    session.connect(address="10.0.0.1:6379")
    for environment in (asked["runtime_env"]["env_vars"], os.environ):  # theirs, and the driver's
        assert environment[TIMELINE] == "0"


@pytest.mark.slow
def test_a_whole_ray_without_a_token_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    with whole_ray(patient=False, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0") as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UnsafeError, match=f"{address} lets in anybody"):
            RayExecutor(workers=1)


def test_a_ray_that_somebody_else_started_is_refused(
    ray_executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_STARTED", [])
    with pytest.raises(UnsafeError, match=r"ray\.shutdown"):
        session.connect()


def test_ray_leaves_the_handler_of_a_termination(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as ray.init does, with one of its own

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session, "_STARTED", [])
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        session.connect()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_termination_while_ray_starts_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as ray.init does
        signal.raise_signal(signal.SIGTERM)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.connect()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_too_little_shared_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SHARED_MEMORY_BYTES", 2**60)
    with pytest.raises(UnsafeError, match="shm-size"):
        session._check_shared_memory()


def test_nothing_is_spilled_to_disk(ray_executor: Executor) -> None:
    import ray

    node = ray._private.worker.global_worker.node
    assert node._config["automatic_object_spilling_enabled"] is False


def test_our_own_ray_does_not_answer_without_its_token(ray_executor: Executor) -> None:
    import ray

    session.check_token_needed(ray.get_runtime_context().gcs_address)


def test_our_own_ray_counts_no_private_rounds_for_whoever_asks(ray_executor: Executor) -> None:
    import ray

    (node,) = ray.nodes()
    assert node["MetricsExportPort"] <= 0  # else it answers everybody, without a token
