"""Marginals on Ray: what one process releases, bit for bit, and nothing else around it."""

import re
import time
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals.stage import CHECKPOINT
from distributed_privrl.privacy.ledger import entry_secrets
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.gates.around_ray import ASKED, NOT_ASKED, Dashboard, Surroundings, routes_of_ray
from tests.gates.leak_runs import raw_rows
from tests.gates.leak_secrets import Secrets
from tests.gates.leaks import scan_contents
from tests.gates.metadata import Canaries, plant
from tests.worlds.intake import (
    DATASET,
    FIRST_UNIT,
    WIDE_BOUNDS,
    Intake,
    admissions,
    public_admissions,
    telling,
    write,
)
from tests.worlds.watching import watch

PLACE = "lamp-of-the-quiet-ward"
"""Part of the path of the sensitive dataset."""


def released(place: Intake, executor: Executor) -> dict[str, Any]:
    """Run with two workers; return what was released and charged."""
    place.bounds.write_text(WIDE_BOUNDS)
    result = place.budget().run(executor=executor)
    path, run_id = result.directory.checkpoint / CHECKPOINT, result.directory.run_id
    tensors, _ = load_checkpoint(path, run_id=run_id, stage="rounds")
    rows = place.store.read_transitions(str(result.released), unit="transition")
    (entry,) = place.ledger.entries()
    return {name: value.numpy() for name, value in tensors.items()} | {
        "observations": rows.observations,
        "actions": rows.actions,
        "rewards": rows.rewards,
        "next observations": rows.next_observations,
        "ends": rows.terminated,
        "charged": np.array([entry.epsilon, entry.reserved_rounds, entry.committed_rounds]),
    }


@dataclass(frozen=True)
class Both:
    """A run in one process and one on Ray, and what lies around the latter.

    Args:
        local: what the first released.
        remote: what the second did.
        around: the second.
        secrets: what must not lie there.
        planted: in the sensitive dataset's metadata.
    """

    local: dict[str, Any]
    remote: dict[str, Any]
    around: Surroundings
    secrets: Secrets
    planted: Canaries

    def scan(self) -> None:
        """Fail if anything of the sensitive dataset, or of what it counted, lies around Ray."""
        self.around.scan(self.secrets)
        for name, content in self.around.contents():
            found = self.planted.found_in(content)
            assert not found, f"{name} holds metadata: {found}"
            assert PLACE.encode() not in content, f"{name} holds where the dataset lies"


@contextmanager
def noted_secrets(secrets: Secrets) -> Iterator[None]:
    """Note the secrets that reservations are made with meanwhile."""

    def urandom(count: int) -> bytes:
        secrets.keys.append(np.random.default_rng().bytes(count))
        return secrets.keys[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_secrets, "os", types.SimpleNamespace(urandom=urandom))
        yield


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, ray_executor: Executor, dashboard: Dashboard
) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("marginals")
    master = DatasetStore(folder / "master")
    write(master, DATASET, telling(admissions(), FIRST_UNIT))
    write(master, "intake/others-v0", telling(public_admissions(600), 10**13))
    planted = plant(master, DATASET)
    units = FIRST_UNIT + np.arange(300)
    secrets = Secrets(
        rows=(raw_rows(master, DATASET),),
        public=(raw_rows(master, "intake/others-v0"),),
        planted={f"patient {unit}": float(unit) for unit in units},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        with pytest.MonkeyPatch.context() as watching:
            watch(watching, secrets, {"deviations": [], "workers": [], "servers": []})
            local = released(Intake(folder / "local", master), LocalExecutor())
        secrets.keys.clear()  # of the other run
        around = Surroundings(dashboard)
        with around.asked_again_and_again(), noted_secrets(secrets):
            remote = released(Intake(folder / PLACE, master), ray_executor)
        yield Both(local, remote, around, secrets, planted)


def test_ray_releases_what_one_process_releases(both: Both) -> None:
    assert both.local.keys() == both.remote.keys()
    assert sum(name.startswith("table.") for name in both.local) == 3
    for name, value in both.local.items():
        np.testing.assert_array_equal(both.remote[name], value, err_msg=name)


def test_nothing_sensitive_lies_in_rays_session_or_in_what_its_head_answers(both: Both) -> None:
    assert len(both.secrets.keys) == 1, "the reservation's secret"
    assert len(both.secrets.counts) > 5
    both.scan()


def test_the_dashboard_was_asked_of_the_run(both: Both, dashboard: Dashboard) -> None:
    answers = dict(dashboard.answers())
    shown = [name for name, content in answers.items() if b"CountWorker" in content]
    assert any("/api/v0/actors" in name for name in shown)
    assert sum("/api/v0/logs/file" in name for name in answers) > 5


def test_who_has_no_token_is_told_nothing(dashboard: Dashboard) -> None:
    for path in ("/api/v0/actors", "/logical/actors", "/api/jobs/", "/nodes?view=summary"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(dashboard.address + path, timeout=60)
        assert refused.value.code == 401


def test_every_route_of_the_installed_dashboard_is_asked_or_named() -> None:
    """A new version of Ray may answer more: look at it, and add it to the list."""
    known = routes_of_ray()
    assert len(known) > 50
    paths = [route.split("?")[0] for route in ASKED]

    def is_asked(route: str) -> bool:
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route))
        return any(re.fullmatch(pattern, path) for path in paths)

    assert {route for route in known if not is_asked(route)} <= set(NOT_ASKED)
    assert set(NOT_ASKED) <= known, "what is left out is there"


