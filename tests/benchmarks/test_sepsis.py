"""The levers of the ICU-Sepsis study keep the guarantee they state; its cells can be resumed."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import sepsis, sepsis_levers
from benchmarks.sepsis_levers import OutcomeCounts, clusters
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.sepsis import DEATH, OVER, SURVIVAL
from distributed_privrl.methods.value_iteration import study
from distributed_privrl.methods.value_iteration.study import Simulated
from distributed_privrl.privacy.exact_releases import DiscreteGaussianRelease

ACTIONS = 2


def trajectory(states: tuple[int, ...], actions: tuple[int, ...]) -> Trajectories:
    steps = len(actions)
    last = np.arange(steps) == steps - 1
    return Trajectories(
        observations=np.array(states),
        actions=np.array(actions),
        rewards=np.zeros(steps, np.float32),
        terminated=last & (states[-1] >= DEATH),
        truncated=last & (states[-1] < DEATH),
        offsets=np.array([0, steps]),
        unit_ids=np.array([7], np.uint64),
    )


def every_trajectory(
    states: range, horizon: int, ends: tuple[int, ...] = ()
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return all trajectories of full length, with the last state in ``ends`` if it is given."""
    lasts = ends or tuple(states)
    return [
        ((*before, last), actions)
        for before in itertools.product(states, repeat=horizon)
        for last in lasts
        for actions in itertools.product(range(ACTIONS), repeat=horizon)
    ]


def furthest(vectors: NDArray[np.float64]) -> tuple[float, float]:
    """Return the largest norm and the largest distance of any two."""
    norms = (vectors**2).sum(axis=1)
    distances = norms[:, None] + norms[None] - 2 * vectors @ vectors.T
    return float(np.sqrt(norms.max())), float(np.sqrt(distances.max()))


def test_outcomes_move_as_far_as_is_stated_and_no_further() -> None:
    horizon, vectors = 2, []
    for states, actions in every_trajectory(range(2), horizon, (DEATH, SURVIVAL, 2)):
        source = Simulated(trajectory(states, actions))
        counts = OutcomeCounts(source, groups=np.arange(OVER + 1), actions=ACTIONS, horizon=horizon)
        vectors.append(counts._vector)
    _, replaced = furthest(np.stack(vectors))
    assert replaced == pytest.approx(counts.sensitivity)


def test_a_patient_counts_once_a_pair_and_in_the_outcome_that_came() -> None:
    source = Simulated(trajectory((0, 1, 0, 0, SURVIVAL), (1, 0, 1, 1)))
    counts = OutcomeCounts(source, groups=np.arange(OVER + 1), actions=ACTIONS, horizon=20)
    lived, died = counts._vector.reshape(2, -1)
    assert np.flatnonzero(lived).tolist() == [1, 2]  # (0, 1) and (1, 0), the end behind a repeat
    assert lived.max() == 1
    assert not died.any()
    cut = OutcomeCounts(source, groups=np.arange(OVER + 1), actions=ACTIONS, horizon=3)
    assert not cut._vector.any(), "an end beyond the horizon was not seen"


def test_outcomes_are_released_with_the_noise_that_is_stated() -> None:
    asked = []

    class Spy:
        def add_discrete_gaussian(self, values: Any, *, standard_deviation: float, **_: Any) -> Any:
            asked.append((len(values), standard_deviation))
            return values.copy()

    source = Simulated(trajectory((0, SURVIVAL), (1,)))
    counts = OutcomeCounts(source, groups=clusters(5), actions=25, horizon=8)
    counts.policy(3.0, Spy())  # type: ignore[arg-type]
    ((length, deviation),) = asked
    assert length == 2 * 8 * 25, "every cell is released, visited or not"
    release = DiscreteGaussianRelease(
        sensitivity=counts.sensitivity, noise_multiplier=3.0, dimension=length
    )
    assert 3 * 4.0 <= deviation * release.lattice < 3 * 4.0 * 1.001


def test_clusters_are_public_and_leave_the_ends_by_themselves() -> None:
    found = clusters(5)
    assert found.shape == (OVER + 1,)
    assert found[DEATH:].tolist() == [5, 6, 7]
    assert np.unique(found[:DEATH]).tolist() == [0, 1, 2, 3, 4]
    sepsis_levers.clusters.cache_clear()
    np.testing.assert_array_equal(clusters(5), found)


def test_cells_are_stored_and_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "UNTIL_THE_END", 150)  # steps, after which few are left
    store, seen = tmp_path / "cells.jsonl", []

    def progress(stage: str, done: int, total: int, note: str = "") -> None:
        seen.append((done, total))

    found = sepsis.cells(True, progress, store=store)
    assert seen == [(n + 1, len(found)) for n in range(len(found))]
    assert len({json.dumps(cell) for cell in found}) == len(found)

    def nothing(*_: Any, **__: Any) -> None:
        raise AssertionError("a stored cell is done again")

    monkeypatch.setattr(sepsis, "simulate", nothing)
    result = sepsis.result(True, store=store)
    known = {"optimal": 0.875, "behaviour": 0.782, "uniform": 0.780, "action 0": 0.782}
    assert {name: round(result.ratios[name], 3) for name in known} == known
    assert all(0.7 < cell["survival"] < result.ratios["optimal"] for cell in found)
    assert [row["seeds"] for row in result.cells] == [1] * len(sepsis.QUICK.variants)
    by_counts = {row["counts"]: row for row in result.cells}
    stored = [c for c in found if (c["counts"], c["epsilon"]) == ("pooled", 1.0)]
    assert by_counts["pooled"]["eps 1"] == stored[0]["survival"]
    assert by_counts["pooled"]["runs"]["eps 1"] == [stored[0]["survival"]]
    assert result.ratios["best_eps_1_patients_300"] == max(row["eps 1"] for row in result.cells)


def test_noise_follows_epsilon_and_the_number_of_releases() -> None:
    one, many = (sepsis._noise_multiplier(1.0, 1000, releases) for releases in (1, 4))
    more = sepsis._noise_multiplier(4.0, 1000, 1)
    assert one is not None
    assert many == pytest.approx(2 * one, rel=1e-3)
    assert more is not None
    assert more < one / 2.5
    assert sepsis._noise_multiplier(None, 1000, 1) is None
