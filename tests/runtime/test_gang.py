"""Workers of a run get their CPUs all at once, or wait for them and say so."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from distributed_privrl.core.errors import ConfigError, WorkerLostError
from distributed_privrl.core.executor import Executor
from distributed_privrl.runtime import gang
from distributed_privrl.runtime.executor import RayExecutor
from distributed_privrl.runtime.gang import Gang
from tests.runtime.probe import Probe

ONE = {"CPU": 0.5, "GPU": 0.0}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(gang, "LOOK_SECONDS", 0.2)


@pytest.fixture
def others(ray_executor: Executor) -> Iterator[Gang]:
    """Somebody else who holds three quarters of the machine."""
    import ray

    found = Gang(workers=3, each={"CPU": ray.cluster_resources()["CPU"] / 4}, wait_seconds=30)
    found.enter("others")
    yield found
    found.close()


def _states() -> list[str]:
    import ray

    return [one["state"] for one in ray.util.placement_group_table().values()]


def _whole() -> dict[str, float]:
    import ray

    return {"CPU": ray.cluster_resources()["CPU"] / 2}


def test_a_run_waits_for_all_its_workers_and_takes_none_before(
    others: Gang, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    caplog.set_level(logging.WARNING, logger="distributed_privrl")
    before = ray.available_resources().get("CPU", 0.0)
    executor = RayExecutor(workers=2, cpus_per_worker=_whole()["CPU"], wait_seconds=60)
    timer = threading.Timer(1.0, others.leave, ["others"])
    waiting: list[float] = []
    look = threading.Timer(0.7, lambda: waiting.append(ray.available_resources().get("CPU", 0.0)))
    timer.start()
    look.start()
    group = executor.start(Probe, [0, 1], repeat_lost_calls=True)
    assert len(set(group.call("pid"))) == 2
    assert waiting == [before]  # a place for one was free, and stayed so
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == 2
    assert "2 workers of" in said[0]
    assert said[0].endswith("or nodes have joined, 60 seconds at most")
    assert said[1].endswith("have their places")
    executor.close()
    assert set(_states()) == {"REMOVED"}


def test_others_may_hold_cpus_for_so_long(others: Gang) -> None:
    executor = RayExecutor(workers=2, cpus_per_worker=_whole()["CPU"], wait_seconds=0.3)
    with pytest.raises(ConfigError, match=r"no room within runtime\.wait_seconds=0\.3: others"):
        executor.start(Probe, [0, 1])
    assert _states().count("CREATED") == 1  # that of others; nobody is queued any more
    assert "PENDING" not in _states()


def test_who_waits_or_comes_later_is_told_that_the_executor_was_closed(others: Gang) -> None:
    executor = RayExecutor(workers=2, cpus_per_worker=_whole()["CPU"], wait_seconds=60)
    threading.Timer(0.3, executor.close).start()
    for _ in ("waits", "comes later"):
        with pytest.raises(WorkerLostError, match="the executor is closed"):
            executor.start(Probe, [0, 1])


def test_groups_share_what_the_run_reserved_and_the_last_one_frees_it(
    ray_executor: Executor,
) -> None:
    executor = RayExecutor(workers=2, cpus_per_worker=0.5)
    first, second = executor.start(Probe, [0]), executor.start(Probe, [1])
    assert len({*first.call("pid"), *second.call("pid")}) == 2
    assert _states().count("CREATED") == 1
    first.close()
    assert _states().count("CREATED") == 1
    second.close()
    assert set(_states()) == {"REMOVED"}


def test_workers_larger_than_any_node_are_refused(
    ray_executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    one: dict[str, Any] = {"Alive": True, "Resources": {"CPU": 1.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [one, one, one, one | {"Alive": False}])
    with pytest.raises(ConfigError, match=r"2 workers of 1\.5 CPUs each .* places for 0"):
        Gang(workers=2, each={"CPU": 1.5}, wait_seconds=1)
    with pytest.raises(ConfigError, match="places for 3"):
        Gang(workers=4, each={"CPU": 1.0, "GPU": 0.0}, wait_seconds=1)
    with pytest.raises(ConfigError, match="places for 0"):
        Gang(workers=1, each={"CPU": 1.0, "GPU": 1.0}, wait_seconds=1)
