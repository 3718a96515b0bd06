"""DP-APVI and DP-VAPVI through the whole program: charge, crash, resume, certificate, report."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError, VerificationError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.tabular import optimal_policy
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.methods.value_iteration.config import ApviConfig
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear_sensitivity import (
    gram_sensitivity,
    vector_sensitivity,
)
from distributed_privrl.methods.value_iteration.linear_settings import (
    LinearSettings,
    statistics_spec,
)
from distributed_privrl.methods.value_iteration.policy import GreedyPolicy
from distributed_privrl.methods.value_iteration.problem import sizes
from distributed_privrl.methods.value_iteration.rows import StoredTrajectories
from distributed_privrl.methods.value_iteration.settings import tabular_settings
from distributed_privrl.methods.value_iteration.statistics import StatisticsWorker
from distributed_privrl.methods.value_iteration.tabular import TabularProgram
from distributed_privrl.privacy.exact_releases import (
    DiscreteGaussianRelease,
    FixedPointLaplaceRelease,
)
from distributed_privrl.privacy.units import Relation
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.round_server import RoundServer
from distributed_privrl.stages.verdict import Grade
from tests.methods.value_iteration.linear_data import value_sums
from tests.worlds import grid
from tests.worlds.grid import DATASET, GRID, UNITS, Grid, config, problem

HORIZON = 8
"""Of the runs here, each time step of which is reserved, drawn, saved and committed."""


def values(method: str = "apvi", **changes: Any) -> dict[str, Any]:
    """Return a run on the stays over fewer time steps."""
    changes["model"] = {"horizon": HORIZON, **changes.get("model", {})}
    return grid.values(method, **changes)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return Grid(tmp_path_factory.mktemp("grid")).store


@pytest.fixture
def world(tmp_path: Path, master: DatasetStore) -> Grid:
    return Grid(tmp_path, master)


CASES = {
    "counts a step": values(),
    "known reward": values(model={"reward": "known"}),
    "pooled": values(model={"pooled": True}),
    "pooled, first visits": values(
        model={"pooled": True, "visits": "first", "stationary": True}, data={"max_length": 5}
    ),
    "laplace": values(privacy={"delta": 0.0}, training={"mechanism": "laplace"}),
    "null units": values(privacy={"relation": "replace_with_null"}),
    "halves": values("vapvi", model={"centre_values": False}),
    "centred halves": values("vapvi"),
    "unsplit": values("vapvi", model={"split": False}),
    "as published": values("vapvi", model={"as_published": True}),
    "as published, unsplit": values("vapvi", model={"as_published": True, "split": False}),
    "pevi": values("vapvi", model={"regression": "pevi"}),
}


@pytest.mark.parametrize("case", ["counts a step", "laplace", "halves", "pevi", "as published"])
def test_a_policy_is_released_with_a_certificate_that_verifies(world: Grid, case: str) -> None:
    config = CASES[case]
    world.budget()
    result = world.run(config, key=0)
    checked = verify_certificate(result.directory.certificate, ledger=world.ledger)
    certificate = checked.certificate
    assert checked.outputs_checked == ("policy.safetensors",)
    assert certificate.epsilon is not None
    assert certificate.epsilon <= 5.0
    (stage,) = certificate.stages
    assert (stage.relation, stage.unit, stage.units) == ("replace_one", "trajectory", UNITS)
    assert stage.assumptions == ()  # integers: nothing is left to how floats round
    policy = GreedyPolicy.load(Path(result.released))
    assert policy.actions.shape == (HORIZON, problem().states)
    entry = world.ledger.reserved(result.directory.run_id)
    assert entry is not None
    assert (entry.reserved_rounds, entry.committed_rounds) == (HORIZON, HORIZON)
    titles = [
        s["title"]
        for s in json.loads(result.directory.report.with_suffix(".json").read_text())["sections"]
    ]
    assert titles == ["What the policy expects", f"Exact value in {GRID}"]
    assert not result.directory.private.exists()
    intact = world.folder / "intact"
    intact.mkdir()
    (intact / "policy.safetensors").write_bytes(Path(result.released).read_bytes())
    Path(result.released).write_bytes(Path(result.released).read_bytes()[:-1] + b"x")
    with pytest.raises(VerificationError, match="was changed"):
        verify_certificate(result.directory.certificate)
    with pytest.raises(VerificationError, match="was changed"):  # an intact copy hides nothing
        verify_certificate(result.directory.certificate, outputs_root=intact)
    (metrics,) = result.directory.metrics.read_text().splitlines()
    assert json.loads(metrics)["reserved"] == HORIZON


@pytest.mark.parametrize("case", CASES)
def test_the_plan_prices_what_is_reserved_and_no_more_than_asked(case: str) -> None:
    plan = plan_run(parse_config(CASES[case], source="test"))
    assert plan.rounds == (1 if case.startswith("pooled") else HORIZON)
    assert plan.max_rounds == (1 if case.startswith("pooled") else HORIZON + 1)
    assert 0.98 * 5 < plan.epsilon(plan.max_rounds, certified=True) <= 5
    assert plan.epsilon(plan.rounds) < 5 or case.startswith("pooled")


@pytest.mark.parametrize(
    ("model", "data", "l2"),
    [
        ({"pooled": True}, {}, 2 * HORIZON),
        ({"pooled": True}, {"max_length": 5}, 2 * 5),
        ({"pooled": True, "visits": "first"}, {}, 2 * HORIZON**0.5),
        ({"pooled": True, "visits": "first"}, {"max_length": 5}, 2 * 5**0.5),
        ({"pooled": True, "visits": "first", "max_trajectories_per_unit": 3}, {}, 6 * HORIZON**0.5),
        ({"pooled": True, "stationary": True}, {}, 2 * HORIZON),
        ({}, {"max_length": 5}, 2),
    ],
)
def test_the_release_is_made_for_what_the_configuration_lets_count(
    model: dict[str, Any], data: dict[str, Any], l2: float
) -> None:
    config = parse_config(values(model={"reward": "known", **model}, data=data), source="test")
    assert isinstance(config, ApviConfig)
    settings = tabular_settings(config, plan_run(config), states=16, actions=4)
    assert settings.release is not None
    assert settings.release.sensitivity == pytest.approx(l2)
    assert settings.layout.max_rows_per_unit == data.get("max_length")
    assert settings.stationary is model.get("stationary", False)


def charged(event: Any) -> float:
    """Return the noise multiplier of an exact event; a million cells would have other ones."""
    if event.kind == "discrete_laplace":
        return 1 / float(event.parameter * event.sensitivity)
    assert event.kind == "discrete_gaussian"
    return float(event.noise_multiplier)


@pytest.mark.parametrize("case", CASES)
def test_each_charged_step_draws_what_it_states(
    world: Grid, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise multipliers of all draws of a unit's branch compose to the charged one, each step."""
    draws: list[tuple[float, int]] = []
    for cls in (DiscreteGaussianRelease, FixedPointLaplaceRelease):
        right = cls.release

        def spy(self: Any, vector: Any, source: Any, *, tag: int = 0, _right: Any = right) -> Any:
            draws.append((self.noise_multiplier, len(vector)))
            return _right(self, vector, source, tag=tag)

        monkeypatch.setattr(cls, "release", spy)
    world.budget()
    config = CASES[case]
    if case == "null units":
        config = CASES["counts a step"]
    result = world.run(config)
    (stage,) = result.certificate.stages
    (event,) = stage.events
    if event.kind == "parallel":
        (first,), (second,) = event.branches
        assert first == second
        count, z = first.count, charged(first)
        branches = 2
    else:
        count, z, branches = event.count, charged(event), 1
    assert count == (1 if case.startswith("pooled") else HORIZON)
    if config["method"] == "apvi":
        assert [draw[0] for draw in draws] == pytest.approx([z] * count)
        return
    total = sum(1 / multiplier**2 for multiplier, _ in draws)
    if branches == 1:
        assert total == pytest.approx(count / z**2)
        return
    # The variance half draws nothing where the variance is known: at the last time step, at least.
    variance_steps = total * z**2 - count
    assert variance_steps == pytest.approx(round(variance_steps), abs=1e-6)
    known = config["model"].get("centre_values", True)  # values within 1 of one another
    if config["model"].get("as_published"):  # all five statistics, at each step
        assert round(variance_steps) == count
    else:
        assert round(variance_steps) == (0 if known else count - 1)


