import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from benchmarks.offline_trainers import LoopNetworks, loop_edac_losses, members_of
from distributed_privrl.agents.algorithm import Algorithm, Sizes
from distributed_privrl.agents.bc import BC, BCConfig, BCNetworks, bc_loss
from distributed_privrl.agents.cql import CQL, CQLConfig, CQLNetworks, CQLNoise, cql_losses
from distributed_privrl.agents.edac import (
    EDAC,
    EDACConfig,
    EDACNetworks,
    edac_losses,
    slope_likeness,
)
from distributed_privrl.agents.ensemble import EnsembleCritic
from distributed_privrl.agents.policy import Policy
from distributed_privrl.agents.squashed_gaussian import (
    SquashedGaussian,
    squashed_gaussian,
    temperature_loss,
)
from distributed_privrl.agents.td3bc import (
    TD3BC,
    TD3BCConfig,
    TD3BCNetworks,
    td3bc_actor_loss,
    td3bc_critic_loss,
)
from distributed_privrl.agents.training import train_agent
from distributed_privrl.core.random import Streams
from tests.agents.rows import (
    BOX,
    batch,
    generator,
    gradients,
    one_row,
    set_linear,
    stir,
    transitions,
)

ONE = Sizes(1, 1)
UNIT = Box(-1.0, 1.0, (1,))
LINE = Box(-np.inf, np.inf, (1,))


def test_bc_losses_by_hand() -> None:
    row = one_row([1.0], [0.25], 0.0, [0.0])
    for actor, expected in (("deterministic", 0.0625), ("gaussian", 0.7 + 0.0625 / 2)):
        config = BCConfig(hidden=(), actor=actor)  # type: ignore[arg-type]
        nets = BCNetworks(ONE, config=config, generator=generator())
        set_linear(nets.actor, [[0.0]], [math.atanh(0.5)])
        if actor == "gaussian":
            expected = 0.0625 / 2 + 0.5 * math.log(2 * math.pi)
        torch.testing.assert_close(bc_loss(nets, row, config), torch.tensor([expected]))


def test_td3bc_losses_by_hand() -> None:
    config = TD3BCConfig(hidden=(), discount=0.9, alpha=2.5)
    nets = TD3BCNetworks(ONE, config=config, generator=generator())
    set_linear(nets.actor, [[0.0]], [math.atanh(0.5)])
    set_linear(nets.target_actor, [[0.0]], [math.atanh(0.2)])
    set_linear(nets.critic.first, [[1.0, 2.0]], [0.5])
    set_linear(nets.critic.second, [[0.0, 1.0]], [0.0])
    set_linear(nets.target_critic.first, [[1.0, 2.0]], [0.0])
    set_linear(nets.target_critic.second, [[0.0, 3.0]], [0.0])
    # Noise 10 x .2 is clipped to .5: the next action is .7, worth min(2 + 1.4, 2.1) = 2.1,
    # so 1 + .9 x 2.1 = 2.89 against 1 + .5 + .5 = 2 and .25.
    row = one_row([1.0], [0.25], 1.0, [2.0], noise=[10.0])
    expected = torch.tensor([0.89**2 + 2.64**2])
    torch.testing.assert_close(td3bc_critic_loss(nets, row, config), expected)
    # With -10 it is -.3: min(2 - .6, -.9), so 1 - .81 = .19.
    row = row._replace(noise=torch.tensor([[-10.0]]))
    expected = torch.tensor([1.81**2 + 0.06**2])
    torch.testing.assert_close(td3bc_critic_loss(nets, row, config), expected)
    row = row._replace(continues=torch.zeros(1))
    expected = torch.tensor([1 + 0.75**2])
    torch.testing.assert_close(td3bc_critic_loss(nets, row, config), expected)
    # The actor's .5 is worth 1 + 1 + .5 = 2.5; imitation costs .25^2.
    expected = torch.tensor([0.0625 - 2.5])
    torch.testing.assert_close(td3bc_actor_loss(nets, row, config), expected)
    given = td3bc_actor_loss(nets, row, config, value_scale=torch.tensor(5.0))
    torch.testing.assert_close(given, torch.tensor([0.0625 - 2.5 / 5 * 2.5]))


def test_td3bc_s_target_action_stays_inside_its_bounds() -> None:
    config = TD3BCConfig(hidden=())
    nets = TD3BCNetworks(ONE, config=config, generator=generator())
    for critic in (nets.critic, nets.target_critic):
        set_linear(critic.first, [[0.0, 1.0]], [0.0])
        set_linear(critic.second, [[0.0, 1.0]], [0.0])
    set_linear(nets.target_actor, [[0.0]], [math.atanh(0.9)])
    row = one_row([0.0], [0.0], 0.0, [0.0], noise=[10.0])
    expected = torch.tensor([2 * 0.99**2])
    torch.testing.assert_close(td3bc_critic_loss(nets, row, config), expected)


