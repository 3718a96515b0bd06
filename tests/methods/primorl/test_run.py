"""A finished run of PriMORL: its certificate, what it released, and what it must not show."""

import dataclasses
import json
import pickle
import shutil
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.agents.policy import Policy
from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.errors import VerificationError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments.termination import termination_rule
from distributed_privrl.evaluation.report import report_json
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.methods.primorl import start_states
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts, load_ensemble
from distributed_privrl.methods.primorl.policy_training import (
    PolicyTrainer,
    PolicyTrainerSpec,
)
from distributed_privrl.methods.primorl.report import policy_sections
from distributed_privrl.methods.primorl.start_states import (
    MomentsRelease,
    PooledStarts,
    environment_starts,
)
from distributed_privrl.methods.primorl.study import study
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.verification import verify_certificate
from tests.docs.pages import ROOT, fences
from tests.gates import leaks
from tests.gates.leak_secrets import Secrets
from tests.gates.primorl import assert_runs_as_certified
from tests.worlds.answers import answer
from tests.worlds.swings import (
    DATASET,
    UNITS,
    Swings,
    files_outside_private,
)
from tests.worlds.watching import watch

PUBLIC = "pendulum/public-v0"
RELEASED = ("policy.safetensors", "policy.pt", "ensemble.safetensors")


@dataclass
class Watched:
    """A finished run, and what was seen on the way."""

    world: Swings
    result: Any
    gaussian_draws: int = 0
    reads_before_policy: int | None = None
    reads: int = 0
    spec: PolicyTrainerSpec | None = None
    workers: list[Any] = field(default_factory=list)
    servers: list[Any] = field(default_factory=list)
    secrets: Secrets | None = None
    said: str = ""


def tables(store: DatasetStore, config: PrimorlConfig, dataset: str) -> Any:
    """Return a dataset's rows, raw and encoded."""
    rows = store.read_transitions(dataset, unit="transition")
    encoder = EnsembleFacts.of(config.model, config.data, store).encoder
    raw, _ = encoder.layout.to_rows(rows)
    return raw.astype(np.float32), encoder.encode(rows).rows


