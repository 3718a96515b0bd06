"""SAC as one writes it first: separate critics and optimisers, members one after the other."""

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from distributed_privrl.agents.sac import SacConfig
from distributed_privrl.methods.primorl.model_environment import ModelFacts
from distributed_privrl.models.layers import mlp

_LOG_STD_RANGE = (-5.0, 2.0)


class PlainModel:
    """Members as modules of their own, called one after the other; the rest as the contract says.

    Args:
        facts: offsets, scales and bounds.
        members: widths of each member's layers are those of ``hidden``.
        hidden: widths of the hidden layers.
        penalty_weight: lambda, of the largest norm of a member's deviations.
        generator: of weights and draws.
    """

    def __init__(
        self,
        facts: ModelFacts,
        *,
        members: int,
        hidden: tuple[int, ...],
        penalty_weight: float,
        generator: torch.Generator,
    ) -> None:
        self._facts, self._weight, self._generator = facts, penalty_weight, generator
        widths = (len(facts.input_scale), *hidden, 2 * len(facts.target_scale))
        self._members = [_with_swish(mlp(widths, generator)) for _ in range(members)]

    @torch.no_grad()
    def step(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return next observations ``(M, O)`` and lowered rewards ``(M,)``."""
        facts = self._facts
        inputs = torch.cat((observations, actions), dim=1)
        inputs = (inputs - facts.input_offset) / facts.input_scale
        found = [member(inputs).chunk(2, dim=1) for member in self._members]
        means = torch.stack([mean for mean, _ in found])
        log_variances = torch.stack(
            [1.0 - nn.functional.softplus(1.0 - log_variance) for _, log_variance in found]
        )
        log_variances = -10.0 + nn.functional.softplus(log_variances + 10.0)
        chosen = torch.randint(len(means), (len(inputs),), generator=self._generator)
        rows = torch.arange(len(inputs))
        noise = torch.randn(len(inputs), means.shape[2], generator=self._generator)
        deviations = (0.5 * log_variances).exp()
        targets = means[chosen, rows] + deviations[chosen, rows] * noise
        targets = facts.target_offset + facts.target_scale * targets
        after = facts.observations.clip(observations + targets[:, :-1])
        rewards = facts.reward.clip(targets[:, -1:]).squeeze(1)
        uncertainty = torch.stack([torch.linalg.vector_norm(d, dim=1) for d in deviations])
        return after, rewards - self._weight * uncertainty.amax(dim=0)


class PlainSac:
    """One gradient step and one step of every rollout a call.

    Args:
        config: hyper-parameters.
        model: to roll out.
        starts: gives ``(count, O)`` start observations.
        action_scale: actions are those of the actor in [-1, 1] times this.
        sizes: O and A.
        generator: of weights and draws.
    """

    def __init__(
        self,
        config: SacConfig,
        model: PlainModel,
        starts: Callable[[int], Tensor],
        *,
        action_scale: float,
        sizes: tuple[int, int],
        generator: torch.Generator,
    ) -> None:
        observation, action = sizes
        self._config, self._model, self._starts = config, model, starts
        self._scale, self._action, self._generator = action_scale, action, generator
        self._random = np.random.default_rng(0)
        self.actor = mlp((observation, *config.hidden, 2 * action), generator)
        widths = (observation + action, *config.hidden, 1)
        self.critics = [mlp(widths, generator) for _ in range(2)]
        self.targets = [copy.deepcopy(critic) for critic in self.critics]
        self.log_temperature = torch.zeros((), requires_grad=True)
        weights = [one for critic in self.critics for one in critic.parameters()]
        self._optimisers = [
            torch.optim.Adam(group, lr=config.learning_rate)
            for group in (weights, list(self.actor.parameters()), [self.log_temperature])
        ]
        widths_kept = (observation, action, observation, 1)
        self._kept = [np.zeros((config.capacity, w), np.float32) for w in widths_kept]
        self._position = self.size = 0
        self._observations = starts(config.environments)
        self._age = 0

    def __call__(self) -> None:
        """Step the rollouts, and the networks once there are enough rows."""
        self._roll()
        while self.size < self._config.warmup:
            self._roll()
        self._learn(*(self._drawn()))

    def _roll(self) -> None:
        with torch.no_grad():
            actions, _ = self._sampled(self._observations)
        after, rewards = self._model.step(self._observations, self._scale * actions)
        places = (self._position + np.arange(len(after))) % self._config.capacity
        for kept, part in zip(
            self._kept, (self._observations, actions, after, rewards[:, None]), strict=True
        ):
            kept[places] = part.numpy()
        self._position = (self._position + len(after)) % self._config.capacity
        self.size = min(self.size + len(after), self._config.capacity)
        self._observations, self._age = after, self._age + 1
        if self._age == self._config.horizon:
            self._observations, self._age = self._starts(len(after)), 0

    def _drawn(self) -> list[Tensor]:
        rows = self._random.integers(0, self.size, self._config.batch_size)
        return [torch.from_numpy(kept[rows]) for kept in self._kept]

    def _sampled(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(observations).chunk(2, dim=1)
        log_std = log_std.clamp(*_LOG_STD_RANGE)
        noise = torch.randn(mean.shape, generator=self._generator)
        unbounded = mean + log_std.exp() * noise
        log_probability = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std
        slope = 2 * (math.log(2) - unbounded - nn.functional.softplus(-2 * unbounded))
        return unbounded.tanh(), (log_probability - slope).sum(dim=1)

    def _learn(self, before: Tensor, actions: Tensor, after: Tensor, rewards: Tensor) -> None:
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            next_actions, next_log = self._sampled(after)
            pairs = torch.cat((after, next_actions), dim=1)
            lowest = torch.minimum(*(target(pairs).squeeze(1) for target in self.targets))
            wanted = rewards[:, 0] + self._config.discount * (lowest - temperature * next_log)
        pairs = torch.cat((before, actions), dim=1)
        errors = [(critic(pairs).squeeze(1) - wanted).square().mean() for critic in self.critics]
        self._step(0, errors[0] + errors[1])
        own, log = self._sampled(before)
        pairs = torch.cat((before, own), dim=1)
        value = torch.minimum(*(critic(pairs).squeeze(1) for critic in self.critics))
        self._step(1, (temperature * log - value).mean())
        self._step(2, (-self.log_temperature * (log.detach() - self._action)).mean())
        with torch.no_grad():
            for critic, target in zip(self.critics, self.targets, strict=True):
                for new, old in zip(critic.parameters(), target.parameters(), strict=True):
                    old.mul_(1 - self._config.polyak).add_(self._config.polyak * new)

    def _step(self, index: int, loss: Tensor) -> None:
        self._optimisers[index].zero_grad()
        torch.autograd.backward(loss)
        self._optimisers[index].step()


def _with_swish(network: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(*(nn.SiLU() if isinstance(one, nn.ReLU) else one for one in network))