def test_without_privacy_the_policy_is_that_of_the_exact_algorithm(world: Grid) -> None:
    config = grid.values(privacy={"epsilon": None}, model={"reward": "known"})
    config["training"] = {"pessimism": {"preset": "none"}}
    result = world.run(config, key=0)
    assert result.certificate.status == "non_private"
    with pytest.raises(VerificationError, match="non_private"):
        verify_certificate(result.directory.certificate)
    private = result.directory.private  # what protects nobody
    assert Path(result.released).parent == private
    assert result.certificate.outputs == ()
    left = {p.name for p in result.directory.path.rglob("*") if private not in p.parents}
    assert left <= {
        *("config.yaml", "certificate.json", "metrics.jsonl", "report.html", "report.json"),
        *("checkpoint", "run.json", "private"),
    }
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(result.released).stat().st_mode) == 0o600
    report = json.loads((result.directory.path / "report.json").read_text())
    assert report["sections"] == []
    learned = GreedyPolicy.load(Path(result.released))
    _, best = optimal_policy(problem())
    assert learned.values[0] @ problem().initial == pytest.approx(
        best[0] @ problem().initial, abs=0.2
    )


@pytest.mark.parametrize("method", ["apvi", "vapvi"])
def test_workers_do_not_change_the_policy(world: Grid, method: str) -> None:
    world.budget()
    found = []
    for workers in (1, 2, 4):
        result = world.run(values(method, runtime={"workers": workers}), f"run-{workers}")
        assert result.certificate.status == "invalid"  # seeded noise
        found.append(GreedyPolicy.load(Path(result.released)))
    for other in found[1:]:
        assert np.array_equal(found[0].actions, other.actions)
        assert np.array_equal(found[0].values, other.values)


