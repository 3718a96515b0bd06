"""SAC in batches: what a step keeps, how it is taken up again, and that it learns."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from distributed_privrl.agents.algorithm import cosine_rate
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import Policy
from distributed_privrl.agents.replay import ReplayBuffer
from distributed_privrl.agents.sac import SAC, SacConfig, SacTrainer
from distributed_privrl.agents.sampled_actions import sample_actions
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from tests.agents.rows import BOX, batch, generator, gradients, stir

TINY: dict[str, Any] = {
    "hidden": (8, 6),
    "batch_size": 16,
    "environments": 4,
    "horizon": 8,
    "warmup": 10,
    "capacity": 100,
}


class Counter:
    """Observations (row, steps since the reset): what a trainer does with them can be read off."""

    def __init__(self, terminal_at: float = math.inf) -> None:
        self.terminal_at = terminal_at
        self.resets: list[int] = []
        self.actions: list[Tensor] = []

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        self.resets.append(count)
        return torch.stack((torch.rand(count, generator=generator), torch.zeros(count)), dim=1)

    def step(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.actions.append(actions)
        after = observations + torch.tensor([0.0, 1.0])
        return after, after[:, 1], after[:, 1] >= self.terminal_at


class Pendulum:
    """Gymnasium's Pendulum-v1, many at once."""

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        angle, speed = (2 * torch.rand(2, count, generator=generator) - 1).unbind()
        angle = math.pi * angle
        return torch.stack((angle.cos(), angle.sin(), speed), dim=1)

    def step(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin, speed = observations.unbind(dim=1)
        angle, torque = torch.atan2(sin, cos), actions[:, 0]
        cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = (speed + 0.05 * (15 * angle.sin() + 3 * torque)).clamp(-8, 8)
        angle = angle + 0.05 * speed
        after = torch.stack((angle.cos(), angle.sin(), speed), dim=1)
        return after, -cost, torch.zeros(len(after), dtype=torch.bool)


def trainer(environment: Any = None, *, seed: int = 0, **options: Any) -> SacTrainer:
    parts = {key: options.pop(key) for key in ("normalisation", "real_rows") if key in options}
    return SacTrainer(
        SacConfig(**{**TINY, **options}),
        environment or Counter(),
        observation_width=2,
        action_low=np.array([-2.0, 0.0]),
        action_high=np.array([2.0, 10.0]),
        streams=Streams(seed),
        **parts,
    )


def kept_rows(agent: SacTrainer) -> Tensor:
    return agent.state()["buffer.rows"]


def test_a_full_buffer_overwrites_its_oldest_rows() -> None:
    buffer = ReplayBuffer(4, 1)
    buffer.add(torch.tensor([[1.0], [2.0], [3.0]]))
    assert (buffer.size, buffer.state()["rows"][:, 0].tolist()) == (3, [1, 2, 3])
    buffer.add(torch.tensor([[4.0], [5.0], [6.0]]))
    assert (buffer.size, buffer.state()["rows"][:, 0].tolist()) == (4, [5, 6, 3, 4])
    again = ReplayBuffer(4, 1)
    again.restore(buffer.state())
    again.add(torch.tensor([[7.0]]))
    assert again.state()["rows"][:, 0].tolist() == [5, 6, 7, 4]
    with pytest.raises(ConfigError, match="capacity=4"):
        buffer.add(torch.zeros(5, 1))
    with pytest.raises(ConfigError, match="do not fit"):
        ReplayBuffer(2, 1).restore(buffer.state())


def test_samples_are_of_the_rows_held_and_of_all_of_them() -> None:
    buffer = ReplayBuffer(100, 1)
    buffer.add(torch.arange(1.0, 4.0)[:, None])
    seen = buffer.sample(60, generator())
    assert sorted(set(seen[:, 0].tolist())) == [1, 2, 3]


def test_rows_hold_what_happened_in_the_networks_units() -> None:
    environment = Counter()
    normalisation = Normalisation(
        mean=np.array([0.5, 1.0], np.float32), spread=np.array([2.0, 4.0], np.float32)
    )
    agent = trainer(environment, normalisation=normalisation)
    agent.advance(1)
    first = kept_rows(agent)[:4]
    np.testing.assert_allclose(first[:, 1], -0.25)  # (0 - 1) / 4
    np.testing.assert_allclose(first[:, 5], 0.0)  # (1 - 1) / 4
    np.testing.assert_allclose(first[:, 4], first[:, 0])
    np.testing.assert_allclose(first[:, 6], 1.0)  # reward: the count after the step, raw
    np.testing.assert_allclose(first[:, 7], 1.0)
    unit, raw = first[:, 2:4], environment.actions[0]
    np.testing.assert_allclose(raw[:, 0], 2 * unit[:, 0], rtol=1e-5)
    np.testing.assert_allclose(raw[:, 1], 5 * unit[:, 1] + 5, rtol=1e-5)
    assert float(unit.abs().max()) <= 1


def test_a_row_begins_anew_at_the_horizon_without_being_terminal() -> None:
    agent = trainer(horizon=4, capacity=1000)
    progress = agent.advance(20)
    rows = kept_rows(agent)
    # Staggered ages: rows begin at 0, 1, 2, 3, so the first episodes are shorter.
    assert rows[:, 5].max() == 4
    assert rows[:, 7].min() == 1
    assert progress.episode_return == 1 + 2 + 3 + 4


def test_terminal_rows_say_so_and_begin_anew() -> None:
    agent = trainer(Counter(terminal_at=3), capacity=1000)
    assert agent.advance(20).episode_return == 1 + 2 + 3
    rows = kept_rows(agent)
    assert rows[:, 5].max() == 3
    assert ((rows[:, 5] == 3) == (rows[:, 7] == 0)).all()


@pytest.mark.parametrize(("gradient_steps", "expected"), [(1, 12), (3, 4)])
def test_the_environment_steps_once_for_some_gradient_steps(
    gradient_steps: int, expected: int
) -> None:
    environment = Counter()
    trainer(environment, gradient_steps=gradient_steps, warmup=4).advance(12)
    assert len(environment.actions) == expected


def test_held_actions_are_learned_from_as_one_step() -> None:
    environment = Counter()
    agent = trainer(environment, action_repeat=3, horizon=9, warmup=4, capacity=1000)
    progress = agent.advance(8)
    rows = kept_rows(agent)[:32]
    assert len(environment.actions) == 3 * 8
    for held in range(0, 24, 3):
        for later in environment.actions[held + 1 : held + 3]:
            assert torch.equal(later, environment.actions[held])
    assert torch.equal(rows[:, 5] - rows[:, 1], torch.full((32,), 3.0))
    assert torch.equal(rows[:, 6], rows[:, 1] + 2)  # the mean of the three counts that follow
    assert rows[:, 7].min() == 1
    assert rows[:, 5].max() == 9
    assert progress.episode_return == sum(range(1, 10))


def test_nothing_follows_where_a_held_action_ends_an_episode() -> None:
    agent = trainer(Counter(terminal_at=4), action_repeat=3, horizon=30, capacity=1000)
    assert agent.advance(12).episode_return == 1 + 2 + 3 + 4
    rows = kept_rows(agent)[:48]
    over = rows[:, 7] == 0
    assert torch.equal(over, rows[:, 1] == 3)
    assert (rows[over, 5] == 4).all()
    torch.testing.assert_close(rows[over, 6], torch.full((int(over.sum()),), 4 / 3))


def test_recorded_single_steps_do_not_mix_with_held_actions() -> None:
    real = torch.zeros(3, 8)
    with pytest.raises(ConfigError, match="set real_share to 0"):
        trainer(real_rows=real, real_share=0.05, action_repeat=2)
    trainer(real_rows=real, action_repeat=2, real_share=0.0).advance(1)


def test_actions_are_uniform_first_and_the_actor_s_then() -> None:
    environment = Counter()
    agent = trainer(environment, environments=1000, warmup=3000, capacity=4000)
    with torch.no_grad():
        last = agent.networks.actor[-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor([1.0, 1.0, -5.0, -5.0]))
    agent.advance(1)
    agent.advance(1)
    early, late = torch.cat(environment.actions[:3]), environment.actions[-1]
    assert len(environment.actions) == 4
    assert early[:, 0].std() == pytest.approx(4 / math.sqrt(12), rel=0.05)
    assert late[:, 0].mean() == pytest.approx(2 * math.tanh(1), rel=0.05)
    assert late[:, 0].std() < 0.1


def test_an_interrupted_training_ends_with_the_same_weights() -> None:
    whole = trainer()
    whole.advance(9)
    first = trainer()
    first.advance(4)
    second = trainer(seed=5)
    saved = first.state()
    first.advance(3)  # what was saved is a copy
    second.restore(saved)
    second.advance(5)
    left, right = whole.state(), second.state()
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=0, atol=0, msg=name)
    with pytest.raises(ConfigError, match="not of this trainer"):
        trainer(hidden=(4, 4)).restore(left)


