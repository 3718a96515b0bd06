"""What every algorithm promises, checked for each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.cql import CQL, CQLConfig
from distributed_privrl.agents.names import AGENTS_FOR
from distributed_privrl.agents.policy import Policy
from distributed_privrl.agents.td3bc import TD3BC, td3bc_actor_loss, td3bc_critic_loss
from distributed_privrl.agents.training import make_optimiser, train_agent, update
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.evaluation.trainer import TRAINERS, PlainTrainer
from tests.agents.rows import (
    AGENTS,
    BOX,
    CONTINUOUS_AGENTS,
    DISCRETE_AGENTS,
    batch,
    generator,
    gradients,
    row,
    stir,
    transitions,
)

OBSERVATIONS = Box(-np.inf, np.inf, (2,))
EVERY_AGENT = pytest.mark.parametrize(
    ("agent", "sizes"), AGENTS, ids=[f"{agent.name}-{sizes.action}" for agent, sizes in AGENTS]
)
Agent = Algorithm[Any, Any]

MOVED = {
    "bc": [{"actor", "log_std"}],
    "iql": [{"value"}, {"critic"}, {"actor", "log_std"}],
    "td3bc": [{"critic"}, {"actor"}],
    "edac": [{"log_temperature"}, {"actor"}, {"critic"}],
    "cql": [{"log_temperature"}, {"actor"}, {"critic"}],
    "discrete_cql": [{"values"}],
    "discrete_bcq": [{"values"}, {"behaviour"}],
}


def prepared(agent: Agent, sizes: Sizes, rows: int = 9) -> tuple[nn.Module, Batch]:
    networks = stir(agent.networks(sizes, generator()))
    return networks, batch(rows, sizes, noise_width=agent.noise_width(sizes))


def losses(agent: Agent, networks: nn.Module, rows: Batch) -> tuple[Tensor, ...]:
    """Return all losses, TD3+BC's at a given scale of values: the one thing that couples rows."""
    if isinstance(agent, TD3BC):
        scale = torch.tensor(0.7)
        return (
            td3bc_critic_loss(networks, rows, agent.config),  # type: ignore[arg-type]
            td3bc_actor_loss(networks, rows, agent.config, value_scale=scale),  # type: ignore[arg-type]
        )
    return agent.losses(networks, rows, step=1)


@EVERY_AGENT
def test_a_row_s_loss_does_not_depend_on_other_rows(agent: Agent, sizes: Sizes) -> None:
    networks, rows = prepared(agent, sizes)
    together = losses(agent, networks, rows)
    for index in range(len(rows.rewards)):
        alone = losses(agent, networks, row(rows, index))
        for whole, one in zip(together, alone, strict=True):
            assert whole.shape == rows.rewards.shape
            torch.testing.assert_close(whole[index : index + 1], one, rtol=1e-4, atol=1e-5)


@EVERY_AGENT
def test_each_loss_moves_its_own_weights_only(agent: Agent, sizes: Sizes) -> None:
    networks, rows = prepared(agent, sizes)
    found = agent.losses(networks, rows, step=1)
    for position, expected in enumerate(MOVED[agent.name]):
        loss = agent.losses(networks, rows, step=1)[position]
        moved = {
            name.split(".")[0]
            for name, gradient in gradients(networks, loss).items()
            if gradient.abs().sum() > 0
        }
        assert moved == expected - ({"log_std"} if sizes.discrete else set())
    assert len(found) == len(MOVED[agent.name])


@EVERY_AGENT
def test_gradients_of_single_rows_by_torch_func_are_those_of_autograd(
    agent: Agent, sizes: Sizes
) -> None:
    """What a private method does: gradients of one unit's rows through the same losses."""
    networks, rows = prepared(agent, sizes, rows=4)
    weights = {n: p.detach() for n, p in networks.named_parameters() if p.requires_grad}

    class RowLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.networks = networks

        def forward(self, rows: Batch) -> Tensor:
            return torch.stack([one.sum() for one in losses(agent, self.networks, rows)]).sum()

    def loss(parameters: dict[str, Tensor], rows: Batch) -> Tensor:
        named = {f"networks.{name}": value for name, value in parameters.items()}
        result: Tensor = torch.func.functional_call(RowLoss(), named, (rows,))
        return result

    for index in range(4):
        alone = row(rows, index)
        expected = gradients(networks, sum(losses(agent, networks, alone)))  # type: ignore[arg-type]
        found = torch.func.grad(loss)(weights, alone)
        for name, gradient in found.items():
            other = expected.get(name, torch.zeros_like(gradient))
            torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("agent", DISCRETE_AGENTS, ids=lambda agent: agent.name)
