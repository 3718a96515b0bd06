"""Gates on schedules: each reserved step draws what its entry states, and that is certified."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.choosing import SecureChooser
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import SecureNoise
from tests.worlds.ledgers import NULL
from tests.worlds.selection import LATTICE, SCHEDULE, SPARE, STEPS, World, single, world

Draws = dict[int, list[tuple[str, float]]]
"""Draws by the number of the reserved step that pays for them."""


@contextmanager
def observed(ledger: Ledger) -> Iterator[Draws]:
    """Record every choice and every release of this process."""
    drawn: Draws = defaultdict(list)
    choose, release = SecureChooser.choose, SecureNoise.add_discrete_gaussian

    def note(kind: str, value: float) -> None:
        entry = ledger.reserved("run")
        assert entry is not None, "something is drawn before the run is charged"
        drawn[entry.reserved_rounds - 1].append((kind, value))

    def spy_choose(self: Any, distances: Any, *, scale: float, tag: int = 0) -> int:
        note("choice", 2 / scale)
        return choose(self, distances, scale=scale, tag=tag)

    def spy_release(self: Any, values: Any, *, standard_deviation: float, tag: int = 0) -> Any:
        note("release", standard_deviation / LATTICE)
        return release(self, values, standard_deviation=standard_deviation, tag=tag)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureChooser, "choose", spy_choose)
        patch.setattr(SecureNoise, "add_discrete_gaussian", spy_release)
        yield drawn


def check_paid(place: World, drawn: Draws, *, reserved: int) -> None:
    """Each reserved step drew its entry; the certificate states all of them at what they cost."""
    for number in range(reserved):
        states = single(SCHEDULE[number])
        assert drawn[number] == states, f"step {number} drew {drawn[number]}, its entry is {states}"
    assert len(drawn) == reserved, "a draw is not covered by a reservation"
    assert place.rounds[0] == reserved, f"{place.rounds[0]} steps are reserved, not {reserved}"
    result = place.run()  # it is finished: what is certified, and nothing is drawn
    _, certificate = place.write(result)
    (stage,) = certificate.stages
    stated, made = Counter(single(stage.events)), Counter(chain(*drawn.values()))
    assert stated == made, f"the certificate states {stated}, {made} were drawn"
    events = [event for step in SCHEDULE[:reserved] for event in step]
    cost = epsilon(events, delta=stage.delta, relation=NULL)
    assert certificate.epsilon == pytest.approx(cost, rel=1e-6), "epsilon is not what was reserved"
    assert result.spare_rounds == STEPS + SPARE - reserved, "spare steps are miscounted"


def gate_scheduled_draws(folder: Path) -> None:
    """As many choices and releases as the schedule states are drawn in each step, and certified."""
    with world(folder) as place, observed(place.ledger) as drawn:
        place.run()
        check_paid(place, drawn, reserved=STEPS)


def gate_lost_steps(folder: Path) -> None:
    """A step that is lost has spent its entry, and the next one takes the next."""
    with world(folder) as place, observed(place.ledger) as drawn:
        place.lose(("drawn", 2))
        place.run()
        check_paid(place, drawn, reserved=STEPS + 1)
        assert place.rounds == (STEPS + 1, STEPS)


def gate_prepared_before(folder: Path) -> None:
    """A step is reserved when its public work is done: a death before costs nothing."""
    with world(folder) as place, observed(place.ledger) as drawn:
        place.lose(("prepare", 0), ("prepare", 2), ("prepare", 2))
        reserved, committed = place.rounds
        assert (reserved, committed) == (2, 2), f"{reserved - committed} steps are lost"
        place.run()
        check_paid(place, drawn, reserved=STEPS)
