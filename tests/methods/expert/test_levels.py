"""Runs on experts with Box actions, by declared levels of them."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.action_levels import ActionLevels
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.expert.hosting import ExpertHost, host_specs
from distributed_privrl.methods.expert.prefix_plan import ALIKE_WITHIN_A_LEVEL
from distributed_privrl.privacy.verification import verify_certificate
from tests.methods.expert.swingers import BOUNDS, LEVELS, swingers, swingers_store
from tests.worlds.crowd import DATASET, EXPERTS, LENGTH, P_MIN, Crowd, crowd_store

STABLE = "crowd/stable-v0"
PENDULUM: dict[str, Any] = {
    "data__environment": "Pendulum-v1",
    "data__action_levels": LEVELS,
    "model__reward_scale": 1.0,
}


def world_of(folder: Path, master: DatasetStore) -> Crowd:
    world = Crowd(folder, master)
    (folder / "bounds.yaml").write_text(BOUNDS)
    return world


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    """Experts that act by the levels."""
    return swingers_store(tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def about(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    """The same actions, recorded up to 0.9 beside their levels; two experts' are no numbers."""
    return swingers_store(tmp_path_factory.mktemp("about"), spread=0.9, spoiled=(3, 8))


def test_a_run_from_box_actions_to_a_policy_of_box_actions(
    about: DatasetStore, tmp_path: Path
) -> None:
    world = world_of(tmp_path, about)
    result = world.run(
        key=None,  # noise as it is: of so much epsilon that some prefix is stable
        privacy__epsilon=80.0,
        output__dataset=STABLE,
        evaluation={"episodes": 2, "max_steps": 30},
        **PENDULUM,
    )
    folder = result.directory.path
    checked = verify_certificate(
        folder / "certificate.json", ledger=world.ledger, outputs_root=folder
    )
    assert checked.certificate.status == "valid"
    stable, rounds = checked.certificate.stages
    assert ALIKE_WITHIN_A_LEVEL in stable.assumptions
    assert ALIKE_WITHIN_A_LEVEL not in rounds.assumptions
    released = world.store.read_trajectories(STABLE)
    assert len(released) > 0
    assert set(released.actions.flatten().tolist()) <= set(LEVELS[0])
    environment = gymnasium.make("Pendulum-v1")
    assert isinstance(world.store.info(STABLE).action_space, gymnasium.spaces.Box)
    policy = Policy.load(folder / "policy.safetensors")
    states = world.store.read_trajectories(DATASET).observations[:300]
    actions = policy.act(states)
    assert actions.shape == (300, 1)
    assert set(actions.flatten().tolist()) <= set(LEVELS[0])
    environment.reset(seed=0)
    environment.step(actions[0])
    deployed = torch.jit.load(folder / "policy.pt")
    assert deployed(torch.from_numpy(states)).tolist() == actions.tolist()


@pytest.mark.parametrize(
    ("changes", "assumed"),
    [
        ({"filter__share": 0}, False),
        ({"filter__share": 1}, True),
        ({"privacy__epsilon": None}, False),
    ],
)
def test_every_variant_runs(
    exact: DatasetStore, tmp_path: Path, changes: dict[str, Any], assumed: bool
) -> None:
    result = world_of(tmp_path, exact).run(**PENDULUM, **changes)
    folder = result.directory.path / ("private" if "privacy__epsilon" in changes else "")
    chosen = Policy.load(folder / "policy.safetensors").act(np.zeros((1, 3), np.float32))
    assert chosen[0, 0] in LEVELS[0]
    told = [one for stage in result.certificate.stages for one in stage.assumptions]
    assert (ALIKE_WITHIN_A_LEVEL in told) == assumed


def test_hosts_see_levels_alone(exact: DatasetStore, about: DatasetStore) -> None:
    """What was recorded beside a level, and by how much, never leaves the reading of the data."""
    hosts = []
    for store in (exact, about):
        (spec,) = host_specs(
            store,
            DATASET,
            experts=EXPERTS,
            hosts=1,
            minimum_probability=P_MIN,
            release_pool=2,
            max_length=LENGTH,
            levels=ActionLevels(LEVELS),
        )
        hosts.append(ExpertHost(spec))
    live = [host.describe() for host in hosts]
    assert live[0].all()
    assert live[1].all()
    assert len(hosts[1].pools.drawn(3, 0).actions) == len(hosts[1].pools.drawn(8, 1).actions) == 0
    for expert in (0, 5, 30):
        one, other = (host.pools.drawn(expert, 1) for host in hosts)
        assert one.actions.dtype == np.int64
        assert one.actions.tolist() == other.actions.tolist()
        counts = hosts[0].prefix_counts(one.observations, one.actions)
        states = torch.from_numpy(one.observations[:1])
        policies = swingers()
        odds = [
            float(policies.log_probabilities(e, states)[0, one.actions[0]].exp())
            for e in range(EXPERTS)
        ]
        assert counts[0] == pytest.approx(sum(odds), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__action_levels": None}, "declare data.action_levels"),
        ({"data__action_levels": [[-2.0, 2.0]]}, "choose among 3 actions, its rows among 2"),
        ({"data__action_levels": [[-2.0, 0.0, 2.0], [0.0, 1.0]]}, "1 columns of actions, got 2"),
        ({"data__action_levels": [[-2.0, 0.0, 3.0]]}, "must lie inside"),
    ],
)
def test_levels_that_do_not_fit_are_refused_before_a_draw(
    exact: DatasetStore, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    world = world_of(tmp_path, exact)
    with pytest.raises(ConfigError, match=message):
        world.run(**{**PENDULUM, **changes})
    assert not world.ledger.entries(DATASET)
    assert not world.ledger.holds()


def test_discrete_actions_have_no_levels(tmp_path: Path) -> None:
    world = Crowd(tmp_path, crowd_store(tmp_path / "master"))
    with pytest.raises(ConfigError, match="leave them out"):
        world.run(data__action_levels=[[0.0, 1.0]])
