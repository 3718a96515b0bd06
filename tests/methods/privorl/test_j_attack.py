"""The membership attack on PrivORL-j: a member is a trajectory, its loss a mean over fragments."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.data.fragments import load_fragments
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.experiments.attacks import attacked_rows
from distributed_privrl.experiments.audit import Audit
from distributed_privrl.methods.privorl.attack import (
    DRAWS,
    NOISE_QUANTILES,
    ModelAttack,
    diffusion_draws,
    first_fragments,
)
from distributed_privrl.methods.privorl.config import PrivorlJConfig
from tests.worlds.audited import MEMBERS, OTHERS, Audited
from tests.worlds.overrides import parsed
from tests.worlds.walks import (
    PUBLIC,
    SENSITIVE,
    SPACES,
    config,
    synthesizer_of,
    walk_store,
    wanderings,
)

EPISODES, LONGEST, ROUNDS = 16, 20, 60
pytestmark = [
    pytest.mark.timeout(900),  # two trainings, minutes on a busy machine
    pytest.mark.usefixtures("few_canaries"),
]


def configuration(bounds: Path, *, epsilon: float | None, output: str) -> PrivorlJConfig:
    values: dict[str, Any] = {
        "method": "privorl_j",
        "data": {
            "sensitive": MEMBERS,
            "unit": "trajectory",
            "units": EPISODES,
            "max_length": LONGEST,
            "bounds": str(bounds),
        },
        "privacy": {"epsilon": epsilon, "delta": 1e-3},
        "model": {"width": 32, "depth": 1, "heads": 2, "horizon": 8},
        "training": {
            "rounds": ROUNDS,
            "expected_batch_size": EPISODES,
            "max_fragments_per_unit": 4,  # none has more; room for them is computed, too
            "noise_multiplicity": 2,
            "optimiser": {"learning_rate": 2e-2, "ema_decay": 0.92},
            "pretraining": {"steps": 0},
            "sampling": {"steps": 4, "chunk_trajectories": 64},
        },
        "output": {"dataset": output, "size": 60},
        "runtime": {"workers": 1, "executor": "local", "blocks": 1, "micro_batch_rows": 256},
    }
    return parsed(values, PrivorlJConfig)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """16 trajectories, 16 held out, a model without privacy and one with epsilon 1."""
    made = Audited(tmp_path_factory.mktemp("audit"))
    for dataset, seed in ((MEMBERS, 1), (OTHERS, 2)):
        made.store.write_trajectories(dataset, wanderings(EPISODES, seed), **SPACES)
    for name, epsilon in (("open", None), ("private", 1.0)):
        chosen = configuration(made.bounds, epsilon=epsilon, output=f"audit/{name}-v0")
        made.train(name, chosen, key=1, anyway=True)  # a test key: what is found repeats
    return made


@pytest.fixture(scope="module")
def audits(world: Audited) -> dict[str, Audit]:
    return {
        name: world.audit(name, world.folder / f"{name}-audit", insecure_key=2)
        for name in ("open", "private")
    }


def test_the_attack_fires_on_a_model_that_memorises(audits: dict[str, Audit]) -> None:
    attacked = audits["open"].membership
    assert attacked is not None
    assert not isinstance(attacked, str), attacked
    assert attacked.figures.fires()
    assert attacked.figures.area.value > 0.75  # .80 to the third digit, by processor
    assert (attacked.figures.members, attacked.figures.non_members) == (EPISODES, EPISODES)
    assert len(attacked.areas) == len(NOISE_QUANTILES)
    assert "diffusion step 101 of 200" in attacked.areas


def test_it_does_not_fire_on_a_private_one_trained_as_long(audits: dict[str, Audit]) -> None:
    attacked = audits["private"].membership
    assert attacked is not None
    assert not isinstance(attacked, str), attacked
    assert attacked.rounds == ROUNDS
    assert not attacked.figures.fires()
    assert 0.2 < attacked.figures.area.value < 0.8


def test_the_canary_round_is_of_what_was_charged(world: Audited, audits: dict[str, Audit]) -> None:
    canary = audits["private"].canary
    assert not isinstance(canary, str)
    (stage,) = json.loads((world.folder / "private" / "certificate.json").read_text())["stages"]
    assert stage["unit"] == "trajectory"
    (event,) = stage["events"]
    assert canary.mu.chance == pytest.approx(1 / event["noise_multiplier"])
    assert canary.sampled.chance == event["sampling_probability"]
    assert 1 < canary.rows <= 4, "canaries are not units of several fragments"
    assert str(audits["open"].canary).startswith("not applicable")


def test_what_was_found_stays_in_private(world: Audited, audits: dict[str, Audit]) -> None:
    for name in audits:
        folder = world.folder / f"{name}-audit"
        assert {path.name for path in folder.iterdir()} <= {"canary.json", "private"}
        facts = json.loads((folder / "private" / "audit.json").read_text())
        assert facts["membership"]["members"] == EPISODES
        assert facts["membership"]["fires"] is (name == "open")


@pytest.mark.parametrize(("unit", "most"), [("trajectory", 2), ("walker", 3), ("walker", 100)])
@pytest.mark.parametrize("said", [True, False], ids=["ends are said", "ends are not said"])
def test_the_fragments_are_those_that_workers_train_on(
    tmp_path: Path, unit: str, most: int, said: bool
) -> None:
    """A bad step, a cap on steps and one on fragments, trajectories of a person far apart."""
    store = walk_store(tmp_path / "walks")
    episodes = wanderings(30, 5)
    episodes.observations[40, 0] = np.nan
    column = replace(episodes, unit_ids=np.arange(30, dtype=np.uint64) % 7)
    if not said:
        column = replace(column, truncated=np.zeros_like(column.truncated))
    store.write_trajectories("test/walkers-v0", column, unit_column="walker", **SPACES)
    encoder = synthesizer_of(config(), store).fragments
    ref = ShardRef(
        root=str(store.root),
        dataset="test/walkers-v0",
        index=0,
        count=1,
        unit=unit,
        max_rows_per_unit=15,
    )
    trained = load_fragments(ref, encoder, most)
    looked_at = attacked_rows(
        store,
        "test/walkers-v0",
        unit=unit,
        limit=10_000,
        max_length=15,
        generator=np.random.default_rng(0),
    )
    rows, places = first_fragments(encoder, most, looked_at.transitions)
    assert 0 < (~trained.valid).sum() < 3
    np.testing.assert_array_equal(rows, trained.rows[trained.valid])
    owners = np.repeat(trained.unit_ids, np.diff(trained.offsets))[trained.valid]
    np.testing.assert_array_equal(looked_at.groups[places], owners)
    assert len(np.unique(places)) == len(places)


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_row_is_a_fragment_and_no_row_is_none(count: int, tmp_path: Path) -> None:
    store = walk_store(tmp_path / "walks", sensitive=6)
    encoder = synthesizer_of(config(), store).fragments
    transitions = store.read_transitions(SENSITIVE, unit="trajectory").select(slice(0, count))
    rows, places = first_fragments(encoder, 3, transitions)
    assert len(rows) == count
    assert places.tolist() == [0] * count


def test_a_loss_is_that_of_training_at_the_named_step(tmp_path: Path) -> None:
    store = walk_store(tmp_path / "walks", sensitive=6)
    settings = config()
    synthesizer = synthesizer_of(settings, store)
    network = synthesizer.build(3)
    draws_of_all = diffusion_draws(synthesizer, seed=0)
    attack = ModelAttack(
        synthesizer,
        network,
        lambda transitions: first_fragments(synthesizer.fragments, 3, transitions),
        settings=[str(quantile) for quantile in NOISE_QUANTILES],
        draws=draws_of_all,
        rounds=9,
    )
    transitions = store.read_transitions(SENSITIVE, unit="trajectory")
    losses = attack.losses(transitions)
    rows, places = first_fragments(synthesizer.fragments, 3, transitions)
    assert np.isfinite(losses).all(axis=1).nonzero()[0].tolist() == sorted(places.tolist())
    assert draws_of_all.shape == (len(NOISE_QUANTILES), DRAWS, synthesizer.row_loss.draw_count)
    assert (draws_of_all[2, :, 0] == NOISE_QUANTILES[2]).all()
    by_hand = []
    for draw in draws_of_all[2]:
        loss = synthesizer.row_loss(network, torch.from_numpy(rows), draw.expand(len(rows), -1))
        by_hand.append(loss.detach().double().numpy())
    np.testing.assert_allclose(losses[places, 2], np.mean(by_hand, axis=0), rtol=1e-4)
    assert PUBLIC in store.ids()
