"""Shared fixtures: one local Ray a session, and storage that is nobody's."""

import contextlib
import gc
import itertools
import os
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from matplotlib.figure import Figure
from sqlalchemy import Engine, event

from distributed_privrl.core.executor import Executor
from distributed_privrl.evaluation import two_sample
from distributed_privrl.privacy.accounting import coarse_figures
from distributed_privrl.privacy.ledger import storage
from tests.panels import one_panel

os.environ.setdefault("RAY_worker_niceness", "0")
"""By default it is 15, and the test processes beside them would leave Ray's workers no core."""


gc.set_threshold(20_000, 10, 10)
"""Looking at all objects, of which imports alone make a million, takes a quarter of a second.

By default that took 7 to 9 % of the tests' time.
"""
BLANK = {
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "png": b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
    ),
}
"""Files of figures that show nothing, by their format."""


STORAGES = itertools.count()


@pytest.fixture(autouse=True)
def own_storage(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test away from the user's ledger and datasets, in a folder that few make."""
    folder = tmp_path_factory.getbasetemp() / f"default-{next(STORAGES)}"
    monkeypatch.setenv("PRIVRL_LEDGER", f"sqlite:///{folder / 'ledger.sqlite'}")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "datasets"))


DRAWN = ("evaluation", "gates", "planted", "docs")
"""Folders whose tests look at figures, or search them; others build the same figures, undrawn."""
TOLD_APART = ("evaluation", "benchmarks")
"""Folders whose tests look at how well trees tell rows apart; others are told that none can."""
savefig, subplots, area = Figure.savefig, Figure.subplots, two_sample.area


def _blank(figure: Figure, file: BinaryIO, *, format: str, **_: object) -> None:  # noqa: A002
    file.write(BLANK[format])


@pytest.fixture(scope="module", autouse=True)
def quick_reports(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave out what takes most of a report's time in folders where nobody looks at it."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with pytest.MonkeyPatch.context() as patch:
        if folder not in DRAWN:
            patch.setattr(Figure, "savefig", _blank)
            patch.setattr(Figure, "subplots", one_panel)
        patch.setattr(two_sample, "TREES", 15)  # they tell apart what can be told apart in tests
        if folder not in TOLD_APART:
            patch.setattr(two_sample, "area", lambda *_, **__: 0.5)
        yield


COARSE = ("gates", "planted", "benchmarks", "experiments", "methods")
"""Folders whose runs are priced on the grid that searches take; all others certify, as users do."""


@pytest.fixture(scope="module", autouse=True)
def quick_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compose privacy losses on a coarse grid where a test is not about their last digits.

    What is charged, certified and verified there stays an upper bound, one figure for all three.
    """
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with coarse_figures() if folder in COARSE else contextlib.nullcontext():
        yield


@pytest.fixture(scope="module")
def few_canaries() -> Iterator[None]:
    """A fifth of the canaries of audits: what a round tells is measured beside its own tests.

    A round's work grows with their square.
    """
    from distributed_privrl.evaluation.canaries import canary_round
    from distributed_privrl.experiments import audit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "canary_round", partial(canary_round, canaries=4000))
        yield


@pytest.fixture(autouse=True)
def whole_reports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The markers ``drawn`` and ``told_apart`` ask for what `quick_reports` leaves out."""
    if request.node.get_closest_marker("drawn"):
        monkeypatch.setattr(Figure, "savefig", savefig)
        monkeypatch.setattr(Figure, "subplots", subplots)
    if request.node.get_closest_marker("told_apart"):
        monkeypatch.setattr(two_sample, "area", area)


make_durable = storage._make_durable


def _make_quick(engine: Engine) -> None:
    make_durable(engine)

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Wait for no disk: what a process has written outlives its end, and no test cuts the power.

    Waiting took a sixth of the tests' time. PostgreSQL runs without it, too (`fsync=off`).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "_make_durable", _make_quick)
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def power_cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker ``power_cut`` asks for what `no_power_cut` leaves out."""
    if request.node.get_closest_marker("power_cut"):
        monkeypatch.setattr(storage, "_make_durable", make_durable)


@pytest.fixture(scope="session")
def ray_executor() -> Iterator[Executor]:
    """One local Ray for the whole session."""
    from distributed_privrl.runtime.executor import RayExecutor
    from distributed_privrl.runtime.session import prepare_environment

    prepare_environment()
    from ray._private.parameter import RayParams

    class Anywhere(RayParams):  # type: ignore[misc]
        """Its agent listens at any port: by default all Rays of a machine want the same one."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{"dashboard_agent_listen_port": 0, **named})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray._private.parameter.RayParams", Anywhere)
        executor = RayExecutor(workers=4, cpus_per_worker=0.5)
    yield executor
    executor.close()
    import ray

    ray.shutdown()


@pytest.fixture(scope="module", autouse=True)
def cpus_of_ray_are_free_again() -> Iterator[None]:
    """Tests of one process share a Ray: those of the next module would wait for what is held."""
    yield
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    deadline = time.monotonic() + 30
    whole = ray.cluster_resources()["CPU"]
    while (free := ray.available_resources().get("CPU", 0.0)) < whole - 1e-9:
        assert time.monotonic() < deadline, f"of {whole:g} CPUs of Ray {free:g} are free again"
        time.sleep(0.1)


LONG = (
    "test_executor.py",
    "test_j_attack.py",
    "test_leaks.py",
    "test_elastic.py",
    "test_tuning.py",
)
"""Files that take longest: begun first, so that no process waits for the others with one of them.
Those of Ray wait for it, while the others keep both cores busy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest in front; the order is else that of the folders."""
    items.sort(key=lambda item: item.path.name not in LONG)