def test_discrete_losses_can_be_mapped_over_units(agent: Agent) -> None:
    sizes = AGENTS[-1][1]
    networks, rows = prepared(agent, sizes, rows=6)
    weights = {n: p.detach() for n, p in networks.named_parameters() if p.requires_grad}

    class UnitLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.networks = networks

        def forward(self, unit: Batch) -> Tensor:
            return sum(agent.losses(self.networks, unit, step=1)).mean()  # type: ignore[union-attr]

    def loss(parameters: dict[str, Tensor], unit: Batch) -> Tensor:
        named = {f"networks.{name}": value for name, value in parameters.items()}
        result: Tensor = torch.func.functional_call(UnitLoss(), named, (unit,))
        return result

    units = Batch(*(column.reshape(3, 2, *column.shape[1:]) for column in rows))
    mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, units)
    for unit in range(3):
        part = Batch(*(column[2 * unit : 2 * unit + 2] for column in rows))
        mean = sum(agent.losses(networks, part, step=1)).mean()  # type: ignore[union-attr]
        for name, gradient in gradients(networks, mean).items():
            torch.testing.assert_close(mapped[name][unit], gradient, rtol=1e-4, atol=1e-6)


@EVERY_AGENT
def test_every_weight_is_trained_by_one_group_and_targets_by_none(
    agent: Agent, sizes: Sizes
) -> None:
    networks = agent.networks(sizes, generator())
    grouped = [id(one) for group in agent.parameter_groups(networks) for one in group["params"]]
    trained = {n: p for n, p in networks.named_parameters() if not n.startswith("target")}
    expected = {id(p) for p in trained.values() if p.requires_grad}
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == expected
    assert not any(p.requires_grad for n, p in networks.named_parameters() if n not in trained)


TARGETS = {
    "iql": {"target_critic": "critic"},
    "td3bc": {"target_critic": "critic", "target_actor": "actor"},
    "edac": {"target_critic": "critic"},
    "cql": {"target_critic": "critic"},
    "discrete_cql": {"target_values": "values"},
    "discrete_bcq": {"target_values": "values"},
}


@EVERY_AGENT
def test_targets_move_by_the_rate_when_it_is_their_turn(agent: Agent, sizes: Sizes) -> None:
    delays = {"td3bc": "policy_delay", "discrete_cql": "target_interval"}
    delays["discrete_bcq"] = delays["discrete_cql"]
    if agent.name in delays:
        agent = replace(agent, config=replace(agent.config, **{delays[agent.name]: 3}))
    networks = stir(agent.networks(sizes, generator()))
    before = {name: value.detach().clone() for name, value in networks.named_parameters()}
    optimiser = make_optimiser(agent, networks)
    agent.after_step(networks, optimiser, step=2, steps=10)
    waits = agent.name in delays
    agent.after_step(networks, optimiser, step=3, steps=10)
    pairs = TARGETS.get(agent.name, {})
    for name, value in networks.named_parameters():
        part, _, rest = name.partition(".")
        expected = before[name]
        for _ in range(1 if waits else 2):
            if part in pairs:
                expected = 0.995 * expected + 0.005 * before[f"{pairs[part]}.{rest}"]
        torch.testing.assert_close(value.detach(), expected)


