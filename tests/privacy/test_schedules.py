"""Schedules: equal events are added up, and a ledger's entry says what each step releases."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_privrl.core.errors import ConfigError, VerificationError
from distributed_privrl.privacy.events import (
    ApproximateDpEvent,
    GaussianEvent,
    LaplaceEvent,
    ParallelEvent,
    PoissonGaussianEvent,
    PureDpEvent,
    RepeatAndSelectEvent,
    charged_rounds,
    repeated,
)
from distributed_privrl.privacy.ledger.pools import Reading
from distributed_privrl.privacy.reservations import check_charged
from distributed_privrl.privacy.schedules import (
    charged_schedule,
    merged,
    reserved_events,
    same_each_step,
)
from tests.privacy.stages import certificate, stage

LOUD, QUIET = GaussianEvent(noise_multiplier=2.0), GaussianEvent(noise_multiplier=9.0)
HALVES = ParallelEvent(branches=((LOUD,), (QUIET, LaplaceEvent(noise_multiplier=3.0, count=2))))
CHOICE = PureDpEvent(epsilon=0.1, count=3, derivation={"mechanism": "own", "scale": 20.0})


@pytest.mark.parametrize(
    "event",
    [
        QUIET,
        CHOICE,
        HALVES,
        ApproximateDpEvent(epsilon=0.0, delta=1e-9, count=7),
        PoissonGaussianEvent(sampling_probability=0.1, noise_multiplier=1.0, count=0),
    ],
    ids=lambda event: event.kind,
)
def test_equal_steps_are_one_event_that_is_repeated(event: Any) -> None:
    for steps in (1, 2, 21):
        assert merged(same_each_step([event], steps)) == (repeated(event, steps),)


def test_events_that_differ_stay_apart_in_the_order_in_which_they_appear() -> None:
    louder = ParallelEvent(branches=((LOUD,), (LOUD,)))
    steps = [(QUIET,), (CHOICE, LOUD), (HALVES, QUIET), (louder, CHOICE, LOUD), (HALVES,)]
    assert merged(steps) == (
        QUIET.model_copy(update={"count": 2}),
        CHOICE.model_copy(update={"count": 6}),
        LOUD.model_copy(update={"count": 2}),
        repeated(HALVES, 2),
        louder,
    )
    assert merged([]) == ()
    other = CHOICE.model_copy(update={"derivation": {"mechanism": "another", "scale": 20.0}})
    assert merged([(CHOICE, other)]) == (CHOICE, other)


def test_what_happens_once_is_not_repeated_by_a_schedule() -> None:
    once = RepeatAndSelectEvent(distribution="poisson", mean=2.0, events=(LOUD,))
    with pytest.raises(ConfigError, match="happens once"):
        merged([(once,), (once,)])


def test_steps_that_are_alike_are_kept_as_they_always_were() -> None:
    kept = charged_schedule(
        same_each_step([QUIET, CHOICE], 5), trajectories=(0, None), policies="digest"
    )
    assert kept == charged_rounds([QUIET, CHOICE], trajectories=(0, None), policies="digest")
    assert kept == {
        "kind": "rounds",
        "events": [QUIET.model_dump(mode="json"), CHOICE.model_dump(mode="json")],
        "trajectories": [0, None],
        "policies": "digest",
    }


SCHEDULE = ((QUIET,), (CHOICE, LOUD), (HALVES, QUIET), (CHOICE, LOUD))


def test_a_ledger_s_entry_gives_back_the_events_of_the_first_steps() -> None:
    kept = json.loads(json.dumps(charged_schedule(SCHEDULE, trajectories=(2, 4))))
    assert kept["kind"] == "rounds"
    assert kept["trajectories"] == [2, 4]
    for rounds in range(len(SCHEDULE) + 1):
        assert reserved_events(kept, rounds) == merged(SCHEDULE[:rounds])
    with pytest.raises(ConfigError, match="has 4 steps, 5 are asked for"):
        reserved_events(kept, 5)


def test_an_entry_of_more_rounds_than_its_schedule_has_is_refused() -> None:
    written = certificate(stage(events=merged(SCHEDULE[:3])), ledger_entries=("run-1",))
    (about,) = written.stages
    entry: Any = SimpleNamespace(
        id="run-1",
        kind="rounds",
        dataset=about.dataset,
        unit=about.unit,
        relation=about.relation,
        delta=about.delta,
        event=charged_schedule(SCHEDULE),
    )
    ledger: Any = SimpleNamespace(reserved=lambda _: entry)
    for rounds, message in ((2, "reserved"), (4, "reserved"), (5, "has 4 steps")):
        entry.reserved_rounds = rounds
        with pytest.raises(VerificationError, match=message):
            check_charged(written, ledger, "here")
    entry.reserved_rounds = 3
    assert check_charged(written, ledger, "here") == [entry]


def test_draws_of_single_trajectories_are_seen_in_any_step() -> None:
    """What draws a trajectory that nothing else may read is no less of a draw in a later step."""
    prefix = {"kind": "pure_dp", "derivation": {"mechanism": "stable_prefix"}}
    plain = QUIET.model_dump(mode="json")
    for event, draws in (
        ({"kind": "rounds", "schedule": [[plain], [plain, prefix]]}, True),
        ({"kind": "rounds", "schedule": [[plain], [plain, plain]]}, False),
        ({"kind": "rounds", "events": [prefix]}, True),
        (prefix, True),
        (plain, False),
    ):
        assert Reading.of(event).draws == draws
