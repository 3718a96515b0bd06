"""The whole program on a tiny maze: what it leaves, what it refuses, what a crash costs."""

import contextlib
import json
import resource
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.cli.failures import described
from distributed_privrl.core.errors import (
    BudgetError,
    ConfigError,
    FolderInUseError,
    StorageError,
    UnsafeError,
    VerificationError,
)
from distributed_privrl.core.files import UNFINISHED, owned_folder
from distributed_privrl.data.metadata import CERTIFICATE_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.evaluate import (
    BEGUN_FILE,
    EvaluationRequest,
    Surroundings,
    evaluate_datasets,
)
from distributed_privrl.experiments.registry import METHODS, load_config, method_named, parse_config
from distributed_privrl.experiments.reports import rebuild_report
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.methods.privorl.method import PrivorlMethod
from distributed_privrl.methods.privorl.row_model import RowSynthesizer
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds import server as server_module
from distributed_privrl.stages.context import MethodResult
from tests.worlds.limits import size_limit
from tests.worlds.mazes import PUBLIC, SENSITIVE, Mazes, config, config_values, maze_store


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return maze_store(tmp_path_factory.mktemp("datasets"))


@pytest.fixture
def world(
    tmp_path: Path,
    master: DatasetStore,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Mazes:
    if "with_reports" not in request.fixturenames:  # plots cost more than all else together
        monkeypatch.setattr(
            "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
        )
    return Mazes(tmp_path, master)


@pytest.fixture(scope="module")
def ended(master: DatasetStore, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run that has ended well, without reports."""
    world = Mazes(tmp_path_factory.mktemp("ended"), master)
    world.budget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        return world.run()


@pytest.fixture
def copied(world: Mazes, ended: RunResult) -> RunResult:
    """The same run with all that is around it, in this test's world."""
    shutil.copytree(ended.directory.path.parent, world.folder, dirs_exist_ok=True)
    return replace(ended, directory=RunDirectory(world.folder / "run"))


def files_that_may_leave(directory: RunDirectory) -> set[str]:
    """Return what lies outside ``private/``."""
    files = {
        path.relative_to(directory.path) for path in directory.path.rglob("*") if path.is_file()
    }
    return {path.as_posix() for path in files if path.parts[0] != "private"}


@pytest.fixture
def with_reports() -> None:
    """Ask for the reports too."""


@pytest.mark.usefixtures("with_reports")
def test_a_run_leaves_a_certified_dataset_and_nothing_private_outside_private(world: Mazes) -> None:
    world.budget()
    result = world.run()
    folder = result.directory.path
    names = {p.name for p in folder.iterdir()}
    assert names == {
        "config.yaml",
        "certificate.json",
        "metrics.jsonl",
        "report.html",
        "report.json",
        "checkpoint",
        "events",
        "private",
    }
    checked = verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )
    certificate = checked.certificate
    assert certificate.status == "valid"
    assert certificate.epsilon is not None
    assert certificate.epsilon <= 5.0
    assert len(certificate.outputs) == 3
    (stage,) = certificate.stages
    assert stage.events[0].count == 6  # what was reserved, not the spare rounds
    assert certificate.spare_rounds == 2
    assert set(stage.assumptions) == {"float64_lattice_noise"}
    assert load_config(folder / "config.yaml").output.dataset == "test/private-v0"
    private = list((folder / "private").iterdir())
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in private)
    assert json.loads((folder / "private" / "report.json").read_text())["not_for_release"]
    entry = world.ledger.reserved(result.directory.run_id)
    assert entry is not None
    assert entry.status == "settled"
    assert entry.epsilon == pytest.approx(certificate.epsilon, rel=0.01)
    assert rebuild_report(folder, store=world.store) == folder / "report.html"
    parquet = "data/transitions.parquet"
    shutil.copy(
        world.store.root / SENSITIVE / "data" / "main_data.hdf5",
        world.store.root / result.released / parquet,
    )
    before = (folder / "report.json").read_bytes()
    with pytest.raises(VerificationError, match="is not what the certificate names"):
        rebuild_report(folder, store=world.store)
    assert (folder / "report.json").read_bytes() == before