@EVERY_AGENT
def test_an_update_follows_the_mean_over_rows(agent: Agent, sizes: Sizes) -> None:
    networks, rows = prepared(agent, sizes)
    total = sum(agent.losses(networks, rows, step=1)).mean()  # type: ignore[union-attr]
    expected = gradients(networks, total)
    before = {name: value.detach().clone() for name, value in networks.named_parameters()}
    descent = torch.optim.SGD(agent.parameter_groups(networks), lr=0.1)
    for group in descent.param_groups:
        group["lr"] = 0.1
    update(agent, networks, descent, rows, step=1, steps=10)
    for name, gradient in expected.items():
        after = dict(networks.named_parameters())[name].detach()
        torch.testing.assert_close(after, before[name] - 0.1 * gradient)


def test_cql_s_actor_has_a_learning_rate_of_its_own() -> None:
    agent = CQL(CQLConfig(learning_rate=0.5, actor_learning_rate=0.25))
    networks = agent.networks(BOX, generator())
    rates = {
        id(parameter): group["lr"]
        for group in make_optimiser(agent, networks).param_groups
        for parameter in group["params"]
    }
    for name, parameter in networks.named_parameters():
        if parameter.requires_grad:
            assert rates[id(parameter)] == (0.5 if name.startswith("critic") else 0.25)


def data(sizes: Sizes, rows: int = 60) -> Any:
    source = np.random.default_rng(0)
    return transitions(
        source.normal(size=(rows, 2)),
        source.integers(0, 3, size=rows) if sizes.discrete else source.uniform(-1, 1, (rows, 2)),
        source.normal(size=rows),
        source.normal(size=(rows, 2)),
        source.random(rows) < 0.2,
    )


def actions_of(sizes: Sizes) -> Any:
    return Discrete(3) if sizes.discrete else Box(-1.0, 1.0, (2,))


def train(agent: Agent, sizes: Sizes, **options: Any) -> Policy:
    settings: dict[str, Any] = {"steps": 12, "streams": Streams(0), **options}
    return train_agent(
        agent,
        data(sizes),
        observation_space=OBSERVATIONS,
        action_space=actions_of(sizes),
        **settings,
    )


def weights_of(policy: Policy) -> Tensor:
    return torch.cat([one.detach().reshape(-1) for one in policy.network.parameters()])


@EVERY_AGENT
def test_the_same_streams_give_the_same_policy(agent: Agent, sizes: Sizes) -> None:
    state = torch.get_rng_state()
    first, second = train(agent, sizes), train(agent, sizes)
    assert torch.equal(weights_of(first), weights_of(second))
    other = train(agent, sizes, streams=Streams(1))
    assert not torch.equal(weights_of(first), weights_of(other))
    assert torch.equal(torch.get_rng_state(), state)


@EVERY_AGENT
def test_a_trained_policy_is_saved_and_acts_inside_its_space(
    agent: Agent, sizes: Sizes, tmp_path: Path
) -> None:
    policy = train(agent, sizes)
    policy.save(tmp_path / "policy.safetensors")
    loaded = Policy.load(tmp_path / "policy.safetensors")
    rows = np.random.default_rng(1).normal(size=(20, 2))
    np.testing.assert_array_equal(loaded.act(rows), policy.act(rows))
    assert all(actions_of(sizes).contains(action) for action in policy.act(rows))


@EVERY_AGENT
def test_every_weight_that_acts_moves_in_training(agent: Agent, sizes: Sizes) -> None:
    start = agent.acting(agent.networks(sizes, generator(Streams(0).integer("initial weights"))))
    before = torch.cat([one.detach().reshape(-1) for one in start.network.parameters()])
    moved = (weights_of(train(agent, sizes)) - before).abs()
    assert (moved > 0).float().mean() > 0.7


@pytest.mark.parametrize("agent", CONTINUOUS_AGENTS[1:], ids=lambda agent: agent.name)
def test_box_agents_name_those_for_discrete_actions(agent: Agent) -> None:
    with pytest.raises(ConfigError, match=r"must be a Box .* bc, discrete_bcq, discrete_cql inst"):
        train_agent(
            agent,
            data(AGENTS[-1][1]),
            observation_space=OBSERVATIONS,
            action_space=Discrete(3),
            steps=1,
            streams=Streams(0),
        )


