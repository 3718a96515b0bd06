"""What is wrong with an expert, its policy, its rows or its files, and what a run makes of it."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.experts import expert_files, experts_folder
from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.expert import report
from distributed_privrl.methods.expert.config import FilterConfig
from distributed_privrl.methods.expert.method import ExpertMethod
from distributed_privrl.methods.expert.prefix_plan import FILTER, plan_filter
from distributed_privrl.privacy.units import PrivacyBudget, Relation, UnitCount
from tests.worlds.crowd import DATASET, Crowd, config, crowd, recorded, write_crowd
from tests.worlds.swings import files_outside_private


def spoil(store: DatasetStore, policies: ExpertPolicies) -> None:
    """Write the crowd with experts that are spoiled in every way that a file can hold."""
    rows, logs = recorded(policies)
    policies.weights[0][2] = np.nan  # scores that are no numbers: one of them counts as highest
    rows.observations[:30] = np.nan
    rows.rewards[-40:-20] = np.inf  # both in one trajectory: their sum is no number
    rows.rewards[-20:] = -np.inf
    rows.rewards[-46:-40] = 3e38
    kept = np.delete(np.arange(len(rows)), slice(70, 74))  # too few of expert 10
    steps = np.repeat(np.isin(np.arange(len(rows)), kept), rows.lengths)
    write_crowd(store, policies, rows.select(kept), logs[steps])
    folder = experts_folder(store, DATASET)
    whole = ExpertPolicies.load(expert_files(store, DATASET)[0])
    for start, stop, least in ((0, 20, 0.1), (20, 21, 0.01), (21, 40, 0.1)):  # one below p_min
        part = replace(whole.part(start, stop), minimum_probability=least)
        part.save(folder / f"policies-{start:07d}.safetensors")


def test_experts_of_any_kind_change_nothing_that_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Experts that are spoiled are null or cut: the run says, writes and charges the same."""
    seen = []
    for bad in (False, True):
        folder = tmp_path / str(bad)
        store, policies = DatasetStore(folder / "master"), crowd()
        if bad:
            spoil(store, policies)
        else:
            write_crowd(store, policies, *recorded(policies))
        world = Crowd(folder, store)
        told: list[Any] = []
        capfd.readouterr()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of whatever is collected meanwhile
            result = world.run(progress=lambda *said, _told=told: _told.append(said))
        entries = sorted((e.epsilon, e.delta, e.reserved_rounds) for e in world.ledger.entries())
        charged = [stage.model_dump() for stage in result.certificate.stages]
        files = list(files_outside_private(result.directory.path))
        learned = Policy.load(Path(result.released)).network.parameters()
        assert all(torch.isfinite(one).all() for one in learned)
        assert (result.directory.path / "private" / "experts.json").exists()
        messages = sorted({str(one.message) for one in warned})
        seen.append((told, files, entries, charged, messages, capfd.readouterr()))
    assert seen[0] == seen[1]


def test_a_private_report_that_fails_ends_no_run(
    world: Crowd, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        warnings.warn("secret", stacklevel=1)
        raise ValueError("secret")

    monkeypatch.setattr(report, "expert_returns", fail)
    result = world.run()
    assert [stage.name for stage in result.certificate.stages] == [FILTER, "rounds"]
    assert "secret" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("changed", ["fewer", "more", "twice"])
def test_policies_that_are_not_one_for_each_unit_are_refused_before_a_charge(
    world: Crowd, changed: str
) -> None:
    (path,) = expert_files(world.store, DATASET)
    whole = ExpertPolicies.load(path)
    if changed == "fewer":
        whole.part(0, 39).save(path)
    elif changed == "more":
        whole.part(0, 1).save(path.with_name("policies-0000040.safetensors"))
    else:
        units = whole.unit_ids.copy()
        units[7] = units[3]
        replace(whole, unit_ids=units).save(path)
    message = "name the same unit" if changed == "twice" else "=40 is not the number of policies"
    with pytest.raises(ConfigError, match=message):
        world.run()
    assert world.ledger.entries() == []


@pytest.mark.parametrize("share", [0.0, 0.75])
def test_a_unit_that_the_dataset_does_not_know_is_refused_before_a_charge(
    world: Crowd, share: float
) -> None:
    with pytest.raises(ConfigError, match="has no unit 'patient'"):
        world.run(data__unit="patient", filter__share=share)
    assert world.ledger.entries() == []


@pytest.mark.parametrize(("epsilon", "draws"), [(7.5, 25), (10.0, 25), (7.5, 50)])
def test_the_filter_keeps_its_budget(epsilon: float, draws: int) -> None:
    budget = PrivacyBudget(
        epsilon=epsilon, delta=2.7e-4, unit="expert", relation=Relation.POLICY_LEVEL
    )
    units = UnitCount(value=3000, source="declared")
    plan = plan_filter(FilterConfig(draws=draws), budget, units)
    assert 0.95 * epsilon < plan.epsilon(plan.max_rounds, certified=True) <= epsilon
    with pytest.raises(UnsafeError, match="must charge what the filter draws"):
        replace(plan, schedule=tuple(step[:1] for step in plan.schedule))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_each_accountant_of_the_rounds_settles_what_the_filter_drew(
    world: Crowd, accountant: str
) -> None:
    filter_plan = ExpertMethod(config(privacy__accountant=accountant)).plan.filter
    assert filter_plan is not None
    assert filter_plan.budget is not None
    most = filter_plan.epsilon(filter_plan.max_rounds, certified=True)
    assert most <= filter_plan.budget.epsilon
    result = world.run(privacy__accountant=accountant)
    assert [stage.accountant for stage in result.certificate.stages] == ["pld", accountant]
    assert {entry.status for entry in world.ledger.entries()} == {"settled"}