def test_other_seeds_give_other_policies() -> None:
    assert not torch.equal(
        trainer().networks.actor[0].weight, trainer(seed=1).networks.actor[0].weight
    )


def test_a_share_of_each_batch_is_of_the_fixed_rows() -> None:
    real = torch.full((3, 8), 7.0)
    agent = trainer(real_rows=real, batch_size=100, real_share=0.05)
    agent.advance(2)
    for _ in range(3):
        assert int((agent._batch().rewards == 7.0).sum()) == 5
    without = trainer(batch_size=100)
    without.advance(1)
    assert int((without._batch().rewards == 7.0).sum()) == 0
    with pytest.raises(ConfigError, match="real_rows"):
        trainer(real_rows=torch.zeros(3, 7))


def test_training_may_see_rewards_from_another_zero() -> None:
    """In recorded rows too, and never in the returns that it shows."""
    real = torch.full((3, 8), 7.0)
    options: dict[str, Any] = {"real_rows": real, "batch_size": 100, "real_share": 0.05}
    plain, moved = trainer(**options), trainer(**options, reward_offset=-1.5)
    for agent in (plain, moved):
        agent._collect()
    size = moved._buffer.size
    rows, same = kept_rows(moved)[:size], kept_rows(plain)[:size]
    assert torch.allclose(rows[:, -2], same[:, -2] - 1.5)
    assert torch.equal(rows[:, :-2], same[:, :-2])
    torch.testing.assert_close(moved._returns, plain._returns, equal_nan=True)
    assert int((moved._batch().rewards == 5.5).sum()) == 5
    assert (real == 7.0).all()