def test_a_changed_certificate_is_not_gone_on_with(world: Mazes, copied: RunResult) -> None:
    path = copied.directory.certificate
    path.write_text(path.read_text().replace('"spare_rounds": 2', '"spare_rounds": 3'))
    with pytest.raises(VerificationError, match="the digest does not match"):
        world.run(resume=True)
    with pytest.raises(VerificationError, match="the digest does not match"):
        rebuild_report(path.parent, store=world.store)


def test_the_dataset_loads_in_plain_minari_with_its_certificate(
    world: Mazes, copied: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(world.store.root))
    dataset = minari.load_dataset(copied.released)
    assert dataset.total_steps == 150
    assert dataset.storage.metadata[CERTIFICATE_KEY] == copied.certificate.to_dict()
    assert "fingerprint" not in json.dumps(copied.certificate.to_dict())
    rows = world.store.read_transitions(copied.released, unit="transition")
    assert rows.observations.shape == (150, 4)
    assert np.isfinite(rows.observations).all()


def test_altered_certificates_and_outputs_are_refused(world: Mazes, copied: RunResult) -> None:
    path = world.folder / "altered.json"
    for change in ("epsilon", "count", "noise_multiplier"):
        content = json.loads(copied.directory.certificate.read_text())
        if change == "epsilon":
            content["epsilon"] *= 0.9
        else:
            content["stages"][0]["events"][0][change] *= 2
        path.write_text(json.dumps(content))
        with pytest.raises(VerificationError, match="digest"):
            verify_certificate(path, outputs_root=world.store.root)
    parquet = next(p for p in world.store.files(copied.released) if p.suffix == ".parquet")
    parquet.write_bytes(parquet.read_bytes() + b" ")
    with pytest.raises(VerificationError, match="was changed"):
        verify_certificate(copied.directory.certificate, outputs_root=world.store.root)


def test_a_seeded_noise_source_gives_an_invalid_certificate(world: Mazes) -> None:
    world.budget()
    result = world.run(key=1)
    assert result.certificate.status == "invalid"
    assert result.certificate.noise_source == "insecure_seeded"
    with pytest.raises(VerificationError, match="status is invalid"):
        verify_certificate(result.directory.certificate)


def test_without_privacy_the_certificate_says_so_and_nothing_is_charged(world: Mazes) -> None:
    result = world.run(privacy__epsilon=None)
    assert result.certificate.status == "non_private"
    assert result.certificate.epsilon is None
    assert world.ledger.entries() == []
    with pytest.raises(VerificationError, match="status is non_private"):
        verify_certificate(result.directory.certificate)


def test_more_privacy_is_more_noise(world: Mazes) -> None:
    world.budget(epsilon=20.0, delta=1e-4)
    multipliers = [
        world.run(
            f"run-{epsilon}",
            privacy__epsilon=epsilon,
            output__dataset=f"test/private-{epsilon:.0f}-v0",
        )
        .certificate.stages[0]
        .events[0]
        .noise_multiplier
        for epsilon in (1.0, 10.0)
    ]
    assert multipliers[0] > 1.5 * multipliers[1]


def test_units_can_be_counted_with_noise_and_the_count_is_charged(world: Mazes) -> None:
    world.budget()
    result = world.run(data__units={"epsilon": 0.5})
    count, rounds = result.certificate.stages
    assert (count.accountant, count.units_source, rounds.units_source) == ("pure", "dp", "dp")
    assert abs(count.units - 3000) < 60
    assert result.certificate.epsilon is not None
    assert result.certificate.epsilon <= 5.0
    verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )


SEARCH = """
observation: {low: -50, high: 50}
action: {low: -1, high: 1}
reward: [0, 1]
"""


def noisy_bounds(folder: Path, **settings: Any) -> dict[str, Any]:
    """Return settings of a run without public data whose bounds are found."""
    (folder / "search.yaml").write_text(SEARCH)
    asked = {"epsilon": 1.0, "search": str(folder / "search.yaml"), "parts": ["observation"]}
    training = config_values()["training"]
    return {
        "data": config_values()["data"] | {"public": [], "bounds": asked | settings},
        "training": training | {"pretraining": {"steps": 0}},
    }


