"""PrivORL-AR and -AR-j pre-trained on marginals: two stages, one certificate."""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import method_named, parse_config, plan_run
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.methods.privorl.autoregressive import (
    AutoregressiveMethod,
    AutoregressiveSynthesizer,
)
from distributed_privrl.methods.privorl.config import PrivorlArConfig, PrivorlArJConfig
from distributed_privrl.methods.privorl.marginal_rows import kept_rows
from distributed_privrl.methods.privorl.method import PrivorlMethod
from distributed_privrl.methods.privorl.parts import Parts
from distributed_privrl.methods.privorl.pretraining import (
    KeptRows,
    Pretrainer,
    pretraining_key,
)
from distributed_privrl.methods.privorl.pretraining_config import ArPretrainingConfig
from distributed_privrl.methods.privorl.sampling_config import StepRolloutConfig
from distributed_privrl.methods.privorl.step_model import StepDrawer, StepSynthesizer
from distributed_privrl.methods.privorl.support import Support, SupportGrid, support_release
from distributed_privrl.methods.privorl.trajectories import TrajectoriesMethod
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.stages.method import StagePlan
from tests.gates.marginal_rows import gate_certified_marginal_rows
from tests.marginals.programs import chained
from tests.planted import marginal_row_bugs
from tests.worlds import mazes
from tests.worlds.overrides import parsed
from tests.worlds.shelf import BOUNDS, ROWS, Shelf, loan_store, values
from tests.worlds.walks import Strolls, hybrid_values, walk_store, walks

FROM = "training__pretraining__from"
UNITS = UnitCount(value=ROWS, source="declared")


@dataclass(frozen=True)
class Case:
    """A world, and what is alike in the tests of all."""

    world: type[Shelf] | type[Strolls]
    method: type[AutoregressiveMethod] | type[TrajectoriesMethod]
    master: DatasetStore

    def made(self, folder: Path) -> Shelf | Strolls:
        return self.world(folder, self.master)


KINDS = ["rows", "trajectories"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    rows = loan_store(tmp_path_factory.mktemp("shelf"))
    whole = walk_store(tmp_path_factory.mktemp("walks"), public=20)
    return {
        "rows": Case(Shelf, AutoregressiveMethod, rows),
        "trajectories": Case(Strolls, TrajectoriesMethod, whole),
    }


@pytest.fixture(params=KINDS)
def case(cases: dict[str, Case], request: pytest.FixtureRequest) -> Case:
    return cases[request.param]


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the estimation out: of what is noisy, charged, drawn and learned it is no part."""
    monkeypatch.setattr(belief, "estimated", chained)


@pytest.fixture(autouse=True)
def bounds_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the file that configurations name where they are read."""
    (tmp_path / "bounds.yaml").write_text(BOUNDS)
    monkeypatch.chdir(tmp_path)


def config(**changes: Any) -> PrivorlArConfig:
    return parsed(values(**changes), PrivorlArConfig)


def stages(settings: PrivorlArConfig) -> tuple[StagePlan, ...]:
    return AutoregressiveMethod(settings).stages(None, UNITS)


def test_the_key_is_called_from_everywhere(tmp_path: Path) -> None:
    settings = config()
    dumped = settings.model_dump(mode="json")
    assert dumped["training"]["pretraining"]["from"] == "marginals"
    assert "source" not in dumped["training"]["pretraining"]
    assert parse_config(dumped, source="test") == settings
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(values("environment", data__environment="CartPole-v1")))
    shown = CliRunner().invoke(
        app, ["config", "show", str(path), "-o", "training.pretraining.from=public"]
    )
    assert yaml.safe_load(shown.stdout)["training"]["pretraining"]["from"] == "public"
    changed = CliRunner().invoke(app, ["config", "show", str(path), "--changed"])
    assert yaml.safe_load(changed.stdout)["training"]["pretraining"]["from"] == "marginals"
    assert CliRunner().invoke(app, ["config", "validate", str(path)]).exit_code == 0
    schema = CliRunner().invoke(app, ["config", "schema", "--method", "privorl_ar"]).stdout
    fields = json.loads(schema)["$defs"]["ArPretrainingConfig"]["properties"]
    assert {"from", "marginals"} <= set(fields)
    assert "source" not in fields


