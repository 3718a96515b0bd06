"""PrivORL-j: a unit is a trajectory, its fragments are its own, and trajectories end."""

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.data.metadata import SEAM_KEY
from distributed_privrl.data.shards import EncodedShard, ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.experiments.reports import rebuild_report
from distributed_privrl.experiments.trajectory_reports import release_warnings, verdict
from distributed_privrl.methods.privorl.config import TrajectoriesConfig
from distributed_privrl.methods.privorl.release import chunk_path
from distributed_privrl.methods.privorl.trajectories import FragmentRows
from distributed_privrl.privacy.events import PoissonGaussianEvent
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.worker import LocalUpdateWorker, StoredFragments, WorkerSpec
from tests.worlds.opened import opened
from tests.worlds.walks import (
    PUBLIC,
    SENSITIVE,
    SPACES,
    Walks,
    config,
    config_values,
    synthesizer_of,
    walk_store,
    walks,
)

METHODS = ["privorl_j", "privorl_j_unet"]
MODELS = {"privorl_j": {}, "privorl_j_unet": {"model": {"width": 8, "depth": 2, "horizon": 8}}}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return walk_store(tmp_path_factory.mktemp("walks"))


@pytest.fixture
def world(tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch) -> Walks:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    return Walks(tmp_path, master).budget()


