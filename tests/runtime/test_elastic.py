"""Actors come and go, shards stay: the same answers, asked once each, and the same parameters."""

import itertools
import os
import pickle
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.errors import BudgetError, ConfigError, WorkerLostError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.runtime import elastic
from distributed_privrl.runtime.elastic import ElasticGroup, ShardHost, divide
from distributed_privrl.runtime.executor import RayExecutor
from tests.runtime.killing import pids_of
from tests.runtime.probe import Probe, Unbuildable
from tests.worlds.toy_run import ToyRun

SHARDS = [10, 20, 30, 40, 50]


@given(
    st.integers(1, 12).flatmap(
        lambda shards: st.tuples(
            st.just(shards),
            st.dictionaries(
                st.integers(0, 20), st.sets(st.integers(0, shards - 1)), min_size=1, max_size=shards
            ),
        )
    )
)
def test_shards_are_divided_evenly_and_each_once(given_: tuple[int, dict[int, set[int]]]) -> None:
    shards, held = given_
    divided = divide(shards, held)
    assert sorted(shard for own in divided.values() for shard in own) == list(range(shards))
    sizes = [len(own) for own in divided.values()]
    assert max(sizes) - min(sizes) <= 1
    assert divided.keys() == held.keys()
    assert divide(shards, divided) == divided


def test_a_newcomer_is_given_a_part_and_nothing_else_moves() -> None:
    held = {0: {0, 1, 2}, 1: {3, 4, 5}, 2: set()}
    after = divide(6, held)
    assert after == {0: {0, 1}, 1: {3, 4}, 2: {2, 5}}


def test_parameters_are_those_of_a_run_that_lost_nothing(
    ray_executor: Executor, tmp_path: Path
) -> None:
    """A host is killed in mid-run; six blocks move; coins and sums stay, bit by bit."""
    toy = replace(ToyRun(folder=tmp_path), workers=6)
    executor = RayExecutor(workers=6, least=1, cpus_per_worker=0.7)
    with toy.with_folder("ray").server(executor) as server:
        server.call("advance", {"rounds": 7})
        killed = pids_of("ShardHost")[0]
        os.kill(killed, signal.SIGKILL)
        while not server.call("advance", {"rounds": 7})[0].finished:
            pass
    local = replace(toy, workers=1).with_folder("local").train(LocalExecutor())
    assert np.array_equal(local, toy.with_folder("ray").parameters())
    executor.close()


@pytest.fixture(scope="module")
def executor(ray_executor: Executor) -> Iterator[RayExecutor]:
    """It has room for two or three hosts of half a CPU, beside whatever else holds some."""
    own = RayExecutor(workers=len(SHARDS), least=1, cpus_per_worker=0.5)
    yield own
    own.close()


@pytest.fixture(scope="module")
def group(executor: RayExecutor) -> Iterator[ElasticGroup]:
    started = executor.start(Probe, SHARDS, repeat_lost_calls=True)
    assert isinstance(started, ElasticGroup)
    _wait_for(started, 2)
    yield started
    started.close()


def _wait_for(group: ElasticGroup, hosts: int) -> None:
    """Call until so many processes answer."""
    deadline = time.monotonic() + 60
    while len(set(group.call("pid"))) < hosts:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_answers_come_in_the_order_of_shards(group: ElasticGroup) -> None:
    answers = group.call("add", {"values": np.ones(600_000)}, [{"offset": i} for i in range(5)])
    assert [answer for _, answer in answers] == [600_010.0 + 11 * i for i in range(5)]
    assert group.size == 5
    assert len(set(group.call("pid"))) >= 2


def test_our_errors_arrive_as_they_are(group: ElasticGroup) -> None:
    with pytest.raises(BudgetError, match="no budget: set one"):
        group.call("fail")


def test_a_group_travels_by_the_names_of_its_actors(group: ElasticGroup) -> None:
    found = pickle.loads(pickle.dumps(group))
    assert set(found.call("pid")) <= set(pids_of("ShardHost"))
    group.wait_for_lost()  # what it had was ended: it begins anew


def test_what_a_lost_host_had_is_asked_of_the_others(group: ElasticGroup, tmp_path: Path) -> None:
    """The call itself kills the host of one shard; the host comes back and takes its part again."""
    hosts = len(set(group.call("pid")))
    assert group.call("die_once", {"marker": str(tmp_path / "died")}) == ["alive"] * 5
    assert (tmp_path / "died").exists()
    _wait_for(group, hosts)
    group.wait_for_lost()
    assert len(group.call("pid")) == 5


def test_a_shard_that_kills_every_host_is_given_up(
    group: ElasticGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "LOSSES_A_CALL", 0)
    with pytest.raises(WorkerLostError, match=r"shard \d lost 1 workers during die: look at its"):
        group.call("die")


def test_fewer_than_the_least_for_too_long_end_the_call(
    group: ElasticGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = group.call("pid")[0]
    monkeypatch.setattr(group, "_least", len(SHARDS))  # there is no room for so many
    monkeypatch.setattr(group, "_recovery_seconds", 7.0)
    ticks = itertools.count(0, 8)  # of a clock that is past the end when it is read again
    monkeypatch.setattr(elastic, "monotonic", lambda: float(next(ticks)))
    os.kill(host, signal.SIGKILL)
    said = r"of at least 5 workers .* runtime\.recovery_seconds=7: .* with --resume"
    with pytest.raises(WorkerLostError, match=said):
        group.call("pid")


def test_a_host_builds_what_it_is_given_and_ends_what_it_gives_up() -> None:
    built, ended = [], []

    class Shard:
        summed = frozenset({"total"})

        def __init__(self, shard: int) -> None:
            self.shard = shard
            built.append(shard)

        def name(self) -> int:
            return self.shard

        def total(self) -> np.ndarray:
            return np.full(2, float(self.shard))

        def close(self) -> None:
            ended.append(self.shard)

    host = ShardHost(Shard, SHARDS)
    assert host.call("name", {0, 2}, {0: {}, 2: {}}) == [10, 30]
    assert host.call("name", {2, 3}, {3: {}}) == [40]
    assert (built, ended) == ([10, 30, 40], [10])
    (total,) = host.call("total", {2, 3}, {2: {}, 3: {}})
    assert total.tolist() == [70.0, 70.0]
    host.begin()
    assert sorted(ended) == [10, 30, 40]
    assert host.call("name", {2}, {2: {}}) == [30]
    assert built == [10, 30, 40, 30]


def test_a_worker_that_cannot_be_built_says_why() -> None:
    with pytest.raises(ConfigError, match="heads=4 must divide width=30"):
        ShardHost(Unbuildable, [4]).call("work", {0}, {0: {}})


def test_a_range_says_what_a_run_begins_with() -> None:
    runtime = RuntimeConfig.model_validate({"workers": {"min": 2, "max": 16}})
    assert (runtime.least_workers, runtime.most_workers) == (2, 16)
    assert RuntimeConfig(workers=3).least_workers == RuntimeConfig(workers=3).most_workers == 3


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ({"min": 3, "max": 2}, "min=3 is above max=2"),
        ({"min": 0, "max": 2}, "greater than 0"),
        ({"min": 2, "max": 100}, "raise workers.min to 10"),
    ],
)
def test_a_range_that_cannot_be_is_refused(workers: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RuntimeConfig.model_validate({"workers": workers})
