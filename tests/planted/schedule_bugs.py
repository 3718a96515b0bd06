"""Bugs in schedules: steps that are charged as others, drawn as others, or reserved too early."""

from typing import Any

import pytest

from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.rounds.releases import ReleaseServer
from distributed_privrl.rounds.round_server import RoundServer
from distributed_privrl.stages import release_plan


def charged_as_the_first(patch: pytest.MonkeyPatch) -> None:
    """Every step is charged and certified as the first one."""
    charge, count = release_plan.charged_schedule, release_plan.first_events

    def first(schedule: Any) -> Any:
        return same_each_step(schedule[0], len(schedule))

    patch.setattr(release_plan, "charged_schedule", lambda s, **rest: charge(first(s), **rest))
    patch.setattr(release_plan, "first_events", lambda s, rounds: count(first(s), rounds))


def lost_entries_drawn_again(patch: pytest.MonkeyPatch) -> None:
    """A step takes the entry of its own number, which a lost one has spent."""
    patch.setattr(RoundServer, "_reserved_round", property(lambda self: self._round))


def prepared_after_the_reservation(patch: pytest.MonkeyPatch) -> None:
    """Public work is done while a step is reserved."""
    run = ReleaseServer._run_round

    def prepare_and_run(self: ReleaseServer) -> None:
        self._program.prepare(self._round)
        run(self)

    patch.setattr(ReleaseServer, "_prepare_round", lambda self: None)
    patch.setattr(ReleaseServer, "_run_round", prepare_and_run)
