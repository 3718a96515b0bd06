"""The expert level through the whole program: refusals, resumes, workers, other splits."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from distributed_privrl.agents.policy import Policy
from distributed_privrl.cli.plan_text import readable
from distributed_privrl.cli.planning import plan_facts
from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.methods.expert.facts import AgentFacts
from distributed_privrl.methods.expert.method import ExpertMethod
from distributed_privrl.methods.expert.noiseless_steps import StableTraining
from distributed_privrl.methods.expert.prefix_plan import FILTER
from distributed_privrl.privacy.calibration import SUM_SLACK, PrivateRound
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.sparse_vector import StablePrefixes
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.stages.round_plan import RoundPlan
from tests.worlds.crowd import (
    DATASET,
    EXPERTS,
    Crowd,
    config,
    crowd,
    recorded,
    write_crowd,
)
from tests.worlds.swings import files_outside_private

STABLE = "crowd/stable-v0"
DP_SGD = {
    "filter__share": 0.0,
    "privacy__epsilon": 5.0,
    "privacy__delta": 0.02 - 0.9 * 0.02,
}
"""The rounds of the run with a filter, with the same noise, without it."""


def learned(run: Any, store: DatasetStore | None = None) -> dict[str, torch.Tensor]:
    """Return all that a run released, from the files that may leave."""
    policy = Policy.load(Path(run.released))
    found = {"policy": torch.cat([one.detach().reshape(-1) for one in policy.network.parameters()])}
    if store is not None:
        stable = store.read_trajectories(STABLE)
        found["states"] = torch.from_numpy(stable.observations)
        found["actions"] = torch.from_numpy(stable.actions)
    return found


@pytest.fixture(scope="module")
def reference(master: DatasetStore, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run with test noise and two workers releases, never interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        world = Crowd(tmp_path_factory.mktemp("reference"), master)
        return learned(world.run(output__dataset=STABLE), world.store)


@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_and_hosts_releases_the_same(
    world: Crowd, reference: dict[str, torch.Tensor], workers: int
) -> None:
    found = learned(
        world.run(output__dataset=STABLE, runtime={"workers": workers, "executor": "local"}),
        world.store,
    )
    for name, expected in reference.items():
        assert float((found[name] - expected).abs().max()) <= 1e-6, name


@pytest.mark.parametrize(("stage", "at"), [("stable prefixes", 2), ("private rounds", 3)])
def test_a_resume_after_an_interruption_releases_the_same(
    world: Crowd, reference: dict[str, torch.Tensor], stage: str, at: int
) -> None:
    """Draws go on in their secret order, rounds with moments and target network as they were."""

    def interrupt(name: str, done: int, *_: Any) -> None:
        if (name, done) == (stage, at):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.run(output__dataset=STABLE, progress=interrupt)
    result = world.run(output__dataset=STABLE, resume=True)
    for name, value in learned(result, world.store).items():
        assert torch.equal(value, reference[name]), name
    run_id = result.directory.run_id
    for entry_id, count in ((run_id, 6), (f"{run_id}/{FILTER}", 4)):
        entry = world.ledger.reserved(entry_id)
        assert entry is not None
        assert entry.reserved_rounds == entry.committed_rounds == count


def test_a_finished_run_is_resumed_without_a_draw(
    world: Crowd, reference: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run(output__dataset=STABLE)

    def drawn(*_: Any, **__: Any) -> None:
        raise AssertionError("noise was drawn")

    draws = ("add_gaussian", "add_laplace", "add_discrete_gaussian", "add_discrete_laplace")
    for name in draws:
        monkeypatch.setattr(SeededNoise, name, drawn)
    again = world.run(output__dataset=STABLE, resume=True)
    assert torch.equal(learned(again)["policy"], reference["policy"])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data__unit": "trajectory"}, ConfigError, "protects whole experts"),
        ({"data__units": {"epsilon": 1.0}}, ConfigError, "must be public"),
        ({"data__environment": "Nope-v0"}, ConfigError, "environment 'Nope-v0' cannot be made"),
        ({"data__units": 39}, ConfigError, "data.units=39 is not the number of experts"),
        ({"privacy__relation": "add_or_remove"}, ConfigError, "privacy.relation"),
        ({"privacy__delta": 0.03}, UnsafeError, "not below 1/units"),
        ({"filter__minimum_probability": 0.2}, ConfigError, "minimum_probability=0.2 is above"),
        ({"filter__max_length": 11}, ConfigError, "max_length=11 is below that of"),
        ({"filter__draws": 30}, UnsafeError, "more than release_pool=5 allows"),
        (
            {"filter__draws": 9, "filter__release_pool": None},
            ConfigError,
            "of each expert for 9 draws, and one for the rounds, and .* has fewer: take",
        ),
        ({"privacy__epsilon": 0.5}, ConfigError, "no prefix could ever be stable"),
        ({"filter__share": 1.0, "training__stable_steps": 0}, ConfigError, "noiseless steps alone"),
        ({"filter__share": 1.0, "training__stable_steps": 0.1}, ConfigError, "steps alone"),
        ({"filter__share": 0.0, "output__dataset": STABLE}, ConfigError, "which a filter releases"),
        (
            {"privacy__epsilon": None, "output__dataset": STABLE},
            ConfigError,
            "which a filter releases",
        ),
        ({"training__skip_trajectories": 1}, ConfigError, "for runs without a filter"),
        (
            {"filter__share": 0.0, "training__skip_trajectories": 7},
            ConfigError,
            "leaves none of each expert's trajectories",
        ),
        (
            {"filter__first_trajectory": 2},
            ConfigError,
            "for 4 draws after the first 2, and one for the rounds, and .* has fewer: take",
        ),
        ({"output__dataset": DATASET}, ConfigError, "must all be different"),
        ({"model__options": {"discount": 2.0}}, ConfigError, "discount must lie in"),
        ({"training__expected_batch_size": 41}, ConfigError, "is above data.units=40"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_charged(
    world: Crowd, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        world.run(**changes)
    assert world.ledger.entries() == []
    assert not (world.folder / "run").exists()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"log_probabilities": False}, "without its actions' log-probabilities"),
        ({"minimum_probability": 0.05}, "is above that of the experts of"),
        ({"count": 41}, "is not the number of experts of"),
    ],
)
def test_a_dataset_that_lacks_what_the_filter_needs_is_refused(
    tmp_path: Path, facts: dict[str, Any], message: str
) -> None:
    """By what is declared: a log that has the exact number has told of a sensitive dataset."""
    store, policies = DatasetStore(tmp_path / "master"), crowd()
    write_crowd(store, policies, *recorded(policies), **facts)
    world = Crowd(tmp_path, store)
    with pytest.raises(ConfigError, match=message) as refused:
        world.run()
    assert str(*facts.values()) not in str(refused.value)
    assert world.ledger.entries() == []


def test_a_budget_for_one_part_alone_is_refused_before_anything_is_drawn(
    tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = Crowd(tmp_path, master, epsilon=19.0)

    def drawn(*_: Any, **__: Any) -> None:
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(PrivateRound, "add_noise", drawn)
    monkeypatch.setattr(StablePrefixes, "stable_steps", drawn)
    with pytest.raises(BudgetError, match="this needs 20"):
        poor.run()
    assert poor.ledger.entries() == []
    assert not (poor.folder / "run").exists()


def test_the_public_schedule_changes_no_charge() -> None:
    """However many steps are noiseless, q, the noise and its count are those of K noisy ones."""
    events = []
    for steps in (0, 0.25, 1, 50):
        plan = ExpertMethod(config(training__stable_steps=steps)).plan.rounds
        assert plan is not None
        events.append(plan.events(plan.rounds))
        assert plan.sampling_probability == 20 / EXPERTS
    assert all(one == events[0] for one in events)


def test_sums_need_no_assumption_and_pay_for_float32_alone() -> None:
    """Changes by local training are rounded one by one; gradients are summed in float32 before."""
    for local, slack in (("gradient", SUM_SLACK), ("federated", 0.0)):
        plan = ExpertMethod(config(training__local=local)).plan.rounds
        assert plan is not None
        assert plan.mechanism is not None
        assert plan.mechanism.sum_slack == slack
        assert not [one for one in plan.assumptions if "sums" in one]


def test_a_plan_reads_no_rows_and_shows_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    for read in ("read_transitions", "read_trajectories"):
        monkeypatch.setattr(DatasetStore, read, None)
    settings = config()
    plan = plan_run(settings)
    assert isinstance(plan, RoundPlan)
    assert plan.skip_trajectories == 5
    facts = plan_facts(settings, plan)
    assert facts["filter"]["epsilon"] == 15
    assert facts["filter"]["draws"] == 4
    assert facts["relation"] == "policy_level"
    assert 18 < facts["epsilon_with_spare"] <= 20
    assert "--relation policy_level" in facts["budget_command"]
    words = readable(facts)
    assert words["filter"].startswith("4 + 1 spare draws for epsilon 15, delta 0.018: threshold ")
    assert words["output"] == "policy.safetensors, policy.pt"
    alone = config(filter__share=1.0)
    shown = plan_run(alone)
    assert (shown.rounds, shown.max_rounds) == (4, 5)
    assert 0 < plan_facts(alone, shown)["epsilon_with_spare"] <= 20
    free = plan_run(config(privacy__epsilon=None))
    assert free.budget is None


def test_noiseless_steps_alone(world: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole budget for the filter: no private round, no Gaussian draw, one stage."""

    def started(*_: Any) -> None:
        raise AssertionError("a private round was begun")

    monkeypatch.setattr(ParameterServer, "__init__", started)
    result = world.run(filter__share=1.0, training__rounds=40, training__optimiser__ema_decay=0.5)
    (stage,) = result.certificate.stages
    assert (stage.name, stage.delta) == (FILTER, 0.02)
    (entry,) = world.ledger.entries()
    assert entry.id == f"{result.directory.run_id}/{FILTER}"
    start = AgentFacts.of(world.config().model, world.config().data, world.store, seed=0).networks()
    began = torch.cat([one.detach().reshape(-1) for one in start.values.parameters()])
    assert float((learned(result)["policy"] - began).abs().max()) > 0.05


