"""Losses agree with d3rlpy's on copied weights (its public interface: `update` names its losses).

d3rlpy's learning rates are 0 here, so that all losses of an update are taken at the same weights.
It has no EDAC; CQL's sampled term is random there, so its expectation is compared. Where the two
define a loss differently (the loss' docstring says so), weights or noise make the definitions meet.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.bc import BC, BCConfig
from distributed_privrl.agents.cql import CQL, CQLConfig
from distributed_privrl.agents.discrete_bcq import DiscreteBCQ, DiscreteBCQConfig
from distributed_privrl.agents.discrete_cql import DiscreteCQL, DiscreteCQLConfig
from distributed_privrl.agents.iql import IQL, IQLConfig
from distributed_privrl.agents.td3bc import TD3BC, TD3BCConfig
from tests.agents.rows import BOX, DISCRETE, generator

pytestmark = pytest.mark.parity

HIDDEN = (16, 12)
OURS: dict[str, Any] = {"hidden": HIDDEN, "discount": 0.9}
FROZEN = {"actor_learning_rate": 0.0, "critic_learning_rate": 0.0}


@pytest.fixture
def d3rlpy() -> Iterator[Any]:
    """The library, whose weights and draws come from torch's global generator, restored after."""
    library = pytest.importorskip("d3rlpy", reason="the extra `parity` is not installed")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield library


def encoder(d3rlpy: Any) -> Any:
    return d3rlpy.models.VectorEncoderFactory(hidden_units=list(HIDDEN))


def encoders(d3rlpy: Any) -> dict[str, Any]:
    return {name: encoder(d3rlpy) for name in ("actor_encoder_factory", "critic_encoder_factory")}


def episodes(d3rlpy: Any, sizes: Sizes) -> Any:
    """Return eight episodes of nine steps, half of which end and half of which are cut."""
    source = np.random.default_rng(0)
    made = [
        d3rlpy.dataset.Episode(
            observations=source.normal(size=(9, sizes.observation)).astype(np.float32),
            actions=(
                source.integers(0, sizes.action, size=(9, 1))
                if sizes.discrete
                else source.uniform(-0.9, 0.9, size=(9, sizes.action)).astype(np.float32)
            ),
            rewards=source.normal(size=(9, 1)).astype(np.float32),
            terminated=index % 2 == 0,
        )
        for index in range(8)
    ]
    return d3rlpy.dataset.create_infinite_replay_buffer(episodes=made)


def every_transition(d3rlpy: Any, dataset: Any) -> Any:
    """Return the transitions of ``dataset`` as one batch: no draw may miss those that end."""
    pick = d3rlpy.dataset.BasicTransitionPicker()
    return d3rlpy.dataset.TransitionMiniBatch.from_transitions(
        [
            pick(episode, index)
            for episode in dataset.episodes
            for index in range(episode.transition_count)
        ]
    )


class Pair:
    """The same rows and weights in both libraries."""

    def __init__(self, d3rlpy: Any, theirs: Any, ours: Algorithm[Any, Any], sizes: Sizes) -> None:
        dataset = episodes(d3rlpy, sizes)
        self.theirs = theirs.create(device="cpu:0")
        self.theirs.build_with_dataset(dataset)
        self.modules = self.theirs.impl.modules
        self.rows = every_transition(d3rlpy, dataset)
        assert self.rows.terminals.sum() == 4
        self.ours = ours
        self.networks = ours.networks(sizes, generator())
        self.batch = as_batch(self.rows, sizes, ours.noise_width(sizes))

    def copy(self, ours: nn.Module, *theirs: nn.Module) -> None:
        """Copy the linear layers of ``theirs`` into ``ours``, in order."""
        source = [one for part in theirs for one in linears(part)]
        target = linears(ours)
        assert len(source) == len(target)
        for mine, other in zip(target, source, strict=True):
            mine.load_state_dict(other.state_dict())

    def copy_critics(self) -> None:
        """Copy twin critics and their targets, which are moved apart first."""
        move(self.modules.targ_q_funcs)
        self.copy(self.networks.critic, *self.modules.q_funcs)
        self.copy(self.networks.target_critic, *self.modules.targ_q_funcs)

    def losses(self) -> tuple[Tensor, ...]:
        """Return the mean of each of our losses."""
        with torch.no_grad():
            return tuple(one.mean() for one in self.ours.losses(self.networks, self.batch, step=2))

    def update(self) -> dict[str, float]:
        """Return their losses."""
        return dict(self.theirs.update(self.rows))


