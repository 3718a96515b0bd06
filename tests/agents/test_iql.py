import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from distributed_privrl.agents.algorithm import Batch, cosine_rate
from distributed_privrl.agents.bc import gaussian_imitation_loss
from distributed_privrl.agents.iql import (
    IQL,
    IQLConfig,
    IQLNetworks,
    advantage_weights,
    expectile_loss,
    iql_losses,
)
from distributed_privrl.agents.policy import Policy
from distributed_privrl.agents.training import train_agent
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Transitions

OBSERVATIONS = Box(-np.inf, np.inf, (1,))
ACTIONS = Box(-1.0, 1.0, (1,))
SMALL = IQLConfig(hidden=(32, 32), batch_size=128, learning_rate=3e-3)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def networks(config: IQLConfig) -> IQLNetworks:
    return IQLNetworks(2, 1, config=config, generator=generator())


def batch(rows: int, seed: int = 1) -> Batch:
    source = generator(seed)
    pairs = torch.randn(rows, 3, generator=source)
    return Batch(
        pairs=pairs,
        observations=pairs[:, :2],
        actions=pairs[:, 2:].tanh(),
        rewards=torch.randn(rows, generator=source),
        next_observations=torch.randn(rows, 2, generator=source),
        continues=(torch.rand(rows, generator=source) < 0.5).float(),
    )


def bandit(rows: int = 4000) -> Transitions:
    """One-step episodes: the reward is highest where the action equals the observation."""
    source = np.random.default_rng(0)
    observations = source.uniform(-0.8, 0.8, size=(rows, 1))
    actions = source.uniform(-1, 1, size=(rows, 1))
    return Transitions(
        observations=observations,
        actions=actions,
        rewards=-10 * ((actions - observations) ** 2)[:, 0],
        next_observations=observations,
        terminated=np.ones(rows, bool),
        truncated=np.zeros(rows, bool),
        unit_ids=np.arange(rows),
    )


def train(transitions: Transitions, **options: Any) -> Policy:
    settings = {
        "observation_space": OBSERVATIONS,
        "action_space": ACTIONS,
        "steps": 20,
        "streams": Streams(0),
        **options,
    }
    config = settings.pop("config", SMALL)
    return train_agent(IQL(config), transitions, **settings)


def test_expectile_loss_by_hand() -> None:
    loss = expectile_loss(torch.tensor([2.0, -2.0, 0.0]), 0.7)
    torch.testing.assert_close(loss, torch.tensor([2.8, 1.2, 0.0]))


def test_gaussian_imitation_loss_by_hand() -> None:
    mean, actions = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    log_std = torch.tensor([0.0, math.log(2.0)])
    # .5 (1 + 1/4) + log 2 + log 2 pi
    expected = 0.625 + math.log(2) + math.log(2 * math.pi)
    loss = gaussian_imitation_loss(mean, log_std, actions)
    torch.testing.assert_close(loss, torch.tensor([expected]))


def test_advantage_weights_by_hand() -> None:
    advantage = torch.tensor([0.0, 1.0, -1.0, 5.0], requires_grad=True)
    weights = advantage_weights(advantage, beta=3.0, maximum=100.0)
    expected = torch.tensor([1.0, math.exp(3), math.exp(-3), 100.0])
    torch.testing.assert_close(weights, expected)
    assert not weights.requires_grad


def test_cosine_rate_by_hand() -> None:
    assert [cosine_rate(2.0, step, 4) for step in (0, 2, 4)] == pytest.approx([2, 1, 0])


@pytest.mark.parametrize("actor", ["gaussian", "deterministic"])
def test_losses_are_those_of_the_equations(actor: Any) -> None:
    config = IQLConfig(hidden=(8,), actor=actor, discount=0.9, beta=2.0, expectile=0.8)
    nets, rows = networks(config), batch(6)
    for parameter in nets.target_critic.parameters():
        parameter.data.mul_(1.5)  # so that a mix-up of critic and target shows
    losses = iql_losses(nets, rows, config)
    target = torch.minimum(*nets.target_critic(rows.pairs))
    advantage = target - nets.value(rows.observations)[:, 0]
    bellman = rows.rewards + 0.9 * rows.continues * nets.value(rows.next_observations)[:, 0]
    first, second = nets.critic(rows.pairs)
    torch.testing.assert_close(losses.value, expectile_loss(advantage, 0.8))
    torch.testing.assert_close(
        losses.critic, ((first - bellman) ** 2 + (second - bellman) ** 2) / 2
    )
    mean = nets.actor(rows.observations).tanh()
    error = (mean - rows.actions)[:, 0] ** 2
    imitation = error / 2 + math.log(2 * math.pi) / 2 if actor == "gaussian" else error
    torch.testing.assert_close(losses.actor, (2 * advantage).exp() * imitation)


@pytest.mark.parametrize(
    ("loss", "moved"), [("value", "value"), ("critic", "critic"), ("actor", "actor")]
)
def test_each_loss_moves_its_own_network_only(loss: str, moved: str) -> None:
    config = IQLConfig(hidden=(8,))
    nets = networks(config)
    torch.autograd.backward(getattr(iql_losses(nets, batch(6), config), loss).sum())
    touched = {
        name.split(".")[0]
        for name, parameter in nets.named_parameters()
        if parameter.grad is not None and parameter.grad.abs().sum() > 0
    }
    assert touched - {"log_std"} == {moved}
    assert ("log_std" in touched) == (loss == "actor")


def test_no_loss_couples_rows() -> None:
    config = IQLConfig(hidden=(8,))
    nets, rows = networks(config), batch(6)
    together = iql_losses(nets, rows, config)
    alone = iql_losses(nets, Batch(*(column[2:3] for column in rows)), config)
    for whole, one in zip(together, alone, strict=True):
        torch.testing.assert_close(whole[2:3], one)


