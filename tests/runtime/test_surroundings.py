"""Nothing of a sensitive dataset lies around a run of any method on Ray."""

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.executor import Executor
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.store import DatasetStore
from tests.gates.around_ray import Dashboard, gate_around_ray
from tests.gates.metadata import Case, units_of
from tests.gates.metadata_cases import CASES

Make = Callable[[Path], DatasetStore]
ALIKE = {
    *("privorl_ar", "privorl_j", "privorl_j_unet", "privorl_ar_j", "dp_transformer", "marginals_j"),
    *("marginals", "pgm", "pre_pate_gan", "dprft", "vapvi"),
}
"""Methods whose workers are of the same classes as another one's here, or are in tests beside."""
IN_TESTS_OF_ITS_OWN = {"marginals"}
"""Methods whose runs a dashboard is asked of in usual tests, `tests/runtime/test_marginals.py`."""


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Make], DatasetStore]:
    """Return the store that a function makes, which is made once: cases copy it."""
    return functools.cache(lambda make: make(tmp_path_factory.mktemp("master")))


@pytest.fixture
def case(
    tmp_path: Path, masters: Callable[[Make], DatasetStore], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Case]:
    """Return what makes a method's run; no report is written, which no worker takes part in."""
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )

    def made(method: str) -> Case:
        prepare, make = CASES[method]
        return prepare(tmp_path / "lamp-of-the-still-ward", masters(make))

    return made


@pytest.mark.parametrize(
    "method",
    [pytest.param(one, marks=[pytest.mark.slow] if one in ALIKE else []) for one in CASES],
)
def test_nothing_sensitive_lies_around_a_run_on_ray(
    method: str, case: Callable[[str], Case], ray_executor: Executor
) -> None:
    gate_around_ray(case(method), ray_executor)


@pytest.mark.slow
@pytest.mark.parametrize("method", [one for one in CASES if one not in IN_TESTS_OF_ITS_OWN])
def test_nothing_sensitive_is_in_what_a_dashboard_answers(
    method: str, case: Callable[[str], Case], ray_executor: Executor, dashboard: Dashboard
) -> None:
    gate_around_ray(case(method), ray_executor, dashboard)


class Telling:
    """A worker that tells what it should not."""

    def tell(self, what: str) -> None:
        print(what, flush=True)


def test_what_a_worker_tells_of_a_dataset_is_seen(
    case: Callable[[str], Case], ray_executor: Executor
) -> None:
    import ray

    right = case("privsyn")

    def start(*given: Any) -> Any:
        said = right.store.info(right.sensitive).metadata.open(Purpose.OWNER)
        unit = units_of(right.store, right.sensitive)[5]
        worker = ray.remote(Telling).options(num_cpus=0).remote()
        ray.get(worker.tell.remote(f"{said['author']} {unit} {right.store.root}"))
        ray.kill(worker)
        return right.start(*given)

    with pytest.raises(AssertionError) as found:
        gate_around_ray(replace(right, start=start), ray_executor)
    for what in ("author[0]", "the folder of datasets", "units"):
        assert re.search(rf"'session/logs/worker.*'{re.escape(what)}'", str(found.value))
