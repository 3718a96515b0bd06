"""A whole run on a maze: what may leave holds no secret, and its certificate cannot be bent."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import VerificationError
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.metadata import SEAM_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import reports
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.methods.privorl.config import PrivorlJConfig
from distributed_privrl.methods.privorl.trajectories import fragment_synthesizer
from distributed_privrl.privacy.calibration import SUM_SLACK
from distributed_privrl.privacy.certificate import Certificate, build_certificate
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.stages.coding import public_encoder
from distributed_privrl.stages.round_plan import FEWEST_BLOCKS
from tests.gates.fragments import Fragments
from tests.gates.leak_runs import Finished, figures_of, rows_of, watched_run
from tests.gates.leak_secrets import Secrets
from tests.gates.leaks import scan, scan_metadata
from tests.gates.marginal_leaks import METADATA
from tests.worlds.mazes import maze_store
from tests.worlds.opened import opened
from tests.worlds.walks import SPACES, wanderings
from tests.worlds.world import World

SENSITIVE, PUBLIC, RELEASED = "leak/sensitive-v0", "leak/public-v0", "leak/private-v0"
ROUNDS, BATCH = 12, 64
CONFIG: dict[str, Any] = {
    "method": "privorl_n",
    "data": {
        "sensitive": SENSITIVE,
        "public": [PUBLIC],
        "unit": "transition",
        "units": 2900,  # declared: not what the file holds
        "environment": "privrl/Maze2D-umaze-v0",
    },
    "privacy": {"epsilon": 8, "delta": 1e-5},
    "model": {"width": 16, "depth": 1},
    "training": {
        "rounds": ROUNDS,
        "block_rounds": 4,
        "spare": 4,
        "expected_batch_size": BATCH,
        "pretraining": {"steps": 5, "batch_size": 32},
        "sampling": {"steps": 4, "chunk_rows": 128},
    },
    "output": {"dataset": RELEASED, "size": 300},
    "runtime": {"workers": 2, "executor": "local"},
}
TRAJECTORIES: dict[str, Any] = CONFIG | {
    "method": "privorl_j",
    "data": {
        "sensitive": SENSITIVE,
        "public": [PUBLIC],
        "unit": "trajectory",
        "units": 290,
        "max_length": 20,
    },
    "model": {"width": 16, "depth": 1, "heads": 2, "horizon": 8},
    "training": CONFIG["training"]
    | {"sampling": {"steps": 3, "chunk_trajectories": 64}, "max_fragments_per_unit": 4},
    "output": {"dataset": RELEASED, "size": 100},
}


def watched(folder: Path, values: dict[str, Any]) -> Finished:
    """Run ``values`` over the datasets in a folder."""
    config, world = parse_config(values, source="the test's configuration"), World(folder)
    store = world.store
    secrets = Secrets(
        rows=rows_of(store, config, SENSITIVE),
        public=rows_of(store, config, PUBLIC),
        figures=figures_of(store.read_trajectories(SENSITIVE)),
    )
    return watched_run(world, config, secrets)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("leaks")
    maze_store(folder / "datasets", SENSITIVE, PUBLIC)
    return watched(folder, CONFIG)


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("leaks")
    store = DatasetStore(folder / "datasets")
    for dataset, seed in ((SENSITIVE, 1), (PUBLIC, 2)):
        store.write_trajectories(dataset, wanderings(300, seed), **SPACES)
    with pytest.MonkeyPatch.context() as patch:
        # What compares trajectories in private/ is looked at in the runs of marginals.
        patch.setattr(reports, "attempted_sections", lambda *_: [])
        return watched(folder, TRAJECTORIES)


@pytest.fixture(scope="module")
def encoder(trajectories: Finished) -> FragmentEncoder:
    """Return what cuts trajectories into the run's fragments."""
    config, store = trajectories.config, trajectories.store
    assert isinstance(config, PrivorlJConfig)
    return fragment_synthesizer(config, store, public_encoder(config, store)).fragments


@pytest.fixture(params=["finished", "trajectories"])
def either(request: pytest.FixtureRequest) -> Finished:
    """Return the run of each method in turn."""
    found: Finished = request.getfixturevalue(request.param)
    return found