def test_td3bc_s_scale_is_the_mean_over_the_rows() -> None:
    config = TD3BCConfig(hidden=(8,))
    nets = TD3BCNetworks(BOX, config=config, generator=generator())
    rows = batch(7)
    actions = nets.actor(rows.observations).tanh()
    values, _ = nets.critic(torch.cat((rows.observations, actions), dim=1))
    scale = values.abs().mean().detach()
    expected = td3bc_actor_loss(nets, rows, config, value_scale=scale)
    torch.testing.assert_close(td3bc_actor_loss(nets, rows, config), expected)


def test_squashed_gaussian_is_torch_s() -> None:
    source = generator()
    mean, log_std, noise = (torch.randn(5, 3, generator=source) for _ in range(3))
    actions, log_probability = SquashedGaussian(mean, log_std).sample(noise)
    reference = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    torch.testing.assert_close(actions, (mean + log_std.exp() * noise).tanh())
    expected = reference.log_prob(actions.clamp(-0.999999, 0.999999)).sum(dim=1)
    torch.testing.assert_close(log_probability, expected, rtol=1e-3, atol=1e-3)
    several = noise.unsqueeze(1).expand(-1, 4, -1)
    many, logs = SquashedGaussian(mean, log_std).sample(several)
    torch.testing.assert_close(many[:, 2], actions)
    torch.testing.assert_close(logs[:, 3], log_probability)
    wide = squashed_gaussian(
        torch.tensor([[1.0, 9.0]]), log_std_range=(-5.0, 2.0), log_std_offset=-1.0
    )
    assert (wide.mean.tolist(), wide.log_std.tolist()) == ([[1.0]], [[2.0]])


def test_temperature_rises_while_entropy_is_below_its_target() -> None:
    log_temperature = torch.tensor(0.5, requires_grad=True)
    # Two numbers: the target entropy is -2, so log-probabilities above 2 are too sure.
    loss = temperature_loss(log_temperature, torch.tensor([3.0, 1.0]), -2)
    torch.testing.assert_close(loss, torch.tensor([-0.5, 0.5]))
    (slope,) = torch.autograd.grad(loss[0], log_temperature)
    assert slope < 0


def test_cql_losses_by_hand() -> None:
    config = CQLConfig(hidden=(), sampled_actions=1, alpha=5.0, discount=0.5)
    nets = CQLNetworks(ONE, config=config, generator=generator())
    # The actor's standard deviation is exp(1 - 1) = 1 around 0; all noise is 0 but the uniform's.
    set_linear(nets.actor, [[0.0], [0.0]], [0.0, 1.0])
    set_linear(nets.critic.first, [[0.0, 1.0]], [0.0])
    set_linear(nets.critic.second, [[0.0, 2.0]], [1.0])
    set_linear(nets.target_critic.first, [[1.0, 0.0]], [0.0])
    set_linear(nets.target_critic.second, [[2.0, 0.0]], [0.0])
    row = one_row([1.0], [0.5], 1.0, [3.0], noise=[0.0, 0.0, 0.0, 0.0, 1.0])
    uniform = math.erf(math.sqrt(0.5))  # of one standard deviation: .6827
    density = math.sqrt(2 * math.pi)  # 1 / the density of action 0
    target = 1 + 0.5 * 3
    critic = 0.0
    for slope, bias in ((1.0, 0.0), (2.0, 1.0)):
        value = 0.5 * slope + bias
        highest = math.log(2 * math.exp(uniform * slope + bias) + 2 * density * math.exp(bias))
        critic += (value - target) ** 2 + 5.0 * (highest - value)
    losses = cql_losses(nets, row, config)
    torch.testing.assert_close(losses.critic, torch.tensor([critic]))
    # Temperature 1 x log-probability of action 0, less the lower critic there.
    torch.testing.assert_close(losses.actor, torch.tensor([-math.log(density) - 0.0]))
    torch.testing.assert_close(losses.temperature, torch.tensor([0.0]))
    backup = cql_losses(
        nets,
        row,
        CQLConfig(hidden=(), sampled_actions=1, alpha=0.0, discount=0.5, entropy_backup=True),
    )
    target = 1 + 0.5 * (3 + math.log(density))
    expected = (0.5 - target) ** 2 + (2.0 - target) ** 2
    torch.testing.assert_close(backup.critic, torch.tensor([expected]))