def test_a_plan_counts_trajectories_whatever_their_fragments() -> None:
    plan = plan_run(config())
    assert plan.sampling_probability == 20 / 200
    (event,) = plan.events(plan.max_rounds)
    assert isinstance(event, PoissonGaussianEvent)
    assert event.sampling_probability == 20 / 200
    assert plan.budget is not None
    assert plan.budget.unit == "trajectory"
    assert 7.0 < plan.epsilon(plan.max_rounds, certified=True) <= 8.0
    more = config(training=config_values()["training"] | {"max_fragments_per_unit": 30})
    assert plan_run(more).mechanism == plan.mechanism


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__unit": "transition"}, "protects whole trajectories"),
        ({"data__units": None}, "not declared"),
        ({"data__max_length": 5}, r"horizon=8 is above data\.max_length=5"),
        ({"data__max_length": None}, r"training\.sampling\.max_length is not set"),
        (
            {"training": config_values()["training"] | {"sampling": {"max_length": 7}}},
            r"above training\.sampling\.max_length=7",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_run(config(**changes))


def test_too_few_trajectories_for_delta_are_refused() -> None:
    with pytest.raises(UnsafeError, match="delta"):
        plan_run(config(privacy__delta=1e-2))


def test_independent_transitions_are_refused_before_anything_is_charged(world: Walks) -> None:
    rows = world.store.read_transitions(PUBLIC, unit="transition")
    world.store.write_transitions("test/rows-v0", rows, layout="transitions", **SPACES)
    with pytest.raises(ConfigError, match="rows-v0 holds independent transitions"):
        world.run(data__public=["test/rows-v0"])
    assert world.ledger.entries(SENSITIVE) == []
    assert not (world.folder / "run").exists()


def test_more_workers_than_blocks_are_refused_before_anything_is_charged(world: Walks) -> None:
    with pytest.raises(ConfigError, match="workers=1000 is above the"):
        world.run(runtime__workers=1000)
    assert world.ledger.entries(SENSITIVE) == []


@pytest.mark.parametrize("method", METHODS)
def test_a_run_leaves_certified_trajectories(
    world: Walks, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[WorkerSpec] = []
    right = LocalUpdateWorker.__init__

    def watched(self: LocalUpdateWorker, spec: WorkerSpec) -> None:
        workers.append(spec)
        right(self, spec)

    monkeypatch.setattr(LocalUpdateWorker, "__init__", watched)
    result = world.run(method=method, **MODELS[method])
    checked = verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )
    assert checked.certificate.status == "valid"
    (stage,) = checked.certificate.stages
    assert stage.unit == "trajectory"
    (event,) = stage.events
    assert event.sampling_probability == 20 / 200
    assert [(w.all_rows, w.sampling_probability) for w in workers] == [(True, 0.1)] * 2
    for worker in workers:
        assert isinstance(worker.source, StoredFragments)
        assert worker.source.max_fragments_per_unit == 3
        assert worker.source.ref.max_rows_per_unit == 24
    info = world.store.info("test/private-walks-v0")
    assert (info.kind, info.layout, opened(info.total_trajectories)) == (
        "trajectories",
        "episodes",
        20,
    )
    made = world.store.read_trajectories("test/private-walks-v0")
    assert made.lengths.min() >= 1
    assert made.lengths.max() <= 24
    ends = made.terminated | made.truncated
    assert np.flatnonzero(ends).tolist() == (made.offsets[1:] - 1).tolist()
    assert not (made.terminated & made.truncated).any()
    assert (np.abs(made.observations) <= 2).all()
    assert set(opened(info.metadata)[SEAM_KEY]) == {"inside", "at_seams", "of_a_step"}


def test_reports_show_trajectories_and_keep_real_ones_private(world: Walks) -> None:
    result = world.run()
    rebuild_report(result.directory.path, store=world.store)
    titles = {}
    for folder in (result.directory.path, result.directory.private):
        report = json.loads((folder / "report.json").read_text())
        titles[report["audience"]] = {s["title"]: s for s in report["sections"]}
    public, private = (titles[name]["Whole trajectories"] for name in ("public", "private"))
    for section in (public, private):
        assert section["figures"][:2] == [
            "Returns and lengths",
            "Correlation of each column with itself, steps later",
        ]
        names = {metric["name"] for metric in section["metrics"]}
        assert {"mean length, synthetic", "seam error inside fragments"} <= names
        (shown,) = (m for m in section["metrics"] if m["name"] == "trajectories shown")
        assert "of about 500 random trajectories" in shown["explanation"]
        ended = {
            metric["name"].split(", ")[1]: metric["value"]
            for metric in section["metrics"]
            if metric["name"].startswith("share that terminates")
        }
        made = world.store.read_trajectories("test/private-walks-v0")
        other = world.store.read_trajectories(PUBLIC if section is public else SENSITIVE)
        shares = [one.terminated[one.offsets[1:] - 1].mean() for one in (made, other)]
        assert sorted(ended.values()) == sorted(shares)
        assert max(shares) > 0
    html = result.directory.report.read_text()
    assert SENSITIVE not in html.replace("sensitive", "").split("Whole trajectories")[1]


def test_a_resume_draws_what_is_missing_and_the_same(world: Walks) -> None:
    first = world.run(key=3)
    folder = first.directory.checkpoint / "synthetic"
    before = [path.read_bytes() for path in sorted(folder.iterdir())]
    assert len(before) == 3
    chunk_path(folder, 1).unlink()
    world.run(key=3, resume=True)
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == before


def shard(store: DatasetStore, settings: TrajectoriesConfig) -> EncodedShard:
    ref = ShardRef(
        root=str(store.root),
        dataset=SENSITIVE,
        index=0,
        count=1,
        unit="walker",
        max_rows_per_unit=24,
    )
    encoder = synthesizer_of(settings, store).encoder
    return FragmentRows(encoder=encoder, max_fragments_per_unit=3).shard(ref)()


def test_an_episode_less_changes_no_others_fragments(tmp_path: Path) -> None:
    """The privacy sentence, on the path that a run's workers read."""
    episodes, settings = walks(30, 5), config(data__unit="walker")
    shards = {}
    for name, left in (("all", range(30)), ("less", [k for k in range(30) if k != 7])):
        store = DatasetStore(tmp_path / name)
        store.write_trajectories(PUBLIC, walks(50, 2), **SPACES)
        store.write_trajectories(SENSITIVE, episodes.select(left), unit_column="walker", **SPACES)
        read = shard(store, settings)
        shards[name] = {
            unit: read.rows[read.offsets[u] : read.offsets[u + 1]].tolist()
            for u, unit in enumerate(read.unit_ids.tolist())
        }
    del shards["all"][7]
    assert shards["less"] == shards["all"]


@pytest.mark.parametrize(
    ("errors", "joined"),
    [
        ({"inside": 1.07, "at_seams": 1.1, "of_a_step": 1.08}, False),
        ({"inside": 0.11, "at_seams": 0.22, "of_a_step": 0.16}, True),
        ({"inside": None, "of_a_step": 0.16}, True),
        ({}, True),
    ],
)
def test_a_report_says_that_steps_do_not_join(errors: dict[str, Any], joined: bool) -> None:
    assert ("STEPS DO NOT JOIN" in verdict(errors)) is not joined
    info: Any = types.SimpleNamespace(metadata=Sensitive({"seam_error": errors}))
    assert bool(release_warnings(info)) is not joined