def linears(module: nn.Module) -> list[nn.Linear]:
    return [one for one in module.modules() if isinstance(one, nn.Linear)]


def move(module: nn.Module) -> None:
    source = generator(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=source))


def as_batch(rows: Any, sizes: Sizes, noise_width: int) -> Batch:
    observations = torch.as_tensor(rows.observations).float()
    actions = torch.as_tensor(rows.actions)
    if sizes.discrete:
        actions = torch.eye(sizes.action)[actions.long().reshape(-1)]
    return Batch(
        pairs=torch.cat((observations, actions.float()), dim=1),
        observations=observations,
        actions=actions.float(),
        rewards=torch.as_tensor(rows.rewards).float().reshape(-1),
        next_observations=torch.as_tensor(rows.next_observations).float(),
        continues=1 - torch.as_tensor(rows.terminals).float().reshape(-1),
        noise=torch.zeros(len(observations), noise_width),
    )


def close(ours: Tensor, theirs: float, tolerance: float = 1e-5) -> None:
    assert float(ours) == pytest.approx(float(theirs), rel=tolerance, abs=tolerance)


def test_bc(d3rlpy: Any) -> None:
    theirs = d3rlpy.algos.BCConfig(learning_rate=0.0, encoder_factory=encoder(d3rlpy))
    pair = Pair(d3rlpy, theirs, BC(BCConfig(hidden=HIDDEN)), BOX)
    pair.copy(pair.networks.actor, pair.modules.imitator)
    close(pair.losses()[0], pair.update()["loss"])


def test_discrete_bc(d3rlpy: Any) -> None:
    theirs = d3rlpy.algos.DiscreteBCConfig(
        learning_rate=0.0, beta=0.0, encoder_factory=encoder(d3rlpy)
    )
    pair = Pair(d3rlpy, theirs, BC(BCConfig(hidden=HIDDEN)), DISCRETE)
    pair.copy(pair.networks.actor, pair.modules.imitator)
    close(pair.losses()[0], pair.update()["loss"])


def test_iql(d3rlpy: Any) -> None:
    theirs = d3rlpy.algos.IQLConfig(
        gamma=0.9,
        expectile=0.8,
        weight_temp=2.0,
        value_encoder_factory=encoder(d3rlpy),
        **encoders(d3rlpy),
        **FROZEN,
    )
    pair = Pair(d3rlpy, theirs, IQL(IQLConfig(**OURS, expectile=0.8, beta=2.0)), BOX)
    pair.copy_critics()
    pair.copy(pair.networks.value, pair.modules.value_func)
    pair.copy(pair.networks.actor, pair.modules.policy)
    with torch.no_grad():
        output = pair.modules.policy(pair.batch.observations)
        pair.networks.log_std.copy_(output.logstd.reshape(-1, BOX.action)[0])
    value, critic, actor = pair.losses()
    found = pair.update()
    close(value, found["v_loss"])
    close(2 * critic, found["q_loss"])  # theirs is the sum of both critics, ours the mean
    close(actor, found["actor_loss"])


def test_td3bc(d3rlpy: Any) -> None:
    theirs = d3rlpy.algos.TD3PlusBCConfig(
        gamma=0.9, alpha=2.5, target_smoothing_sigma=0.0, **encoders(d3rlpy), **FROZEN
    )
    pair = Pair(d3rlpy, theirs, TD3BC(TD3BCConfig(**OURS)), BOX)
    pair.copy_critics()
    move(pair.modules.targ_policy)
    pair.copy(pair.networks.actor, pair.modules.policy)
    pair.copy(pair.networks.target_actor, pair.modules.targ_policy)
    critic, actor = pair.losses()
    found = pair.update()
    close(critic, found["critic_loss"])
    close(actor, found["actor_loss"])