@pytest.fixture(scope="module")
def finished(master: DatasetStore, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Run once with secure noise and reports."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("finished")
        seen = Watched(Swings(folder, master), None)
        store, config = seen.world.store, seen.world.config()
        collect("pendulum-mixed", dataset=PUBLIC, store=store, steps=4000, seed=2, options={})
        seen.secrets = Secrets(
            rows=tables(store, config, DATASET), public=tables(store, config, PUBLIC)
        )
        watch(
            patch,
            seen.secrets,
            defaultdict(list, workers=seen.workers, servers=seen.servers),
        )
        draw, start = PrivateRound.add_noise, PolicyTrainer.__init__

        def drawn(*arguments: Any, **keywords: Any) -> Any:
            seen.gaussian_draws += 1
            return draw(*arguments, **keywords)

        def started(self: PolicyTrainer, spec: PolicyTrainerSpec) -> None:
            seen.reads_before_policy, seen.spec = seen.reads, spec
            start(self, spec)

        patch.setattr(PrivateRound, "add_noise", drawn)
        patch.setattr(PolicyTrainer, "__init__", started)
        for name in ("iter_transitions", "iter_trajectories"):
            right = getattr(DatasetStore, name)

            def read(*arguments: Any, _right: Any = right, **keywords: Any) -> Any:
                seen.reads += 1
                return _right(*arguments, **keywords)

            patch.setattr(DatasetStore, name, read)
        said: list[str] = []
        seen.result = seen.world.run(
            key=None,
            evaluation={"episodes": 2, "every": 30, "horizon": 20},
            progress=lambda *facts: said.append(" ".join(map(str, facts))),
        )
        seen.said = "\n".join(said)
    return seen


def test_the_certificate_states_unit_events_and_outputs(finished: Watched) -> None:
    folder = finished.result.directory.path
    checked = verify_certificate(
        folder / "certificate.json", ledger=finished.world.ledger, outputs_root=folder
    )
    certificate = checked.certificate
    assert certificate.status == "valid"
    assert sorted(checked.outputs_checked) == sorted(RELEASED)
    assert certificate.epsilon is not None
    assert 4.0 < certificate.epsilon <= 5.0
    (stage,) = certificate.stages
    assert (stage.name, stage.unit, stage.units) == ("ensemble", "trajectory", UNITS)
    clip_norm = finished.world.config().training.clip_norm
    assert (stage.relation, stage.clip_norm) == ("replace_with_null", clip_norm)
    (event,) = stage.events
    assert (event.kind, event.count, event.sampling_probability) == (
        "poisson_gaussian",
        6,
        15 / UNITS,
    )


def test_workers_and_server_do_what_the_certificate_states(finished: Watched) -> None:
    """Clip norm, coins, unit, noise and denominator; sums of float64 need no assumption."""
    certificate = verify_certificate(finished.result.directory.certificate).certificate
    (stage,) = certificate.stages
    assert_runs_as_certified(finished.world.config(), stage, finished.workers, finished.servers)
    assert stage.assumptions == ("float64_lattice_noise",)


@pytest.mark.parametrize("name", RELEASED)
def test_a_changed_file_is_refused(finished: Watched, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for kept in (*RELEASED, "certificate.json"):
        shutil.copy(finished.result.directory.path / kept, folder / kept)
    verify_certificate(folder / "certificate.json")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(VerificationError, match="was changed"):
        verify_certificate(folder / "certificate.json")


def test_every_gaussian_draw_is_a_round_of_the_ledger(finished: Watched) -> None:
    entry = finished.world.ledger.reserved(finished.result.directory.run_id)
    assert entry is not None
    assert finished.gaussian_draws == entry.reserved_rounds == entry.committed_rounds == 6


def test_policy_and_ensemble_load_and_the_policy_acts_as_its_script(finished: Watched) -> None:
    folder = finished.result.directory.path
    policy = Policy.load(folder / "policy.safetensors")
    observations = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    script = torch.jit.load(str(folder / "policy.pt"))  # type: ignore[no-untyped-call]
    acted = policy.act(observations)
    np.testing.assert_allclose(script(torch.from_numpy(observations)).numpy(), acted, atol=1e-6)
    assert np.ptp(acted) > 1e-3
    assert np.abs(acted).max() <= 2
    facts, ensemble = load_ensemble(folder / "ensemble.safetensors")
    assert facts == EnsembleFacts.of(
        finished.world.config().model, finished.world.config().data, finished.world.store
    )
    tensors = torch.cat([one.reshape(-1) for one in ensemble.parameters()])
    facts.save(tensors, folder.parent / "again.safetensors")
    assert (folder.parent / "again.safetensors").read_bytes() == (
        folder / "ensemble.safetensors"
    ).read_bytes()
    mean, log_variance = ensemble(torch.zeros(1, 4))
    assert mean.shape == log_variance.shape == (2, 1, 4)


def test_the_readme_loads_the_policy_in_five_lines(
    finished: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = tmp_path / "runs" / "pendulum"
    folder.mkdir(parents=True)
    shutil.copy(finished.result.directory.path / "policy.safetensors", folder)
    monkeypatch.chdir(tmp_path)
    for page in (ROOT / "README.md", ROOT / "docs" / "primorl.md"):
        (fence,) = (f for f in fences(page, "python") if "policy.safetensors" in f.text)
        found: dict[str, Any] = {}
        exec(fence.text, found)
        assert found["policy"].act(np.zeros((2, 3))).shape == (2, 1)
    assert capsys.readouterr().out.startswith("[[")
    (readme,) = (f for f in fences(ROOT / "README.md", "python") if "Policy.load" in f.text)
    assert len([line for line in readme.text.splitlines() if line]) == 5


def test_the_model_never_meets_the_data(finished: Watched) -> None:
    """Start states are the environment's resets: the same pool, whatever was recorded."""
    assert finished.reads == finished.reads_before_policy
    assert finished.spec is not None
    assert finished.spec.real is None
    assert pickle.loads(pickle.dumps(finished.spec)).facts == finished.spec.facts
    starts = finished.spec.starts
    assert isinstance(starts, PooledStarts)
    public = environment_starts("Pendulum-v1", count=30, streams=Streams(0).child("starts"))
    assert torch.equal(starts.pool, public.pool)


def test_rollouts_end_by_the_rule_of_the_environment(finished: Watched) -> None:
    assert finished.spec is not None
    for environment, rule in (("Pendulum-v1", None), ("Hopper-v5", termination_rule("Hopper-v5"))):
        trainer = dataclasses.replace(finished.spec, environment=environment).trainer()
        model: Any = trainer._environment
        assert model.model.terminates is rule


def test_nothing_that_may_leave_holds_a_secret(finished: Watched) -> None:
    """No bytes of a recorded row, of a key, of who took part, or of a sum before noise."""
    assert finished.secrets is not None
    folder = finished.result.directory.path
    assert len(list(files_outside_private(folder))) == 16
    assert_no_secret_leaves(folder, finished.secrets, finished.said)


def assert_no_secret_leaves(folder: Path, secrets: Secrets, said: str) -> None:
    fragments = list(secrets.fragments())
    assert {what for what, _ in fragments} >= {"a key", "positions", "a partial sum"}
    assert len(secrets.pairs) > 1000
    contents = {name: (folder / name).read_bytes() for name in files_outside_private(folder)}
    for name, content in {**contents, "what was said": said.encode()}.items():
        assert not leaks.holds_words(content, secrets.words), f"{name} holds a row"
        for what, fragment in fragments:
            assert fragment not in content, f"{name} holds {what}"
    assert "loss" not in said


def test_noisy_starts_show_neither_first_observations_nor_their_moments(
    master: DatasetStore, tmp_path: Path
) -> None:
    """What a start distribution is made from stays in the process that draws its noise."""
    world, said = Swings(tmp_path, master), []
    collect("pendulum-mixed", dataset=PUBLIC, store=world.store, steps=2000, seed=2, options={})
    both = (tables(world.store, world.config(), name) for name in (DATASET, PUBLIC))
    secrets = Secrets(rows=next(both), public=next(both))
    made: list[Any] = []

    def noted(right: Any) -> Any:
        def spied(*arguments: Any, **keywords: Any) -> Any:
            made.append(right(*arguments, **keywords))
            return made[-1]

        return spied

    with pytest.MonkeyPatch.context() as patch:
        watch(patch, secrets, defaultdict(list))
        first = start_states._first_observations
        patch.setattr(start_states, "_first_observations", noted(first))
        patch.setattr(MomentsRelease, "totals", noted(MomentsRelease.totals))
        result = world.run(
            key=None,
            data__environment=None,
            training__policy__starts={"epsilon": 2.0},
            progress=lambda *facts: said.append(" ".join(map(str, facts))),
        )
    observations, totals = made
    assert (observations.shape, totals.shape) == ((UNITS, 3), (9,))
    secrets.sums.extend([totals, *totals[:, None], *observations, *observations.reshape(-1, 1)])
    folder, told = result.directory.path, "\n".join(said)
    assert_no_secret_leaves(folder, secrets, told)
    for number in (totals[0], np.float64(observations[7, 1]), np.float64(observations[7])):
        (folder / "metrics.jsonl").write_bytes(number.tobytes())
        with pytest.raises(AssertionError, match=r"a partial sum|holds a row"):
            assert_no_secret_leaves(folder, secrets, told)


def test_the_report_has_its_four_sections(finished: Watched) -> None:
    folder = finished.result.directory.path
    sections = json.loads((folder / "report.json").read_text())["sections"]
    assert [section["title"] for section in sections] == [
        "What the policy earns in Pendulum-v1",
        "What the models promise, which is not what the policy earns",
        "How far the models stray",
        "Whether the models know where they are wrong",
    ]
    assert [len(section["figures"]) for section in sections] == [1, 1, 1, 1]
    assert "private ensemble alone" in sections[0]["explanation"]
    values = {metric["name"]: metric["value"] for metric in sections[0]["metrics"]}
    assert -1900 < values["mean return of uniform actions"] < -500  # of Pendulum, whatever learns
    curve = json.loads((folder / "evaluation.json").read_text())[1]
    assert [point["step"] for point in curve["points"]] == [30, 60]
    assert [set(point) for point in curve["points"]] == [{"step", "returns", "model_return"}] * 2
    assert not (folder / "private").exists()
    (line,) = (folder / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["reserved"] == 6


def test_a_diverged_ensemble_ends_neither_study_nor_report(
    finished: Watched, tmp_path: Path
) -> None:
    """What noise did to the models is no error of the run: the policy was paid for."""
    source = finished.result.directory.path
    facts, ensemble = load_ensemble(source / "ensemble.safetensors")
    tensors = torch.cat([one.reshape(-1) for one in ensemble.parameters()])
    shutil.copy(source / "policy.safetensors", tmp_path)
    config = finished.world.config(evaluation={"episodes": 1, "horizon": 5})
    for factor in (1e12, np.nan):
        facts.save(tensors * factor, tmp_path / "ensemble.safetensors")
        results = study(config, tmp_path, lambda *_: None)
        stored = json.loads(json.dumps(results, allow_nan=False))
        path = Sourced.released(answer(tmp_path / "policy.safetensors", "entry"))
        sections = policy_sections(config, path, path.then(lambda _, found=stored: found))
        assert len(sections) == 3
        certificate = {"status": "valid", "ledger_entries": ["entry"]}
        report_json("diverged", certificate, sections, "public")
