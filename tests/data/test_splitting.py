from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.splitting import split
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from tests.worlds.opened import opened

SPACES = {
    "observation_space": Box(-np.inf, np.inf, (2,)),
    "action_space": Box(-np.inf, np.inf, (1,)),
}
COUNT = 30
PATIENTS = np.arange(COUNT, dtype=np.uint64) // 3 + 100


def episodes() -> Trajectories:
    """Return 30 trajectories of 4 steps, three a patient; the reward names the step."""
    steps = 4 * COUNT
    return Trajectories(
        observations=np.arange(2.0 * (steps + COUNT)).reshape(-1, 2),
        actions=np.arange(steps)[:, None] / 10,
        rewards=np.arange(steps),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) % 4 == 3,
        offsets=4 * np.arange(COUNT + 1),
        unit_ids=PATIENTS,
    )


def rewards(store: DatasetStore, dataset: str) -> np.ndarray:
    return store.read_transitions(dataset, unit="transition").rewards


@pytest.mark.parametrize("layout", ["episodes", "packed"])
def test_sides_share_no_unit_and_lose_no_row(tmp_path: Path, layout: Any) -> None:
    store = DatasetStore(tmp_path)
    store.write_trajectories(
        "a/all-v3", episodes(), layout=layout, unit_column="patient", environment="X-v0", **SPACES
    )
    training, held_out = split(store, "a/all-v3", held_out_share=0.4, seed=3)
    assert (training.id, held_out.id) == ("a/all-training-v3", "a/all-held-out-v3")
    assert opened(training.total_trajectories) + opened(held_out.total_trajectories) == COUNT
    assert opened(held_out.total_trajectories) in range(3, 28, 3)
    for info in (training, held_out):
        assert (info.layout, info.unit_column, info.environment) == (layout, "patient", "X-v0")
    one, other = (store.read_trajectories(info.id) for info in (training, held_out))
    assert not np.intersect1d(one.unit_ids, other.unit_ids).size
    assert set(one.unit_ids) | set(other.unit_ids) == set(PATIENTS)
    everything = np.concatenate([one.rewards, other.rewards])
    np.testing.assert_array_equal(np.sort(everything), np.arange(4 * COUNT))
    np.testing.assert_array_equal(
        other.transitions("patient").observations,
        store.read_transitions("a/all-v3", unit="patient")
        .select(np.isin(rewards(store, "a/all-v3"), other.rewards))
        .observations,
    )


def test_rows_without_trajectories_are_split_one_by_one(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    steps = episodes().transitions("transition")
    store.write_transitions("rows-v0", steps, layout="transitions", **SPACES)
    training, held_out = split(store, "rows-v0", held_out_share=0.25, seed=0)
    assert opened(training.total_steps) + opened(held_out.total_steps) == 120
    assert 15 < opened(held_out.total_steps) < 45  # 30 and three standard deviations
    assert not np.intersect1d(rewards(store, training.id), rewards(store, held_out.id)).size


def test_the_seed_decides(tmp_path: Path) -> None:
    sides = []
    for number, seed in enumerate((0, 0, 1, -1)):
        store = DatasetStore(tmp_path / str(number))
        store.write_trajectories("all-v0", episodes(), **SPACES)
        sides.append(rewards(store, split(store, "all-v0", held_out_share=0.5, seed=seed)[1].id))
    np.testing.assert_array_equal(sides[0], sides[1])
    assert len({tuple(side) for side in sides}) == 3


@pytest.mark.parametrize(
    ("share", "message"), [(0.0, r"\(0, 1\)"), (1.0, r"\(0, 1\)"), (0.001, "leaves a side empty")]
)
def test_a_side_is_never_empty(tmp_path: Path, share: float, message: str) -> None:
    store = DatasetStore(tmp_path)
    store.write_trajectories("all-v0", episodes(), **SPACES)
    with pytest.raises(ConfigError, match=message):
        split(store, "all-v0", held_out_share=share, seed=0)
    assert store.ids() == ["all-v0"]


def test_what_exists_is_not_overwritten(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    store.write_trajectories("all-v0", episodes(), **SPACES)
    split(store, "all-v0", held_out_share=0.5, seed=0)
    both = "all-held-out-v0 and all-training-v0 exist already: .* only if no run read it"
    with pytest.raises(ConfigError, match=both):
        split(store, "all-v0", held_out_share=0.5, seed=1)


def test_both_sides_of_public_rows_are_public(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    store.write_trajectories("all-v0", episodes(), **SPACES, metadata={"declared_public": True})
    store.write_trajectories("own-v0", episodes(), **SPACES)
    for name, expected in (("all-v0", True), ("own-v0", False)):
        sides = split(store, name, held_out_share=0.5, seed=0)
        assert [side.declared_public for side in sides] == [expected, expected]
        assert [side.split_of for side in sides] == [() if expected else (name,)] * 2


def test_a_declaration_does_not_wash_a_side(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    store.write_trajectories("own-v0", episodes(), **SPACES)
    split(store, "own-v0", held_out_share=0.5, seed=0)
    store.update_metadata("own-training-v0", {"declared_public": True})
    for side in split(store, "own-training-v0", held_out_share=0.5, seed=1):
        assert side.split_of == ("own-v0", "own-training-v0")
        assert not side.declared_public


def test_a_side_of_a_side_knows_both(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    store.write_trajectories("own-v0", episodes(), **SPACES)
    split(store, "own-v0", held_out_share=0.5, seed=0)
    inner, _ = split(store, "own-training-v0", held_out_share=0.5, seed=1)
    assert inner.split_of == ("own-v0", "own-training-v0")
    assert inner.split_by_position


def test_without_a_unit_the_sides_lose_that_unit_alone(tmp_path: Path) -> None:
    everything = episodes()
    sides: dict[int | None, list[set[int]]] = {}
    for gone in (None, *np.unique(PATIENTS).tolist()):
        store = DatasetStore(tmp_path / str(gone))
        kept = everything.select(np.flatnonzero(gone != PATIENTS) if gone else range(COUNT))
        store.write_trajectories("a-v0", kept, unit_column="patient", **SPACES)
        infos = split(store, "a-v0", held_out_share=0.4, seed=3)
        assert not any(info.split_by_position for info in infos)
        found = (store.read_trajectories(info.id).unit_ids.tolist() for info in infos)
        sides[gone] = [set(units) for units in found]
    for gone, found in sides.items():
        assert found == [side - {gone} for side in sides[None]]


def test_about_the_share_is_held_out(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    count = 5000
    steps = Trajectories(
        observations=np.zeros((count + 1, 2)),
        actions=np.zeros((count, 1)),
        rewards=np.arange(count),
        terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        offsets=np.array([0, count]),
        unit_ids=np.zeros(1, np.uint64),
    ).transitions("transition")
    store.write_transitions("rows-v0", steps, layout="transitions", **SPACES)
    _, held_out = split(store, "rows-v0", held_out_share=0.3, seed=0)
    assert abs(opened(held_out.total_steps) - 1500) < 5 * np.sqrt(count * 0.3 * 0.7)
