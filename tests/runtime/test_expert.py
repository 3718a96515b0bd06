"""The expert level on Ray: hosts, workers and servers as actors release what one process does."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.executor import Executor
from distributed_privrl.methods.expert import prefix_stage
from distributed_privrl.methods.expert.hosting import ExpertHost
from distributed_privrl.runtime.executor import RayExecutor
from tests.runtime.killing import pids_of
from tests.worlds.crowd import Crowd, crowd_store

STABLE = "crowd/stable-v0"
SECONDS = 120.0


class Outcome(NamedTuple):
    """What a run learned, released and paid for.

    Args:
        weights: of the policy.
        prefixes: states of the stable ones.
        charged: rounds of each entry of the ledger.
    """

    weights: NDArray[np.floating]
    prefixes: NDArray[np.floating]
    charged: list[int]


def outcome(world: Crowd, **given: Any) -> Outcome:
    result = world.run(output__dataset=STABLE, **given)
    policy = Policy.load(Path(result.released))
    weights = [one.detach().numpy().ravel() for one in policy.network.parameters()]
    stable = world.store.read_trajectories(STABLE)
    charged = sorted(entry.reserved_rounds for entry in world.ledger.entries())
    return Outcome(np.concatenate(weights), stable.observations, charged)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Crowd]]:
    """Yield what makes places for runs on the same crowd, without reports."""
    master = crowd_store(tmp_path_factory.mktemp("crowd"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        yield lambda: Crowd(tmp_path_factory.mktemp("world") / "run", master)


@pytest.fixture(scope="module")
def local(world: Callable[[], Crowd]) -> Outcome:
    return outcome(world())


def test_ray_releases_what_the_local_executor_does(
    world: Callable[[], Crowd], local: Outcome, ray_executor: Executor
) -> None:
    remote = outcome(world(), executor=ray_executor)
    assert local.charged == remote.charged == [4, 6]
    assert np.array_equal(local.prefixes, remote.prefixes)
    np.testing.assert_allclose(remote.weights, local.weights, atol=1e-6)


class MarkingHost(ExpertHost):
    """Leaves a mark of its process and its first expert beside the store when it is asked."""

    def prefix_counts(self, *given: Any, **named: Any) -> NDArray[np.float64]:
        marks = Path(self._spec.policies.root).parent / "marks"  # type: ignore[attr-defined]
        marks.mkdir(exist_ok=True)
        (marks / f"{self._spec.first}-{os.getpid()}").touch()
        return super().prefix_counts(*given, **named)


def test_a_host_that_joins_the_filter_takes_its_part_and_changes_nothing(
    world: Callable[[], Crowd],
    local: Outcome,
    ray_executor: Executor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One CPU of two is taken until the first draw has ended; then there is room for a host."""
    import ray

    room, there = ray.remote(num_cpus=1)(Taken).remote(), world()
    ray.get(room.__ray_ready__.remote())
    alone: set[str] = set()

    def asked() -> set[str]:
        return {path.name for path in (there.folder / "marks").iterdir()}

    def grow(stage: str, done: int, *_: Any) -> None:
        nonlocal alone
        if stage != prefix_stage.STAGE or not done:
            return
        if done == 1:
            alone = asked()
            ray.kill(room)
        deadline = time.monotonic() + SECONDS
        while len(pids_of("ray::ShardHost")) < 2:  # the title of one that is built and waits
            assert time.monotonic() < deadline, "no host has joined"
            time.sleep(0.1)
        if len(asked()) < 3:
            time.sleep(0.5)  # it has yet to answer that it is there

    monkeypatch.setattr(prefix_stage, "ExpertHost", MarkingHost)
    with closing(RayExecutor(workers=2, least=1)) as executor:
        range_ = {"min": 1, "max": 2}
        found = outcome(there, executor=executor, progress=grow, runtime__workers=range_)
    (first,) = {name.partition("-")[2] for name in alone}
    (moved,) = asked() - alone
    assert len(alone) == 2  # both parts were the first host's
    assert moved.partition("-")[2] != first
    assert moved.partition("-")[0] in {name.partition("-")[0] for name in alone}
    assert found.charged == local.charged
    assert np.array_equal(found.prefixes, local.prefixes)
    np.testing.assert_allclose(found.weights, local.weights, atol=1e-6)


class Taken:
    """Holds what it reserves."""
