"""Ray changes where workers run, and nothing else; a killed worker changes nothing."""

import itertools
import os
import pickle
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import BudgetError, ConfigError, WorkerLostError
from distributed_privrl.core.executor import Executor, LocalExecutor, WorkerGroup
from distributed_privrl.runtime import executor as module
from distributed_privrl.runtime.executor import RayExecutor
from distributed_privrl.stages.training import run_rounds
from tests.runtime.killing import pids_of
from tests.runtime.probe import Broken, Probe, Unbuildable
from tests.worlds.toy_run import RUN_ID, ToyRun

SHARDS = [10, 20, 30]


@pytest.fixture(scope="module")
def probes(ray_executor: Executor) -> Iterator[WorkerGroup]:
    """Three processes, for the tests that kill none and change nothing in them but how often
    they were asked to add."""
    group = ray_executor.start(Probe, SHARDS, repeat_lost_calls=True, service=True)
    yield group
    group.close()


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_results_come_in_shard_order(kind: str, probes: WorkerGroup) -> None:
    group = probes if kind == "ray" else LocalExecutor().start(Probe, SHARDS, service=True)
    values = np.ones(100_000)
    results = group.call("add", {"values": values}, [{"offset": i} for i in range(3)])
    assert results == [(1, 100_010.0), (1, 100_021.0), (1, 100_032.0)]
    assert group.size == 3


def test_workers_are_processes_of_one_thread(probes: WorkerGroup) -> None:
    assert len({os.getpid(), *probes.call("pid")}) == 4
    assert probes.call("threads") == ["1", "1", "1"]


def test_ray_keeps_no_events_of_calls(probes: WorkerGroup) -> None:
    """Its dashboard, state API and timeline would count and time private rounds.

    Without the setting the timeline has an event `submit_task` for each call of ours, with those
    that tell of the plain actor's.
    """
    import ray
    from ray._private.state import state

    plain = ray.remote(num_cpus=0)(Probe).remote(0)
    deadline = time.monotonic() + 30
    while "Probe.fail" not in (
        names := {one.task_info.name for one in state._get_all_task_events()}
    ):
        assert time.monotonic() < deadline, names  # events of others are kept
        assert probes.call("threads")
        with pytest.raises(BudgetError):
            ray.get(plain.fail.remote())
        time.sleep(0.5)
    assert "Probe.threads" not in names
    assert "submit_task" not in {one["name"] for one in ray.timeline()}
    assert probes.call("timeline") == ["0"] * len(SHARDS)  # a server calls workers, too
    ray.kill(plain)


def test_our_errors_arrive_as_they_are(probes: WorkerGroup) -> None:
    with pytest.raises(BudgetError, match="no budget: set one"):
        probes.call("fail")


@pytest.mark.parametrize("repeat", [True, False])
def test_a_worker_that_our_checks_refuse_to_build_ends_the_call_with_that_error(
    ray_executor: Executor, repeat: bool
) -> None:
    group = ray_executor.start(Unbuildable, [4], repeat_lost_calls=repeat, service=True)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"^heads=4 must divide width=30$"):
            group.call("work")
    group.close()


def test_shared_arrays_are_read_only(probes: WorkerGroup) -> None:
    with pytest.raises(ValueError, match="read-only"):
        probes.call("write", {"values": np.zeros(100_000)})


def test_answers_do_not_lie_in_the_object_store(probes: WorkerGroup) -> None:
    """Workers answer with sums before noise."""
    import ray

    actor = probes._actors[0]  # type: ignore[attr-defined]
    small, large = (actor.zeros.remote(count=megabytes * 2**17) for megabytes in (8, 80))
    assert [len(values) for values in ray.get([small, large])] == [8 * 2**17, 80 * 2**17]
    for _ in range(300):  # the owner hears of an object's place a moment after its value
        places = ray.experimental.get_object_locations([small, large])
        if places[large]["node_ids"]:
            break
        time.sleep(0.1)
    assert places[large]["node_ids"]
    assert not places[small]["node_ids"]


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
    import ray

    monkeypatch.setattr(ray_executor, "_recovery_seconds", 7.0)
    group = ray_executor.start(Probe, [0], repeat_lost_calls=True, service=True)
    ticks = itertools.count(0, 8)  # of a clock that is past the end when it is read again
    monkeypatch.setattr(module, "monotonic", lambda: float(next(ticks)))
    get = ray.get

    def not_back(reference: Any, *, timeout: float | None = None) -> Any:
        if timeout is None:  # the call itself, not the question whether the worker is back
            return get(reference)
        raise ray.exceptions.GetTimeoutError("it is not back yet")

    monkeypatch.setattr(ray, "get", not_back)
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


