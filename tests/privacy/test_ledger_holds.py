"""A run's hold: the whole cost at once, before anything is drawn, and never more than that."""

import contextlib
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_privrl.core.config import NoisyCount, PrivacyConfig
from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.charging import count_units, held_budget
from tests.gates import ledger as gates
from tests.gates.ledger import DATA, PRIVACY, Store, context, whole_run
from tests.worlds.ledgers import (
    NULL,
    account,
    charge,
    freed_of,
    holding,
    open_run,
    release,
    set_budget,
    url_of,
)

# Two runs at once


def test_a_run_that_counted_gets_its_rounds_whoever_steps_in(tmp_path):
    gates.gate_rounds_are_paid_for(tmp_path)


def test_runs_that_race_have_all_they_need_or_draw_nothing(ledger, tmp_path):
    set_budget(ledger, epsilon=20.0)  # three runs of eight
    url, gate, outcomes = url_of(tmp_path), threading.Barrier(8), {}

    def race(name):
        gate.wait()
        try:
            whole_run(url, name, Store())
            outcomes[name] = "ran"
        except BudgetError:
            outcomes[name] = "refused"

    threads = [threading.Thread(target=race, args=(f"run-{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ran = sorted(name for name, outcome in outcomes.items() if outcome == "ran")
    assert len(outcomes) == 8
    assert len(ran) == 3
    entries = sorted(entry.id for entry in ledger.entries())
    assert entries == sorted(f"{name}{part}" for name in ran for part in ("", "/count"))
    assert account(ledger).spent_epsilon == 18.0


# What is held, taken and freed


def test_a_hold_is_spent_for_everybody_else_and_charged_out_of(ledger):
    held = ledger.open_hold(holding())
    assert (held.epsilon, held.held_epsilon, held.status) == (6.0, 6.0, "open")
    assert account(ledger).spent_epsilon == 6.0
    assert account(ledger).spent_delta == 1e-6
    with pytest.raises(BudgetError, match="epsilon 4 of 10"):
        open_run(ledger, "other", epsilon=5.0)
    with pytest.raises(BudgetError, match="cannot go below"):
        set_budget(ledger, epsilon=5.0)
    release(ledger, "run/count", lambda: 1, hold="run")
    assert account(ledger).spent_epsilon == 6.0
    assert ledger.holds()[0].epsilon == 5.0
    ledger.open_together([charge()], closes="run")
    assert account(ledger).spent_epsilon == 5.0
    assert ledger.holds() == []
    for _ in range(2):  # a resume
        assert ledger.open_hold(holding()).status == "closed"
        assert release(ledger, "run/count", lambda: 2, hold="run")[0] == 1
        ledger.open_together([charge()], closes="run")
    assert account(ledger).spent_epsilon == 5.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 6.001}, r"holds epsilon \d of 6, 'run' costs 6\.001"),
        ({"delta": 2e-6}, "holds delta 1e-06 of 1e-06, 'run' costs 2e-06"),
        ({"hold": "other"}, "run 'other' holds nothing"),
        ({"unit": "transition"}, None),
        ({"relation": Relation.ADD_OR_REMOVE}, None),
    ],
)
def test_what_was_not_held_is_not_charged(ledger, changed, message):
    ledger.open_hold(holding())
    with pytest.raises(UnsafeError, match=message):
        ledger.open_together([charge(**changed)])
    with pytest.raises(UnsafeError, match=message):
        ledger.open_together([charge("run/part", epsilon=1.0, delta=0.0), charge(**changed)])
    assert ledger.entries() == []
    assert account(ledger).spent_epsilon == 6.0


def test_a_run_holds_once_and_another_sum_is_refused(ledger):
    assert ledger.open_hold(holding()) == ledger.open_hold(holding())
    for changed in ({"epsilon": 5.0}, {"delta": 1e-7}, {"units": 1000}, {"unit": "transition"}):
        with pytest.raises(UnsafeError):
            ledger.open_hold(holding(**changed))
    assert account(ledger).spent_epsilon == 6.0
    ledger.open_together([charge()], closes="run")
    with pytest.raises(UnsafeError, match="its last charge was made"):
        release(ledger, "run/late", lambda: 1, hold="run")


def test_deltas_that_are_held_count_against_one_over_units(ledger):
    ledger.open_hold(holding(units=200_000))
    with pytest.raises(BudgetError, match="not below 1/units"):
        ledger.open_hold(holding("other", delta=4.5e-6, epsilon=1.0, units=200_000))
    with pytest.raises(BudgetError, match="not below 1/units"):
        ledger.open_together([charge(units=1_000_001)])  # counted with noise: known now
    ledger.open_together([charge(units=900_000)])


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8),
    held=st.floats(0.1, 3.0),
)
def test_the_rest_and_the_charges_never_exceed_what_was_held(tmp_path_factory, parts, held):
    ledger = Ledger(url_of(tmp_path_factory.mktemp("hold")))
    set_budget(ledger)
    ledger.open_hold(holding(epsilon=held))
    for number, epsilon in enumerate(parts):
        with contextlib.suppress(UnsafeError):
            release(ledger, f"run/{number}", lambda: 1, epsilon=epsilon, hold="run")
        spent = account(ledger).spent_epsilon
        assert spent <= held * (1 + 1e-8)
        assert spent >= held * (1 - 1e-8)


