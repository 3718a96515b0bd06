"""Ray changes where workers run, and nothing else; a killed worker changes nothing."""

import os
import signal
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError, WorkerLostError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.runtime import session
from distributed_privrl.runtime.executor import RayExecutor
from tests.rounds.harness import RUN_ID, ToyRun
from tests.runtime.probe import Probe


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_results_come_in_shard_order(kind: str, ray_executor: Executor) -> None:
    executor = LocalExecutor() if kind == "local" else ray_executor
    group = executor.start(Probe, [10, 20, 30], service=True)
    values = np.ones(100_000)
    results = group.call("add", {"values": values}, [{"offset": i} for i in range(3)])
    assert results == [(1, 100_010.0), (1, 100_021.0), (1, 100_032.0)]
    assert group.size == 3
    group.close()


def test_workers_are_processes_of_one_thread(ray_executor: Executor) -> None:
    group = ray_executor.start(Probe, [0, 1], service=True)
    assert len({os.getpid(), *group.call("pid")}) == 3
    assert group.call("threads") == ["1", "1"]
    group.close()


def test_our_errors_arrive_as_they_are(ray_executor: Executor) -> None:
    group = ray_executor.start(Probe, [0], service=True)
    with pytest.raises(BudgetError, match="no budget: set one"):
        group.call("fail")
    group.close()


class Unbuildable:
    """A worker whose constructor refuses its shard."""

    def __init__(self, shard: object) -> None:
        raise ConfigError(f"heads={shard} must divide width=30")

    def work(self) -> None:
        """Never reached."""


@pytest.mark.parametrize("repeat", [True, False])
def test_a_worker_that_cannot_be_built_ends_the_call_with_its_reason(
    ray_executor: Executor, repeat: bool
) -> None:
    group = ray_executor.start(Unbuildable, [4], repeat_lost_calls=repeat, service=True)
    for _ in range(2):
        with pytest.raises(WorkerLostError, match=r"not be built: .*heads=4 must divide width=30"):
            group.call("work")
    group.close()


def test_shared_arrays_are_read_only(ray_executor: Executor) -> None:
    group = ray_executor.start(Probe, [0], service=True)
    with pytest.raises(ValueError, match="read-only"):
        group.call("write", {"values": np.zeros(100_000)})
    group.close()


def test_answers_do_not_lie_in_the_object_store(ray_executor: Executor) -> None:
    """Workers answer with sums before noise."""
    import ray

    group = ray_executor.start(Probe, [0], service=True)
    (actor,) = group._actors  # type: ignore[attr-defined]
    for megabytes, stored in ((8, False), (80, True)):
        answer = actor.zeros.remote(count=megabytes * 2**17)
        assert len(ray.get(answer)) == megabytes * 2**17
        places = ray.experimental.get_object_locations([answer])[answer]
        assert bool(places["node_ids"]) is stored
    group.close()


def test_a_lost_call_is_repeated_only_where_that_is_safe(
    ray_executor: Executor, tmp_path: Path
) -> None:
    safe = ray_executor.start(Probe, [0, 1], repeat_lost_calls=True, service=True)
    assert safe.call("die_once", {"marker": str(tmp_path / "safe")}) == ["alive", "alive"]
    unsafe = ray_executor.start(Probe, [0], service=True)
    with pytest.raises(WorkerLostError, match="died during die_once"):
        unsafe.call("die_once", {"marker": str(tmp_path / "unsafe")})
    safe.close()
    unsafe.close()


def test_too_many_cpus_are_refused_instead_of_waiting_for_ever(ray_executor: Executor) -> None:
    with pytest.raises(ConfigError, match=r"need 1e\+06 CPUs"):
        RayExecutor(workers=1000, cpus_per_worker=1000)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_ray_gives_the_parameters_of_the_local_executor(
    ray_executor: Executor, tmp_path: Path, workers: int
) -> None:
    toy = replace(ToyRun(folder=tmp_path), workers=workers)
    local = toy.with_folder("local").train(LocalExecutor())
    remote = toy.with_folder("ray").train(ray_executor)
    assert np.abs(local - remote).max() <= 1e-6


def test_a_worker_killed_in_mid_round_changes_nothing(
    ray_executor: Executor, tmp_path: Path
) -> None:
    toy = replace(ToyRun(folder=tmp_path), workers=2)
    expected = toy.with_folder("calm").train()
    chaos = toy.with_folder("chaos")
    chaos.open()
    workers = ray_executor.start(KillableWorker, chaos.worker_specs(), repeat_lost_calls=True)
    server = ray_executor.start(ParameterServer, [chaos.server_spec(workers)], service=True)
    first_pids = workers.call("pid")
    server.call("advance", {"rounds": 4})
    os.kill(first_pids[0], signal.SIGKILL)
    while not server.call("advance", {"rounds": 7})[0].finished:
        pass
    assert workers.call("pid")[0] != first_pids[0]
    assert np.abs(chaos.parameters() - expected).max() <= 1e-6
    entry = chaos.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.committed_rounds == entry.drawn_rounds == entry.reserved_rounds == 20
    server.close()
    workers.close()


class KillableWorker(LocalUpdateWorker):
    """A worker that tells its process id."""

    def pid(self) -> int:
        return os.getpid()


class KillableServer(ParameterServer):
    """A server that tells its process id."""

    def pid(self) -> int:
        return os.getpid()


def test_a_killed_server_comes_back_from_its_checkpoint(
    ray_executor: Executor, tmp_path: Path
) -> None:
    toy = replace(ToyRun(folder=tmp_path), workers=2)
    toy.open()
    workers = ray_executor.start(LocalUpdateWorker, toy.worker_specs(), repeat_lost_calls=True)
    server = ray_executor.start(KillableServer, [toy.server_spec(workers)], service=True)
    server.call("advance", {"rounds": 8})
    os.kill(server.call("pid")[0], signal.SIGKILL)
    status = _patiently(server, "progress")
    assert (status.round_index, status.reserved) == (5, 10)
    while not server.call("advance", {"rounds": 50})[0].finished:
        pass
    entry = toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.committed_rounds == 20
    assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds == 25
    server.close()
    workers.close()


def _patiently(group: Any, method: str) -> Any:
    for _ in range(100):
        try:
            return group.call(method)[0]
        except WorkerLostError:
            time.sleep(0.2)
    raise AssertionError("the server did not come back")


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


def test_an_address_that_cannot_be_checked_is_refused() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        session.connect(address="auto")


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


def test_too_little_shared_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SHARED_MEMORY_BYTES", 2**60)
    with pytest.raises(UnsafeError, match="shm-size"):
        session._check_shared_memory()


def test_nothing_is_spilled_to_disk(ray_executor: Executor) -> None:
    import ray

    node = ray._private.worker.global_worker.node
    assert node._config["automatic_object_spilling_enabled"] is False


def test_a_cluster_that_answers_without_a_token_is_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "answers_without_token", lambda address: True)
    with pytest.raises(UnsafeError, match="lets in anybody"):
        session.connect(address="10.0.0.1:6379")


def test_our_own_ray_does_not_answer_without_its_token(ray_executor: Executor) -> None:
    import ray

    assert not session.answers_without_token(ray.get_runtime_context().gcs_address)
