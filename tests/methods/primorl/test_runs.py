"""PriMORL through the whole program: charges, refusals, resumes, runs without privacy."""

import json
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.agents.policy import Policy
from distributed_privrl.cli.planning import plan_facts
from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts, load_ensemble
from distributed_privrl.methods.primorl.policy_training import PolicyTrainer, PolicyTrainerSpec
from distributed_privrl.methods.primorl.start_states import (
    GaussianStarts,
)
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.exact_releases import FixedPointLaplaceRelease
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.updates.federated import FederatedUpdate
from distributed_privrl.updates.local_update import UnitBatch
from tests.worlds.swings import (
    DATASET,
    Swings,
    config_values,
    files_outside_private,
)

RELEASED = ("policy.safetensors", "policy.pt", "ensemble.safetensors")


def learned(run: Any) -> dict[str, torch.Tensor]:
    """Return all that a run learned, from the files that may leave."""
    folder = Path(run.released).parent
    policy = Policy.load(folder / "policy.safetensors")
    _, ensemble = load_ensemble(folder / "ensemble.safetensors")
    return {
        "policy": torch.cat([one.detach().reshape(-1) for one in policy.network.parameters()]),
        "ensemble": torch.cat([one.reshape(-1) for one in ensemble.parameters()]),
    }