def test_cql_s_noise_has_five_parts() -> None:
    parts = CQLNoise.of(torch.arange(2 * 3 * 8.0).reshape(3, 16) / 100, 2)
    assert [tuple(part.shape) for part in parts] == [
        (3, 2),
        (3, 2),
        (3, 2, 2),
        (3, 2, 2),
        (3, 2, 2),
    ]
    assert parts.sampled[0].tolist() == pytest.approx(np.array([[0.04, 0.05], [0.06, 0.07]]))
    draws = torch.randn(4000, 5, generator=generator())
    uniform = CQLNoise.of(draws, 1).uniform.reshape(-1)
    assert abs(float(uniform.mean())) < 0.05
    assert abs(float(uniform.square().mean()) - 1 / 3) < 0.03
    assert float(uniform.abs().max()) <= 1


def test_slope_likeness_by_hand() -> None:
    slopes = torch.tensor(
        [[[2.0, 0.0], [1.0, 0.0]], [[3.0, 0.0], [0.0, 5.0]], [[0.0, 1.0], [-1.0, 0.0]]]
    )
    # First row: two alike, one orthogonal: 2 x 1 / 2. Second: two opposite: 2 x -1 / 2.
    torch.testing.assert_close(slope_likeness(slopes), torch.tensor([1.0, -1.0]))
    still = torch.zeros(3, 1, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(slope_likeness(still).sum(), still)
    assert torch.isfinite(gradient).all()


def test_the_ensemble_s_values_and_slopes_are_those_of_its_members() -> None:
    critic = stir(EnsembleCritic(4, (8, 6, 5), 3, generator()))
    pairs = batch(9).pairs.clone().requires_grad_()
    values, slopes = critic.values_and_slopes(pairs.detach(), 2)
    torch.testing.assert_close(values, critic(pairs.detach()))
    for index, member in enumerate(members_of(critic)):
        alone = member(pairs).squeeze(-1)
        torch.testing.assert_close(values[index], alone)
        (slope,) = torch.autograd.grad(alone.sum(), pairs)
        torch.testing.assert_close(slopes[index], slope[:, 2:])


def test_the_lowest_critic_s_gradient_reaches_actions_alone() -> None:
    critic = stir(EnsembleCritic(4, (8, 6), 5, generator()), 0.5)
    rows = batch(40)
    actions = rows.actions.clone().requires_grad_()
    lowest = critic.lowest(rows.observations, actions)
    other = rows.actions.clone().requires_grad_()
    expected, member = critic(torch.cat((rows.observations, other), dim=1)).min(dim=0)
    assert len(member.unique()) > 1
    torch.testing.assert_close(lowest, expected)
    weight = torch.arange(40.0)
    (found,) = torch.autograd.grad((weight * lowest).sum(), actions)
    (wanted,) = torch.autograd.grad((weight * expected).sum(), other)
    torch.testing.assert_close(found, wanted)
    assert not gradients(critic, critic.lowest(rows.observations, actions))


def test_one_critic_may_be_the_lowest_of_all_rows() -> None:
    critic = stir(EnsembleCritic(4, (8, 6), 3, generator()), 0.5)
    with torch.no_grad():
        critic.biases[-1][1] -= 1e3
    rows = batch(7)
    actions = rows.actions.clone().requires_grad_()
    (found,) = torch.autograd.grad(critic.lowest(rows.observations, actions).sum(), actions)
    alone = list(members_of(critic))[1](torch.cat((rows.observations, actions), dim=1))
    (wanted,) = torch.autograd.grad(alone.sum(), actions)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("hidden", "eta"), [((8, 6, 5), 1.0), ((7,), 0.3), ((8, 6), 0.0)])
def test_edac_s_losses_and_gradients_are_those_of_a_loop(
    hidden: tuple[int, ...], eta: float
) -> None:
    config = EDACConfig(hidden=hidden, critics=4, eta=eta)
    nets = EDACNetworks(BOX, config=config, generator=generator())
    stir(nets, 0.3)
    loop = LoopNetworks(nets)
    rows = batch(12, noise_width=4)
    ours, theirs = edac_losses(nets, rows, config), loop_edac_losses(loop, rows, config)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    weight = torch.linspace(-1, 2, 12)
    found = gradients(nets, weight * sum(ours))
    wanted = gradients(loop, weight * sum(theirs))
    for layer in range(len(hidden) + 1):
        members = [
            wanted[f"critics.{member}.{2 * layer}.weight"].T for member in range(config.critics)
        ]
        torch.testing.assert_close(
            found[f"critic.weights.{layer}"], torch.stack(members), rtol=1e-3, atol=1e-3
        )
        biases = [
            wanted[f"critics.{member}.{2 * layer}.bias"][None] for member in range(config.critics)
        ]
        torch.testing.assert_close(
            found[f"critic.biases.{layer}"], torch.stack(biases), rtol=1e-3, atol=1e-3
        )
    for name in ("actor.0.weight", "log_temperature"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-3, atol=1e-3)


