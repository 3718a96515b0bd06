"""Marginals on Ray: what one process releases, bit for bit, and nothing else around it."""

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.stage import CHECKPOINT
from distributed_privrl.privacy.ledger import entry_secrets
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.gates.around_ray import Surroundings
from tests.gates.leak_runs import raw_rows
from tests.gates.leaks import Secrets
from tests.gates.metadata import Canaries, plant
from tests.worlds.intake import DATASET, Intake, admissions, public_admissions, write
from tests.worlds.watching import watch

FIRST_UNIT = 80_417_000_001
BOUNDS = "observation: {low: [0, 0], high: [10, 5]}\nreward: [0, 1]\n"


def telling(rows: Transitions, first: int) -> Transitions:
    """Return admissions whose numbers and patients are met by chance nowhere."""
    source = np.random.default_rng(first)
    parts = source.uniform(0.1, 0.9, (2, len(rows.rewards)))
    after = np.asarray(rows.next_observations)
    return replace(
        rows,
        observations=rows.observations + np.stack([0 * parts[0], parts[0]], axis=1),
        next_observations=after + np.stack([0 * parts[1], parts[1]], axis=1),
        unit_ids=np.asarray(rows.unit_ids, np.uint64) + np.uint64(first),
    )


def released(place: Intake, executor: Executor) -> dict[str, Any]:
    """Run with two workers; return what was released and charged."""
    place.bounds.write_text(BOUNDS)
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
def both(tmp_path_factory: pytest.TempPathFactory, ray_executor: Executor) -> Iterator[Both]:
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
        around = Surroundings()
        with noted_secrets(secrets):
            remote = released(Intake(folder / "ray", master), ray_executor)
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


@pytest.mark.parametrize("name", LEAKS)
def test_the_scan_around_ray_sees_a_planted_leak(
    name: str, both: Both, tell: Callable[[str], None]
) -> None:
    tell("nothing")
    since = replace(both, around=Surroundings())
    LEAKS[name](both, tell)
    with pytest.raises(AssertionError, match="holds"):
        since.scan()