@pytest.fixture(scope="module")
def reference(master: DatasetStore, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run with test noise and two workers learns, never interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        return learned(Swings(tmp_path_factory.mktemp("reference"), master).run())


@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_learns_the_same(
    world: Swings, reference: dict[str, torch.Tensor], workers: int
) -> None:
    found = learned(world.run(runtime={"workers": workers, "executor": "local"}))
    for name, expected in reference.items():
        assert float((found[name] - expected).abs().max()) <= 1e-6, name


def test_differences_are_scaled_by_column(world: Swings) -> None:
    config = world.config(model__difference_share=[0.1, 0.2, 0.05])
    one = EnsembleFacts.of(world.config().model, config.data, world.store).encoder
    each = EnsembleFacts.of(config.model, config.data, world.store).encoder
    block = one.layout.blocks["next_observation"]
    ratio = each.scaling.scale / one.scaling.scale
    np.testing.assert_allclose(ratio[block], [1, 2, 0.5])
    assert (np.delete(ratio, np.arange(len(ratio))[block]) == 1).all()
    with pytest.raises(ConfigError, match=r"2 numbers, .* has 3 columns"):
        world.run(model__difference_share=[0.1, 0.2])


def test_of_long_trajectories_some_steps_are_drawn_anew_each_round(
    world: Swings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven steps of one trajectory each, another seven in another round, one clipped vector."""
    seen: list[UnitBatch] = []
    computed = FederatedUpdate.clipped_sum

    def watched(self: FederatedUpdate, parameters: Any, batch: UnitBatch) -> Any:
        seen.append(batch)
        total = computed(self, parameters, batch)
        assert np.linalg.norm(total) <= len(batch) * self.clip.clip_norm * (1 + 1e-9)
        return total

    monkeypatch.setattr(FederatedUpdate, "clipped_sum", watched)
    asked = {"training__local": {"steps": 7}, "runtime__workers": 1}
    result = world.run(data__max_length=None, **asked)  # no row of a longer unit is padded
    assert {batch.rows.shape[1] for batch in seen} == {7}
    trajectories = {tuple(rows[:, 0]) for batch in seen for rows in batch.rows}
    assert len(trajectories) == sum(len(batch) for batch in seen)
    assert result.certificate.stages[-1].events[0].count == len(seen)


@pytest.mark.parametrize(("stage", "at"), [("private rounds", 3), ("policy in the model", 50)])
def test_a_resume_after_an_interruption_learns_the_same(
    world: Swings, reference: dict[str, torch.Tensor], stage: str, at: int
) -> None:
    def interrupt(name: str, done: int, *_: Any) -> None:
        if (name, done) == (stage, at):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.run(progress=interrupt)
    result = world.run(resume=True)
    for name, value in learned(result).items():
        assert torch.equal(value, reference[name]), name
    entry = world.ledger.reserved(result.directory.run_id)
    assert entry is not None
    assert entry.reserved_rounds == entry.committed_rounds == 6


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data__unit": "transition"}, ConfigError, "protects whole trajectories"),
        ({"training__clip": False}, ConfigError, "clip=false bounds no unit"),
        ({"method": "mopo"}, ConfigError, "reference without privacy"),
        (
            {"method": "mopo", "privacy__epsilon": None, "training__policy__action_repeat": 4},
            ConfigError,
            "set real_share to 0",
        ),
        ({"privacy__relation": "replace_one"}, UnsafeError, "replace_one"),
        ({"data__environment": None}, ConfigError, "name a Gymnasium id, or set training.policy"),
        (
            {"data__environment": None, "privacy__epsilon": None},
            ConfigError,
            r"without privacy rollouts .* name a Gymnasium id \(a start",
        ),
        (
            {"training__policy__starts": {"epsilon": 4.0}, "data__units": {"epsilon": 1.0}},
            ConfigError,
            "used up .* for data.units and training.policy.starts",
        ),
        (
            {"training__policy__starts": {"epsilon": 1.0}, "privacy__epsilon": None},
            ConfigError,
            "give training.policy.starts public values",
        ),
        (
            {"training__local": {"learning_rate": 0.5, "weight_decay": 2.0}},
            ConfigError,
            "weight_decay must lie in",
        ),
        ({"training__policy__rollouts": 2_000_000}, ConfigError, "capacity=1000000"),
        ({"output": {"policy": "ensemble.safetensors"}}, ConfigError, "different files"),
        ({"model__log_variance_range": [1.0, -6.0]}, ConfigError, "two rising numbers"),
        ({"model__log_variance_range": [-6.0, 1000.0]}, ConfigError, "rising .* from -50 to 50"),
        ({"model__log_variance_range": [-1000.0, 1.0]}, ConfigError, "rising .* from -50 to 50"),
        ({"data__max_length": None}, ConfigError, "data.max_length is not set: one long record"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_charged(
    world: Swings, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        world.run(**changes)
    assert world.ledger.entries() == []
    assert not (world.folder / "run").exists()
    if "data__units" not in changes:
        with pytest.raises(error, match=message):
            plan_run(parse_config(config_values(**changes), source="test"))


def test_independent_transitions_are_refused(world: Swings) -> None:
    rows = world.store.read_transitions(DATASET, unit="transition")
    rows = replace(rows, observations=rows.observations + 1)  # of other people
    info = world.store.info(DATASET)
    world.store.write_transitions(
        "pendulum/rows-v0",
        rows,
        layout="transitions",
        observation_space=info.observation_space,
        action_space=info.action_space,
        unit_column="pilot",
    )
    for unit, message in (("pilot", "needs whole trajectories"), ("trajectory", "has no unit")):
        with pytest.raises(ConfigError, match=message):
            world.run(data__sensitive="pendulum/rows-v0", data__unit=unit)
    assert world.ledger.entries() == []
    assert not (world.folder / "run").exists()


def test_agents_that_judge_datasets_are_refused(world: Swings) -> None:
    with pytest.raises(ConfigError, match="primorl releases none: leave them out"):
        world.run(evaluation={"trainers": ["iql"]})
    assert world.ledger.entries() == []
    assert not (world.folder / "run").exists()


def test_a_simulator_of_another_problem_is_refused(world: Swings) -> None:
    with pytest.raises(ConfigError, match="CartPole-v1 has observations"):
        world.run(data__environment="CartPole-v1")
    assert world.ledger.entries() == []


def test_a_plan_opens_no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    for reads in [name for name in vars(DatasetStore) if name.startswith(("iter_", "read_"))]:
        monkeypatch.setattr(DatasetStore, reads, None)
    bounds = tmp_path / "bounds.yaml"
    bounds.write_text(
        "{observation: {low: -9, high: 9}, action: {low: -1, high: 1}, reward: [-20, 0]}"
    )
    asked = {"data__bounds": str(bounds), "training__policy__starts": {"epsilon": 2.0}}
    config = parse_config(config_values(**asked), source="test")
    plan = plan_run(config)
    assert plan.budget is not None
    assert plan.budget.epsilon == pytest.approx(3.0)
    assert (plan.rounds, plan.max_rounds) == (6, 8)
    assert 2.5 < plan.epsilon_of_rounds(plan.max_rounds) <= 3.0
    assert plan.epsilon(6) == 2.0 + plan.epsilon_of_rounds(6)
    facts = plan_facts(config, plan)
    assert 4.5 < facts["epsilon_with_spare"] <= 5.0
    assert facts["charged_before"] == {"starts": 2.0}
    assert facts["files"] == ["policy.safetensors", "policy.pt", "ensemble.safetensors"]
    open_config = parse_config(config_values(privacy__epsilon=None), source="test")
    unprotected = plan_facts(open_config, plan_run(open_config))["files"]
    assert unprotected == [f"private/{name}" for name in facts["files"]]
    mopo = config_values(method="mopo", privacy__epsilon=None)
    assert "15 rows" in plan_run(parse_config(mopo, source="test")).summary()


def test_noisy_starts_are_charged_and_certified(
    world: Swings, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[PolicyTrainerSpec] = []
    start = PolicyTrainer.__init__

    def started(self: PolicyTrainer, spec: PolicyTrainerSpec) -> None:
        specs.append(spec)
        start(self, spec)

    monkeypatch.setattr(PolicyTrainer, "__init__", started)
    asked = {"training__policy__starts": {"epsilon": 2.0}, "data__environment": None}
    result = world.run(key=None, **asked)
    checked = verify_certificate(result.directory.certificate, ledger=world.ledger)
    starts, ensemble = checked.certificate.stages
    assert (starts.name, starts.accountant, starts.delta) == ("starts", "pure", 0.0)
    assert [event.kind for event in starts.events] == ["discrete_laplace"]
    assert ensemble.name == "ensemble"
    run_id = result.directory.run_id
    entries = {entry.id: entry.epsilon for entry in world.ledger.entries()}
    assert set(entries) == {run_id, f"{run_id}/starts"} == set(checked.certificate.ledger_entries)
    assert entries[f"{run_id}/starts"] == 2.0
    assert entries[run_id] <= 3.0
    assert checked.certificate.epsilon == pytest.approx(2.0 + entries[run_id], rel=1e-3)
    assert isinstance(specs[0].starts, GaussianStarts)
    assert isinstance(Policy.load(Path(result.released)), Policy)
    assert list(files_outside_private(result.directory.path)) == sorted(
        [
            "bounds.yaml",
            "certificate.json",
            "config.yaml",
            "evaluation.json",  # the curve: what the models promise
            "metrics.jsonl",
            *RELEASED,
            "checkpoint/initial.safetensors",
            "checkpoint/policy_curve.json",
            "checkpoint/policy_training.safetensors",
            "checkpoint/rounds.safetensors",
            "checkpoint/run.json",
            "events/events.out.tfevents",
        ]
    )


def test_too_small_a_budget_is_refused_before_anything_is_drawn(
    tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = Swings(tmp_path, master, epsilon=4.9)

    def drawn(*_: Any, **__: Any) -> None:
        raise AssertionError("noise was drawn")

    for mechanism, method in ((FixedPointLaplaceRelease, "release"), (PrivateRound, "add_noise")):
        monkeypatch.setattr(mechanism, method, drawn)
    for asked in ({}, {"training__policy__starts": {"epsilon": 1.0}}):
        with pytest.raises(BudgetError):
            poor.run(**asked)
        assert poor.ledger.entries() == []
        assert not (poor.folder / "run").exists()


NOT_PRIVATE: dict[str, dict[str, Any]] = {
    "no clip": {"training__clip": False},
    "mopo": {
        "method": "mopo",
        "training__expected_batch_size": 64,
        "training__rounds": 30,
    },
}


@pytest.mark.parametrize("case", NOT_PRIVATE)
def test_without_privacy_everything_lies_in_private(
    tmp_path: Path, master: DatasetStore, case: str
) -> None:
    world = Swings(tmp_path, master)
    result = world.run(
        key=None,
        privacy__epsilon=None,
        evaluation={"episodes": 1, "every": 60, "horizon": 5},
        **NOT_PRIVATE[case],
    )
    folder = result.directory.path
    assert result.certificate.status == "non_private"
    assert result.certificate.outputs == ()
    assert world.ledger.entries() == []
    assert list(files_outside_private(folder)) == [
        "bounds.yaml",
        "certificate.json",
        "checkpoint/run.json",
        "config.yaml",
        "report.html",
        "report.json",
    ]
    assert json.loads((folder / "report.json").read_text())["sections"] == []
    private = folder / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    for name in (*RELEASED, "evaluation.json", "report.html"):
        assert stat.S_IMODE((private / name).stat().st_mode) == 0o600
    sections = json.loads((private / "report.json").read_text())["sections"]
    assert len(sections) == 4
    assert sections[0]["explanation"].startswith("Trained without privacy")
    assert Policy.load(private / "policy.safetensors").act(np.zeros((1, 3))).shape == (1, 1)


def test_minibatches_lower_the_loss_of_the_models(world: Swings) -> None:
    """MOPO's models are fit to the rows: they foresee what no untrained ensemble does."""
    learnt = world.run(
        method="mopo",
        privacy__epsilon=None,
        training__rounds=300,
        training__expected_batch_size=64,
        training__optimiser={"learning_rate": 0.01, "ema_decay": 0.9},
        training__policy__steps=1,
    )
    facts, ensemble = load_ensemble(Path(learnt.released).parent / "ensemble.safetensors")
    rows = facts.encoder.encode(world.store.read_transitions(DATASET, unit="transition")).rows
    blocks = facts.encoder.layout.blocks
    inputs = torch.from_numpy(rows[:, [*range(blocks["action"].stop)]])
    truth = torch.from_numpy(rows[:, blocks["next_observation"]])
    errors = [
        float((model(inputs)[0].mean(dim=0)[:, :-1] - truth).square().mean())
        for model in (ensemble, facts.build(0).requires_grad_(False))
    ]
    assert errors[0] < 0.3 * errors[1]


def test_the_public_facts_of_an_ensemble_know_no_rows(
    world: Swings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("iter_transitions", "iter_trajectories", "read_transitions"):
        monkeypatch.setattr(DatasetStore, name, None)
    config = world.config()
    facts = EnsembleFacts.of(config.model, config.data, world.store)
    assert facts.columns == (*(f"observation_{i}" for i in range(3)), "action_0", "reward")
    assert facts.model_facts.observations.high.tolist() == [1, 1, 8]


def test_rows_of_any_kind_change_nothing_that_is_shown(
    tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trajectories that are not numbers, or huge, end nothing and show nowhere."""
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    seen: list[list[Any]] = []
    for bad in (False, True):
        folder = tmp_path / str(bad)
        world = Swings(folder, master)
        if bad:
            episodes = master.read_trajectories(DATASET)
            episodes.observations[:201] = np.nan
            episodes.observations[201:402] = 1e30
            episodes.rewards[400:600] = np.inf
            shutil.rmtree(world.store.root / DATASET)
            info = master.info(DATASET)
            world.store.write_trajectories(
                DATASET,
                episodes,
                observation_space=info.observation_space,
                action_space=info.action_space,
                layout="packed",
            )
            world = Swings(folder / "again", world.store)
        told: list[Any] = []
        result = world.run(
            training__policy__starts={"epsilon": 1.0},
            progress=lambda *said, _told=told: _told.append(said),
        )
        seen.append([told, list(files_outside_private(result.directory.path))])
        assert isinstance(result.certificate.stages[0].units, int)
    assert seen[0] == seen[1]
