"""Bounds that are found: paid once, kept on a resume, certified, and never from more than ranks."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.config import DataConfig, NoisyBounds, PrivacyConfig
from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.data import encoding
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import Scaling, scaling_from_bounds
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.primorl.config import DynamicsConfig
from distributed_privrl.privacy.certificate import build_certificate
from distributed_privrl.privacy.choosing import SeededChooser
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.stages import bounding, context
from distributed_privrl.stages.bounding import NARROWEST, bounds_question, first_bounds
from distributed_privrl.stages.charging import held_budget
from tests.worlds.holding import Asked, answered
from tests.worlds.ledgers import DATASET, NULL

SPACES = Box(-np.inf, np.inf, (2,), np.float32), Discrete(3)
RANGES = Bounds(
    low=np.array([-100.0, -100.0, -10.0]),
    high=np.array([100.0, 100.0, 10.0]),
    columns=("observation_0", "observation_1", "reward"),
    source="ranges",
)
UNITS = UnitCount(value=2000, source="declared")


def rows(values, units=None):
    count = len(values)
    return Transitions(
        observations=values,
        actions=np.arange(count) % 3,
        rewards=np.ones(count),
        next_observations=values.copy(),
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        unit_ids=np.arange(count) if units is None else units,
    )


def normals(count=2000):
    return np.random.default_rng(0).normal((0, 5), (1, 3), (count, 2))


class Stays(Asked):
    """Stays whose observations are given."""

    def __init__(self, folder, values, units=None):
        column = None if units is None else "patient_id"
        super().__init__(folder, rows(values, units), SPACES, column)

    def data(self, **settings):
        values = {"epsilon": 2.0, "search": "ranges.yaml", **settings}
        return DataConfig(sensitive=DATASET, unit=self.unit, bounds=values)

    def find(self, context=None, relation=NULL, ranges=RANGES, **settings):
        data, context = self.data(**settings), context or self.context()
        question = bounds_question(data, context, ranges, relation=relation, units=UNITS)
        cost = data.bounds.epsilon
        return answered(
            "bounds", question, data, context, relation=relation, epsilon=cost, units=UNITS
        )


@pytest.fixture
def clinic(tmp_path):
    return Stays(tmp_path, normals()).budget(5.0)


def test_the_quantiles_of_each_column_become_its_bounds(clinic):
    bounds, stage = clinic.find()
    low, high = np.quantile(normals(), (0.05, 0.95), axis=0)
    assert bounds.columns == RANGES.columns
    # The noise is fresh: of 1,500 runs none was further off than .84.
    np.testing.assert_allclose(bounds.low[:2], low, atol=2.0)
    np.testing.assert_allclose(bounds.high[:2], high, atol=2.0)
    assert bounds.low[2] <= 1 <= bounds.high[2]
    (event,) = stage.events
    assert (event.kind, event.count, stage.accountant, stage.delta) == ("pure_dp", 6, "pure", 0.0)
    assert event.epsilon * event.count == pytest.approx(2.0)
    assert clinic.spent == 2.0


def test_parts_that_are_left_out_keep_their_range_and_cost_nothing(clinic):
    bounds, stage = clinic.find(parts=["observation"])
    assert (bounds.low[2], bounds.high[2]) == (-10, 10)
    assert stage.events[0].count == 4
    assert bounds.high[0] < 5


def test_a_resume_returns_the_stored_bounds_and_draws_nothing(clinic, monkeypatch):
    first, stage = clinic.find()
    monkeypatch.setattr(bounding, "_cell_weights", None)
    second, again = clinic.find(clinic.context())
    assert (first.low == second.low).all()
    assert (first.high == second.high).all()
    assert stage == again
    assert clinic.spent == 2.0
    other = NoisyBounds(epsilon=1.0, search="ranges.yaml")
    with pytest.raises(UnsafeError, match="another"):
        clinic.find(epsilon=other.epsilon)
    assert clinic.spent == 2.0


def test_a_crash_between_charge_and_answer_is_never_drawn_again(clinic, monkeypatch):
    def dies(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(bounding, "_cell_weights", dies)
        with pytest.raises(RuntimeError, match="killed"):
            clinic.find()
    assert clinic.spent == 2.0
    with pytest.raises(UnsafeError, match="answer was lost"):
        clinic.find()
    assert clinic.spent == 2.0


def test_too_small_a_budget_is_refused_before_rows_are_read(tmp_path, monkeypatch):
    clinic = Stays(tmp_path, normals(10)).budget(1.0)
    monkeypatch.setattr(DatasetStore, "iter_transitions", None)
    with pytest.raises(BudgetError, match="left"):
        clinic.find()
    assert clinic.ledger.entries() == []


def test_bounds_are_not_paid_for_a_run_that_could_not_pay_its_rounds(clinic):
    privacy = PrivacyConfig(epsilon=6.0, delta=1e-6)

    def held(privacy, run_id="run"):
        with held_budget(clinic.data(), privacy, clinic.context(run_id)):
            pass

    with pytest.raises(BudgetError, match=r"5 and delta .* needs 6 .*--epsilon 6") as refused:
        held(privacy)
    assert "\n" not in str(refused.value)
    with pytest.raises(BudgetError, match="delta"):
        held(PrivacyConfig(epsilon=5.0, delta=2e-5))
    assert clinic.spent == 0
    held(PrivacyConfig(epsilon=5.0, delta=1e-5))
    assert clinic.spent == 5.0
    with pytest.raises(BudgetError):
        held(PrivacyConfig(epsilon=1.0, delta=1e-6), "another")


def test_without_a_budget_the_line_that_sets_one_has_the_run_s_numbers(tmp_path):
    clinic, privacy = Stays(tmp_path, normals(10)), PrivacyConfig(epsilon=6.0, delta=1e-6)
    line = f"privrl ledger budget {DATASET} --epsilon 6 --delta 1e-06 --unit transition"
    with pytest.raises(BudgetError, match=f"set one with `{line}`"):
        held_budget(clinic.data(), privacy, clinic.context()).__enter__()


@pytest.mark.parametrize("relation", [NULL, Relation.ADD_OR_REMOVE, Relation.REPLACE_ONE])
def test_the_certificate_with_the_stage_verifies(tmp_path, relation):
    clinic = Stays(tmp_path, normals(200)).budget(5.0, relation)
    context = clinic.context()
    _, stage = clinic.find(context, relation)
    certificate = build_certificate(
        method="test",
        stages=(stage,),
        spare_rounds=0,
        noise_source=context.noise_facts,
        ledger_entries=("run/bounds",),
        outputs=(),
        versions={},
    )
    assert certificate.status == "valid"
    assert certificate.epsilon == pytest.approx(2.0, rel=1e-9)
    clinic.ledger.certify("run/bounds", certificate.digest)
    path = tmp_path / "certificate.json"
    path.write_text(certificate.to_json())
    assert verify_certificate(path, ledger=clinic.ledger).ledger_checked


def test_a_patient_with_a_thousand_rows_counts_as_one(tmp_path):
    """900 patients near 0, with a row each; one patient near 50, with a thousand rows."""
    near, far = np.zeros((900, 2)), np.full((1000, 2), 50.0)
    order = np.random.default_rng(1).permutation(1900)
    values = np.concatenate([near, far])[order]
    patients = np.concatenate([np.arange(900), np.full(1000, 7_777)])[order]
    clinic = Stays(tmp_path, values, patients).budget(20.0)
    cells = bounding._cell_weights(
        clinic.data(),
        clinic.context(),
        RANGES.columns,
        np.array([0]),
        bounding.ColumnGrid(lower=RANGES.low[:1], upper=RANGES.high[:1]),
    )
    at = int(cells.grid.cells_of(0, np.array([50.0]))[0])
    assert 0.999 * 2**20 < cells.weights[0, at] <= 2**20
    assert cells.weights.sum() == 900 * 2**20 + cells.weights[0, at]
    bounds, _ = clinic.find(epsilon=20.0)
    assert bounds.high[0] < 5


def test_bad_values_leave_no_trace(tmp_path, recwarn):
    values = normals(500)
    values[3], values[4, 0], values[5] = np.nan, np.inf, 1e38
    clinic = Stays(tmp_path, values).budget(5.0)
    bounds, stage = clinic.find()
    assert np.isfinite([bounds.low, bounds.high]).all()
    assert (stage.units, stage.units_source) == (2000, "declared")
    assert not recwarn


def test_no_value_that_was_searched_becomes_null_for_being_far_out(tmp_path):
    """A column that is constant but for a few rows: bounds are not as narrow as its bulk."""
    values = np.zeros((1000, 2))
    values[:3] = RANGES.low[:2]
    values[3:6] = RANGES.high[:2]
    clinic = Stays(tmp_path, values).budget(100.0)
    bounds, _ = clinic.find(epsilon=100.0)
    width = bounds.high - bounds.low
    np.testing.assert_allclose(width, NARROWEST * (RANGES.high - RANGES.low), rtol=1e-9)
    assert bounds.low[0] <= 0 <= bounds.high[0]
    for coding in ("absolute", "difference"):
        scaling = scaling_from_bounds(bounds, *SPACES, coding=RowCoding(next_observation=coding))
        encoder = TransitionEncoder(*SPACES, scaling, RowCoding(next_observation=coding))
        jumps = rows(values)
        jumps.next_observations[:3] = RANGES.high[:2]
        assert encoder.encode(jumps).valid.all()
    assert np.sqrt(12) / NARROWEST < encoding._LARGEST


def test_only_columns_that_are_not_searched_keep_their_steps(clinic):
    bounds, _ = clinic.find(ranges=replace(RANGES, step=np.full(3, 0.5)), parts=["observation"])
    assert bounds.step.tolist() == [0, 0, 0.5]


def test_a_difference_may_be_forty_widths():
    """With PriMORL's default share of .1; a farther step is left out."""
    coding = RowCoding(next_observation="difference")
    scaling = scaling_from_bounds(RANGES, *SPACES, coding=coding)
    encoder = TransitionEncoder(*SPACES, scaling, coding)
    scale = scaling.scale.copy()
    scale[encoder.layout.blocks["next_observation"]] *= DynamicsConfig().difference_share
    encoder = replace(encoder, scaling=Scaling(offset=scaling.offset, scale=scale))
    width = (RANGES.high - RANGES.low)[:2]
    jumps = rows(np.zeros((4, 2)))
    for row, widths in enumerate((1, 40, 41, -41)):
        jumps.next_observations[row] = jumps.observations[row] + widths * width
    assert encoder.encode(jumps).valid.tolist() == [True, True, False, False]