class Telling:
    """A worker that tells what it should not."""

    def tell(self, what: str) -> None:
        print(what, flush=True)


@pytest.fixture(scope="module")
def tell(both: Both) -> Iterator[Callable[[str], None]]:
    """Have a worker on Ray print something."""
    import ray

    worker = ray.remote(Telling).options(num_cpus=0).remote()
    yield lambda what: ray.get(worker.tell.remote(what))
    ray.kill(worker)


def spill(both: Both, content: bytes) -> None:
    folder = both.around.session / "ray_spilled_objects"
    folder.mkdir(exist_ok=True)
    (folder / "one").write_bytes(content)


def keep(value: bytes) -> None:
    import ray

    ray._private.worker.global_worker.gcs_client.internal_kv_put(b"planted", value, True, None)


def name_worker(name: str) -> None:
    """Name a worker that is never started: no node has what it asks for."""
    import ray

    ray.kill(ray.remote(Telling).options(name=name, resources={"nobody's": 1}).remote())


LEAKS: dict[str, Callable[[Both, Callable[[str], None]], None]] = {
    "a row in a log": lambda both, tell: tell(str(both.secrets.rows[0][7].tolist())),
    "metadata in a log": lambda both, tell: tell(next(iter(both.planted.texts.values()))),
    "rows in a spilled object": lambda both, _: spill(
        both, b"odd" + both.secrets.rows[0][12:14].tobytes()
    ),
    "a count in a spilled object": lambda both, _: spill(
        both, max(both.secrets.counts, key=np.size).tobytes()
    ),
    "a secret among the head's keys": lambda both, _: keep(both.secrets.keys[0]),
    "a patient in a worker's name": lambda *_: name_worker(f"of {FIRST_UNIT + 7}"),  # for good
}


def _print(number: int) -> None:
    import ray

    worker = ray.remote(Telling).options(num_cpus=0).remote()
    ray.get(worker.tell.remote(f"of patient {number}"))


def _group(number: int) -> None:
    from ray.util import placement_group, remove_placement_group

    group = placement_group([{"CPU": 0.01}], name=f"of {number}")
    assert group.wait(60)  # Ray never frees what it reserves for a group that is removed before
    remove_placement_group(group)


def _variable(number: int) -> None:
    import ray

    environment = {"env_vars": {"PATIENT": f"of {number}"}}
    worker = ray.remote(Telling).options(num_cpus=0, runtime_env=environment).remote()
    ray.get(worker.tell.remote("nothing"))


SHOWN: dict[str, Callable[[int], None]] = {
    "a log": _print,
    "a worker's name": lambda number: name_worker(f"of {number}"),
    "a placement group's name": _group,
    "a worker's variables": _variable,
}
"""Ways in which a patient's number comes into what the dashboard answers."""


NUMBERS = {leak: FIRST_UNIT + 100 + place for place, leak in enumerate(SHOWN)}
"""What each shows, and no other leak names."""
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before the looks at whether what is shown has reached the dashboard."""


@pytest.fixture(scope="module")
def shown(both: Both, dashboard: Dashboard) -> Callable[..., str]:
    """Say what the dashboard shows of patients: at first nothing of those that are leaked."""

    def scanned(*numbers: int) -> str:
        alone = replace(both.secrets, planted={f"patient {one}": float(one) for one in numbers})
        answers = ((name, True, one) for name, one in dashboard.answers())
        try:
            scan_contents(answers, alone)
        except AssertionError as found:
            return str(found)
        return ""

    assert not scanned(*NUMBERS.values())
    return scanned


@pytest.mark.parametrize("leak", SHOWN)
def test_a_leak_that_the_dashboard_shows_is_found(leak: str, shown: Callable[..., str]) -> None:
    SHOWN[leak](NUMBERS[leak])
    expected, found = rf"the dashboard's /.* holds .*{NUMBERS[leak]}", ""
    for pause in PAUSES:
        time.sleep(pause)
        if re.search(expected, found := shown(NUMBERS[leak])):
            break
    assert re.search(expected, found), found


@pytest.mark.parametrize("name", LEAKS)
def test_the_scan_around_ray_sees_a_planted_leak(
    name: str, both: Both, tell: Callable[[str], None]
) -> None:
    tell("nothing")
    since = replace(both, around=Surroundings())
    LEAKS[name](both, tell)
    with pytest.raises(AssertionError, match="holds"):
        since.scan()
