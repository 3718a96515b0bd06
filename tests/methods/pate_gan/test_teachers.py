"""Teachers of disjoint units: whom one unit changes, whatever rows it has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.pate_gan import teachers as module
from distributed_privrl.methods.pate_gan.teachers import (
    FAILED_VOTE,
    NOT_THERE,
    TeacherSpec,
    TeacherWorker,
)
from distributed_privrl.privacy.sampling import UnitPlacement
from distributed_privrl.rounds.worker import SecretOfRun
from tests.worlds.games import FAKES, SAMPLES, SECRET, TEACHERS, Games, specs
from tests.worlds.intake import DATASET, admissions, write


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Games:
    return Games(tmp_path_factory.mktemp("games"))


def taught(one: TeacherSpec, steps: int = 3) -> TeacherWorker:
    worker = TeacherWorker(one)
    for step in range(steps):
        worker.learn(step, FAKES[step])
    return worker


def parameters(worker: TeacherWorker) -> np.ndarray[Any, Any]:
    """Each teacher's parameters ``(T, P)``."""
    return np.concatenate(
        [
            torch.cat(
                [p.detach().flatten(start_dim=1) for p in block._network.parameters()], dim=1
            ).numpy()
            for block in worker._blocks
        ]
    )


def votes(worker: TeacherWorker) -> np.ndarray[Any, Any]:
    return np.concatenate([block.votes(torch.from_numpy(SAMPLES)) for block in worker._blocks])


def test_teachers_learn(world: Games) -> None:
    """And differ: by their units, and by what they begin with."""
    before, after = (parameters(taught(specs(world)[0], steps)) for steps in (1, 3))
    assert (before != after).any(axis=1).all()
    assert len(np.unique(votes(taught(specs(world)[0])), axis=0)) > TEACHERS // 2


@pytest.mark.parametrize("workers", [2, 4])
def test_votes_are_the_same_for_any_number_of_workers(world: Games, workers: int) -> None:
    (alone,) = specs(world)
    together = [taught(one) for one in specs(world, workers=workers)]
    np.testing.assert_array_equal(
        parameters(taught(alone)), np.concatenate([parameters(one) for one in together])
    )
    counts = sum(one.votes(2, FAKES[2], SAMPLES) for one in together)
    np.testing.assert_array_equal(counts, taught(alone).votes(2, FAKES[2], SAMPLES))


def test_each_unit_sits_with_one_teacher_by_its_id_alone(world: Games) -> None:
    rows = admissions()
    placed = UnitPlacement(SECRET(), TEACHERS).block_of(np.unique(rows.unit_ids))
    held = [0] * TEACHERS
    for one in specs(world, workers=4):
        for numbers, each in module._rows_of_teachers(one):
            for number, own in zip(numbers, each, strict=True):
                held[number] += len(own)
    assert sum(held) == len(rows), "a row is lost, or is with two teachers"
    teacher = dict(zip(np.unique(rows.unit_ids).tolist(), placed.tolist(), strict=True))
    expected = np.bincount([teacher[unit] for unit in rows.unit_ids.tolist()], minlength=TEACHERS)
    assert held == expected.tolist()


def changed_rows(rows: Transitions, how: str) -> tuple[Transitions, int]:
    """Return other rows of the unit that has most, and the unit."""
    units, counts = np.unique(rows.unit_ids, return_counts=True)
    unit = int(units[counts.argmax()])
    own = rows.unit_ids == unit
    assert own.sum() > 2
    if how == "gone":
        return rows.select(~own), unit
    if how == "many":
        more = rows.select(np.repeat(np.flatnonzero(own), 80))
        return Transitions.concatenate([rows, more]), unit
    value = {"null": np.nan, "huge": 3e38, "extreme": 1000.0}[how]
    observations = rows.observations.copy()
    observations[own] = value
    return replace(rows, observations=observations), unit