def test_seeded_bounds_repeat_and_are_of_the_seeded_source(tmp_path, monkeypatch):
    clinic = Stays(tmp_path, normals(300)).budget(10.0)
    first, _ = clinic.find(clinic.context("one", key=3))
    second, _ = clinic.find(clinic.context("two", key=3))
    assert (first.low == second.low).all()
    made = []
    monkeypatch.setattr(context, "SecureChooser", lambda: made.append(1) or SeededChooser(0))
    clinic.find(clinic.context("three"))
    assert made == [1]


def test_memory_is_that_of_a_chunk(tmp_path):
    peaks = {}
    for count in (100_000, 400_000):
        (tmp_path / str(count)).mkdir()
        clinic = Stays(tmp_path / str(count), normals(count)).budget(5.0)
        clinic.find(clinic.context("warm", key=0), epsilon=1.0)
        tracemalloc.start()
        clinic.find(clinic.context("measured", key=0), epsilon=1.0)
        _, peaks[count] = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peaks[400_000] < 1.2 * peaks[100_000]


@pytest.mark.parametrize(
    ("ranges", "settings", "message"),
    [
        (Bounds(low=[0, 0, 0], high=[1, 0, 1], columns=RANGES.columns), {}, "observation_1"),
        (RANGES, {"parts": ["action"]}, r"\['action'\] have no numeric columns"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_the_charge(clinic, ranges, settings, message):
    with pytest.raises(ConfigError, match=message):
        clinic.find(ranges=ranges, **settings)
    assert clinic.ledger.entries() == []


def test_bounds_that_would_be_noise_are_refused_before_the_charge(clinic):
    with pytest.raises(ConfigError, match=r"mostly noise.*data\.bounds\.epsilon") as refused:
        clinic.find(quantiles=[0.001, 0.999])
    assert "\n" not in str(refused.value)
    assert clinic.ledger.entries() == []


def test_public_bounds_are_not_searched(clinic):
    data = DataConfig(sensitive=DATASET, unit="transition", bounds="environment")
    assert first_bounds(data, None) == ()
    with pytest.raises(ConfigError, match="public"):
        bounds_question(data, clinic.context(), RANGES, relation=NULL, units=UNITS)