def test_a_refused_run_frees_its_hold_only_before_it_drew(ledger, tmp_path):
    around = context(url_of(tmp_path), "run", Store())
    with pytest.raises(ConfigError), held_budget(DATA, PRIVACY, around):
        raise ConfigError("a setting")
    assert account(ledger).spent_epsilon == 0.0
    assert ledger.holds() == []
    noisy = DATA.model_copy(update={"units": NoisyCount(epsilon=0.01)})
    with pytest.raises(ConfigError, match="too noisy"), held_budget(noisy, PRIVACY, around):
        count_units(noisy, around, relation=NULL)
    assert account(ledger).spent_epsilon == 6.0
    assert [hold.epsilon for hold in ledger.holds()] == [5.99]
    with held_budget(DATA, PRIVACY, around):  # a resume finds it
        ledger.open_together([charge(epsilon=5.0)], closes="run")


def test_a_run_without_privacy_holds_nothing(ledger, tmp_path):
    with held_budget(
        DATA, PrivacyConfig(epsilon=None, delta=1e-6), context(url_of(tmp_path), "run", Store())
    ):
        assert ledger.holds() == []


KILLED = """
import os, sys
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.stages.charging import held_budget
from tests.gates.ledger import DATA, PRIVACY, Store, context
with held_budget(DATA, PRIVACY, context(sys.argv[1], "run", Store())):
    os.kill(os.getpid(), 9)
"""


def test_a_killed_run_keeps_its_hold_until_it_is_given_up(ledger, tmp_path):
    url = url_of(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, url], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    assert account(ledger).spent_epsilon == 6.0
    with pytest.raises(BudgetError):
        whole_run(url, "other", Store())
    assert freed_of(ledger.give_up("run")) == (6.0, 1e-6)
    assert account(ledger).spent_epsilon == 0.0
    with pytest.raises(UnsafeError, match="knows no run"):
        ledger.give_up("run")
    whole_run(url, "other", Store())


# Given up by the operator


def test_what_a_given_up_run_drew_stays_charged(ledger):
    ledger.open_hold(holding())
    release(ledger, "run/count", lambda: 1, hold="run")
    assert freed_of(ledger.give_up("run")) == (5.0, 1e-6)
    assert account(ledger).spent_epsilon == 1.0
    with pytest.raises(UnsafeError, match="run 'run' has ended"):
        ledger.give_up("run")
    with pytest.raises(UnsafeError, match="its hold was freed"):  # it was alive, after all
        ledger.open_together([charge()], closes="run")


def test_rounds_that_were_opened_and_never_reserved_are_freed(ledger):
    ledger.open_hold(holding())
    parts = [charge("run/filter", epsilon=1.0, delta=0.0), charge()]
    ledger.open_together(parts, closes="run")
    ledger.reserve_rounds("run/filter", rounds=1, nonce="a")
    assert freed_of(ledger.give_up("run")) == (4.0, 1e-6)
    assert account(ledger).spent_epsilon == 1.0
    with pytest.raises(UnsafeError, match="settled"):
        ledger.reserve_rounds("run", rounds=1, nonce="b")
    with pytest.raises(UnsafeError, match="erased"):
        ledger.secret("run")
    with pytest.raises(UnsafeError, match="has ended"):
        ledger.give_up("run")


def test_what_a_given_up_run_has_begun_is_charged_in_full_and_closed(ledger):
    ledger.open_hold(holding())
    release(ledger, "run/count", lambda: 1, hold="run")
    ledger.open_together([charge()], closes="run")
    ledger.reserve_rounds("run", rounds=1, nonce="a")
    assert ledger.has_begun("run")
    given_up = ledger.give_up("run")
    assert (given_up.charged_epsilon, given_up.charged_delta) == (5.0, 1e-6)
    assert freed_of(given_up) == (0.0, 0.0)
    assert account(ledger).spent_epsilon == 5.0
    assert not ledger.has_begun("run")
    entry = ledger.reserved("run")
    assert (entry.status, entry.reserved_rounds, entry.epsilon) == ("settled", 1, 4.0)
    for attempt in (
        lambda: ledger.reserve_rounds("run", rounds=1, nonce="b"),
        lambda: ledger.commit_rounds("a", drawn=1),
        lambda: ledger.secret("run"),
        lambda: ledger.settle("run", reserved_rounds=1, epsilon=0.1, delta=0.0),
        lambda: release(ledger, "run/more", lambda: 1, hold="run"),
        lambda: ledger.give_up("run"),
    ):
        with pytest.raises(UnsafeError):
            attempt()
    assert account(ledger).spent_epsilon == 5.0


def test_rounding_is_granted_once_and_not_to_each_charge(ledger):
    held = ledger.open_hold(holding())
    release(ledger, "run/count", lambda: 1, hold="run", epsilon=held.epsilon)
    with pytest.raises(UnsafeError, match="no more than it held"):
        release(ledger, "run/crumb", lambda: 1, hold="run", epsilon=1e-9)
    assert account(ledger).spent_epsilon == held.epsilon


def test_what_one_run_made_at_once_is_read_in_the_order_it_was_made(ledger):
    for name in ("run-b", "run-a"):
        ledger.open_hold(holding(name, epsilon=3.0, delta=1e-7))
    stages = [charge(f"run-b/{name}", hold="run-b", epsilon=1.0, delta=0.0) for name in "zma"]
    ledger.open_together(stages)
    assert [hold.run_id for hold in ledger.holds()] == ["run-b", "run-a"]
    assert [entry.id[-1] for entry in ledger.entries()] == ["z", "m", "a"]