def test_nothing_that_may_leave_holds_a_secret(either: Finished) -> None:
    assert len(either.secrets.keys) >= 2  # the noise and the reservation
    assert len(either.secrets.sums) == 2 * ROUNDS
    assert len(either.secrets.positions) == FEWEST_BLOCKS * ROUNDS
    scan(
        either.folder,
        either.secrets,
        said=either.said,
        beside=[either.released],
        sent=either.sent,
    )


def test_what_a_released_dataset_says_of_itself_holds_no_secret(either: Finished) -> None:
    said = opened(either.store.info(RELEASED).metadata)
    scan_metadata(said, either.secrets, known=METADATA)
    recorded = either.store.read_trajectories(SENSITIVE)
    leaks: tuple[dict[str, Any], ...] = (
        {"lengths": [1, 2]},
        {SEAM_KEY: {"deviation of returns": figures_of(recorded)[3]}},
        {SEAM_KEY: {"first": recorded.observations[:3].astype(float).tolist()}},
    )
    for leak in leaks:
        with pytest.raises(AssertionError, match="metadata"):
            scan_metadata({**said, **leak}, either.secrets, known=METADATA)


def test_no_released_row_is_a_sensitive_one(either: Finished) -> None:
    released, encoded = rows_of(either.store, either.config, RELEASED)
    secrets = Secrets(rows=either.secrets.rows, public=either.secrets.public)
    other = Secrets(rows=(released, encoded), public=either.secrets.public)
    assert not np.isin(other.pairs, secrets.pairs).any()
    assert len(released) >= 100


def test_the_certificate_states_what_was_done(either: Finished) -> None:
    """Draws, deviation, clip norm, q and denominator of a whole run, against its papers."""
    (entry,) = Ledger(either.ledger_url).entries(SENSITIVE)
    (stage,) = Certificate.model_validate_json(either.certificate.read_text()).stages
    (event,) = stage.events
    units = either.config.data.units
    assert isinstance(units, int)
    assert len(either.deviations) == ROUNDS == event.count == entry.reserved_rounds
    assert entry.committed_rounds == entry.drawn_rounds == ROUNDS
    charged = event.noise_multiplier * stage.clip_norm
    assert (
        either.deviations
        == [pytest.approx(charged * (1 + SUM_SLACK + 2**-21), rel=2**-21)] * ROUNDS
    )
    assert min(either.deviations) > charged
    for worker in either.workers:
        assert worker.local_update.clip_norm == stage.clip_norm
        assert worker.sampling_probability == event.sampling_probability == BATCH / units
    assert [server.expected_units for server in either.servers] == [pytest.approx(BATCH)]
    assert len(either.workers) == 2


