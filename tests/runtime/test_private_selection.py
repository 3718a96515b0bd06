"""Private selection on Ray: nothing that Ray keeps tells the number of trials."""

from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.errors import WorkerLostError
from distributed_privrl.core.executor import Executor
from distributed_privrl.experiments.sweeps import selection
from tests.runtime.contests import DyingWorker, FailingWorker, kept_by_ray
from tests.worlds.choosing import Choosing, drawn, make_quick
from tests.worlds.intake import RELEASED

pytestmark = pytest.mark.slow  # processes that import all of it, in four starts


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


def _use(worker: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SelectionWorker", worker)


def test_what_ray_keeps_is_the_same_for_one_trial_and_for_many(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(FailingWorker, monkeypatch)
    kept: dict[int, list[tuple[str, str]]] = {}
    known: set[Path] = set()
    for count in (1, 40):
        (tmp_path / str(count)).mkdir()
        world = Choosing(tmp_path / str(count))
        with drawn(count):
            found = world.select(executor=ray_executor)
        assert found.certificate is not None
        assert RELEASED in world.store.ids()
        assert not list(world.memory.iterdir())
        kept[count] = kept_by_ray(known, FailingWorker)
    assert kept[1] == kept[40]
    assert [kind for kind, _ in kept[1]] == [".err", ".err", ".out", ".out"]


def test_a_selection_ends_with_a_process_and_is_spent(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(DyingWorker, monkeypatch)
    world = Choosing(tmp_path)
    with drawn(3), pytest.raises(WorkerLostError) as ended:
        world.select(executor=ray_executor)
    said = " ".join((str(ended.value), *ended.value.__notes__))
    assert said.startswith("a process of the private selection died: look at its node's memory")
    assert "what was charged is spent" in said
    assert "--resume" not in said
    (entry,) = world.ledger.entries()
    assert entry.status == "open"
    assert world.ledger.accounts()[0].spent_epsilon == entry.epsilon
    assert RELEASED not in world.store.ids()
    _gone(world.memory)


def _gone(memory: Path) -> None:
    selection.clear_left(memory, seconds=10.0)
    assert not list(memory.iterdir())


def test_a_process_that_cannot_be_built_costs_nothing(
    ray_executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(FailingWorker, monkeypatch)
    world = Choosing(tmp_path)
    right = selection.PoolSpec

    def elsewhere(**about: Any) -> Any:
        return right(**(about | {"memory": str(tmp_path / "nowhere")}))

    monkeypatch.setattr(selection, "PoolSpec", elsewhere)
    with drawn(3) as numbers, pytest.raises(WorkerLostError):
        world.select(executor=ray_executor)
    assert numbers == []
    assert world.ledger.entries() == []
    assert not (tmp_path / "run").exists()
