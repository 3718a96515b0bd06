"""Charging a run: what is settled is what was reserved, and a count says how noisy it is."""

from types import SimpleNamespace

import pytest

from distributed_privrl.core.config import DataConfig, NoisyCount, PrivacyConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.units import PrivacyBudget, Relation, UnitCount
from distributed_privrl.stages.charging import (
    charges_of,
    count_units,
    held_budget,
    open_charges,
    settle_charge,
)
from distributed_privrl.stages.round_plan import RoundPlan, RoundsConfig
from tests.worlds.holding import hold

NULL = Relation.REPLACE_WITH_NULL
DATA = SimpleNamespace(sensitive="clinic/stays-v0", unit="transition", units=1000)
PRIVACY = PrivacyConfig(epsilon=41.0, delta=1e-6)


class Store:
    """So many transitions, in one chunk."""

    def __init__(self, rows):
        self.rows = rows

    def iter_transitions(self, _dataset, *, unit):
        assert unit == "transition"
        yield range(self.rows)


@pytest.fixture
def context(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    budget = PrivacyBudget(epsilon=50.0, delta=1e-5, unit="transition")
    ledger.set_budget(dataset=DATA.sensitive, fingerprint="f1", budget=budget)
    return SimpleNamespace(
        ledger=ledger,
        run_id="run",
        fingerprint="f1",
        store=Store(1000),
        noise_source=lambda: SeededNoise(3),
    )


class Plan(RoundPlan):
    """A plan during whose pricing other rounds are reserved."""

    meanwhile = ()

    def epsilon_of_rounds(self, rounds, *, certified):
        for reserve in self.meanwhile:
            reserve()
        return super().epsilon_of_rounds(rounds, certified=certified)


@pytest.fixture
def plan(context):
    plan = Plan(
        units=UnitCount(value=1000, source="declared"),
        sampling_probability=0.1,
        config=RoundsConfig(rounds=10, spare=30, expected_batch_size=100),
        budget=PrivacyBudget(epsilon=40.0, delta=1e-6, unit="transition"),
        mechanism=PrivateRound(
            clip_norm=1.0, noise_multiplier=2.0, sampling_probability=0.1, relation=NULL
        ),
        accountant="pld",
    )
    with held_budget(DATA, PRIVACY, context):
        open_charges(context, charges_of(DATA, context, [(context, plan)]))
    context.ledger.reserve_rounds("run", rounds=10, nonce="first")
    return plan


def test_rounds_reserved_while_the_cost_is_computed_are_charged(context, plan):
    assert context.ledger.reserved("run").units == 1000
    ledger = context.ledger
    late = iter([lambda: ledger.reserve_rounds("run", rounds=5, nonce="late")])
    object.__setattr__(plan, "meanwhile", late)
    stage, spare = settle_charge("fine-tune", DATA, context, plan)
    entry = ledger.reserved("run")
    assert (entry.status, entry.reserved_rounds, stage.events[0].count, spare) == (
        "settled",
        15,
        15,
        25,
    )
    assert entry.epsilon == plan.epsilon_of_rounds(15, certified=True) > plan.epsilon(10)
    assert settle_charge("fine-tune", DATA, context, plan) == (stage, spare)


def test_a_run_that_reserves_on_and_on_is_not_settled(context, plan):
    ledger = context.ledger

    class Forever:
        def __init__(self):
            self.count = 0

        def __iter__(self):
            self.count += 1
            nonce = str(self.count)
            yield lambda: ledger.reserve_rounds("run", rounds=1, nonce=nonce)

    object.__setattr__(plan, "meanwhile", Forever())
    with pytest.raises(UnsafeError, match="still reserves"):
        settle_charge("fine-tune", DATA, context, plan)
    assert ledger.reserved("run").status == "open"
    assert ledger.reserved("run").epsilon == 40.0


def counting(epsilon):
    return DataConfig.model_construct(
        sensitive=DATA.sensitive, unit="transition", units=NoisyCount(epsilon=epsilon)
    )


def test_a_noisy_count_carries_its_margin(context):
    hold(context, DATA.sensitive, DATA.unit, 0.1)
    count, stage = count_units(counting(0.1), context, relation=NULL)
    assert count.margin == 70  # ln(1000) / 0.1, rounded up
    assert count.source == "dp"
    assert 900 < count.value < 1100
    assert stage.units == count.value


def test_a_count_that_is_mostly_noise_is_refused(context):
    hold(context, DATA.sensitive, DATA.unit, 0.01)
    with pytest.raises(ConfigError, match=r"too noisy.*data\.units\.epsilon") as refused:
        count_units(counting(0.01), context, relation=NULL)  # margin 691 of about 1000
    assert "\n" not in str(refused.value)