@pytest.mark.parametrize("units", [3000, {"epsilon": 0.5}])
def test_bounds_can_be_found_with_noise_and_are_charged(world: Mazes, units: Any) -> None:
    world.budget()
    changes = noisy_bounds(world.folder)
    changes["data"]["units"] = units
    result = world.run(**changes)
    names = ["bounds", "fine-tune"] if units == 3000 else ["count", "bounds", "fine-tune"]
    assert [stage.name for stage in result.certificate.stages] == names
    *_, bounds, rounds = result.certificate.stages
    assert (bounds.accountant, bounds.delta, bounds.units) == ("pure", 0.0, rounds.units)
    assert bounds.events[0].count == 8  # of four columns, two each
    assert result.certificate.epsilon is not None
    assert 3.0 < result.certificate.epsilon <= 5.0
    verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )
    spent = world.ledger.accounts()[0].spent_epsilon
    assert spent == pytest.approx(result.certificate.epsilon)
    assert world.run(resume=True, **changes).certificate.stages == result.certificate.stages
    assert world.ledger.accounts()[0].spent_epsilon == spent


def test_no_pretraining_is_kept_that_follows_from_noisy_bounds(world: Mazes) -> None:
    """Another run that found it there would release them without its own charge."""
    world.budget(epsilon=10.0, delta=2e-5)
    kept, found = world.folder / "kept", noisy_bounds(world.folder)
    settings = {"training": config_values()["training"], "runtime__pretrained": str(kept)}
    found["data"]["public"] = [PUBLIC]
    world.run("found", **found | settings)
    assert not list(kept.glob("*"))
    world.run("public", **settings, output__dataset="test/other-v0")
    assert list(kept.glob("*.safetensors"))


@pytest.mark.usefixtures("copied")
def test_a_resume_with_another_ledger_pays_for_nothing(world: Mazes) -> None:
    other = Mazes(world.folder / "other")
    other.store, other.folder = world.store, world.folder
    other.budget()
    with pytest.raises(ConfigError, match=r"the ledger does not know run-.*: give --ledger"):
        other.run(resume=True)
    assert other.ledger.entries() == []
    assert (world.folder / "run" / "certificate.json").exists()