def test_training_finds_better_actions_than_the_data_s() -> None:
    config = IQLConfig(hidden=(32, 32), batch_size=128, learning_rate=3e-3, expectile=0.9)
    agent = train(bandit(), steps=600, config=config)
    observations = np.linspace(-0.7, 0.7, 29)[:, None]
    error = np.abs(agent.act(observations) - observations).mean()
    # Imitation would act near 0 everywhere (mean error .36), the data at random (.58).
    assert error < 0.12


def test_without_weights_training_imitates() -> None:
    config = IQLConfig(hidden=(32, 32), batch_size=128, learning_rate=3e-3, beta=0.0)
    agent = train(bandit(), steps=400, config=config)
    assert np.abs(agent.act(np.linspace(-0.7, 0.7, 29)[:, None])).mean() < 0.15


def test_bounds_and_observations_are_scaled_by_the_training_data() -> None:
    raw = bandit()
    shifted = Transitions(
        observations=1000 + 50 * raw.observations,
        actions=5 + 5 * raw.actions,
        rewards=raw.rewards,
        next_observations=1000 + 50 * raw.next_observations,
        terminated=raw.terminated,
        truncated=raw.truncated,
        unit_ids=raw.unit_ids,
    )
    agent = train(shifted, steps=600, action_space=Box(0.0, 10.0, (1,)))
    observations = np.linspace(-0.7, 0.7, 29)[:, None]
    acted = (agent.act(1000 + 50 * observations) - 5) / 5
    assert np.abs(acted - observations).mean() < 0.2
    assert agent.normalisation.mean[0] == pytest.approx(1000, abs=2)


def test_discrete_observations_are_accepted() -> None:
    raw = bandit(500)
    states = np.random.default_rng(1).integers(0, 2, size=500)
    transitions = Transitions(
        observations=states,
        actions=raw.actions,
        rewards=-10 * (raw.actions[:, 0] - (2 * states - 1) * 0.5) ** 2,
        next_observations=states,
        terminated=raw.terminated,
        truncated=raw.truncated,
        unit_ids=raw.unit_ids,
    )
    agent = train(transitions, steps=400, observation_space=Discrete(2))
    low, high = agent.act(np.array([0, 1]))[:, 0]
    assert low < -0.2
    assert high > 0.2


def test_the_same_streams_give_the_same_policy() -> None:
    data, rows = bandit(200), np.linspace(-1, 1, 9)[:, None]
    state = torch.get_rng_state()
    first, second = train(data).act(rows), train(data).act(rows)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, train(data, streams=Streams(1)).act(rows))
    assert torch.equal(torch.get_rng_state(), state)


def test_callbacks_see_every_step_and_every_evaluation() -> None:
    steps: list[int] = []
    evaluations: list[int] = []
    agent = train(
        bandit(200),
        steps=10,
        evaluate_every=4,
        on_evaluation=lambda step, policy: evaluations.append(step),
        progress=steps.append,
    )
    assert isinstance(agent, Policy)
    assert steps == list(range(1, 11))
    assert evaluations == [4, 8]


def test_no_transitions_is_an_error() -> None:
    with pytest.raises(ConfigError, match="transitions is empty"):
        train(bandit(5).select(slice(0)))


@pytest.mark.parametrize(
    "values", [{"expectile": 1.5}, {"beta": -1.0}, {"actor": "x"}, {"discount": 2.0}]
)
def test_wrong_settings_are_named(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        IQLConfig(**values)


def test_batches_hold_whole_transitions(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(50.0)
    transitions = Transitions(
        observations=np.stack([rows, -rows], axis=1),
        actions=(rows / 10)[:, None],
        rewards=rows,
        next_observations=np.stack([rows + 0.5, 7 * rows], axis=1),
        terminated=rows % 2 == 0,
        truncated=rows % 3 == 0,
        unit_ids=np.arange(50),
    )
    seen: list[Batch] = []

    def spy(nets: IQLNetworks, batch: Batch, config: IQLConfig) -> Any:
        seen.append(batch)
        return iql_losses(nets, batch, config)

    monkeypatch.setattr("distributed_privrl.agents.iql.iql_losses", spy)
    agent = train(
        transitions,
        observation_space=Box(-np.inf, np.inf, (2,)),
        action_space=Box(0.0, 10.0, (1,)),
        steps=3,
    )
    for drawn in seen:
        index = drawn.rewards.numpy()
        here = agent.normalisation.apply(np.stack([index, -index], axis=1))
        following = agent.normalisation.apply(np.stack([index + 0.5, 7 * index], axis=1))
        np.testing.assert_allclose(drawn.observations, here, atol=1e-5)
        np.testing.assert_allclose(drawn.next_observations, following, atol=1e-5)
        np.testing.assert_allclose(drawn.actions[:, 0], index / 50 - 1, atol=1e-5)
        np.testing.assert_array_equal(drawn.pairs, torch.cat(drawn[1:3], dim=1))
        np.testing.assert_array_equal(drawn.continues, index % 2)  # truncation ends nothing
    drawn_rows = np.concatenate([drawn.rewards for drawn in seen])
    assert len(np.unique(drawn_rows)) > 45


def test_the_actor_s_learning_rate_follows_the_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed_privrl.agents.iql.cosine_rate", lambda *_: 0.0)
    data, rows = bandit(200), np.linspace(-1, 1, 9)[:, None]
    after_one, after_five = (train(data, steps=steps).act(rows) for steps in (1, 5))
    np.testing.assert_array_equal(after_one, after_five)  # the rate fell to 0 after one step
