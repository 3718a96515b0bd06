"""The support that trajectories keep to: what it costs, what one unit changes, what draws do."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import BudgetError, ConfigError, LostAnswerError, UnsafeError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.fragments import END_BITS
from distributed_privrl.data.metadata import SUPPORT_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, Transitions
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.registry import METHODS, method_named, plan_run
from distributed_privrl.experiments.trajectory_reports import support_verdict, trajectory_sections
from distributed_privrl.methods.privorl import support as module
from distributed_privrl.methods.privorl.release import chunk_path
from distributed_privrl.methods.privorl.sampling_config import NoisySupport, StepRolloutConfig
from distributed_privrl.methods.privorl.step_model import StepDrawer, StepSynthesizer
from distributed_privrl.methods.privorl.support import (
    Support,
    SupportGrid,
    SupportRelease,
    cell_totals,
    support_question,
    support_release,
)
from distributed_privrl.methods.privorl.trajectories import fragment_synthesizer
from distributed_privrl.methods.privorl.trajectory_release import support_facts
from distributed_privrl.privacy import quantiles
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import PrivacyBudget, Relation, UnitCount
from distributed_privrl.stages.coding import public_encoder
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.run import recalled_world
from tests.gates.leaks import logged
from tests.worlds.holding import Asked, answered
from tests.worlds.ledgers import NULL, release
from tests.worlds.opened import opened
from tests.worlds.walks import (
    PUBLIC,
    SENSITIVE,
    SPACES,
    ar_config,
    config_values,
    walk_store,
    walks,
)
from tests.worlds.world import World

REPLACE_ONE = Relation.REPLACE_ONE
ASKED = NoisySupport(epsilon=2.0, columns=(0,), cells=10)
GRID = SupportGrid(columns=(0, 2), low=(0.0, -1.0), high=(1.0, 1.0), cells=2)
UNITS = UnitCount(value=200, source="declared")


class Modelled(Asked):
    """Both sets of walks, and a model of their steps."""

    dataset = SENSITIVE

    def __init__(
        self,
        folder: Path,
        sensitive: Trajectories | None = None,
        budget: float = 8.0,
        unit: str = "trajectory",
        relation: Relation = NULL,
    ) -> None:
        mine = walks(200, 1) if sensitive is None else sensitive
        spaces = SPACES["observation_space"], SPACES["action_space"]
        column = None if unit == "trajectory" else unit
        super().__init__(folder, mine, spaces, column, layout="episodes")
        self.store.write_trajectories(PUBLIC, walks(200, 2), **SPACES)
        settings = ar_config(
            data=config_values()["data"] | {"unit": unit},
            training=config_values()["training"] | {"sampling": {"max_length": 24}},
        )
        made = fragment_synthesizer(settings, self.store, public_encoder(settings, self.store))
        assert isinstance(made, StepSynthesizer)
        self.synthesizer, self.data = made, settings.data
        self.budget(budget, relation, delta=1e-4)

    def release(self, asked: NoisySupport = ASKED, relation: Relation = NULL) -> SupportRelease:
        encoder = self.synthesizer.fragments.transitions
        return support_release(asked, encoder, self.synthesizer.bins, relation)

    def find(
        self,
        asked: NoisySupport = ASKED,
        units: UnitCount = UNITS,
        relation: Relation = NULL,
        context: RunContext | None = None,
    ) -> tuple[Support, Stage]:
        context = context or self.context()
        question = support_question(
            self.release(asked, relation),
            self.data,
            context,
            encoder=self.synthesizer.fragments.transitions,
        )
        cost = asked.epsilon
        return answered(
            "support", question, self.data, context, relation=relation, epsilon=cost, units=units
        )

    def steps(self) -> NDArray[np.int64]:
        encoder = self.synthesizer.fragments.transitions
        return cell_totals(self.release().grid, self.data, self.context(), encoder)

    def totals(self) -> NDArray[np.float64]:
        """What each cell weighs; sums of whole numbers, so that differences are exact."""
        weights: NDArray[np.float64] = self.steps() / module.UNIT_WEIGHT
        return weights

    def drawn(self, support: Support | None, attempts: int = 1000) -> NDArray[np.float32]:
        """The encoded steps of 30 trajectories of an untrained model."""
        drawer = StepDrawer(
            synthesizer=self.synthesizer,
            trajectories=30,
            config=StepRolloutConfig(),
            max_length=6,
            support=support,
            attempts=attempts,
        )
        network = self.synthesizer.build(0)
        return drawer.draw(network, 0, streams=Streams(0), device="cpu").numpy()


@pytest.fixture
def world(tmp_path: Path) -> Modelled:
    return Modelled(tmp_path)


def test_a_row_lies_in_the_cell_of_its_columns_and_the_nearest_one_beyond_the_range() -> None:
    rows = np.array([[0.1, 9, -0.5], [0.1, 9, 0.5], [0.6, 9, -0.5], [7, 9, 7], [-7, 9, -7]])
    rows = rows.astype(np.float32)
    assert GRID.cells_of(rows).tolist() == [0, 1, 2, 3, 0]
    found = Support(grid=GRID, visited=(1, 3))
    assert found.contains(rows).tolist() == [False, True, False, True, False]
    assert replace(found, visited=()).contains(rows).all()


def test_a_unit_weighs_one_whatever_it_holds(tmp_path: Path) -> None:
    everyone = walks(200, 1)
    strange = everyone.observations.copy()
    rows_of_last = everyone.lengths[-1] + 1
    strange[-rows_of_last:] = [[np.nan, 1e30]]
    everyone = replace(everyone, observations=strange)
    whole = Modelled(tmp_path / "whole", everyone).totals()
    weights = []
    for unit in (0, 1, 199):
        rest = everyone.select([index for index in range(200) if index != unit])
        moved = np.abs(whole - Modelled(tmp_path / f"without-{unit}", rest).totals()).sum()
        weights.append(moved)
    assert max(weights) <= 1.0
    np.testing.assert_allclose(weights[:2], 1.0, atol=1e-4)
    assert weights[2] == 0.0, "rows that are not finite are left out"
    lengths = {int(length) for length in everyone.lengths[:2]}
    assert len(lengths) > 1, "long and short ones"


@pytest.mark.parametrize(
    ("relation", "sensitivity"), [(NULL, 1.0), (Relation.ADD_OR_REMOVE, 1.0), (REPLACE_ONE, 2.0)]
)
def test_noise_is_of_the_sensitivity_over_epsilon(relation: Relation, sensitivity: float) -> None:
    asked = SupportRelease(
        grid=GRID, asked=ASKED.model_copy(update={"epsilon": 0.5}), relation=relation
    )
    mechanism = asked.mechanism
    nothing = np.zeros(4, np.int64)
    noise = [mechanism.release(nothing, SeededNoise(key)) for key in range(4000)]
    assert asked.sensitivity == mechanism.sensitivity / UNIT_WEIGHT == sensitivity
    assert np.abs(noise).mean() / UNIT_WEIGHT == pytest.approx(sensitivity / 0.5, rel=0.04)
    cost = epsilon((mechanism.event,), delta=0.0, relation=relation)
    assert 0.5 * (1 - 1e-9) <= cost <= 0.5


def test_of_cells_that_nobody_visits_about_one_counts_as_visited() -> None:
    grid = SupportGrid(columns=(0, 1), low=(0.0, 0.0), high=(1.0, 1.0), cells=20)
    wanted = NoisySupport(epsilon=0.1, columns=(0, 1), cells=20)
    asked = SupportRelease(grid=grid, asked=wanted, relation=NULL)
    nothing = np.zeros(400, np.int64)
    noise = [asked.mechanism.release(nothing, SeededNoise(key)) for key in range(200)]
    assert np.sum(np.array(noise) >= asked.threshold * UNIT_WEIGHT) / 200 == pytest.approx(
        1.0, abs=0.3
    )


def test_cells_of_many_units_are_found_and_charged_once(
    world: Modelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    support, stage = world.find()
    exact = world.totals()
    threshold = world.release().threshold
    sure = set(np.flatnonzero(exact > 3 * threshold).tolist())
    assert sure
    assert sure <= set(support.visited)
    (entry,), (event,) = world.ledger.entries(), stage.events
    assert entry.id == "run/support"
    assert (entry.epsilon, entry.delta) == (2.0, 0.0)
    assert (stage.name, stage.accountant, event.kind) == ("support", "pure", "discrete_laplace")
    assert epsilon(stage.events, delta=0.0, relation=NULL, accountant="pure") <= 2.0
    monkeypatch.setattr(module, "cell_totals", None)
    assert world.find() == (support, stage)
    for other in ({"columns": (1,)}, {"epsilon": 1.0, "cells": 4}):
        with pytest.raises(UnsafeError, match="another"):
            world.find(ASKED.model_copy(update=other))


def test_a_crash_between_charge_and_answer_is_never_drawn_again(
    world: Modelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(module, "cell_totals", dies)
        with pytest.raises(RuntimeError, match="killed"):
            world.find()
    with pytest.raises(LostAnswerError, match="answer was lost"):
        world.find()
    assert LostAnswerError.final  # a run's note tells that no resume goes on
    assert world.spent == 2.0


def test_bad_values_leave_no_trace(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    bad = walks(200, 1)
    bad.observations[:9] = np.nan
    bad.observations[20:25] = 3e38
    world = Modelled(tmp_path, bad)
    recwarn.clear()
    support, stage = world.find()
    assert support.visited
    assert (stage.units, stage.units_source) == (200, "declared")
    assert not recwarn


def test_chunks_change_nothing(world: Modelled, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, read = world.totals(), DatasetStore.iter_transitions
    sizes: list[int] = []

    def in_pieces(*arguments: Any, **keywords: Any) -> Iterator[Transitions]:
        for chunk in read(*arguments, **keywords):
            for start in range(0, len(chunk), 7):
                sizes.append(len(chunk))
                yield chunk.select(slice(start, start + 7))

    monkeypatch.setattr(DatasetStore, "iter_transitions", in_pieces)
    np.testing.assert_array_equal(world.totals(), whole)
    assert len(sizes) > 100


def test_a_relation_without_private_rounds_is_refused_before_units_are_counted(
    tmp_path: Path,
) -> None:
    world = Modelled(tmp_path, relation=REPLACE_ONE)
    settings = ar_config(
        data=config_values()["data"] | {"units": {"epsilon": 1.0}},
        privacy={"epsilon": 8.0, "delta": 1e-4, "relation": "replace_one"},
    )
    with pytest.raises(UnsafeError, match="replace_one is not accounted for by private rounds"):
        METHODS["privorl_ar_j"]().run(settings, world.context())
    assert world.ledger.entries() == []


def test_a_noisy_count_of_too_few_units_is_all_that_is_spent(tmp_path: Path) -> None:
    world = Modelled(tmp_path)
    sampling = {"support": {"epsilon": 0.1, "columns": [0, 1]}}
    data = config_values()["data"] | {"units": {"epsilon": 1.0}}
    settings = ar_config(training=config_values()["training"] | {"sampling": sampling}, data=data)
    with pytest.raises(ConfigError, match="units are needed"):
        METHODS["privorl_ar_j"]().run(settings, world.context())
    assert [entry.id for entry in world.ledger.entries()] == ["run/count"]


def test_deltas_that_add_up_are_refused_before_the_support_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account has delta to spare, and yet 1/units would be reached."""
    world = Modelled(tmp_path)
    account = {"dataset": SENSITIVE, "fingerprint": "f1"}
    budget = PrivacyBudget(epsilon=20.0, delta=9e-3, unit="trajectory", relation=NULL)
    world.ledger.set_budget(budget=budget, **account)
    release(world.ledger, "older", lambda: 0, dataset=SENSITIVE, delta=3e-3)
    monkeypatch.setattr(module, "cell_totals", None)
    sampling = {"support": {"epsilon": 2.0, "columns": [0], "cells": 6}}
    settings = ar_config(
        training=config_values()["training"] | {"sampling": sampling},
        privacy={"epsilon": 8.0, "delta": 3e-3},
    )
    with pytest.raises(BudgetError, match="not below 1/units"):
        METHODS["privorl_ar_j"]().run(settings, world.context())
    assert [entry.id for entry in world.ledger.entries()] == ["older"]