def crash(world: Grid, config: Mapping[str, Any], *, after_step: int) -> None:
    """Run until the noise of a step is drawn, and end without a word: no checkpoint is written."""
    right = TabularProgram.step

    def dies(self: TabularProgram, index: int, *rest: Any) -> None:
        right(self, index, *rest)
        if index == after_step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TabularProgram, "step", dies)
        patch.setattr(RoundServer, "suspend", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            world.run(config)


def test_a_crash_after_the_draw_costs_a_spare_step_and_nothing_else(world: Grid) -> None:
    world.budget()
    crash(world, values(), after_step=HORIZON // 3)
    result = world.run(values(), resume=True)
    entry = world.ledger.reserved(result.directory.run_id)
    assert entry is not None
    reserved = HORIZON + 1
    assert (entry.reserved_rounds, entry.drawn_rounds) == (reserved, reserved)
    assert entry.committed_rounds == HORIZON
    (event,) = result.certificate.stages[0].events
    assert event.count == reserved
    assert result.certificate.spare_rounds == 0
    again = world.run(values(), resume=True)
    assert again.certificate == result.certificate


def test_more_crashes_than_spare_steps_end_the_run_in_words(world: Grid) -> None:
    world.budget()
    config = values(training={"spare": 0})
    crash(world, config, after_step=3)
    with pytest.raises(BudgetError, match=rf"{HORIZON - 1} of {HORIZON} are done.*training.spare"):
        world.run(config, resume=True)


COUNTED = {"epsilon": 0.5}
WRONG = {
    "rdp and counted": (
        values(data={"units": COUNTED}, privacy={"accountant": "rdp"}),
        ConfigError,
        "exactly",
    ),
    "bounds and counted": (
        values(data={"units": COUNTED, "bounds": "environment"}),
        ConfigError,
        "have no meaning",
    ),
    "all of epsilon counted": (
        values(data={"units": COUNTED}, privacy={"epsilon": 0.5}),
        ConfigError,
        "used up",
    ),
    "features and counted": (
        values("vapvi", data={"units": COUNTED}, model={"features": "environment"}),
        ConfigError,
        "has no features",
    ),
    "halves by number": (
        values("vapvi", privacy={"relation": "add_or_remove"}),
        UnsafeError,
        "would move the others",
    ),
    "transition": (values(data={"unit": "transition"}), ConfigError, "protects whole trajectories"),
    "delta": (values(privacy={"delta": 0.01}), UnsafeError, "1/units"),
    "no delta": (values(privacy={"delta": 0.0}), ConfigError, "laplace delta 0"),
    "delta for laplace": (values(training={"mechanism": "laplace"}), ConfigError, "laplace"),
    "vapvi without delta": (values("vapvi", privacy={"delta": 0.0}), ConfigError, "Gaussian"),
    "units": (values(data={"units": None}), ConfigError, "not declared"),
    "as published, ours": (
        values("vapvi", model={"as_published": True, "reuse_gram": True, "split": False}),
        ConfigError,
        r"has no model\.reuse_gram",
    ),
    "as published, ridge": (
        values("vapvi", model={"as_published": True}, training={"ridge": {"noise_factor": 1.0}}),
        ConfigError,
        r"has no training\.ridge",
    ),
    "coverage of ours": (
        values("vapvi", training={"pessimism": {"coverage": 0.1}}),
        ConfigError,
        "belongs to model.as_published",
    ),
    "rdp": (values(privacy={"accountant": "rdp"}), ConfigError, "exactly"),
    "range": (values(model={"reward_range": [1, 0]}), ConfigError, "low < high"),
    "no range": (values(data={"environment": None}), ConfigError, "reward_range is missing"),
    "no reward": (
        values(data={"environment": None}, model={"reward": "known", "reward_range": [0, 1]}),
        ConfigError,
        "model.reward=known needs",
    ),
    "no features": (
        values("vapvi", model={"features": "environment"}),
        ConfigError,
        "has no features",
    ),
    "facts": (values(model={"facts": "/nowhere.npz"}), ConfigError, "no file at"),
    "first visits by step": (values(model={"visits": "first"}), ConfigError, "need pooled"),
    "one rule by step": (values(model={"stationary": True}), ConfigError, "need pooled"),
    "unknown": (values(model={"horizons": 3}), ConfigError, "unknown key"),
    "column": (values(data={"unit": "patient_id"}), ConfigError, "has no unit"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_before_anything_is_charged(world: Grid, case: str) -> None:
    config, error, message = WRONG[case]
    world.budget()
    with pytest.raises(error, match=message):
        world.run(config)
    assert world.ledger.entries() == []
    assert not (world.folder / "run").exists()


def test_a_plan_says_whether_counts_drown() -> None:
    verdict = plan_run(config(privacy={"epsilon": 0.5})).verdict
    assert verdict is not None
    assert verdict.grade is Grade.LIMITED
    assert "below 1 no measured run kept half of what it learns" in verdict.reason
    verdict = plan_run(config(data={"units": 10**6}, privacy={"delta": 1e-8})).verdict
    assert verdict is not None
    assert verdict.grade is Grade.FINE


def test_no_budget_and_another_relation_are_refused(world: Grid) -> None:
    with pytest.raises(BudgetError, match="--relation replace_one"):
        world.run(values())
    world.budget()
    with pytest.raises(UnsafeError, match="relation"):
        world.run(CASES["null units"])


@pytest.mark.parametrize(
    ("method", "relation"),
    [("apvi", "replace_with_null"), ("apvi", "add_or_remove"), ("vapvi", "replace_with_null")],
)
def test_the_other_relations_run_to_a_certificate(world: Grid, method: str, relation: str) -> None:
    world.budget(relation=Relation(relation))
    result = world.run(values(method, privacy={"relation": relation}), key=0)
    checked = verify_certificate(result.directory.certificate, ledger=world.ledger)
    (stage,) = checked.certificate.stages
    assert stage.relation == relation


def test_removing_a_trajectory_moves_stored_sums_by_what_is_charged(tmp_path: Path) -> None:
    """Numbered trajectories move up when one is removed: no statistic may depend on the number."""
    mdp = problem()
    (whole,) = sample_trajectories(mdp, trajectories=300, streams=Streams(5))
    features = FeatureMap(table=np.eye(mdp.states), actions=mdp.actions)
    settings = LinearSettings(
        features=features, horizon=grid.HORIZON, units=300, split=False, early_termination=False
    )
    sums = []
    for name, part in (("whole", whole), ("less", whole.select(range(1, 300)))):
        store = DatasetStore(tmp_path / name)
        store.write_trajectories(
            DATASET,
            part,
            observation_space=Discrete(mdp.states),
            action_space=Discrete(mdp.actions),
            layout="packed",
        )
        refs = shard_refs(store, DATASET, count=2, unit="trajectory")
        workers = [
            StatisticsWorker(statistics_spec(settings, StoredTrajectories(ref=ref))) for ref in refs
        ]
        answers = [value_sums(w, features, 3, np.ones(mdp.states), None) for w in workers]
        sums.append([sum(parts) for parts in zip(*answers, strict=True)])
    gram, targets = (np.linalg.norm(a - b) for a, b in zip(*sums, strict=True))
    assert gram <= gram_sensitivity(Relation.ADD_OR_REMOVE) + 1e-9
    assert targets <= vector_sensitivity(Relation.ADD_OR_REMOVE, bound=2.0) + 1e-9


def test_counted_units_are_paid_from_the_same_epsilon(world: Grid) -> None:
    world.budget()
    result = world.run(values(data={"units": {"epsilon": 0.5}}))
    count, statistics = result.certificate.stages
    assert count.name == "count"
    assert statistics.units_source == "dp"
    assert result.certificate.epsilon is not None
    assert result.certificate.epsilon <= 5.0


def test_continuous_spaces_are_refused(world: Grid, tmp_path: Path) -> None:
    part = Trajectories(
        observations=np.zeros((3, 2), np.float32),
        actions=np.zeros(2, np.int64),
        rewards=np.zeros(2, np.float32),
        terminated=np.array([False, True]),
        truncated=np.zeros(2, bool),
        offsets=np.array([0, 2]),
        unit_ids=np.zeros(1, np.uint64),
    )
    world.store.write_trajectories(
        "ward/box-v0", part, observation_space=Box(-1, 1, (2,)), action_space=Discrete(2)
    )
    config = parse_config(values(data={"sensitive": "ward/box-v0"}), source="test")
    with pytest.raises(ConfigError, match=r"Discrete\(n\) states"):
        sizes(config.data, world.store)


def test_public_facts_come_from_a_file(world: Grid) -> None:
    mdp = problem()
    path = world.folder / "facts.npz"
    np.savez(
        path, rewards=mdp.rewards[0], arrival_rewards=mdp.arrival_rewards, terminal=mdp.terminal
    )
    world.budget()
    low, high = mdp.reward_range
    model = {"reward": "known", "reward_range": [low, high], "facts": str(path)}
    from_file = world.run(values(data={"environment": None}, model=model), "file")
    from_environment = world.run(values(model={"reward": "known"}), "environment")
    policies = [GreedyPolicy.load(Path(r.released)) for r in (from_file, from_environment)]
    assert np.array_equal(policies[0].actions, policies[1].actions)
    with pytest.raises(ConfigError, match="would ignore them"):
        world.run(values(model={**model, "reward": "estimated"}), "ignored")
    np.savez(path, price=np.zeros(3))
    with pytest.raises(ConfigError, match="holds price"):
        world.run(values(model=model), "wrong")


@pytest.mark.parametrize("method", ["apvi", "vapvi"])
def test_the_report_shows_the_price_of_privacy_by_simulation(world: Grid, method: str) -> None:
    world.budget()
    model = {"pooled": True} if method == "apvi" else {}
    evaluation = {"study_units": [50, 500], "study_epsilons": [1.0], "seeds": 2}
    result = world.run(values(method, model=model, evaluation=evaluation), key=0)
    report = json.loads((result.directory.path / "report.json").read_text())
    study = report["sections"][-1]
    assert study["title"] == "The price of privacy"
    named = {metric["name"] for metric in study["metrics"]}
    assert named == {
        f"{name}, {units} units" for name in ("no privacy", "epsilon 1") for units in (50, 500)
    }
    cells = json.loads((result.directory.path / "evaluation.json").read_text())
    assert len(cells) == 8
    best = optimal_policy(problem(), horizon=500)[1][0] @ problem().initial
    assert all(0 <= cell["value"] <= best + 1e-9 for cell in cells)
