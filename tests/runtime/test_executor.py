"""Ray changes where workers run, and nothing else; a killed worker changes nothing."""

import itertools
import os
import pickle
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import BudgetError, ConfigError, WorkerLostError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.runtime import executor as module
from distributed_privrl.runtime.executor import RayExecutor
from distributed_privrl.stages.training import run_rounds
from tests.runtime.probe import Probe
from tests.worlds.toy_run import RUN_ID, ToyRun


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
    small, large = (actor.zeros.remote(count=megabytes * 2**17) for megabytes in (8, 80))
    assert [len(values) for values in ray.get([small, large])] == [8 * 2**17, 80 * 2**17]
    for _ in range(300):  # the owner hears of an object's place a moment after its value
        places = ray.experimental.get_object_locations([small, large])
        if places[large]["node_ids"]:
            break
        time.sleep(0.1)
    assert places[large]["node_ids"]
    assert not places[small]["node_ids"]
    group.close()


def test_a_lost_call_is_repeated_only_where_that_is_safe(
    ray_executor: Executor, tmp_path: Path
) -> None:
    safe = ray_executor.start(Probe, [0, 1], repeat_lost_calls=True, service=True)
    assert safe.call("die_once", {"marker": str(tmp_path / "safe")}) == ["alive", "alive"]
    unsafe = ray_executor.start(Probe, [0], service=True)
    with pytest.raises(WorkerLostError, match="died during die_once") as lost:
        unsafe.call("die_once", {"marker": str(tmp_path / "unsafe")})
    assert lost.value.may_return
    unsafe.wait_for_lost()
    assert unsafe.call("die_once", {"marker": str(tmp_path / "unsafe")}) == ["alive"]
    safe.close()
    unsafe.close()


def test_a_call_that_dies_late_is_repeated(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the call took before its worker died is no part of the time to come back."""
    import ray

    group = ray_executor.start(Probe, [0], repeat_lost_calls=True, service=True)
    patience, late, get = group._recovery_seconds, [0.0], ray.get  # type: ignore[attr-defined]

    def slow_get(reference: Any, *, timeout: float | None = None) -> Any:
        if timeout is None:  # the call itself, not the question whether the worker is back
            late[0] += 1.1 * patience
        return get(reference, timeout=timeout)

    monkeypatch.setattr(module, "monotonic", lambda: time.monotonic() + late[0])
    monkeypatch.setattr(ray, "get", slow_get)
    assert group.call("die_once", {"marker": str(tmp_path / "late")}) == ["alive"]
    group.close()


def test_a_worker_that_does_not_come_back_in_time_is_given_up(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "_recovery_seconds", 7.0)
    group = ray_executor.start(Probe, [0], repeat_lost_calls=True, service=True)
    ticks = itertools.count(0, 8)  # of a clock that is past the end when it is read again
    monkeypatch.setattr(module, "monotonic", lambda: float(next(ticks)))
    said = r"worker 0 of 1 died and did not come back within runtime\.recovery_seconds=7:"
    with pytest.raises(WorkerLostError, match=said) as lost:
        group.call("die_once", {"marker": str(tmp_path / "slow")})
    assert not lost.value.may_return
    group.close()


def test_a_worker_that_always_dies_is_given_up(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOSSES_A_CALL", 1)
    group = ray_executor.start(Probe, [0], repeat_lost_calls=True, service=True)
    with pytest.raises(WorkerLostError, match="worker 0 of 1 died 2 times during die") as lost:
        group.call("die")
    assert not lost.value.may_return
    group.close()


def test_a_group_takes_its_patience_along(ray_executor: Executor) -> None:
    group = ray_executor.start(Probe, [0], repeat_lost_calls=True, service=True)
    group._recovery_seconds = 7.0  # type: ignore[attr-defined]
    found = pickle.loads(pickle.dumps(group))
    assert (found._recovery_seconds, found._repeat, found.call("threads")) == (7.0, True, ["1"])
    group.close()


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
    seen: list[int] = []

    def kill(stage: str, done: int, *_: Any) -> None:
        if not seen:
            os.kill(server.call("pid")[0], signal.SIGKILL)
        seen.append(done)

    plan: Any = SimpleNamespace(block_rounds=20, budget=None)
    assert run_rounds(server, plan, progress=kill).reserved == 25
    assert seen == [8, 5, 10, 15, 20]
    entry = toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.committed_rounds == 20
    assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds == 25
    server.close()
    workers.close()
