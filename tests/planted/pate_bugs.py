"""Mistakes that one could make in votes of teachers."""

from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.methods.pate_gan import teachers
from distributed_privrl.methods.pate_gan.program import VotesProgram
from distributed_privrl.methods.pate_gan.teachers import Teachers
from distributed_privrl.methods.pate_gan.votes import VoteRelease
from distributed_privrl.privacy.events import repeated
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from tests.gates.pate import MANY_VOTES


def a_step_is_charged_as_one_vote(patch: pytest.MonkeyPatch) -> None:
    """The votes of a step are taken for one release of sensitivity 1."""
    patch.setattr(
        VoteRelease,
        "events",
        lambda self, counts: (repeated(self.event, -(-counts // MANY_VOTES)),),
    )


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    """What draws is not what is charged."""
    right = IntegerGaussianRelease.standard_deviation.fget  # type: ignore[attr-defined]
    patch.setattr(
        IntegerGaussianRelease, "standard_deviation", property(lambda self: right(self) / 2)
    )


def teachers_share_units(patch: pytest.MonkeyPatch) -> None:
    """Each teacher also learns from the units of the one before it."""
    right = teachers._rows_of_teachers

    def shared(spec: Any) -> Any:
        return [
            (numbers, [np.concatenate([rows[i - 1], rows[i]]) for i in range(len(rows))])
            for numbers, rows in right(spec)
        ]

    patch.setattr(teachers, "_rows_of_teachers", shared)


def rows_not_units_are_divided(patch: pytest.MonkeyPatch) -> None:
    """Rows go to teachers in turn, whosever they are."""
    right = teachers._rows_of_teachers

    def divided(spec: Any) -> Any:
        found = right(spec)
        joined = np.concatenate([rows for _, each in found for rows in each])
        joined = joined[np.lexsort(joined.T)]
        total, result, place = sum(len(each) for _, each in found), [], 0
        for numbers, each in found:
            result.append((numbers, [joined[place + i :: total] for i in range(len(each))]))
            place += len(each)
        return result

    patch.setattr(teachers, "_rows_of_teachers", divided)


def one_loss_for_all_teachers(patch: pytest.MonkeyPatch) -> None:
    """The gradient of a block is scaled to one norm, so that each teacher sees all of its rows."""
    right = Teachers.learn

    def learn(self: Teachers, step: int, fakes: torch.Tensor) -> None:
        self._rows = self._rows / self._rows.abs().max()
        right(self, step, fakes)

    patch.setattr(Teachers, "learn", learn)


def the_generator_learns_from_teachers(patch: pytest.MonkeyPatch) -> None:
    """The exact counts, which know what teachers think, reach the generator's game."""
    count, right = VotesProgram._counts, VotesProgram.step
    exact = []

    def counts(self: VotesProgram, *given: Any) -> Any:
        exact.append(count(self, *given))
        return exact[-1]

    def step(self: VotesProgram, *rest: Any, **named: Any) -> None:
        right(self, *rest, **named)
        self._answers[-1] = exact[-1]

    patch.setattr(VotesProgram, "_counts", counts)
    patch.setattr(VotesProgram, "step", step)


def votes_are_drawn_twice(patch: pytest.MonkeyPatch) -> None:
    """The better of two answers is kept."""
    right = VoteRelease.release

    def release(self: VoteRelease, counts: Any, source: Any, *, tag: int) -> Any:
        one, other = (right(self, counts, source, tag=tag) for _ in range(2))
        return np.where(np.abs(one - counts) < np.abs(other - counts), one, other)

    patch.setattr(VoteRelease, "release", release)


def checkpoints_hold_teachers(patch: pytest.MonkeyPatch) -> None:
    """A resume would not have to teach again."""
    seen: dict[str, torch.Tensor] = {}
    taught, right = Teachers.learn, VotesProgram.tensors

    def learn(self: Teachers, step: int, fakes: torch.Tensor) -> None:
        taught(self, step, fakes)
        seen[f"teacher.{self._numbers.start}"] = self._network.weights[0].detach().clone()

    patch.setattr(Teachers, "learn", learn)
    patch.setattr(VotesProgram, "tensors", lambda self: right(self) | seen)