def test_a_group_takes_its_patience_along(
    probes: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_recovery_seconds", 7.0)
    found = pickle.loads(pickle.dumps(probes))
    assert (found._recovery_seconds, found._repeat) == (7.0, True)
    assert found.call("pid") == probes.call("pid")


def test_too_many_cpus_are_refused_instead_of_waiting_for_ever(ray_executor: Executor) -> None:
    with pytest.raises(ConfigError, match=r"need 1e\+06 CPUs"):
        RayExecutor(workers=1000, cpus_per_worker=1000)


@pytest.mark.slow
def test_ray_gives_the_parameters_of_the_local_executor(
    ray_executor: Executor, tmp_path: Path
) -> None:
    """With nobody killed: that some are changes nothing either, which the rest of a storm shows."""
    toy = replace(ToyRun(folder=tmp_path), workers=2)
    local = toy.with_folder("local").train(LocalExecutor())
    remote = toy.with_folder("ray").train(ray_executor)
    assert np.abs(local - remote).max() <= 1e-6


def test_a_worker_that_cannot_be_built_ends_the_call_with_its_reason(
    ray_executor: Executor,
) -> None:
    group = ray_executor.start(Broken, [0], service=True)
    with pytest.raises(WorkerLostError, match=r"could not be built: .*division by zero"):
        group.call("__ray_ready__")
    group.close()


KILLED = ("LocalUpdateWorker", "PartialSums")
"""After four rounds, and after seven."""


@dataclass(frozen=True)
class Storm:
    """A run under Ray in which a worker, an actor that adds up, and the server were killed.

    Args:
        toy: the run, as it ended.
        pids: of the processes of each kind, before the first of them was killed and after.
        parameters: and the ledger's entry, after ten rounds: the server had not been killed.
        seen: at which round it stood, whenever `run_rounds` told it.
        end: what `run_rounds` returned.
    """

    toy: ToyRun
    pids: dict[str, tuple[set[int], set[int]]]
    parameters: NDArray[Any]
    entry: Any
    seen: list[int]
    end: Any


@pytest.fixture(scope="module")
def storm(ray_executor: Executor, tmp_path_factory: pytest.TempPathFactory) -> Storm:
    """Kill one of each kind, and the server in the middle of the third block."""
    toy = ToyRun(folder=tmp_path_factory.mktemp("storm"), workers=3, fan_in=2)
    pids = {}
    with toy.server(ray_executor) as server:
        for rounds, kind in zip((4, 3), KILLED, strict=True):
            server.call("advance", {"rounds": rounds})
            before = set(pids_of(kind))
            os.kill(min(before), signal.SIGKILL)
            pids[kind] = before, set[int]()
        server.call("advance", {"rounds": 3})
        pids = {kind: (before, set(pids_of(kind))) for kind, (before, _) in pids.items()}
        parameters, entry = toy.parameters(), toy.ledger.reserved(RUN_ID)
        server.call("advance", {"rounds": 3})
        seen: list[int] = []

        def kill(stage: str, done: int, *_: Any) -> None:
            if not seen:
                os.kill(*pids_of("ParameterServer"), signal.SIGKILL)
            seen.append(done)

        plan: Any = SimpleNamespace(block_rounds=20, budget=None)
        end = run_rounds(server, plan, progress=kill)
    return Storm(toy, pids, parameters, entry, seen, end)


def test_a_process_killed_between_rounds_changes_nothing(storm: Storm, tmp_path: Path) -> None:
    calm = replace(storm.toy, folder=tmp_path, workers=1)
    with calm.server() as server:
        server.call("advance", {"rounds": 10})
        assert np.array_equal(storm.parameters, calm.parameters())
    for kind, (before, after) in storm.pids.items():
        assert len(after) == len(before) == (3 if kind == "LocalUpdateWorker" else 2)
        assert len(before - after) == 1, kind
    assert storm.entry is not None
    counts = storm.entry.committed_rounds, storm.entry.drawn_rounds, storm.entry.reserved_rounds
    assert counts == (10, 10, 10)


def test_a_killed_server_comes_back_from_its_checkpoint(storm: Storm) -> None:
    assert storm.end.reserved == 25
    assert storm.seen == [13, 10, 15, 20]
    entry = storm.toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.committed_rounds == 20
    assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds == 25