def stored(world: Modelled, relation: Relation, run_id: str) -> NDArray[np.float64]:
    """What the ledger keeps of a release of 10 cells at epsilon 2, and all that is made of it."""
    kept: list[Any] = []
    context = replace(world.context(), run_id=run_id)
    original = world.ledger.release_once

    def release_once(charge: Any, **asked: Any) -> Any:
        answer, entry = original(charge, **asked)
        kept.append(answer)
        return answer, entry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context.ledger, "release_once", release_once)
        support, stage = world.find(relation=relation, context=context)
    answer = np.array(kept[0]["answer"])
    threshold = world.release(relation=relation).threshold
    assert support.visited == tuple(np.flatnonzero(answer >= threshold).tolist())
    assert stage.relation is relation
    return answer


@pytest.mark.parametrize(("relation", "scale"), [(NULL, 0.5), (REPLACE_ONE, 1.0)])
def test_what_is_kept_has_the_noise_of_the_run_s_relation(
    relation: Relation, scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Modelled(tmp_path, budget=1000.0, relation=relation)
    exact = world.steps()
    monkeypatch.setattr(module, "cell_totals", lambda *_: exact)  # sixty times the same rows
    shares = exact / UNIT_WEIGHT
    noise = [stored(world, relation, f"run-{index}") - shares for index in range(60)]
    assert np.count_nonzero(noise) > 590  # of 600; one in two million is 0
    assert np.abs(noise).mean() == pytest.approx(scale, rel=0.2)


def test_all_trajectories_of_a_unit_weigh_one_together(tmp_path: Path) -> None:
    everyone = walks(60, 1)
    owners = np.repeat(np.arange(20), 3).astype(np.uint64)
    everyone = replace(everyone, unit_ids=owners)
    rest = everyone.select(range(3, 60))
    whole, without = (
        Modelled(tmp_path / name, found, unit="patient_id").totals()
        for name, found in (("whole", everyone), ("without", rest))
    )
    assert np.abs(whole - without).sum() == pytest.approx(1.0, abs=1e-4)
    assert whole.sum() == pytest.approx(20.0, abs=1e-3)


def test_a_unit_of_more_rows_than_it_has_weight_weighs_less_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everyone = walks(30, 1)
    assert everyone.lengths.max() > 8 > everyone.lengths.min()
    world = Modelled(tmp_path, everyone)
    for owner in (module, quantiles):
        monkeypatch.setattr(owner, "UNIT_WEIGHT", 8)
    assert world.totals().sum() == sum(8 // n * n for n in everyone.lengths.tolist()) / 8


def test_a_budget_for_the_support_alone_is_refused_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Modelled(tmp_path, budget=4.0)
    monkeypatch.setattr(module, "cell_totals", None)
    sampling = {"support": {"epsilon": 2.0, "columns": [0], "cells": 6}}
    settings = ar_config(training=config_values()["training"] | {"sampling": sampling})
    with pytest.raises(BudgetError, match="left"):
        METHODS["privorl_ar_j"]().run(settings, world.context())
    assert world.ledger.entries() == []


def test_too_small_a_budget_is_refused_before_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Modelled(tmp_path, budget=0.5)
    monkeypatch.setattr(module, "cell_totals", None)
    with pytest.raises(BudgetError, match="left"):
        world.find()
    assert world.ledger.entries() == []


@pytest.mark.parametrize(
    ("asked", "units", "message"),
    [
        (NoisySupport(epsilon=2.0, columns=(0, 2)), 10**6, "no number 2; their numbers are 0, 1"),
        (NoisySupport(epsilon=0.1, columns=(0, 1)), 200, "units are needed"),
    ],
)
def test_columns_that_are_none_and_too_few_units_are_refused_before_anything_is_charged(
    asked: NoisySupport, units: int, message: str, tmp_path: Path
) -> None:
    world = Modelled(tmp_path)
    values = config_values()
    sampling = {"support": asked.model_dump()}
    settings = ar_config(
        training=values["training"] | {"sampling": sampling},
        data=values["data"] | {"units": units},
        privacy={"epsilon": 8.0, "delta": 1e-8},
    )
    with pytest.raises(ConfigError, match=message):
        METHODS["privorl_ar_j"]().run(settings, world.context())
    assert world.ledger.entries() == []


@pytest.mark.parametrize(("relation", "needed"), [("replace_with_null", 58), ("add_or_remove", 58)])
def test_a_plan_refuses_more_cells_than_the_units_can_fill(relation: str, needed: int) -> None:
    """Of 36 cells, ln(18) / epsilon units each."""
    sampling = {"support": {"epsilon": 1.8, "columns": [0, 1], "cells": 6}}
    values = config_values()
    for units in (needed - 1, needed):
        settings = ar_config(
            training=values["training"] | {"sampling": sampling, "expected_batch_size": 4},
            data=values["data"] | {"units": units},
            privacy={"epsilon": 8.0, "delta": 1e-8, "relation": relation},
        )
        if units < needed:
            with pytest.raises(ConfigError, match=rf"support: 36 cells.*{needed} units are needed"):
                plan_run(settings)
        else:
            assert plan_run(settings).units.value == needed


def test_a_replaced_unit_needs_twice_the_units() -> None:
    asked = NoisySupport(epsilon=0.5, columns=(0,), cells=10)
    for relation, needed in ((NULL, 33), (REPLACE_ONE, 65)):
        asked.check_units(needed, relation)
        with pytest.raises(ConfigError, match=rf"{needed} units are needed.*\(9 fit\)"):
            asked.check_units(needed - 1, relation)


def test_a_column_counts_once() -> None:
    with pytest.raises(ValueError, match="columns must differ"):
        NoisySupport(epsilon=0.5, columns=(1, 0, 1))


def trajectories_of(steps: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    ends = np.flatnonzero((steps[:, -END_BITS:] > 0).any(axis=1)) + 1
    return np.split(steps, ends[:-1])


def test_what_leaves_the_support_is_drawn_again(world: Modelled) -> None:
    free = world.drawn(None)
    grid = world.release(NoisySupport(epsilon=2.0, columns=(0,), cells=4)).grid
    middle = Support(grid=grid, visited=(1, 2))
    astray = [not middle.contains(one).all() for one in trajectories_of(free)]
    assert 0 < sum(astray) < len(astray)
    kept = world.drawn(middle)
    assert middle.contains(kept).all()
    assert len(trajectories_of(kept)) == len(trajectories_of(free)) == 30
    for before, after, left in zip(
        trajectories_of(free), trajectories_of(kept), astray, strict=True
    ):
        assert left or np.array_equal(before, after), "those that stay are as they were"
    some = world.drawn(middle, attempts=1)
    left = sum(not middle.contains(one).all() for one in trajectories_of(some))
    assert 0 < left < sum(astray), "one more draw mends some of them"
    wide = replace(middle, visited=(0, 1, 2, 3))
    np.testing.assert_array_equal(world.drawn(wide), free)


def holding(exact: NDArray[np.int64], folder: Path) -> list[str]:
    """Return the files, the ledger and the store among them, that hold exact weights of cells."""
    told = [int(value) for value in exact if value % UNIT_WEIGHT]
    assert len(told) >= 2
    secrets = [
        form
        for steps in told
        for share in (steps / UNIT_WEIGHT,)
        for form in (
            np.int64(steps).tobytes(),
            np.float64(share).tobytes(),
            str(steps).encode(),
            repr(share)[:12].encode(),
        )
    ]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        path.name
        for path in files
        if any(secret in content for content in [path.read_bytes()] for secret in secrets)
    ]


def test_a_run_pays_for_its_support_and_keeps_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = config_values()["training"]
    asked = {"epsilon": 2.0, "columns": [0], "cells": 12, "attempts": 200}
    settings = ar_config(training=values | {"sampling": {"support": asked}})
    plain = ar_config(training=values | {"sampling": {}})
    method = METHODS["privorl_ar_j"]()
    assert method.declare(settings).charged_before == {"support": 2.0}
    assert method.declare(plain).charged_before == {}
    planned = plan_run(settings)
    assert planned.epsilon(5) == 2.0 + planned.epsilon_of_rounds(5) < settings.privacy.epsilon
    plans = [plan_run(one).mechanism for one in (plain, settings)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[1].noise_multiplier > plans[0].noise_multiplier, "less is left for the rounds"
    store = walk_store(tmp_path / "datasets")
    exact: list[NDArray[np.int64]] = []
    monkeypatch.setattr(
        module, "cell_totals", lambda *asked: exact.append(cell_totals(*asked)) or exact[0]
    )
    with logged() as lines:
        result, context = World(tmp_path).finish(settings, monkeypatch)
    assert lines == []
    assert holding(exact[0], tmp_path) == []
    np.save(tmp_path / "a.npy", exact[0])
    (tmp_path / "b.json").write_text(json.dumps(exact[0].tolist()))
    np.save(tmp_path / "c.npy", exact[0] / UNIT_WEIGHT)
    (tmp_path / "d.json").write_text(json.dumps((exact[0] / UNIT_WEIGHT).tolist()))
    assert holding(exact[0], tmp_path) == ["a.npy", "b.json", "c.npy", "d.json"]
    certificate = json.loads(result.directory.certificate.read_text())
    stages = {stage["name"]: stage for stage in certificate["stages"]}
    assert list(stages) == ["support", "fine-tune"]
    assert stages["support"]["events"][0]["kind"] == "discrete_laplace"
    assert 7.0 < certificate["epsilon"] <= 8.0
    spent = context.ledger.accounts()[0].spent_epsilon
    assert spent == pytest.approx(certificate["epsilon"], rel=1e-3)
    entry = context.ledger.reserved(f"{context.run_id}/support")
    assert entry is not None
    assert entry.epsilon == 2.0
    said = opened(store.info(settings.output.dataset).metadata)[SUPPORT_KEY]
    assert said["cells"] == 12
    assert 0 < said["visited"] <= 12
    assert said["trajectories_outside"] == 0
    made_public = Sourced.public(settings.output.dataset)
    (section,) = trajectory_sections(store, made_public, {"public": PUBLIC}, None)
    shown = {metric.name: metric.value.value for metric in section.metrics}
    assert shown["cells of the support"] == said["visited"]
    assert shown["trajectories outside the support"] == 0
    assert shown["mean length, public"] == pytest.approx(
        store.read_trajectories(PUBLIC).lengths.mean()
    )
    encoder = public_encoder(settings, store)
    made = fragment_synthesizer(settings, store, encoder)
    assert isinstance(made, StepSynthesizer)
    (account,) = context.ledger.accounts()
    around = replace(context, fingerprint=f"{account.fingerprint}:{account.partition}")
    world = recalled_world(method_named(settings.method).declare(settings), around)
    support = world.parts.drawer.support
    assert np.count_nonzero(exact[0] == 0) >= 4  # each of which noise makes visited once in twelve
    assert 0 < len(support.visited) < 12
    assert said["visited"] == len(support.visited), "what noise found, not what is there"
    released = store.read_trajectories(settings.output.dataset).transitions("trajectory")
    assert support.contains(encoder.encode(released).rows).all()


def test_without_privacy_no_support_is_found() -> None:
    sampling = {"support": {"epsilon": 2.0, "columns": [0]}}
    settings = ar_config(
        training=config_values()["training"] | {"sampling": sampling},
        privacy={"epsilon": None, "delta": 1e-4},
    )
    used_up = ar_config(
        training=config_values()["training"] | {"sampling": sampling},
        privacy={"epsilon": 2.0, "delta": 1e-4},
    )
    with pytest.raises(ConfigError, match="support"):
        plan_run(used_up)
    with pytest.raises(ConfigError, match=r"training\.sampling\.support"):
        plan_run(settings)


def test_a_report_says_that_no_cell_of_a_support_counts() -> None:
    said = {"cells": 6, "visited": 0, "trajectories_outside": 0}
    assert "NO CELL OF THE SUPPORT" in support_verdict(said)
    assert support_verdict(said | {"visited": 1}) == support_verdict(None) == ""


def test_trajectories_that_stay_outside_are_counted(world: Modelled, tmp_path: Path) -> None:
    grid = world.release(NoisySupport(epsilon=2.0, columns=(0,), cells=4)).grid
    middle = Support(grid=grid, visited=(1, 2))
    steps = world.drawn(middle, attempts=0)
    astray = sum(not middle.contains(one).all() for one in trajectories_of(steps))
    np.save(chunk_path(tmp_path, 0), steps)
    drawer = StepDrawer(
        synthesizer=world.synthesizer,
        trajectories=30,
        config=StepRolloutConfig(),
        max_length=6,
        support=middle,
    )
    said = support_facts(tmp_path, drawer)[SUPPORT_KEY]
    assert said == {"cells": 4, "visited": 2, "trajectories_outside": astray}
    assert astray > 0
    assert support_facts(tmp_path, replace(drawer, support=None)) == {}
