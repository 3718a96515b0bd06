"""Gates on votes of teachers: whom a unit moves, what is drawn and charged, what leaves."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import VerificationError
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.methods.pate_gan import teachers
from distributed_privrl.methods.pate_gan.game import Game
from distributed_privrl.methods.pate_gan.teachers import TeacherWorker
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.verification import verify_certificate
from tests.gates.bounds import assert_unit_variance
from tests.worlds.games import FAKES, SAMPLES, Games, specs
from tests.worlds.intake import admissions, write

MANY_STEPS, MANY_VOTES = 5, 140
"""Enough draws that noise 20 % too small is seen."""
Integers = NDArray[np.int64]


@dataclass
class Watch:
    """What passed through a run.

    Args:
        votes: that each worker counted.
        draws: what the noise was given, and made of it.
        learned: answers that the game learned from.
        parameters: of teachers, as bytes.
    """

    votes: list[Integers] = field(default_factory=list)
    draws: list[tuple[Integers, Integers]] = field(default_factory=list)
    learned: list[Integers] = field(default_factory=list)
    parameters: list[bytes] = field(default_factory=list)


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch the runs that are started meanwhile."""
    seen = Watch()
    count, learn, noise = TeacherWorker.votes, Game.learn, SecureNoise.add_discrete_gaussian

    def votes(self: TeacherWorker, *rest: Any, **named: Any) -> Integers:
        found = count(self, *rest, **named)
        seen.votes.append(found.copy())
        seen.parameters += [
            one.detach().numpy()[0].tobytes()
            for block in self._blocks
            for one in block._network.weights
        ]
        return found

    def learned(self: Game, answer: Integers) -> None:
        seen.learned.append(answer.copy())
        learn(self, answer)

    def added(self: SecureNoise, values: Integers, **named: Any) -> Integers:
        noisy = noise(self, values, **named)
        seen.draws.append((values.copy(), noisy.copy()))
        return noisy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TeacherWorker, "votes", votes)
        patch.setattr(Game, "learn", learned)
        patch.setattr(SecureNoise, "add_discrete_gaussian", added)
        patch.setattr("distributed_privrl.experiments.judging.write_reports", _none)
        yield seen


def _none(*_: Any, **__: Any) -> None:
    return None


def gate_whole_run(folder: Path) -> None:
    """Every vote is charged, and gets the noise that is certified, once; no other is learned."""
    world = Games(folder).budget()
    with watched() as seen:
        result = world.run(
            key=None,
            training__most_steps=MANY_STEPS,
            training__votes_per_step=MANY_VOTES,
            training__noise="gaussian",
            training__noise_share=20.0,
        )
    try:
        stages = verify_certificate(
            result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
        ).certificate.stages
    except VerificationError as error:
        raise AssertionError(f"the certificate does not verify: {error}") from error
    (event,) = stages[0].events
    (entry,) = world.ledger.entries()
    drawn = sum(len(given) for given, _ in seen.draws)
    assert event.count == drawn, f"{drawn} votes got noise, {event.count} are certified"
    assert entry.drawn_rounds == len(seen.draws) == MANY_STEPS, "a step was not drawn once"
    asked = np.sum(np.stack(seen.votes).reshape(MANY_STEPS, 2, MANY_VOTES), axis=1)
    given, noisy = (np.stack(part) for part in zip(*seen.draws, strict=True))
    assert (asked == given).all(), "other counts get the noise than teachers voted"
    deviation = event.noise_multiplier * event.sensitivity
    assert_unit_variance((noisy - given).ravel() / deviation, "noise of votes")
    told = np.stack(seen.learned[:MANY_STEPS])
    assert (told == noisy[: len(told)]).all(), "the game learned from what has no noise"
    _nothing_raw_leaves(result, seen)


def _nothing_raw_leaves(result: RunResult, seen: Watch) -> None:
    secrets = [one.tobytes() for one, _ in seen.draws] + seen.parameters
    for path in sorted(result.directory.path.rglob("*")):
        if not path.is_file() or "private" in path.relative_to(result.directory.path).parts:
            continue
        content = path.read_bytes()
        found = sum(secret in content for secret in secrets)
        assert not found, f"{path.name} holds exact counts, or what a teacher learned"


def gate_a_unit_moves_a_count_by_one(folder: Path) -> None:
    """Whatever a patient's rows are, the exact counts of a sample move by 1 without them."""
    everybody = admissions(200)
    units, sizes = np.unique(everybody.unit_ids, return_counts=True)
    world, found = Games(folder), {}
    chosen = units[np.argsort(-sizes)[:6]]
    for name, rows in (
        ("all", everybody),
        *((str(unit), _extreme(everybody, unit)) for unit in chosen),
    ):
        dataset = f"intake/rows-{name}-v0"
        write(world.store, dataset, rows)
        found[name] = _counts(world, dataset)
    for unit in chosen:
        moved = int(np.abs(found[str(unit)] - found["all"]).max())
        assert moved <= 1, f"patient {unit} moves a count of votes by {moved}"
    largest = max(np.abs(one - found["all"]).max() for one in found.values())
    assert largest == 1, "rows built for the worst case move nothing"


def _extreme(rows: Transitions, unit: np.uint64) -> Transitions:
    """Return the rows, a unit's at the end of what is encoded, and many of them."""
    own = np.flatnonzero(rows.unit_ids == unit)
    more = rows.select(np.repeat(own, 40))
    more.observations[:], more.next_observations[:] = 1000.0, -500.0
    return Transitions.concatenate([rows, more])


def _counts(world: Games, dataset: str) -> Integers:
    """Return the exact counts of two workers' teachers, after some steps of the same lessons."""
    total = np.zeros(len(SAMPLES), np.int64)
    for one in specs(world, dataset, workers=2):
        worker = TeacherWorker(one)
        for step in (0, 1):
            worker.learn(step, FAKES[step])
        total += worker.votes(2, FAKES[2], SAMPLES)
    return total


def gate_teachers_share_no_unit(folder: Path) -> None:
    """Each row is with one teacher, the same one as its patient's other rows."""
    world = Games(folder)
    held = [
        rows
        for one in specs(world, workers=4)
        for _, each in teachers._rows_of_teachers(one)
        for rows in each
    ]
    there = admissions()
    encoded = world.encoder.encode(there).rows
    assert sum(map(len, held)) == len(encoded), "teachers hold other rows than there are"
    seats: dict[bytes, set[int]] = {}
    for teacher, rows in enumerate(held):
        for row in rows:
            seats.setdefault(row.tobytes(), set()).add(teacher)
    for unit in np.unique(there.unit_ids):
        own = [seats[row.tobytes()] for row in encoded[there.unit_ids == unit]]
        assert len(set.union(*own)) == 1, f"patient {unit} is with several teachers"