def test_the_temperature_holds_the_entropy_that_is_asked_for() -> None:
    """Entropy above its target lowers the temperature, and the other way round."""
    rows = batch(9, BOX, noise_width=4)
    slopes = []
    for target in (-50.0, 50.0):
        algorithm = SAC(SacConfig(hidden=(8, 6), target_entropy=target))
        networks = stir(algorithm.networks(BOX, generator()))
        loss = algorithm.losses(networks, rows, step=1).temperature.mean()
        (slope,) = torch.autograd.grad(loss, networks.log_temperature)
        slopes.append(float(slope))
    assert slopes[0] > 0 > slopes[1]
    assert slopes[0] - slopes[1] == pytest.approx(100, rel=1e-5)


def test_each_loss_moves_its_own_weights_only() -> None:
    algorithm = SAC(SacConfig(hidden=(8, 6)))
    networks = stir(algorithm.networks(BOX, generator()))
    rows = batch(9, BOX, noise_width=algorithm.noise_width(BOX))
    losses = algorithm.losses(networks, rows, step=1)
    moved = [{name.split(".")[0] for name in gradients(networks, one)} for one in losses]
    assert moved == [{"log_temperature"}, {"actor"}, {"critic"}]


def test_sampled_actions_have_the_actor_s_distribution() -> None:
    agent = trainer()
    with torch.no_grad():
        last = agent.networks.actor[-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.1, -0.2, math.log(0.05), math.log(0.1)]))
    drawn = sample_actions(agent.policy(), torch.zeros(20_000, 2), generator())
    unbounded = torch.atanh((drawn - torch.tensor([0.0, 5.0])) / torch.tensor([2.0, 5.0]))
    np.testing.assert_allclose(unbounded.mean(dim=0), [0.1, -0.2], atol=0.005)
    np.testing.assert_allclose(unbounded.std(dim=0), [0.05, 0.1], rtol=0.05)