@pytest.mark.parametrize("agent", DISCRETE_AGENTS[1:], ids=lambda agent: agent.name)
def test_discrete_agents_name_those_for_box_actions(agent: Agent) -> None:
    with pytest.raises(ConfigError, match=r"must be a Discrete .* bc, cql, edac, iql, td3bc inst"):
        agent.check_actions(Box(-1.0, 1.0, (2,)))
    with pytest.raises(ConfigError, match="no agent knows such actions"):
        agent.check_actions(MultiDiscrete([2, 2]))


def test_the_names_in_that_advice_are_those_of_the_trainers() -> None:
    known: dict[str, set[str]] = {"Box": set(), "Discrete": set()}
    for trainer in TRAINERS.values():
        assert isinstance(trainer, PlainTrainer)
        for kind in trainer.algorithm.action_spaces:
            known[kind.__name__].add(trainer.name)
    assert {kind: set(names) for kind, names in AGENTS_FOR.items()} == known


def test_defaults_are_those_of_the_papers_and_corl() -> None:
    configs = {name: trainer.algorithm.config for name, trainer in TRAINERS.items()}  # type: ignore[attr-defined]
    for config in configs.values():
        assert (config.batch_size, config.learning_rate) == (256, 3e-4)
        assert config.hidden in ((256, 256), (256, 256, 256))
    for name, config in configs.items():
        if name != "bc":
            assert (config.discount, config.polyak) == (0.99, 0.005)
    td3bc, edac, cql = configs["td3bc"], configs["edac"], configs["cql"]
    assert (td3bc.alpha, td3bc.policy_noise, td3bc.noise_clip) == (2.5, 0.2, 0.5)
    assert (td3bc.policy_delay, td3bc.hidden) == (2, (256, 256))
    assert (edac.critics, edac.eta, edac.hidden) == (10, 1.0, (256, 256, 256))
    assert (cql.alpha, cql.sampled_actions, cql.actor_learning_rate) == (10.0, 10, 3e-5)
    assert configs["discrete_cql"].alpha == 4.0
    assert configs["discrete_bcq"].threshold == 0.3
    assert (configs["iql"].beta, configs["iql"].expectile) == (3.0, 0.7)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bc", {"actor": "x"}),
        ("bc", {"hidden": (0,)}),
        ("bc", {"batch_size": 0}),
        ("bc", {"batch_size": 2.5}),
        ("bc", {"hidden": (8.0,)}),
        ("td3bc", {"policy_delay": 0}),
        ("td3bc", {"alpha": -1.0}),
        ("td3bc", {"polyak": 0.0}),
        ("edac", {"critics": 1}),
        ("edac", {"eta": -0.1}),
        ("cql", {"alpha": -1.0}),
        ("cql", {"sampled_actions": 0}),
        ("discrete_cql", {"alpha": -1.0}),
        ("discrete_cql", {"target_interval": 0}),
        ("discrete_bcq", {"threshold": 1.0}),
        ("discrete_bcq", {"logit_penalty": -1.0}),
    ],
)
def test_wrong_settings_are_named(name: str, values: dict[str, Any]) -> None:
    config = TRAINERS[name].algorithm.config  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=next(iter(values))):
        replace(config, **values)


def test_discrete_actions_outside_their_space_are_refused() -> None:
    agent, sizes = AGENTS[-1]
    with pytest.raises(ConfigError, match=r"actions must lie in Discrete\(2\)"):
        train_agent(
            agent,
            data(sizes),
            observation_space=OBSERVATIONS,
            action_space=Discrete(2),
            steps=1,
            streams=Streams(0),
        )


def test_delayed_losses_leave_weights_and_moments_alone() -> None:
    agent = TD3BC(replace(CONTINUOUS_AGENTS[2].config, policy_delay=3))
    acted = [
        train(agent, BOX, steps=steps).act(np.array([[0.3, -0.2], [1.0, 2.0]]))
        for steps in (1, 2, 3)
    ]
    np.testing.assert_array_equal(acted[0], acted[1])
    assert not np.array_equal(acted[1], acted[2])
