"""Recipes of experts: rows, policies and probabilities that belong together; interruptions."""

import itertools
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from distributed_privrl.agents import experts as files
from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.experts import ExpertFacts
from distributed_privrl.collection import RECIPES, collect, experts_training
from distributed_privrl.collection.experts_grids import GRIDS, Grid
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, hash_unit
from tests.worlds.opened import opened

SMALL: dict[str, dict[str, Any]] = {
    "experts-cartpole": {"updates": 2, "least_updates": 1, "environments": 4},
    "experts-acrobot": {"updates": 1, "least_updates": 1, "environments": 4},
    "experts-hiv": {"rounds": 2, "least_rounds": 1, "gradient_steps": 5, "episodes": 6},
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetStore:
    monkeypatch.setattr(experts_training, "BLOCK_EXPERTS", 4)
    return DatasetStore(tmp_path)


def made(store: DatasetStore, recipe: str = "experts-cartpole", **arguments: Any) -> DatasetInfo:
    options = {"experts": 6, "trajectories": 3, "reference_episodes": 5, "training": SMALL[recipe]}
    options |= arguments.pop("options", {})
    return collect(recipe, dataset="e/some-v0", store=store, options=options, **arguments)


def policies_of(store: DatasetStore) -> ExpertPolicies:
    loaded = [ExpertPolicies.load(path) for path in files.expert_files(store, "e/some-v0")]
    return ExpertPolicies.concatenate(loaded)


@pytest.mark.parametrize("recipe", SMALL)
def test_rows_policies_and_probabilities_belong_together(recipe: str, store: DatasetStore) -> None:
    info = made(store, recipe)
    rows = store.read_trajectories("e/some-v0")
    facts = ExpertFacts.of(info)
    longest = RECIPES[recipe].total_steps(None, RECIPES[recipe].options(experts=1, trajectories=1))
    assert facts == ExpertFacts(
        count=6,
        trajectories=3,
        minimum_probability=0.02,
        max_length=longest,
        shared_policy=False,
        log_probabilities=True,
    )
    assert (len(rows), info.unit_column, info.layout) == (18, files.UNIT_COLUMN, "packed")
    policies, logs = policies_of(store), files.read_log_probabilities(store, "e/some-v0")
    units = [hash_unit(f"expert {number}") for number in range(6)]
    assert policies.unit_ids.tolist() == units
    assert rows.unit_ids.tolist() == list(itertools.chain(*([unit] * 3 for unit in units)))
    ends = set()
    for number, (start, stop) in enumerate(itertools.pairwise(rows.offsets.tolist())):
        seen = torch.from_numpy(rows.observations[start + number : stop + number])
        odds = policies.log_probabilities(number // 3, seen)
        expected = odds.gather(1, torch.from_numpy(rows.actions[start:stop])[:, None])[:, 0]
        np.testing.assert_array_equal(logs[start:stop], expected.numpy())
        assert stop - start <= longest
        assert rows.terminated[stop - 1] != rows.truncated[stop - 1]
        assert rows.truncated[stop - 1] == (stop - start == longest) or rows.terminated[stop - 1]
        ends.add(bool(rows.terminated[stop - 1]))
    strays = np.mean(np.exp(logs) < 0.5)
    assert abs(strays - 0.02 * (policies.actions - 1)) < 5 * math.sqrt(0.06 / len(logs))
    assert ends == ({True} if recipe == "experts-cartpole" else {False})
    assert len({tuple(one.flatten().tolist()) for one in policies.weights[0]}) == 6


@pytest.mark.parametrize("recipe", SMALL)
def test_rows_are_the_default_environments(recipe: str, store: DatasetStore) -> None:
    info = made(store, recipe)
    rows = store.read_trajectories("e/some-v0")
    environment: Any = gymnasium.make(str(info.environment)).unwrapped
    start, stop = rows.offsets[4:6].tolist()
    observations = rows.observations[start + 4 : stop + 5]
    environment.reset(seed=0)
    for step in range(min(stop - start, 30)):
        before, after = observations[step], observations[step + 1]
        if recipe == "experts-hiv":
            environment.reset(options={"state": 10.0 ** before.astype(np.float64)})
        elif recipe == "experts-acrobot":
            angles = np.arctan2(before[[1, 3]], before[[0, 2]])
            environment.state = np.array([*angles, *before[4:]], dtype=np.float64)
        else:
            environment.state = before.astype(np.float64)
        shown, reward, ended, _, _ = environment.step(rows.actions[start + step])
        np.testing.assert_allclose(shown, after, rtol=2e-4, atol=2e-5)
        assert reward == pytest.approx(rows.rewards[start + step], rel=1e-3, abs=1e-6)
        assert ended == rows.terminated[start + step]


def test_metadata_say_what_policies_earn(store: DatasetStore) -> None:
    info = made(store, seed=3)
    rows, told = store.read_trajectories("e/some-v0"), opened(info.metadata)
    earned = np.add.reduceat(rows.rewards, rows.offsets[:-1]).reshape(6, 3).mean(axis=1)
    returns = told["experts"]["returns"]
    assert (returns["least"], returns["most"]) == pytest.approx((earned.min(), earned.max()))
    assert sum(returns["histogram"]["counts"]) == 6
    assert told["reference_returns"]["behaviour"] == pytest.approx(earned.mean())
    assert (told["reference_returns"]["steps"], told["evaluation_returns"]["steps"]) == (200, 1000)
    assert 10 < told["reference_returns"]["random"] < 40
    for key in ("reference_returns", "evaluation_returns"):
        assert told[key]["best"] > told[key]["random"]
    assert told["experts"]["widths"] == [4, 32, 2]
    assert told["experts"]["settings"]["gravity"] == [8.75, 11.0, 10]
    assert told["experts"]["training"]["algorithm"] == "ppo"
    assert told["collection"]["steps"] == 6 * 3 * 200


def test_an_interrupted_collection_goes_on_and_gives_the_same(store: DatasetStore) -> None:
    made(store)
    expected, logs = store.read_trajectories("e/some-v0"), "e/some-v0"
    kept = (files.read_log_probabilities(store, logs), policies_of(store))
    assert not list(store.root.glob(".policies-*"))
    other = DatasetStore(store.root / "other")

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(other, training_progress=interrupt)
    assert other.ids() == []
    (folder,) = other.root.glob(".policies-*")
    assert folder.stat().st_mode & 0o077 == 0
    (first,) = folder.glob("rows-*")
    stamp = first.stat().st_mtime_ns
    with pytest.raises(KeyboardInterrupt):
        made(other, progress=interrupt)
    assert other.ids() == []
    assert first.stat().st_mtime_ns == stamp
    told: list[tuple[int, int]] = []
    made(other, training_progress=lambda *numbers: told.append(numbers))
    assert told == [(4, 6), (6, 6)]
    found = other.read_trajectories("e/some-v0")
    for name in ("observations", "actions", "rewards", "terminated", "offsets", "unit_ids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_array_equal(files.read_log_probabilities(other, logs), kept[0])
    for one, two in zip(policies_of(other).weights, kept[1].weights, strict=True):
        assert torch.equal(one, two)


def test_another_seed_gives_other_experts(store: DatasetStore) -> None:
    made(store, seed=0, options={"keep_policies": True})
    first = store.read_trajectories("e/some-v0")
    other = DatasetStore(store.root / "other")
    made(other, seed=1)
    assert first.rewards.sum() != other.read_trajectories("e/some-v0").rewards.sum()
    assert len(list(store.root.glob(".policies-*"))) == 1


def test_without_its_experts_a_dataset_is_taken_away(
    store: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StorageError("cannot write: no space")

    monkeypatch.setattr(files, "write_log_probabilities", full)
    with pytest.raises(StorageError, match="no space"):
        made(store)
    assert store.ids() == []


def test_files_are_their_owners_alone_unless_public(store: DatasetStore) -> None:
    made(store)
    path = files.expert_files(store, "e/some-v0")[0]
    assert [one.stat().st_mode & 0o077 for one in (path, path.parent.parent)] == [0, 0]
    other = DatasetStore(store.root / "other")
    made(other, public=True)
    assert files.expert_files(other, "e/some-v0")[0].stat().st_mode & 0o044


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 100}, "give --experts and --trajectories"),
        ({"options": {"training": {"speed": 3}}}, "unknown key .known: max_steps, scale"),
        ({"options": {"minimum_probability": 0.6}}, "minimum_probability must lie in"),
        ({"options": {"experts": 0}}, "experts"),
    ],
)
def test_wrong_options_are_refused(
    store: DatasetStore, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        made(store, **arguments)


def test_a_damaged_block_is_named(store: DatasetStore) -> None:
    experts_training.rows_path(store.root, 0).write_bytes(b"nothing")
    with pytest.raises(StorageError, match="is damaged"):
        experts_training.read_rows(store.root, 0)


def test_grids_are_the_papers() -> None:
    sizes = {name: len(grid) for name, grid in GRIDS.items()}
    assert sizes == {
        "CartPole-v1": 1000,
        "Acrobot-v1": 1000,
        "LunarLander-v3": 1000,
        "privrl/HIVTreatment-v0": 2000,
    }
    spread = GRIDS["privrl/HIVTreatment-v0"].settings(3000, Streams(0))
    assert {name: len(set(values)) for name, values in spread.items()} == {
        "first_penalty": 50,
        "second_penalty": 20,
        "efficacy_noise": 2,
    }
    assert (spread["first_penalty"].min(), spread["first_penalty"].max()) == (18750, 21250)


def test_experts_are_spread_over_the_settings() -> None:
    grid = Grid(axes={"a": (0.0, 1.0, 3), "b": (0.0, 1.0, 2)})
    for experts, most in ((5, 1), (6, 1), (13, 3)):
        settings = grid.settings(experts, Streams(0))
        pairs = list(zip(settings["a"], settings["b"], strict=True))
        assert max(map(pairs.count, pairs)) == most
        assert len(set(pairs)) == min(experts, 6)
    few, many = (grid.settings(number, Streams(0)) for number in (4, 9))
    assert few["a"].tolist() == many["a"][:4].tolist()


def test_rows_of_terminated_episodes_stop(store: DatasetStore) -> None:
    made(store)
    rows: Trajectories = store.read_trajectories("e/some-v0")
    assert len(set(rows.lengths.tolist())) > 3
    inner = np.delete(np.arange(rows.offsets[-1]), rows.offsets[1:] - 1)
    assert not rows.terminated[inner].any()
    angles = np.abs(rows.observations[:, 2])
    last = rows.offsets[1:] + np.arange(len(rows))
    fallen = (angles > 12 * math.pi / 180) | (np.abs(rows.observations[:, 0]) > 2.4)
    assert np.flatnonzero(fallen).tolist() == last.tolist()
