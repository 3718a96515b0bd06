"""PrivORL-j: a unit is a trajectory, its fragments are its own, and trajectories end."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.metadata import SEAM_KEY
from distributed_privrl.data.shards import EncodedShard, ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.reports import rebuild_report
from distributed_privrl.methods.privorl.fragment_network import FragmentSynthesizer
from distributed_privrl.methods.privorl.pretraining import Pretrainer, PretrainerSpec
from distributed_privrl.methods.privorl.sampling import chunk_path
from distributed_privrl.methods.privorl.scaling import public_encoder
from distributed_privrl.methods.privorl.stitching import (
    SeamErrors,
    TrajectoryDrawer,
    decode_trajectories,
    stitched_steps,
)
from distributed_privrl.methods.privorl.trajectories import FragmentRows, plan_trajectories
from distributed_privrl.methods.privorl.trajectory_config import TrajectoriesConfig
from distributed_privrl.models.ddpm import DDPMSampler
from distributed_privrl.privacy.events import PoissonGaussianEvent
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.parameters import FlatParameters
from distributed_privrl.rounds.worker import LocalUpdateWorker, StoredFragments, WorkerSpec
from tests.methods.walks import PUBLIC, SENSITIVE, SPACES, config, config_values, walk_store, walks

METHODS = ["privorl_j", "privorl_j_unet"]
MODELS = {"privorl_j": {}, "privorl_j_unet": {"model": {"width": 8, "depth": 2, "horizon": 8}}}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return walk_store(tmp_path_factory.mktemp("walks"))


def synthesizer_of(settings: TrajectoriesConfig, store: DatasetStore) -> FragmentSynthesizer:
    encoder = FragmentEncoder(public_encoder(settings, store), 8, time_limit=24)
    return FragmentSynthesizer(model=settings.model, encoder=encoder.to_json())


class World:
    """A copy of the walks, and a ledger with a budget by trajectory."""

    def __init__(self, folder: Path, master: DatasetStore) -> None:
        shutil.copytree(master.root, folder / "datasets")
        self.folder, self.store = folder, DatasetStore(folder / "datasets")
        self.url = f"sqlite:///{folder / 'ledger.sqlite'}"
        self.ledger = Ledger(self.url)
        self.ledger.set_budget(
            dataset=SENSITIVE,
            fingerprint=inspect(self.store, SENSITIVE).fingerprint,
            budget=PrivacyBudget(epsilon=8.0, delta=1e-4, unit="trajectory"),
        )

    def run(self, *, resume: bool = False, key: int | None = None, **changes: Any) -> Any:
        return program.run(
            config(**changes),
            LocalExecutor(),
            out=self.folder / "run",
            ledger_url=self.url,
            store=self.store,
            resume=resume,
            insecure_key=key,
        )


@pytest.fixture
def world(tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(program, "write_reports", lambda *_: None)
    return World(tmp_path, master)


def test_a_plan_counts_trajectories_whatever_their_fragments() -> None:
    plan = plan_trajectories(config())
    assert plan.sampling_probability == 20 / 200
    (event,) = plan.events(plan.max_rounds)
    assert isinstance(event, PoissonGaussianEvent)
    assert event.sampling_probability == 20 / 200
    assert plan.budget is not None
    assert plan.budget.unit == "trajectory"
    assert 7.0 < plan.epsilon(plan.max_rounds, certified=True) <= 8.0
    more = config(training=config_values()["training"] | {"max_fragments_per_unit": 30})
    assert plan_trajectories(more).mechanism == plan.mechanism


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
        plan_trajectories(config(**changes))


def test_too_few_trajectories_for_delta_are_refused() -> None:
    with pytest.raises(UnsafeError, match="delta"):
        plan_trajectories(config(privacy__delta=1e-2))


def test_independent_transitions_are_refused_before_anything_is_charged(world: World) -> None:
    rows = world.store.read_transitions(PUBLIC, unit="transition")
    world.store.write_transitions("test/rows-v0", rows, layout="transitions", **SPACES)
    with pytest.raises(ConfigError, match="rows-v0 holds independent transitions"):
        world.run(data__public=["test/rows-v0"])
    assert world.ledger.entries(SENSITIVE) == []
    assert not (world.folder / "run").exists()


@pytest.mark.parametrize("method", METHODS)
def test_a_run_leaves_certified_trajectories(
    world: World, method: str, monkeypatch: pytest.MonkeyPatch
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
    assert (info.kind, info.layout, info.total_trajectories) == ("trajectories", "episodes", 20)
    made = world.store.read_trajectories("test/private-walks-v0")
    assert made.lengths.min() >= 1
    assert made.lengths.max() <= 24
    ends = made.terminated | made.truncated
    assert np.flatnonzero(ends).tolist() == (made.offsets[1:] - 1).tolist()
    assert not (made.terminated & made.truncated).any()
    assert (np.abs(made.observations) <= 2).all()
    assert set(info.metadata[SEAM_KEY]) == {"inside", "at_seams", "of_a_step"}


def test_reports_show_trajectories_and_keep_real_ones_private(world: World) -> None:
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
        assert {"mean length", "seam error inside fragments"} <= names
    html = result.directory.report.read_text()
    assert SENSITIVE not in html.replace("sensitive", "").split("Whole trajectories")[1]


def test_a_resume_draws_what_is_missing_and_the_same(world: World) -> None:
    first = world.run(key=3)
    folder = first.directory.checkpoint / "synthetic"
    before = [path.read_bytes() for path in sorted(folder.iterdir())]
    assert len(before) == 3
    chunk_path(folder, 1).unlink()
    world.run(key=3, resume=True)
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == before


def test_whoever_draws_a_chunk_draws_the_same(master: DatasetStore) -> None:
    settings = config()
    synthesizer = synthesizer_of(settings, master)
    network = synthesizer.build(1)
    drawer = TrajectoryDrawer(
        synthesizer=synthesizer, config=settings.training.sampling, trajectories=20, max_length=24
    )
    from distributed_privrl.core.random import Streams

    def draw(index: int) -> NDArray[np.float32]:
        return drawer.draw(network, index, streams=Streams(0), device="cpu").numpy()

    forward, backward = [draw(i) for i in (0, 1, 2)], [draw(i) for i in (2, 1, 0)][::-1]
    assert all(np.array_equal(*pair) for pair in zip(forward, backward, strict=True))
    sizes = [len(decode_trajectories(synthesizer.fragments, steps)) for steps in forward]
    assert sizes == [8, 8, 4]
    assert not np.array_equal(forward[0][:8], forward[1][:8])


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


class Fixed(torch.nn.Module):
    """A network that finds the same steps behind any noise of the last level."""

    def __init__(self, fragment: NDArray[np.float32]) -> None:
        super().__init__()
        self.fragment, self.conditions = torch.from_numpy(fragment), list[torch.Tensor]()
        kept = config().model.ddpm().alpha_bars[-1].item()
        self.signal, self.level = kept**0.5, (1 - kept) ** 0.5

    def forward(self, noisy: Any, share: Any, condition: Any, mask: Any) -> torch.Tensor:
        self.conditions.append(condition.clone())
        return (self.signal * noisy - self.fragment) / self.level  # the velocity


def test_fragments_follow_each_others_last_step_until_an_end_or_the_cap(
    master: DatasetStore,
) -> None:
    settings = config()
    synthesizer = synthesizer_of(settings, master)
    encoder = synthesizer.fragments
    fragment = np.full((1, 8, encoder.step_width), 0.25, dtype=np.float32)
    fragment[..., -2:] = -0.9

    def stitch(network: Fixed) -> NDArray[np.float32]:
        return stitched_steps(
            network,
            synthesizer,
            DDPMSampler(steps=1, stochasticity=0.0),
            count=3,
            max_length=20,
            generator=torch.Generator().manual_seed(0),
        )

    network = Fixed(fragment)
    made = decode_trajectories(encoder, stitch(network))
    assert made.lengths.tolist() == [20, 20, 20]
    assert made.truncated.nonzero()[0].tolist() == [19, 39, 59]
    assert not made.terminated.any()
    first, second, third = network.conditions
    assert not first.any()
    for condition, passed in ((second, 8), (third, 16)):
        numbers = torch.tensor([0.25, 0.25, 0.25, 1, 0.25, 0.25])  # the reward, to its level
        assert torch.allclose(condition[:, :-2], numbers, atol=1e-4)
        assert (condition[:, -2] == -1).all()
        assert torch.allclose(condition[:, -1], torch.tensor(2 * passed / 24 - 1))
    fragment[0, 5, -2] = 0.1  # the first end; what follows it is dropped
    fragment[0, 6:] = 1.0
    made = decode_trajectories(encoder, stitch(Fixed(fragment)))
    assert made.lengths.tolist() == [6, 6, 6]
    assert made.terminated.nonzero()[0].tolist() == [5, 11, 17]
    assert not made.truncated.any()
    raw = encoder.decode_steps(fragment[0, 5:6])[0].next_observations
    assert np.allclose(made.observations[[6, 13, 20]], raw)


def test_seams_are_measured_before_they_are_closed(master: DatasetStore) -> None:
    encoder = synthesizer_of(config(), master).fragments
    scale = encoder.transitions.scaling.scale[:2]
    real = walks(40, 9)
    fragments = encoder.encode(real)
    steps = encoder.split(fragments.rows)[1].reshape(-1, encoder.step_width)
    steps = steps[np.abs(steps[:, :-2]).any(axis=1)]
    exact = SeamErrors.none()
    exact.add(encoder, steps)
    facts = exact.facts()
    assert facts["inside"] == pytest.approx(0, abs=1e-5)
    assert facts["at_seams"] == pytest.approx(0, abs=1e-5)
    moves = np.abs(np.diff(real.observations, axis=0)) / scale
    same = np.ones(len(moves), bool)
    same[real.offsets[1:-1] + np.arange(len(real) - 1)] = False
    last = real.offsets[1:] + np.arange(len(real)) - 1
    same[last] = False  # the move into the last observation has no next step
    assert facts["of_a_step"] == pytest.approx(moves[same].mean(), rel=1e-4)
    place = np.concatenate([np.arange(length) for length in real.lengths])
    steps[(place % 8 == 0) & (place > 0), 0] += 0.5  # every fragment begins half a deviation off
    moved = SeamErrors.none()
    moved.add(encoder, steps)
    assert moved.facts()["inside"] == pytest.approx(0, abs=1e-5)
    assert moved.facts()["at_seams"] == pytest.approx(0.25, abs=1e-4)


def test_a_trained_model_learns_where_episodes_end_and_how_steps_join(tmp_path: Path) -> None:
    settings = config(
        method="privorl_j_unet",
        model={"width": 32, "depth": 2, "horizon": 8},
        training=config_values()["training"]
        | {
            "pretraining": {
                "steps": 900,
                "batch_size": 64,
                "curiosity_rate": 0.0,
                "optimiser": {"learning_rate": 3e-3, "schedule": "cosine", "ema_decay": 0.99},
            }
        },
    )
    store = walk_store(tmp_path / "walks", public=600)
    synthesizer = synthesizer_of(settings, store)
    spec = PretrainerSpec(
        run_id="run",
        root=str(store.root),
        public=(PUBLIC,),
        rows=FragmentRows(encoder=synthesizer.encoder, max_fragments_per_unit=3),
        synthesizer=synthesizer,
        config=settings.training.pretraining,
        seed=0,
        checkpoint=tmp_path / "pretrained.safetensors",
    )
    trainer = Pretrainer(spec)
    trainer.advance(900)
    FlatParameters(trainer._network).load(trainer._optimiser.ema)
    steps = stitched_steps(
        trainer._network,
        synthesizer,
        DDPMSampler(steps=10, stochasticity=0.0),
        count=200,
        max_length=24,
        generator=torch.Generator().manual_seed(0),
    )
    made = decode_trajectories(synthesizer.fragments, steps)
    real = store.read_trajectories(PUBLIC)
    quartiles = [np.percentile(each.lengths, (25, 50, 75)) for each in (made, real)]
    np.testing.assert_allclose(*quartiles, atol=2)
    last = made.offsets[1:] - 1
    assert made.terminated[last].mean() > 0.8
    ends = made.observations[made.offsets[1:] + np.arange(len(made)), 0]
    assert np.abs(ends[made.terminated[last]]).mean() > 0.8
    errors = SeamErrors.none()
    errors.add(synthesizer.fragments, steps)
    facts = errors.facts()
    assert facts["inside"] is not None
    assert facts["at_seams"] is not None
    print(facts)
    assert facts["inside"] < 0.2
    assert facts["at_seams"] < 0.4