@pytest.mark.parametrize("how", ["gone", "null", "huge", "extreme", "many"])
def test_one_unit_changes_one_teacher_and_no_bit_of_the_others(
    world: Games, how: str, tmp_path: Path
) -> None:
    rows, unit = changed_rows(admissions(), how)
    dataset = f"intake/{how}-v0"
    write(world.store, dataset, rows)
    one, other = (taught(specs(world, name)[0]) for name in (DATASET, dataset))
    place = int(UnitPlacement(SECRET(), TEACHERS).block_of(np.array([unit], np.uint64))[0])
    differ = (parameters(one) != parameters(other)).any(axis=1)
    assert np.flatnonzero(differ).tolist() == [place]
    moved = np.abs(votes(one).sum(axis=0) - votes(other).sum(axis=0))
    assert moved.max() <= 1
    if how == "extreme":
        assert moved.max() == 1, "rows built for the worst case move nothing"


def test_a_unit_that_becomes_another_one_changes_two(world: Games) -> None:
    rows = admissions()
    ids = rows.unit_ids.copy()
    placement = UnitPlacement(SECRET(), TEACHERS)
    old, new = np.uint64(ids[0]), np.uint64(10**7)
    while placement.block_of(np.array([new]))[0] == placement.block_of(np.array([old]))[0]:
        new += np.uint64(1)
    ids[ids == old] = new
    write(world.store, "intake/moved-v0", replace(rows, unit_ids=ids))
    one, other = (taught(specs(world, name)[0]) for name in (DATASET, "intake/moved-v0"))
    assert (parameters(one) != parameters(other)).any(axis=1).sum() == 2


def test_a_teacher_that_fails_says_what_is_public(world: Games) -> None:
    """One without units, and one whose parameters are not finite; the others vote as before."""
    (one,) = specs(world)
    worker, sound = taught(one), taught(one)
    block = worker._blocks[0]
    with torch.no_grad():
        block._network.weights[0][1, 0, 0] = np.nan
    block._has_rows[2] = False
    found, before = (
        block.votes(torch.from_numpy(SAMPLES)),
        sound._blocks[0].votes(torch.from_numpy(SAMPLES)),
    )
    assert (found[1:3] == FAILED_VOTE).all()
    np.testing.assert_array_equal(found[0], before[0])


def test_no_teacher_has_a_unit_where_there_are_none(world: Games) -> None:
    nobody = admissions().select(np.arange(1))
    write(world.store, "intake/one-v0", nobody)
    worker = taught(specs(world, "intake/one-v0")[0])
    assert sum(int(block._has_rows.sum()) for block in worker._blocks) == 1
    assert worker.votes(2, FAKES[2], SAMPLES).max() <= 1


def test_a_repeated_call_and_a_worker_that_learned_again_give_the_same_answer(
    world: Games,
) -> None:
    (one,) = specs(world)
    worker = taught(one, 2)
    first = worker.votes(2, FAKES[2], SAMPLES)
    np.testing.assert_array_equal(worker.votes(2, FAKES[2], SAMPLES), first)
    rebuilt = TeacherWorker(one)
    assert rebuilt.votes(2, FAKES[2], SAMPLES) is NOT_THERE
    for step in (0, 1, 0, 1):
        rebuilt.learn(step, FAKES[step])
    np.testing.assert_array_equal(rebuilt.votes(2, FAKES[2], SAMPLES), first)
    assert rebuilt.votes(0, FAKES[0], SAMPLES) is NOT_THERE, "a step back: all is forgotten"
    np.testing.assert_array_equal(
        rebuilt.votes(0, FAKES[0], SAMPLES), TeacherWorker(one).votes(0, FAKES[0], SAMPLES)
    )


def test_another_secret_seats_units_elsewhere(world: Games) -> None:
    one, other = (
        taught(specs(world, secret=SecretOfRun(run_id="run", insecure_key=key))[0], 1)
        for key in (3, 4)
    )
    assert (parameters(one) != parameters(other)).any(axis=1).sum() > TEACHERS // 2