def test_messages_have_the_name_that_a_file_has() -> None:
    with pytest.raises(ConfigError, match=r"training\.pretraining\.from='x': .*'public' or"):
        config(**{FROM: "x"})
    wrong = r"unknown key 'training\.pretraining\.source' \(known: .*from, marginals"
    with pytest.raises(ConfigError, match=wrong):
        config(training__pretraining__source="marginals")
    with pytest.raises(ConfigError, match=r"training\.pretraining\.marginals\.share=1"):
        config(training__pretraining__marginals__share=1)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.public names shelf/other-v0: leave either out"):
        plan_run(config(data__public=["shelf/other-v0"]))
    with pytest.raises(ConfigError, match="would pay for rows that nobody learns from"):
        plan_run(config(training__pretraining__steps=0))
    with pytest.raises(ConfigError, match=r"or training\.pretraining\.from to marginals"):
        plan_run(config(**{FROM: "public"}))
    trajectories = {"method": "privorl_j", "training": {"pretraining": {"from": "marginals"}}}
    with pytest.raises(ConfigError, match=r"unknown key 'training\.pretraining\.from'"):
        parse_config({**values(), **trajectories, "model": {}}, source="test")


def test_epsilon_and_delta_are_shared_and_spent_once() -> None:
    first, rounds = (one.plan for one in stages(config()))
    assert isinstance(first, MarginalsPlan)
    assert first.budget is not None
    assert rounds.budget is not None
    assert first.budget.epsilon == pytest.approx(0.6 * 6.0)
    assert rounds.budget.epsilon == pytest.approx(0.4 * 6.0)
    assert first.budget.delta == pytest.approx(0.6 * 1e-5)
    assert first.budget.delta + rounds.budget.delta == pytest.approx(1e-5)
    assert rounds.spent == first.budget.epsilon
    assert plan_run(config()).epsilon(6, certified=True) <= 6.0
    noisy = {"epsilon": 2.0, "search": "environment"}
    found = stages(config(data__bounds=noisy, data__environment="CartPole-v1"))
    budgets = [one.plan.budget.epsilon for one in found if one.plan.budget is not None]
    assert budgets == pytest.approx([0.6 * 4.0, 0.4 * 4.0])
    assert found[1].plan.spent == pytest.approx(2.0 + 0.6 * 4.0)
    free = stages(config(privacy__epsilon=None))
    assert [one.plan.budget for one in free] == [None, None]


