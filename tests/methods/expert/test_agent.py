"""An agent's losses by row, its rows, and the updates that experts give it."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.agents.training import as_batch, packed_rows
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.expert.config import AgentModelConfig, LocalExpertConfig
from distributed_privrl.methods.expert.settings import agent_settings
from distributed_privrl.methods.expert.update import AgentUpdate
from distributed_privrl.updates.parameters import FlatParameters
from tests.worlds.crowd import AGENTS, DATASET, crowd_store, facts_of, units


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return crowd_store(tmp_path_factory.mktemp("crowd"))


@pytest.mark.parametrize("agent", AGENTS)
def test_the_loss_of_a_row_is_the_agents_own(store: DatasetStore, agent: str) -> None:
    """Encoded rows mean what the plain training loop packs, rewards scaled and not shifted."""
    facts = facts_of(store, agent, reward_scale=0.25)
    transitions = store.read_transitions(DATASET, unit="transition")
    transitions.terminated[::7] = True
    networks: Any = facts.networks()
    with torch.no_grad():
        for target in networks.target_values.parameters():
            target += 0.1  # a target apart from what it follows
    policy = facts.policy(FlatParameters(facts.networks()).vector)
    plain = packed_rows(
        transitions,
        observation_space=policy.observation_space,
        action_space=policy.action_space,
        normalisation=policy.normalisation,
    )
    plain[:, -2] *= 0.25
    sizes: Any = type("Sizes", (), {"observation": 4, "action": 2})
    batch = as_batch(torch.from_numpy(plain), sizes, torch.empty(0))
    wanted = sum(facts.algorithm.losses(networks, batch, step=1))
    rows = facts.rows(transitions)
    found = facts.row_loss(networks, rows, rows[:, :0])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert float(batch.continues.min()) == 0 < float(batch.rewards.min())


def test_facts_travel_and_know_no_row(store: DatasetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("iter_transitions", "iter_trajectories", "read_transitions"):
        monkeypatch.setattr(DatasetStore, name, None)
    facts = facts_of(store)
    again = pickle.loads(pickle.dumps(facts))
    assert again == facts
    one, two = (FlatParameters(f.networks()).vector for f in (facts, again))
    assert torch.equal(one, two)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("federated", [None, LocalExpertConfig(epochs=2, batch_size=3)])
def test_one_expert_moves_the_sum_by_the_clip_norm_at_most(
    store: DatasetStore, agent: str, federated: LocalExpertConfig | None
) -> None:
    """Whatever its transitions hold; without a bound the same expert moves it further."""
    facts = facts_of(store, agent)
    batch = units(facts, store, 5, 4)
    batch.rows[2] *= 300
    parameters = FlatParameters(facts.networks())
    start = np.concatenate([parameters.numpy(), parameters.fixed_numpy()])
    norms = {}
    for clip_norm in (1e-2, None):
        update = AgentUpdate(
            facts=facts, clip_norm=clip_norm, micro_batch_rows=128, federated=federated
        )()
        sums = [
            np.array(update.clipped_sum(start, batch.part(u, u + 1)), np.float64) for u in range(5)
        ]
        whole = np.array(update.clipped_sum(start, batch), np.float64)
        np.testing.assert_allclose(whole, np.sum(sums, axis=0), rtol=1e-3, atol=1e-5)
        norms[clip_norm] = [float(np.linalg.norm(one)) for one in sums]
    assert max(norms[1e-2]) <= 1e-2 * (1 + 1e-6)
    assert norms[1e-2][2] == pytest.approx(1e-2, rel=1e-3)
    assert max(norms[None]) > 1e-2


@pytest.mark.parametrize("federated", [None, LocalExpertConfig()])
def test_an_expert_that_is_not_finite_adds_nothing(
    store: DatasetStore, federated: LocalExpertConfig | None
) -> None:
    facts = facts_of(store)
    batch = units(facts, store, 3, 4)
    batch.rows[1, 0, 0] = np.nan
    update = AgentUpdate(facts=facts, clip_norm=1.0, micro_batch_rows=64, federated=federated)()
    start = FlatParameters(facts.networks()).numpy()
    found = update.clipped_sum(start, batch).copy()
    others = sum(update.clipped_sum(start, batch.part(u, u + 1)).astype(float) for u in (0, 2))
    np.testing.assert_allclose(found, others, rtol=1e-4, atol=1e-6)


def test_the_vector_depends_on_the_target_that_is_broadcast(store: DatasetStore) -> None:
    facts = facts_of(store)
    batch = units(facts, store, 4, 4)
    flat = FlatParameters(facts.networks())
    for federated in (None, LocalExpertConfig()):
        update = AgentUpdate(facts=facts, clip_norm=1e3, micro_batch_rows=64, federated=federated)()
        sums = [
            update.clipped_sum(
                np.concatenate([flat.numpy(), flat.fixed_numpy() + shift]), batch
            ).copy()
            for shift in (0.0, 0.5)
        ]
        assert np.abs(sums[0] - sums[1]).max() > 1e-4
        with pytest.raises((ConfigError, ValueError), match="shape"):
            update.clipped_sum(flat.numpy()[:-1], batch)
        with pytest.raises((ConfigError, ValueError), match="shape"):
            update.clipped_sum(np.concatenate([flat.numpy(), [0.0]]), batch)


def test_the_policy_acts_on_raw_observations(store: DatasetStore, tmp_path: Path) -> None:
    facts = facts_of(store, hidden=(8, 8))
    policy = facts.policy(FlatParameters(facts.networks()).vector)
    states = store.read_trajectories(DATASET).observations[:200]
    networks: Any = facts.networks()
    encoded = facts.rows(store.read_transitions(DATASET, unit="transition"))[:100, :4]
    best = networks.values(encoded).argmax(dim=1).numpy()
    raw = store.read_transitions(DATASET, unit="transition").observations[:100]
    assert policy.act(raw).tolist() == best.tolist()
    assert set(policy.act(states)) <= {0, 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": [8]}, "give model.hidden instead"),
        ({"alpah": 1.0}, "no option alpah"),
        ({"alpha": -1.0}, "alpha must be >= 0"),
    ],
)
def test_wrong_settings_of_the_agent_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent_settings(AgentModelConfig(options=options))