def test_a_policy_is_kept_with_its_deviations(tmp_path: Path) -> None:
    agent = trainer()
    agent.advance(2)
    policy = agent.policy()
    policy.save(tmp_path / "policy.safetensors")
    loaded = Policy.load(tmp_path / "policy.safetensors")
    observations = torch.rand(5, 2, generator=generator())
    np.testing.assert_array_equal(
        loaded.act(observations.numpy()), policy.act(observations.numpy())
    )
    draws = [sample_actions(one, observations, generator(3)) for one in (policy, loaded)]
    torch.testing.assert_close(*draws, rtol=0, atol=0)
    loaded.network = loaded.network[:-1]
    with pytest.raises(ConfigError, match="standard deviations"):
        sample_actions(loaded, observations, generator())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": 101}, "capacity=100"),
        ({"environments": 101}, "capacity=100"),
        ({"real_share": 1.5}, "real_share"),
        ({"target_entropy": math.nan}, "target_entropy"),
        ({"horizon": 0}, "horizon"),
        ({"action_repeat": 0}, "action_repeat"),
        ({"critics": 1}, "critics"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SacConfig(**{**TINY, **options})


def mean_return(policy: Policy, episodes: int = 100) -> float:
    environment, source = Pendulum(), generator(99)
    observations, total = environment.reset(episodes, source), torch.zeros(episodes)
    for _ in range(200):
        actions = torch.from_numpy(policy.act(observations.numpy()))
        observations, rewards, _ = environment.step(observations, actions, source)
        total += rewards
    return float(total.mean())


def test_it_swings_the_pendulum_up() -> None:
    """A policy that does nothing has about -1,200, the best one about -150."""
    config = SacConfig(
        hidden=(64, 64),
        learning_rate=3e-3,
        batch_size=128,
        discount=0.97,
        polyak=0.02,
        warmup=2000,
        environments=32,
    )
    agent = SacTrainer(
        config,
        Pendulum(),
        observation_width=3,
        action_low=np.array([-2.0]),
        action_high=np.array([2.0]),
        streams=Streams(0),
    )
    before = mean_return(agent.policy())
    agent.advance(1750)
    assert before < -900
    assert -250 < mean_return(agent.policy()) < -100


def test_learning_rates_fall_along_a_cosine_and_a_resume_takes_them_up() -> None:
    agent = trainer(decay_steps=8, learning_rate=1e-2)
    agent.advance(4)
    assert [group["lr"] for group in agent._optimiser.param_groups] == pytest.approx(
        [cosine_rate(1e-2, 3, 8)] * len(agent._optimiser.param_groups)
    )
    again = trainer(decay_steps=8, learning_rate=1e-2)
    again.restore(agent.state())
    for one in (agent, again):
        one.advance(3)
    weights = [one.networks.actor[0].weight.clone() for one in (agent, again)]
    assert torch.equal(*weights)
    agent.advance(3)
    assert agent._optimiser.param_groups[0]["lr"] == 0
    steady = agent.networks.actor[0].weight.clone()
    agent.advance(1)
    assert torch.equal(agent.networks.actor[0].weight, steady)