def test_a_certificate_states_what_the_ledger_reserved(
    world: Mazes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a method of another package says that it charged."""

    def cheaper(*_: Any) -> MethodResult:
        result = honest(*_)
        (stage,) = result.stages
        return replace(result, stages=(stage.model_copy(update={"events": stage.events[:0]}),))

    world.budget()
    method = method_named("privorl_n")
    honest = method.run
    monkeypatch.setattr(program, "method_named", lambda _: SimpleNamespace(run=cheaper))
    with pytest.raises(VerificationError, match="the ledger reserved"):
        world.run()
    assert not (world.folder / "run" / "certificate.json").exists()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"bounds": {"epsilon": 6.0}},
            ConfigError,
            "used up by what is released before the rounds",
        ),
        ({"budget": 4.0}, BudgetError, "needs 5 and"),
        ({"bounds": {"search": "absent.yaml"}}, ConfigError, "absent.yaml"),
        ({"bounds": {"parts": ["action"], "search": "search.yaml"}}, ConfigError, "search.yaml"),
        ({"privacy__epsilon": None}, ConfigError, "give data.bounds public values"),
    ],
)
def test_bounds_that_cannot_be_paid_or_searched_leave_nothing(
    world: Mazes, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    changes = {**changes}
    world.budget(epsilon=changes.pop("budget", 5.0))
    settings = noisy_bounds(world.folder, **changes.pop("bounds", {}))
    with pytest.raises(error, match=message):
        world.run(**settings, **changes)
    assert not (world.folder / "run").exists()
    assert world.ledger.entries() == []


def test_a_budget_that_is_asked_for_lowers_no_limit(world: Mazes) -> None:
    """Before anything is found with noise, as when the rounds are charged."""
    world.budget(epsilon=4.0, delta=2.5e-4)
    for settings in (noisy_bounds(world.folder), {"privacy__epsilon": 5.0}):
        with pytest.raises(BudgetError, match=r"raise .* --epsilon 5 --delta 0\.00025 --unit"):
            world.run(**settings)


def test_trajectories_as_units(world: Mazes) -> None:
    world.budget(epsilon=30.0, delta=1e-3, unit="trajectory")
    result = world.run(
        data__unit="trajectory",
        data__units=10,
        privacy__epsilon=25.0,
        privacy__delta=1e-3,
        training={
            **config().training.model_dump(),
            "expected_batch_size": 4,
            "noise_multiplicity": 3,
        },
    )
    assert result.certificate.stages[0].unit == "trajectory"
    verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )


def test_poisoned_sensitive_rows_leave_no_trace(world: Mazes) -> None:
    rows = world.store.read_transitions(SENSITIVE, unit="transition")
    info = world.store.info(SENSITIVE)
    observations = rows.observations.copy()
    observations[5] = np.nan
    observations[6] = 1e38
    shutil.rmtree(world.store.root / SENSITIVE)
    from dataclasses import replace

    world.store.write_transitions(
        SENSITIVE,
        [replace(rows, observations=observations)],
        layout="transitions",
        observation_space=info.observation_space,
        action_space=info.action_space,
    )
    world.budget()
    result = world.run()
    assert result.certificate.status == "valid"
    synthetic = world.store.read_transitions(result.released, unit="transition")
    assert np.isfinite(synthetic.observations).all()


def test_no_budget_means_no_run_and_no_folder(world: Mazes) -> None:
    with pytest.raises(BudgetError, match=f"privrl ledger budget {SENSITIVE} --epsilon"):
        world.run()
    assert not (world.folder / "run").exists()
    world.budget(epsilon=1.0)
    with pytest.raises(BudgetError, match="left"):
        world.run()
    assert not (world.folder / "run").exists()
    assert world.ledger.entries() == []


def test_a_budget_pays_for_as_many_runs_as_fit(world: Mazes) -> None:
    world.budget(epsilon=11.0, delta=1e-4)
    world.run("one")
    world.run("two", output__dataset="test/private-two-v0")
    with pytest.raises(BudgetError):
        world.run("three", output__dataset="test/private-three-v0", privacy__epsilon=5.0)


def test_another_unit_than_the_accounts_is_refused(world: Mazes) -> None:
    world.budget(unit="trajectory", delta=1e-5)
    with pytest.raises(UnsafeError):
        world.run()
    assert not (world.folder / "run").exists()


@pytest.mark.parametrize(("others", "message"), [(0, "cannot be public"), (999, "also in a")])
def test_overlap_is_refused(world: Mazes, others: int, message: str) -> None:
    """Rows of the sensitive set alone, and so few among others that no sample shows them."""
    world.budget()
    info = world.store.info(SENSITIVE)
    rows = world.store.read_transitions(SENSITIVE, unit="transition").select(np.arange(3))
    public = world.store.read_transitions(PUBLIC, unit="transition").select(np.arange(others))
    world.store.write_transitions(
        "test/leaky-v0",
        [Transitions.concatenate([rows, public])],
        layout="transitions",
        observation_space=info.observation_space,
        action_space=info.action_space,
    )
    with pytest.raises(UnsafeError, match=message):
        world.run(data__public=["test/leaky-v0"])
    assert world.ledger.entries() == []


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ((Box(-9.0, 9.0, (3,)), Box(-1.0, 1.0, (2,))), "has observation space Box"),
        ((Box(-9.0, 9.0, (4,)), Discrete(5)), r"has action space Discrete\(5\), test/umaze-v0 has"),
    ],
)
def test_public_rows_of_other_spaces_are_refused_before_anything_is_charged(
    world: Mazes, spaces: tuple[Any, Any], message: str
) -> None:
    world.budget()
    seen, done = (np.stack([space.sample(), space.sample()]) for space in spaces)
    rows = Transitions(
        observations=seen,
        actions=done,
        rewards=np.zeros(2, np.float32),
        next_observations=seen,
        terminated=np.zeros(2, bool),
        truncated=np.zeros(2, bool),
        unit_ids=np.arange(2, dtype=np.uint64),
    )
    world.store.write_transitions(
        "test/other-v0",
        [rows],
        layout="transitions",
        observation_space=spaces[0],
        action_space=spaces[1],
    )
    with pytest.raises(ConfigError, match=message):
        world.run(data__public=["test/other-v0"])
    assert world.ledger.entries() == []


def test_a_network_that_cannot_be_built_is_refused_before_anything_is_charged(
    world: Mazes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise ConfigError("it cannot be built")

    world.budget()
    monkeypatch.setattr(RowSynthesizer, "build", build)
    with pytest.raises(ConfigError, match="cannot be built"):
        world.run(data__units={"epsilon": 0.5})
    assert world.ledger.entries() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__sensitive": "test/absent-v0"}, "absent"),
        ({"data__public": ["test/absent-v0"]}, "absent"),
        ({"output__dataset": SENSITIVE}, "different datasets"),
        ({"data__public": [SENSITIVE]}, "different datasets"),
        ({"data__units": None}, "not declared"),
        ({"data__unit": "patient_id"}, "patient_id"),
        ({"data__public": []}, "public"),
    ],
)
def test_bad_configurations_are_one_line_and_leave_nothing(
    world: Mazes, changes: dict[str, Any], message: str
) -> None:
    world.budget()
    with pytest.raises(ConfigError, match=message) as caught:
        world.run(**changes)
    assert "\n" not in str(caught.value)
    assert not (world.folder / "run").exists()
    assert world.ledger.entries() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("privacy: {epsilon: 0}", "epsilon"),
        ("privacy: {epsilon: -1}", "epsilon"),
        ("privacy: {epsilon: .nan}", "epsilon"),
        ("privacy: {delta: 0}", "delta"),
        ("data: {sensitive: 'no version'}", "dataset id"),
        ("output: {dataset: '../evil-v0'}", "dataset id"),
        ("surprise: 1", "unknown key 'surprise'"),
        ("method: privorl_j\nmodel: {width: 30}", "must divide model.width=30"),
        ("model: {wdith: 3}", "unknown key 'model.wdith' \\(known: .*width"),
        ("method: magic", "method 'magic' is not installed"),
    ],
)
def test_values_out_of_range_are_named(text: str, message: str) -> None:
    from distributed_privrl.core.yaml_files import parse_yaml

    values = config_values()
    for key, value in parse_yaml(text, source="test").items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(values, source="test")
    assert "\n" not in str(caught.value)


def test_an_output_that_exists_is_refused(world: Mazes) -> None:
    world.budget(epsilon=20.0, delta=1e-4)
    world.run()
    with pytest.raises(ConfigError, match="exists"):
        world.run("again")
    with pytest.raises(ConfigError, match="--resume"):
        world.run(output__dataset="test/other-v0")
    with pytest.raises(ConfigError, match="another configuration"):
        world.run(resume=True, training={**config().training.model_dump(), "rounds": 7})


class Killed(BaseException):
    """Ends a run as a kill would: nothing catches it."""


def test_a_run_killed_in_its_rounds_resumes_and_pays_for_what_was_lost(
    world: Mazes, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.budget()
    original = server_module.ParameterServer._run_round

    def dies(self: Any) -> None:
        if self._round == 3:
            raise Killed
        original(self)

    with monkeypatch.context() as patched:
        patched.setattr(server_module.ParameterServer, "_run_round", dies)
        with pytest.raises(Killed):
            world.run()
    assert not (world.folder / "run" / "certificate.json").exists()
    left = world.store.root / f"{UNFINISHED}dead"  # of whoever was killed while it cleaned up
    left.mkdir()
    result = world.run(resume=True)
    assert not left.exists()
    entry = world.ledger.reserved(result.directory.run_id)
    assert entry is not None
    assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds
    assert entry.committed_rounds == 6
    assert entry.reserved_rounds == 7
    assert result.certificate.stages[0].events[0].count == 7
    assert result.certificate.spare_rounds == 1
    verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )


def test_a_finished_run_can_be_resumed_for_nothing(world: Mazes, copied: RunResult) -> None:
    spent = world.ledger.accounts()[0].spent_epsilon
    second = world.run(resume=True)
    assert world.ledger.accounts()[0].spent_epsilon == spent
    assert copied.certificate.stages == second.certificate.stages
    assert copied.certificate.outputs == second.certificate.outputs


def test_an_interrupt_writes_a_checkpoint(world: Mazes, monkeypatch: pytest.MonkeyPatch) -> None:
    world.budget()
    original = server_module.ParameterServer.advance
    calls = []

    def interrupted(self: Any, rounds: int) -> Any:
        calls.append(rounds)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, rounds)

    with monkeypatch.context() as patched:
        patched.setattr(server_module.ParameterServer, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.run()
    result = world.run(resume=True)
    assert result.certificate.stages[0].events[0].count == 6


def test_a_full_disk_is_one_line_and_the_ledger_stays_true(
    world: Mazes, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.budget()

    from distributed_privrl.rounds import checkpoint

    with monkeypatch.context() as patched:
        original = checkpoint.write_atomically
        saved = []

        def sometimes(*arguments: Any, **keywords: Any) -> None:
            saved.append(1)
            with size_limit(256 if len(saved) > 3 else resource.RLIM_INFINITY):
                original(*arguments, **keywords)

        patched.setattr(checkpoint, "write_atomically", sometimes)
        with pytest.raises(StorageError, match=r"File too large; free some space") as caught:
            world.run()
        assert "\n" not in str(caught.value)
    result = world.run(resume=True)
    verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )


def test_a_store_that_cannot_be_written_is_found_before_anything_is_charged(world: Mazes) -> None:
    world.budget()
    (world.store.root / "blocked").touch()
    with pytest.raises(StorageError, match=r"cannot write to .*blocked"):
        world.run(output__dataset="blocked/private-v0")
    assert world.ledger.entries() == []
    assert world.ledger.holds() == []


def test_a_folder_in_which_another_process_works_is_left_alone(world: Mazes) -> None:
    world.budget()
    with owned_folder(world.folder / "run"), pytest.raises(FolderInUseError):
        world.run()
    assert not (world.folder / "run").exists()
    assert world.ledger.holds() == []


def test_nothing_of_a_private_round_is_logged(world: Mazes) -> None:
    world.budget()
    told: list[tuple[str, int, int, str]] = []
    result = world.run(
        progress=lambda stage, done, total, note="": told.append((stage, done, total, note))
    )
    for stage, done, total, note in told:
        if stage == "private rounds":
            assert total == 6
            assert 0 <= done <= 6
            assert note.startswith("epsilon reserved ")
    assert any(note.startswith("loss on public rows ") for _, _, _, note in told)
    assert {stage for stage, _, _, note in told if "loss" in note} == {"public pre-training"}
    text = (result.directory.path / "metrics.jsonl").read_text()
    for word in ("loss", "norm", "clip_fraction", "batch", "seconds", "fingerprint"):
        assert word not in text
    with pytest.raises(TypeError):
        result.directory.write_metrics([{"loss": 0.3}])  # type: ignore[dict-item]


def test_every_method_has_a_plan() -> None:
    generators = ["privorl_n", "privorl_ar", "privorl_j", "privorl_j_unet", "privorl_ar_j"]
    generators += ["marginals", "marginals_j", "pgm", "privsyn"]
    generators += ["dp_transformer"]
    generators += ["pate_gan", "pre_pate_gan"]
    assert list(METHODS) == sorted(
        [
            *generators,
            "primorl",
            "mopo",
            "apvi",
            "vapvi",
            "expert",
            "policy_value",
            "dprft",
            "dp_fine_tuning",
        ]
    )
    for make in METHODS.values():
        assert make().summary


def test_the_program_names_what_it_versions(world: Mazes) -> None:
    assert set(program.versions_of("apvi")) >= {"python", "torch", "dp-accounting"}


def test_another_runs_checkpoint_is_not_taken_for_this_ones(world: Mazes) -> None:
    world.budget(epsilon=20.0, delta=1e-4)
    world.run("one")
    with pytest.raises(Killed):
        _killed_before_its_rounds(world)
    two = world.folder / "two" / "checkpoint"
    shutil.copy(world.folder / "one" / "checkpoint" / "rounds.safetensors", two)
    with pytest.raises(UnsafeError, match="its cost is not this run's"):
        world.run("two", resume=True, output__dataset="test/private-two-v0")
    (two / "rounds.safetensors").unlink()
    shutil.copy(
        world.folder / "one" / "checkpoint" / "rounds.safetensors", two / "pretrained.safetensors"
    )
    with pytest.raises(UnsafeError, match="its cost is not this run's"):
        world.run("two", resume=True, output__dataset="test/private-two-v0")


def _killed_before_its_rounds(world: Mazes) -> None:
    def dies(self: Any, rounds: int) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server_module.ParameterServer, "advance", dies)
        world.run("two", output__dataset="test/private-two-v0")


def test_a_seeded_run_never_becomes_a_valid_one(world: Mazes) -> None:
    world.budget()
    world.run(key=1)
    with pytest.raises(UnsafeError, match="noise source"):
        world.run(resume=True)
    (world.folder / "run" / "certificate.json").unlink()
    facts = world.folder / "run" / "checkpoint" / "run.json"
    facts.write_text(facts.read_text().replace("insecure_seeded", "float64_lattice"))
    with pytest.raises(UnsafeError, match="noise of source"):
        world.run(resume=True)


def test_a_resume_does_not_certify_files_that_somebody_changed(
    world: Mazes, copied: RunResult
) -> None:
    hdf5 = next(p for p in world.store.files(copied.released) if p.suffix == ".hdf5")
    shutil.copy(next(p for p in world.store.files(SENSITIVE) if p.suffix == ".hdf5"), hdf5)
    with pytest.raises(VerificationError, match="not those that"):
        world.run(resume=True)
    (world.folder / "run" / "certificate.json").unlink()
    # The certificate is lost too: the rows are written anew from the run's own chunks, and the
    # ledger refuses another certificate (one made in the same second is the same).
    with contextlib.suppress(UnsafeError):
        assert world.run(resume=True).certificate == copied.certificate


def test_a_certificate_can_be_signed(world: Mazes) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    world.budget()
    key = Ed25519PrivateKey.generate()
    pem = world.folder / "key.pem"
    pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    result = world.start(config(), sign_key=pem)
    public = key.public_key().public_bytes_raw().hex()
    file, root = result.directory.certificate, world.store.root
    assert verify_certificate(file, public_key=public, outputs_root=root).signed_by == public
    with pytest.raises(VerificationError, match="another key"):
        verify_certificate(file, public_key="0" * 64, outputs_root=root)


@pytest.mark.usefixtures("with_reports")
def test_without_a_valid_certificate_everything_shown_is_private(world: Mazes) -> None:
    result = world.run(privacy__epsilon=None)
    public = json.loads((result.directory.path / "report.json").read_text())
    assert public["sections"] == []
    private = json.loads((result.directory.private / "report.json").read_text())
    titles = [section["title"] for section in private["sections"]]
    assert "What is in the dataset" in titles
    assert "What the release is worth" in titles
    assert files_that_may_leave(result.directory) <= {
        *("config.yaml", "certificate.json", "report.html", "report.json", "metrics.jsonl"),
        "checkpoint/run.json",
    }
    working = result.directory.working(private=False)
    assert stat.S_IMODE(working.stat().st_mode) == 0o700
    assert (working / "rounds.safetensors").exists()
    inner = [path for path in result.directory.private.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in inner} == {0o600}
    released = world.store.root / result.released
    assert {stat.S_IMODE(path.stat().st_mode) for path in released.rglob("*.*")} == {0o600}
    assert world.run(privacy__epsilon=None, resume=True).certificate == result.certificate
    out = world.folder / "evaluation"
    request = EvaluationRequest(synthetic=SENSITIVE, trainers=())
    evaluate_datasets(request, Surroundings(store=world.store), out=out)
    assert {p.name for p in out.iterdir()} == {"private", BEGUN_FILE}
    assert stat.S_IMODE((out / "private" / "report.json").stat().st_mode) == 0o600


def test_a_refusal_after_a_charge_says_what_becomes_of_it(
    world: Mazes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise UnsafeError("this does not fit")

    world.budget()
    with monkeypatch.context() as patch:
        patch.setattr(PrivorlMethod, "finish", refuses)
        with pytest.raises(UnsafeError) as refused:
            world.run()
    (entry,) = world.ledger.entries()
    code, line = described(refused.value)
    assert code == UnsafeError.exit_code
    assert f"this does not fit ({entry.id} stays charged: --resume goes on" in line
    assert f"`privrl ledger settle {entry.id}` gives it up" in line
    assert world.run(resume=True).certificate.status == "valid"