def test_edac_s_initial_weights_are_the_authors() -> None:
    nets = EDACNetworks(BOX, config=EDACConfig(hidden=(64, 64)), generator=generator())
    first, last = nets.critic.weights[0].detach(), nets.critic.weights[-1].detach()
    assert 0.45 < float(first.abs().max()) <= 0.5  # 1 / sqrt(2 + 2)
    assert 0.0025 < float(last.abs().max()) <= 0.003
    assert (nets.critic.biases[0] == 0.1).all()
    assert len(set(nets.critic(batch(1).pairs)[:, 0].tolist())) == 10
    assert float(nets.distribution(batch(5).observations).mean.detach().abs().max()) < 0.01


def train(agent: Algorithm[Any, Any], rows: Any, **options: Any) -> Policy:
    settings: dict[str, Any] = {
        "observation_space": LINE,
        "action_space": UNIT,
        "steps": 500,
        "streams": Streams(0),
        **options,
    }
    return train_agent(agent, rows, **settings)


@pytest.mark.parametrize("actor", ["deterministic", "gaussian"])
def test_bc_repeats_a_deterministic_behaviour(actor: Any) -> None:
    observations = np.random.default_rng(0).uniform(-3, 3, size=(2000, 1))
    config = BCConfig(hidden=(32, 32), batch_size=128, learning_rate=1e-2, actor=actor)
    policy = train(BC(config), transitions(observations, 0.8 * np.sin(observations)))
    rows = np.linspace(-2.8, 2.8, 57)[:, None]
    assert np.abs(policy.act(rows) - 0.8 * np.sin(rows)).mean() < 0.05


def test_bc_repeats_a_deterministic_discrete_behaviour() -> None:
    observations = np.random.default_rng(0).uniform(-3, 3, size=(2000, 1))
    actions = np.digitize(observations[:, 0], [-1, 1])
    config = BCConfig(hidden=(32,), batch_size=128, learning_rate=1e-2)
    policy = train(BC(config), transitions(observations, actions), action_space=Discrete(3))
    assert policy.act(np.array([[-2.5], [-1.2], [0.0], [1.2], [2.5]])).tolist() == [0, 0, 1, 2, 2]


def mixed(rows: int = 4000) -> Any:
    """Steps of `rollout`'s task: half by a good policy, half by one that runs away."""
    source = np.random.default_rng(0)
    positions = source.uniform(-1, 1, size=(rows, 1))
    good = source.random((rows, 1)) < 1 / 2
    direction = np.where(good, -4 * positions, 4 * positions)
    actions = np.clip(direction + source.normal(scale=0.5, size=(rows, 1)), -1, 1)
    following = np.clip(positions + 0.2 * actions, -1, 1)
    rewards = -np.abs(following[:, 0])
    return transitions(positions, actions, rewards, following, np.zeros(rows, bool))


def rollout(policy: Policy) -> float:
    """Return the mean return of ten steps towards 0."""
    positions, total = np.linspace(-1, 1, 41)[:, None], 0.0
    for _ in range(10):
        positions = np.clip(positions + 0.2 * policy.act(positions), -1, 1)
        total -= float(np.abs(positions).mean())
    return total


SMALL: dict[str, Any] = {"hidden": (32, 32), "batch_size": 128, "learning_rate": 3e-3}


def test_td3bc_beats_bc_on_mixed_data() -> None:
    cloned = rollout(train(BC(BCConfig(**SMALL)), mixed()))
    config = TD3BCConfig(**SMALL, discount=0.8, polyak=0.05)
    improved = rollout(train(TD3BC(config), mixed()))
    # The best policy gets -.6, standing still -5.1, running away -9.2.
    assert cloned < -4
    assert improved > -2


@pytest.mark.parametrize(
    "agent",
    [
        EDAC(EDACConfig(**SMALL, critics=3, discount=0.8, polyak=0.05)),
        CQL(
            CQLConfig(
                **SMALL,
                actor_learning_rate=3e-3,
                alpha=0.5,
                sampled_actions=4,
                discount=0.8,
                polyak=0.05,
            )
        ),
    ],
    ids=["edac", "cql"],
)
def test_soft_agents_find_the_good_half(agent: Algorithm[Any, Any]) -> None:
    assert rollout(train(agent, mixed(), steps=400)) > -2