def cql(d3rlpy: Any, *, samples: int, weight: float) -> Pair:
    theirs = d3rlpy.algos.CQLConfig(
        gamma=0.9,
        n_action_samples=samples,
        conservative_weight=weight,
        alpha_learning_rate=0.0,
        temp_learning_rate=0.0,
        initial_alpha=1.0,
        alpha_threshold=0.0,
        **encoders(d3rlpy),
        **FROZEN,
    )
    ours = CQLConfig(**OURS, sampled_actions=samples, alpha=weight)
    pair = Pair(d3rlpy, theirs, CQL(ours), BOX)
    pair.copy_critics()
    source, target = linears(pair.modules.policy), linears(pair.networks.actor)
    with torch.no_grad():
        for mine, other in zip(target, source[:-2], strict=False):
            mine.load_state_dict(other.state_dict())
        mean, deviation = source[-2:]
        target[-1].weight.copy_(torch.cat((mean.weight, deviation.weight)))
        target[-1].bias.copy_(torch.cat((mean.bias, deviation.bias + 1)))  # ours subtracts 1
    return pair


def test_cql_s_bellman_error(d3rlpy: Any) -> None:
    pair = cql(d3rlpy, samples=2, weight=0.0)
    close(pair.losses()[2], pair.update()["critic_loss"])  # no noise: the target's action is a mean


def test_cql_s_conservative_term(d3rlpy: Any) -> None:
    pair = cql(d3rlpy, samples=4000, weight=3.0)
    noise = torch.randn(pair.batch.noise.shape, generator=generator(3))
    noise[:, : 2 * BOX.action] = 0
    pair.batch = pair.batch._replace(noise=noise)
    found = pair.update()
    close(pair.losses()[2], found["critic_loss"], 2e-3)


def test_discrete_cql(d3rlpy: Any) -> None:
    theirs = d3rlpy.algos.DiscreteCQLConfig(
        learning_rate=0.0, gamma=0.9, alpha=4.0, encoder_factory=encoder(d3rlpy)
    )
    pair = Pair(d3rlpy, theirs, DiscreteCQL(DiscreteCQLConfig(**OURS, alpha=4.0)), DISCRETE)
    move(pair.modules.targ_q_funcs)
    pair.copy(pair.networks.values, pair.modules.q_funcs)
    pair.copy(pair.networks.target_values, pair.modules.targ_q_funcs)
    close(pair.losses()[0], pair.update()["loss"])


def discrete_bcq(d3rlpy: Any, *, logit_penalty: float) -> Pair:
    theirs = d3rlpy.algos.DiscreteBCQConfig(
        learning_rate=0.0,
        gamma=0.9,
        action_flexibility=0.9,
        beta=logit_penalty,
        share_encoder=False,
        encoder_factory=encoder(d3rlpy),
    )
    ours = DiscreteBCQConfig(**OURS, threshold=0.9, logit_penalty=logit_penalty)
    pair = Pair(d3rlpy, theirs, DiscreteBCQ(ours), DISCRETE)
    move(pair.modules.targ_q_funcs)
    pair.copy(pair.networks.values, pair.modules.q_funcs)
    pair.copy(pair.networks.behaviour, pair.modules.imitator)
    pair.copy(pair.networks.target_values, pair.modules.targ_q_funcs)
    return pair


def test_discrete_bcq(d3rlpy: Any) -> None:
    pair = discrete_bcq(d3rlpy, logit_penalty=0.0)
    values, behaviour = pair.losses()
    found = pair.update()
    close(values, found["td_loss"])
    close(behaviour, found["imitator_loss"])
    close(values + behaviour, found["loss"])


def test_discrete_bcq_logit_penalty_where_logits_are_log_probabilities(d3rlpy: Any) -> None:
    pair = discrete_bcq(d3rlpy, logit_penalty=0.5)
    for last in (linears(pair.modules.imitator)[-1], linears(pair.networks.behaviour)[-1]):
        with torch.no_grad():
            last.weight.zero_()
            last.bias.copy_(torch.tensor([0.6, 0.3, 0.1]).log())
    values, behaviour = pair.losses()
    found = pair.update()
    close(behaviour, found["imitator_loss"])
    close(values + behaviour, found["loss"])