def test_an_interrupted_training_on_prefixes_goes_on(tmp_path: Path, master: DatasetStore) -> None:
    found = []
    for interrupted in (False, True):
        world = Crowd(tmp_path / str(interrupted), master)
        asked = {"filter__share": 1.0, "training__rounds": 60}
        if interrupted:

            def interrupt(name: str, done: int, *_: Any) -> None:
                if (name, done) == ("training on stable prefixes", 50):
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                world.run(progress=interrupt, **asked)
        found.append(learned(world.run(resume=interrupted, **asked))["policy"])
    assert torch.equal(*found)


def test_dp_sgd_alone_reads_every_trajectory_and_hosts_nobody(
    world: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_privrl.methods.expert.prefix_stage.run_filter", None)
    shutil.rmtree(world.store.root / DATASET / "experts")
    result = world.run(**DP_SGD)
    (stage,) = result.certificate.stages
    assert (stage.name, stage.delta) == ("rounds", DP_SGD["privacy__delta"])
    plan = ExpertMethod(world.config(**DP_SGD)).plan.rounds
    assert plan is not None
    assert plan.skip_trajectories == 0


@pytest.mark.parametrize(
    "changes",
    [{"training__local": "federated"}, {"model__agent": "discrete_bcq"}, DP_SGD],
)
def test_variants_learn_something_else(
    world: Crowd, reference: dict[str, torch.Tensor], changes: dict[str, Any]
) -> None:
    found = learned(world.run(**changes))
    assert torch.isfinite(found["policy"]).all()
    assert not torch.equal(found["policy"], reference["policy"])


def test_without_privacy_everything_lies_in_private(tmp_path: Path, master: DatasetStore) -> None:
    world = Crowd(tmp_path, master)
    result = world.run(key=None, privacy__epsilon=None, evaluation={"episodes": 2, "max_steps": 20})
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
    assert (folder / "private" / "policy.safetensors").exists()
    sections = json.loads((folder / "private" / "report.json").read_text())["sections"]
    assert sections[0]["title"] == "What the policy earns in CartPole-v1"


@pytest.mark.parametrize(
    ("steps", "taken"), [(3, [0, 1, 2, 3, 3, 4, 5, 6, 6]), (0.5, [0, 0, 1, 1, 1, 2, 2, 2, 3])]
)
def test_steps_on_prefixes_follow_the_agents_own_rule(
    world: Crowd, monkeypatch: pytest.MonkeyPatch, steps: float, taken: list[int]
) -> None:
    """The target moves after every step, noisy or not; half a step: one after each second round."""
    moves: list[int] = []
    right = StableTraining.move_target

    def moved(self: StableTraining) -> None:
        moves.append(self.optimiser.steps)
        right(self)

    monkeypatch.setattr(StableTraining, "move_target", moved)
    world.run(training__stable_steps=steps)
    assert len(moves) == 6 * (1 + steps)
    assert moves[:9] == taken