def test_the_report_that_may_leave_knows_no_sensitive_row(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    certificate = Certificate.model_validate_json(finished.certificate.read_text())
    right = reports.shown_rows

    def moved(store: DatasetStore, dataset: str, *limit: int) -> Any:
        rows = right(store, dataset, *limit)
        return rows[: len(rows) // 2] + 0.5 if dataset == SENSITIVE else rows

    monkeypatch.setattr(reports, "shown_rows", moved)
    with closing(Ledger(finished.ledger_url)) as ledger:
        reports.write_reports(
            finished.config,
            finished.store,
            RunDirectory(folder),
            certificate,
            trials=[],
            ledger=ledger,
        )
    for name in ("report.html", "report.json"):
        assert (folder / name).read_bytes() == (finished.folder / name).read_bytes()
        private = Path("private") / name
        assert (folder / private).read_bytes() != (finished.folder / private).read_bytes()


def add_text(folder: Path, text: str) -> None:
    report = folder / "report.html"
    report.write_text(report.read_text() + text)


def add_metric(folder: Path, name: str, value: float) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({name: value}) + "\n")


LEAKS: dict[str, Callable[[Path, Secrets], Any]] = {
    "row": lambda folder, secrets: (folder / "checkpoint" / "cache.bin").write_bytes(
        b"odd" + secrets.rows[0][1234].tobytes()
    ),
    "encoded row": lambda folder, secrets: np.save(
        folder / "checkpoint" / "rows.npy", secrets.rows[1][77:80]
    ),
    "row in decimals": lambda folder, secrets: add_text(
        folder, str(secrets.rows[0][1234].tolist())
    ),
    "rounded row": lambda folder, secrets: add_text(
        folder, " ".join(f"{value:.5f}" for value in secrets.rows[1][5])
    ),
    "statistic": lambda folder, secrets: add_metric(folder, "scale", float(secrets.statistics[0])),
    "mean": lambda folder, secrets: (folder / "checkpoint" / "scale.bin").write_bytes(
        secrets.rows[0].astype(np.float64).mean(axis=0).tobytes()
    ),
    "positions": lambda folder, secrets: np.save(
        folder / "checkpoint" / "batch.npy", secrets.positions[3]
    ),
    "positions in text": lambda folder, secrets: add_text(
        folder, str(secrets.positions[3].tolist())
    ),
    "key": lambda folder, secrets: (folder / "checkpoint" / "key").write_bytes(secrets.keys[0]),
    "key in text": lambda folder, secrets: add_text(folder, secrets.keys[-1].hex()),
    "partial sum": lambda folder, secrets: np.save(
        folder / "checkpoint" / "sum.npy", secrets.sums[-1]
    ),
    "norm": lambda folder, secrets: add_metric(
        folder, "progress", float(np.linalg.norm(secrets.sums[4].astype(np.float64)))
    ),
    "loss": lambda folder, _: add_metric(folder, "training_loss", 1.0),
    "clip fraction": lambda folder, _: add_metric(folder, "clip_fraction", 0.5),
    "readable private file": lambda folder, _: (folder / "private" / "report.json").chmod(0o644),
    "open private folder": lambda folder, _: (folder / "private").chmod(0o755),
}


@pytest.mark.parametrize("name", LEAKS)
def test_the_scan_sees_a_planted_leak(name: str, finished: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    LEAKS[name](folder, finished.secrets)
    with pytest.raises(AssertionError):
        scan(folder, finished.secrets)


FRAGMENT_LEAKS: dict[str, tuple[Callable[[Path, FragmentEncoder, Finished], Any], str]] = {
    "fragment": (
        lambda folder, encoder, run: np.save(
            folder / "checkpoint" / "fragments.npy",
            encoder.encode(run.store.read_trajectories(SENSITIVE)).rows[40:41],
        ),
        "fragments.npy holds bytes of sensitive rows",
    ),
    "linking steps": (
        lambda folder, encoder, run: np.save(
            folder / "checkpoint" / "synthetic" / "conditions.npy",
            encoder.split(encoder.encode(run.store.read_trajectories(SENSITIVE)).rows)[0][50:60],
        ),
        "conditions.npy holds bytes of sensitive rows",
    ),
    "partial sum": (
        lambda folder, _, run: np.save(folder / "checkpoint" / "sum.npy", run.secrets.sums[-1]),
        "sum.npy holds a partial sum",
    ),
    "trajectories that took part": (
        lambda folder, _, run: add_text(folder, str(run.secrets.positions[3].tolist())),
        "report.html holds positions",
    ),
}


@pytest.mark.parametrize("name", FRAGMENT_LEAKS)
def test_the_scan_sees_a_planted_leak_of_fragments(
    name: str, trajectories: Finished, encoder: FragmentEncoder, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trajectories.folder, folder)
    plant, message = FRAGMENT_LEAKS[name]
    plant(folder, encoder, trajectories)
    with pytest.raises(AssertionError, match=message):
        scan(folder, trajectories.secrets)


@pytest.mark.parametrize("figure", range(4))
def test_the_scan_sees_a_figure_of_whole_trajectories(
    figure: int, trajectories: Finished, tmp_path: Path
) -> None:
    value = trajectories.secrets.figures[figure]
    assert value % 1, "a whole number would be no secret"
    shutil.copytree(trajectories.folder, tmp_path / "run")
    add_metric(tmp_path / "run", "progress", value)
    with pytest.raises(AssertionError, match="figure of sensitive trajectories"):
        scan(tmp_path / "run", trajectories.secrets)


def test_the_scan_sees_a_leak_in_what_was_said(finished: Finished) -> None:
    scan(finished.folder, finished.secrets, said="public pre-training 5 5 loss on public rows 1.2")
    for said in (
        "private rounds 3 12 loss 0.5",
        "private rounds 3 12 loss on public rows 0.5",
        f"batch {finished.secrets.positions[0].tolist()}",
    ):
        with pytest.raises(AssertionError):
            scan(finished.folder, finished.secrets, said=said)


def test_the_certificate_verifies(finished: Finished) -> None:
    checked = verify_certificate(
        finished.certificate,
        ledger=Ledger(finished.ledger_url),
        outputs_root=finished.store.root,
    )
    assert checked.ledger_checked
    assert len(checked.outputs_checked) >= 1
    assert checked.outputs_missing == ()
    assert checked.epsilon <= 8


def test_a_changed_certificate_fails(finished: Finished, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    values = json.loads(finished.certificate.read_text())
    for name, value in (("epsilon", 1.0), ("status", "invalid"), ("spare_rounds", 0)):
        path.write_text(json.dumps({**values, name: value}))
        with pytest.raises(VerificationError):
            verify_certificate(path, allow_missing_outputs=True)


def test_a_consistent_rewrite_fails_at_the_ledger(finished: Finished, tmp_path: Path) -> None:
    honest = Certificate.model_validate_json(finished.certificate.read_text())
    (stage,) = honest.stages
    (event,) = stage.events
    fewer = stage.model_copy(update={"events": (event.model_copy(update={"count": 4}),)})
    rewritten = build_certificate(
        method=honest.method,
        stages=[fewer],
        spare_rounds=honest.spare_rounds,
        noise_source=(str(honest.noise_source), True, ()),
        ledger_entries=honest.ledger_entries,
        outputs=honest.outputs,
        versions=honest.versions,
    )
    path = tmp_path / "certificate.json"
    path.write_text(rewritten.to_json())
    root = finished.store.root
    right = verify_certificate(finished.certificate, outputs_root=root)
    assert verify_certificate(path, outputs_root=root).epsilon < right.epsilon
    with pytest.raises(VerificationError, match="the ledger reserved 12"):
        verify_certificate(path, ledger=Ledger(finished.ledger_url), outputs_root=root)


def test_a_changed_output_fails(finished: Finished, tmp_path: Path) -> None:
    root = tmp_path / "datasets"
    shutil.copytree(finished.store.root / RELEASED, root / RELEASED)
    certificate = Certificate.model_validate_json(finished.certificate.read_text())
    path = root / certificate.outputs[0].id
    assert verify_certificate(finished.certificate, outputs_root=root).outputs_missing == ()
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(VerificationError, match="was changed"):
        verify_certificate(finished.certificate, outputs_root=root)


def test_a_round_without_anybody_leaves_nothing_to_look_for() -> None:
    """Its sum is zeros; of another's the bytes and the norm are looked for."""
    table = (np.ones((1, 2), np.float32),)
    empty, some = np.zeros(5), np.array([0.0, 1.5, -2.5])
    assert not list(Secrets(rows=table, public=table, sums=[empty]).fragments())
    found = dict(Secrets(rows=table, public=table, sums=[empty, some]).fragments())
    assert found["a partial sum"] == some[1:].tobytes()
    assert all(found.values())


def test_fragments_are_found_wherever_they_lie() -> None:
    long = (("long", b"abcdefghij"), ("like it", b"abcdefghxy"))
    looked_for = Fragments([("short", b"12345"), *long])
    for content, what in (
        (b"", None),
        (b"1234 abcdefgh abcdefghi", None),
        (b"...12345", "short"),
        (b".....abcdefghij.", "long"),
        (b"abcdefgh, abcdefghxy", "like it"),
    ):
        assert looked_for.found_in(content) == what
    assert Fragments([]).found_in(b"anything") is None
