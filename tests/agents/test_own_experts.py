"""Experts of one's own: stacked as they compute, and beside rows that they can have made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from distributed_privrl.agents import experts
from distributed_privrl.agents.own_experts import attach_experts, stack_policies
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, hash_unit
from tests.worlds.opened import opened

LEAST = 0.1
NAMES = ("anna", "ben")
OWN: dict[str, Any] = {"minimum_probability": LEAST, "offset": [1.0, 0.0], "scale": [2.0, 1.0]}
BOX = Box(-np.ones(2, np.float32), np.ones(2, np.float32))


def network(seed: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(2, 4), activation(), nn.Linear(4, 3))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in made.parameters():
            weights.normal_(generator=generator)
    return made


def networks(first: int = 0) -> dict[str, nn.Sequential]:
    return {name: network(first + seed) for seed, name in enumerate(NAMES)}


def opposed() -> dict[str, nn.Sequential]:
    """Return networks that score highest what the others score lowest."""
    made = networks()
    with torch.no_grad():
        for one in made.values():
            for weights in one[2].parameters():
                weights.neg_()
    return made


def recorded(store: DatasetStore, names: tuple[str, ...] = NAMES, **changes: Any) -> Trajectories:
    """Write what the networks prefer, in two trajectories of 30 steps of each."""
    generator = np.random.default_rng(0)
    observations = generator.uniform(-1, 1, (2 * len(names), 31, 2)).astype(np.float32)
    units = np.repeat([hash_unit(name) for name in names], 2).astype(np.uint64)
    made, actions = networks(), []
    for row, name in enumerate(np.repeat(NAMES, 2)[: len(units)]):
        seen = torch.from_numpy((observations[row, :30] - [1, 0]) / [2, 1]).float()
        actions.append(made[str(name)](seen).argmax(dim=1).numpy())
    steps = 30 * len(units)
    rows = Trajectories(
        observations=observations.reshape(-1, 2),
        actions=np.concatenate(actions),
        rewards=np.zeros(steps, np.float32),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) % 30 == 29,
        offsets=np.arange(0, steps + 1, 30),
        unit_ids=units,
    )
    about = {"observation_space": BOX, "action_space": Discrete(3), "unit_column": "trader"}
    store.write_trajectories("own/traders-v0", rows, layout="packed", **{**about, **changes})
    return rows


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_stacked_policies_prefer_what_the_networks_do(activation: type[nn.Module]) -> None:
    made = {name: network(seed, activation) for seed, name in enumerate(NAMES)}
    policies = stack_policies(made, **OWN)
    observations = torch.from_numpy(np.random.default_rng(1).normal(size=(50, 2))).float()
    for index, (name, one) in enumerate(made.items()):
        preferred = one((observations - torch.tensor([1.0, 0.0])) / torch.tensor([2.0, 1.0]))
        found = policies.log_probabilities(index, observations)
        assert torch.equal(found.argmax(dim=1), preferred.argmax(dim=1))
        assert found.exp().max() == pytest.approx(0.8)
        assert policies.unit_ids[index] == hash_unit(name)


def test_policies_lie_beside_the_rows_they_made(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    recorded(store)
    attach_experts(
        store, "own/traders-v0", stack_policies(networks(), **OWN), trajectories=2, max_length=30
    )
    facts = experts.ExpertFacts.of(store.info("own/traders-v0"))
    assert (facts.count, facts.trajectories, facts.max_length) == (2, 2, 30)
    assert facts.minimum_probability == LEAST
    np.testing.assert_allclose(
        np.exp(experts.read_log_probabilities(store, "own/traders-v0")), 0.8, rtol=1e-6
    )
    assert experts.policy_units(store, "own/traders-v0").tolist() == [
        hash_unit(name) for name in NAMES
    ]


def test_policies_are_put_in_place_of_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "SHARD_EXPERTS", 1)
    store = DatasetStore(tmp_path)
    recorded(store)
    made = networks()
    for several in ({**made, "carl": network(7)}, made):
        policies = stack_policies(several, **OWN)
        attach_experts(store, "own/traders-v0", policies, trajectories=2, max_length=30)
        assert len(experts.expert_files(store, "own/traders-v0")) == len(several)


def test_policies_that_cannot_have_acted_are_refused(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    recorded(store)
    cases = (
        (stack_policies(networks(5), **OWN), "other policies acted"),
        (stack_policies(networks(), **{**OWN, "offset": [-3.0, 2.0]}), "other policies acted"),
        (stack_policies({"anna": network(0)}, **OWN), "a unit without a policy"),
        (stack_policies(opposed(), **{**OWN, "minimum_probability": 0.26}), "not in 48.0%"),
    )
    for policies, message in cases:
        with pytest.raises(ConfigError, match=message):
            attach_experts(store, "own/traders-v0", policies, trajectories=2, max_length=30)
        assert experts.EXPERTS_KEY not in opened(store.info("own/traders-v0").metadata)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit_column": None}, "a column that names the expert"),
        ({"action_space": Discrete(4)}, "choose among 3, from 0 on"),
        ({"observation_space": Discrete(3)}, "the policies take 2 numbers"),
    ],
)
def test_datasets_of_another_form_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    store = DatasetStore(tmp_path)
    if "observation_space" in changes:
        rows = recorded(store)
        store.write_trajectories(
            "own/other-v0",
            Trajectories(
                **{
                    **vars(rows),
                    "observations": np.zeros(len(rows.observations), np.int64),
                }
            ),
            observation_space=Discrete(3),
            action_space=Discrete(3),
            unit_column="trader",
            layout="packed",
        )
    else:
        recorded(store, **changes)
    dataset = "own/other-v0" if "observation_space" in changes else "own/traders-v0"
    with pytest.raises(ConfigError, match=message):
        attach_experts(
            store, dataset, stack_policies(networks(), **OWN), trajectories=2, max_length=30
        )


def test_networks_of_another_form_are_refused() -> None:
    wider = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3))
    softmax = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3), nn.Softmax(dim=1))
    for made, message in (
        ({}, "must be of one form, got 0"),
        ({"anna": network(0), "ben": wider}, "must be of one form, got 2"),
        ({"anna": softmax}, "must be Linear, Tanh or ReLU"),
    ):
        with pytest.raises(ConfigError, match=message):
            stack_policies(made, **OWN)