def test_delta_of_both_stages_is_compared_with_the_units() -> None:
    with pytest.raises(UnsafeError, match=r"delta=0\.001 is not below 1/units"):
        plan_run(config(privacy__delta=1e-3))  # half of it would be
    with pytest.warns(UserWarning, match=r"delta=0\.0001 is above 1/\(10 units\)"):
        plan_run(config(privacy__delta=1e-4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_run(config())


def test_the_plan_shows_both_stages(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(values(str(tmp_path / "bounds.yaml"))))
    shown = CliRunner().invoke(app, ["plan", str(path)]).stdout
    assert "before the rounds, for epsilon 3.6, delta 6e-06: 500 rows of them are learned" in shown
    facts = json.loads(CliRunner().invoke(app, ["plan", str(path), "--json"]).stdout)
    assert "(for an assumed table of 5 columns)" in shown  # its action is not in the file
    shown_facts = {"rows": 500, "columns_assumed": 5, "joint_counts": 2}
    assert shown_facts.items() <= facts["marginals"].items()
    assert facts["marginals"]["epsilon"] == pytest.approx(3.6)
    assert facts["marginals"]["delta"] == pytest.approx(6e-6)
    assert facts["delta"] == 1e-5
    assert 3.6 < facts["epsilon"] <= facts["epsilon_with_spare"] <= 6.0
    assert "after marginals for epsilon 3.6" in plan_run(config()).summary()


def test_without_the_key_nothing_has_changed() -> None:
    """The one stage has the whole budget, in the run's own entry, as it had before."""
    plain = mazes.ar_config()
    (only,) = AutoregressiveMethod(plain).stages(None, UnitCount(value=3000, source="declared"))
    assert (only.name, only.entry) == ("fine-tune", "")
    assert only.plan.charged() == plan_run(mazes.config()).charged()  # of PrivORL-n
    assert only.plan.budget is not None
    assert (only.plan.budget.epsilon, only.plan.budget.delta) == (5.0, 1e-5)
    key = pretraining_key(public={"a": "1"}, coding="c", config=ArPretrainingConfig(), seed=3)
    assert (
        key == "pretraining-35e70df1de356fa24f818dab"
    )  # finished pre-trainings of earlier versions are found


@pytest.mark.usefixtures("quick")
def test_a_run_does_what_it_certifies(tmp_path: Path, case: Case) -> None:
    gate_certified_marginal_rows(case.made(tmp_path))


BUGS: list[tuple[str, Callable[[pytest.MonkeyPatch], None], str]] = [
    ("rows", marginal_row_bugs.exact_columns, "columns of the model is not what the noise made"),
    ("rows", marginal_row_bugs.half_the_noise, "is certified, .* was drawn"),
    ("rows", marginal_row_bugs.uncharged_marginals, r"certified as \['fine-tune'\]"),
    ("rows", marginal_row_bugs.real_rows, "other rows are learned than were drawn"),
    (
        "trajectories",
        marginal_row_bugs.exact_lengths,
        "columns of the model is not what the noise made",
    ),
    ("trajectories", marginal_row_bugs.real_beginnings, "other rows are learned than were drawn"),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("kind", "plant", "what_it_says"), BUGS)
def test_the_gate_sees_the_bug(
    kind: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    what_it_says: str,
    tmp_path: Path,
    cases: dict[str, Case],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=what_it_says):
        gate_certified_marginal_rows(cases[kind].made(tmp_path))


def test_delta_that_is_charged_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    marginal_row_bugs.delta_twice(monkeypatch)
    with pytest.raises(ConfigError, match=r"costs delta 1\.6e-05, privacy\.delta is 1e-05"):
        plan_run(config())


class Killed(BaseException):
    """Ends a run as a kill would: nothing catches it."""


def dies_at(patch: pytest.MonkeyPatch, kind: type, name: str, when: Callable[[Any], bool]) -> None:
    right = getattr(kind, name)

    def dying(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if when(self):
            raise Killed
        return right(self, *arguments, **keywords)

    patch.setattr(kind, name, dying)


KILLS: list[tuple[type, str, Callable[[Any], bool]]] = [
    (MarginalsProgram, "_choose", lambda self: not self._belief.tables),  # loses a step
    (KeptRows, "save", lambda _: True),  # released, nothing drawn from it
    (Pretrainer, "advance", lambda _: True),
    (ParameterServer, "_run_round", lambda self: self._round == 3),  # loses a round
]


@pytest.mark.usefixtures("quick")
def test_a_run_killed_in_each_stage_goes_on_and_pays_for_what_was_lost(
    tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = case.made(tmp_path).budget()
    lost, rows = [], []
    save = KeptRows.save
    for kind, name, when in KILLS:
        with monkeypatch.context() as patch:
            dies_at(patch, kind, name, when)
            with pytest.raises(Killed):
                world.run(resume=bool(lost))
        lost.append(name)

    def saved(self: KeptRows, values: Any) -> None:
        rows.append(values)
        save(self, values)

    monkeypatch.setattr(KeptRows, "save", saved)
    told: list[str] = []
    result = world.run(resume=True, progress=lambda stage, *_: told.append(stage))
    run = result.directory.run_id
    first, rounds = result.certificate.stages
    entries = {one.id: one for one in world.ledger.entries()}
    assert set(entries) == {run, f"{run}/marginals"} == set(result.certificate.ledger_entries)
    counted = {one.id: (one.reserved_rounds, one.drawn_rounds) for one in entries.values()}
    assert counted[f"{run}/marginals"][0] == 3  # of three; one of them was lost
    assert counted[run][0] == 7 == rounds.events[0].count
    assert sum(event.count for event in first.events) == 1 + 2 * 2
    spent = sum(one.epsilon for one in entries.values())
    assert result.certificate.epsilon == pytest.approx(spent, rel=1e-3)
    assert spent <= 6.0
    verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )
    assert not rows, "rows that were kept are not drawn again"
    assert set(told) >= {"private rounds"}


def test_rows_are_drawn_again_alike_and_open_the_attack(
    tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill before they are written, and a resume; the folder of pre-trainings stays empty.

    Rows come from an estimated model; of trajectories, nothing else would be seen.
    """
    if case.world is Strolls:
        monkeypatch.setattr(belief, "estimated", chained)
    world = case.made(tmp_path).budget()
    drawn, save = [], KeptRows.save

    def saved(self: KeptRows, rows: Any) -> None:
        drawn.append(rows)
        if len(drawn) == 1:
            raise Killed
        save(self, rows)

    monkeypatch.setattr(KeptRows, "save", saved)
    about = {"runtime__pretrained": str(tmp_path / "pretrained")}
    with pytest.raises(Killed):
        world.run(**about)
    result = world.run(resume=True, **about)
    np.testing.assert_array_equal(*drawn)
    assert not (tmp_path / "pretrained").exists()

    folder, run = result.directory.working(private=True), result.directory.run_id
    kept = kept_rows(folder, f"{run}/marginals").read()
    np.testing.assert_array_equal(kept, drawn[1])
    context = world.context(run, folder=folder, fingerprint="")
    settings = world.config(**about)
    attack = method_named(settings.method).open_attack(settings, context)
    real = case.master.read_transitions(world.dataset, unit=settings.data.unit)
    losses = attack.losses(real.select(slice(0, 40)))
    assert np.isfinite(losses).any()  # of each row, or of each fragment
    assert np.isfinite(losses).all() or case.world is Strolls

    method: PrivorlMethod = case.method(settings)
    even = method.check(context)
    informed = method.recalled(even, context)
    marks = [_marks(one.parts.synthesizer) for one in (even, informed)]
    middle = np.median(_steps_of(kept, informed.parts.synthesizer)[:, 0])
    near = [np.abs(one - middle).min() < 1e-6 for one in marks]
    assert near == [False, True], "bins are not where the drawn rows are"
    assert marks[0][[0, -1]].tolist() == marks[1][[0, -1]].tolist()


def _marks(synthesizer: Any) -> np.ndarray:
    assert isinstance(synthesizer, AutoregressiveSynthesizer | StepSynthesizer)
    return np.array(synthesizer.bins.variables[0].marks)


def _steps_of(rows: np.ndarray, synthesizer: Any) -> np.ndarray:
    """Return what was drawn, step by step."""
    if not isinstance(synthesizer, StepSynthesizer):
        return rows
    return synthesizer.fragments.own_steps(rows)


def stroll(**changes: Any) -> PrivorlArJConfig:
    return parsed(hybrid_values(**changes), PrivorlArJConfig)


def test_trajectories_have_the_key_and_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(hybrid_values(str(tmp_path / "bounds.yaml"))))
    shown = CliRunner().invoke(app, ["plan", str(path)]).stdout
    assert "for epsilon 3.6, delta 6e-06: 150 trajectories of them are learned" in shown
    facts = json.loads(CliRunner().invoke(app, ["plan", str(path), "--json"]).stdout)
    assert facts["marginals"]["trajectories"] == 150
    assert 3.6 < facts["epsilon"] <= facts["epsilon_with_spare"] <= 6.0
    with pytest.raises(ConfigError, match=r"data\.public names test/public-v0: leave either out"):
        plan_run(stroll(data__public=["test/public-v0"]))
    with pytest.raises(ConfigError, match="would pay for rows that nobody learns from"):
        plan_run(stroll(training__pretraining__steps=0))
    with pytest.raises(ConfigError, match=r"or training\.pretraining\.from to marginals"):
        plan_run(stroll(**{FROM: "public"}))
    with pytest.raises(ConfigError, match=r"pretraining\.marginals\.rows' \(known: .*trajectories"):
        stroll(training__pretraining__marginals__rows=5)


def test_what_is_not_named_of_pretraining_keeps_its_default() -> None:
    found = stroll(training={"pretraining": {"steps": 7}}).training.pretraining
    assert (found.curiosity_rate, found.optimiser.learning_rate) == (0.0, 3e-3)


@pytest.mark.usefixtures("quick")
def test_a_support_stays_where_bins_become_informed(tmp_path: Path, cases: dict[str, Case]) -> None:
    """Found before the marginals are, it is paid for first, and holds for the informed model."""
    world = cases["trajectories"].made(tmp_path)
    asked = {"epsilon": 2.0, "columns": [0], "cells": 6}
    settings = world.config(training__sampling__support=asked)
    assert isinstance(settings, PrivorlArJConfig)
    result = world.afford(settings).start(settings)
    assert [one.name for one in result.certificate.stages] == ["support", "marginals", "fine-tune"]
    entries = {one.id: one.epsilon for one in world.ledger.entries()}
    run = result.directory.run_id
    assert entries[f"{run}/marginals"] == pytest.approx(0.6 * 4.0, rel=1e-3)
    assert sum(entries.values()) <= 6.0
    verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    )
    method = TrajectoriesMethod(settings)
    parts = method.check(world.context()).parts
    assert isinstance(parts.drawer, StepDrawer)
    support = Support(grid=_grid(method, parts), visited=(2, 3))
    found = replace(parts, drawer=replace(parts.drawer, support=support, attempts=5))
    rows = kept_rows(result.directory.working(private=True), f"{run}/marginals").read()
    informed = method.informed(found, rows)
    assert isinstance(informed.drawer, StepDrawer)
    assert (informed.drawer.support, informed.drawer.attempts) == (support, 5)
    assert informed.drawer.synthesizer == informed.synthesizer != parts.synthesizer
    assert _grid(method, informed) == support.grid


def _grid(method: TrajectoriesMethod, parts: Parts) -> SupportGrid:
    asked, steps = method.config.training.sampling, parts.synthesizer
    assert isinstance(asked, StepRolloutConfig)
    assert isinstance(steps, StepSynthesizer)
    assert asked.support is not None
    encoder = steps.fragments.transitions
    return support_release(asked.support, encoder, steps.bins, method.relation).grid


@pytest.mark.usefixtures("quick")
def test_what_is_learned_is_as_long_as_the_walks(tmp_path: Path, cases: dict[str, Case]) -> None:
    """Without noise: lengths come through the marginals, from nowhere else."""
    world = cases["trajectories"].made(tmp_path)
    settings = world.config(privacy__epsilon=None)
    assert isinstance(settings, PrivorlArJConfig)
    result = world.start(settings)
    folder, run = result.directory.working(private=False), result.directory.run_id
    rows = kept_rows(folder, f"{run}/marginals").read()
    steps = TrajectoriesMethod(settings).check(world.context()).parts.synthesizer
    assert isinstance(steps, StepSynthesizer)
    condition, _, _ = steps.fragments.split(rows)
    begins = (condition == 0).all(axis=1)
    assert begins.sum() == 150
    own, _ = steps.fragments.decode_steps(steps.fragments.own_steps(rows))
    real = walks(200, 1)
    assert len(own) / 150 == pytest.approx(real.lengths.mean(), rel=0.2)
    assert (own.terminated | own.truncated).sum() == 150
