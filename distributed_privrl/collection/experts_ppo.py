"""Proximal policy optimisation of many experts at once: stacked networks, one simulator.

Each expert sees its own physics, its own episodes and its own gradients; what they share is the
call. So the result for one of them does not depend on how many are trained beside it, except that
they draw from one stream.

Reference: Schulman et al., "Proximal policy optimization algorithms" (2017); "High-dimensional
continuous control using generalized advantage estimation" (2016), equation 16.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.random import Streams
from distributed_privrl.environments.simulators import PerturbedSimulator


@dataclass(frozen=True, kw_only=True)
class PpoConfig:
    """How each expert is trained.

    Args:
        max_steps: steps of an episode.
        scale: by which observations are divided.
        offset: taken from them first; None: nothing.
        hidden: widths of the hidden layers of policy and value, with hyperbolic tangents.
        environments: episodes of an expert that run side by side (N).
        rollout_steps: steps of each between two updates (T).
        updates: the most updates that an expert has.
        least_updates: the fewest. Each expert stops at a number in between, drawn evenly on a
            logarithmic scale: experts differ in strength, as in expert-level DP, figure 2.
        epochs: times that an update goes over its rows.
        minibatches: gradient steps of an epoch.
        learning_rate: in the beginning; it falls linearly to zero after the most updates.
        discount: of rewards.
        trace_decay: lambda of the advantages.
        clip_range: of the ratio of probabilities.
        entropy_weight: of the entropy in the loss.
        reward_scale: what rewards are multiplied by.
        gradient_norm: largest norm of an expert's gradient.
    """

    max_steps: int
    scale: tuple[float, ...]
    offset: tuple[float, ...] | None = None
    hidden: tuple[int, ...] = (32,)
    environments: int = 16
    rollout_steps: int = 32
    updates: int = 60
    least_updates: int = 60
    epochs: int = 6
    minibatches: int = 2
    learning_rate: float = 5e-3
    discount: float = 0.98
    trace_decay: float = 0.9
    clip_range: float = 0.2
    entropy_weight: float = 0.0
    reward_scale: float = 0.02
    gradient_norm: float = 0.5

    @property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """Offset and scale as tensors, (O,) each."""
        scale = torch.tensor(self.scale)
        return torch.tensor(self.offset or [0.0] * len(scale)), scale


class Networks(NamedTuple):
    """Stacked networks: (E, in, out) and (E, out) of each layer."""

    weights: list[Tensor]
    biases: list[Tensor]
    conditions: Tensor | None = None
    """(E, C) what one shared network, (1, in, out), is told of each expert."""

    @classmethod
    def drawn(
        cls, count: int, widths: Sequence[int], last_gain: float, generator: torch.Generator
    ) -> "Networks":
        """Return networks with orthogonal weights and biases of zero."""
        gains = [math.sqrt(2)] * (len(widths) - 2) + [last_gain]
        weights = []
        for gain, (before, after) in zip(gains, itertools.pairwise(widths), strict=True):
            high, low = max(before, after), min(before, after)
            drawn = torch.randn(count, high, low, generator=generator)
            rotation = torch.linalg.qr(drawn)[0]
            weights.append(gain * (rotation if before >= after else rotation.mT.contiguous()))
        return cls(weights, [torch.zeros(count, after) for after in widths[1:]])

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return ``(E, M, out)`` of ``(E, M, in)``."""
        hidden = inputs
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias[:, None], hidden.tanh() if index else hidden, weight)
        return hidden

    @property
    def tensors(self) -> list[Tensor]:
        """All parameters."""
        return [*self.weights, *self.biases]

    def stopped(self, stops: NDArray[np.float64], train: Callable[[int], None]) -> "Networks":
        """Return the networks as each was when its own training stopped.

        Args:
            stops: (E,) turn after which each network is kept.
            train: changes all of them in place; called with each turn, from 1 on.
        """
        kept = [one.detach().clone() for one in self.tensors]
        for turn in range(1, int(stops.max()) + 1):
            train(turn)
            stopping = torch.from_numpy(stops == turn)
            for old, new in zip(kept, self.tensors, strict=True):
                old[stopping] = new.detach()[stopping]
        layers = len(self.weights)
        return Networks(kept[:layers], kept[layers:])


def drawn_stops(least: int, most: int, *, experts: int, streams: Streams) -> NDArray[np.float64]:
    """Return after how many turns each expert stops ``(E,)``, even on a logarithmic scale.

    So experts are of different strength, as in expert-level DP, figure 2.

    Args:
        least: the fewest.
        most: the most.
        experts: E.
        streams: public randomness of the training.
    """
    low, high = np.log([least, most])
    return np.exp(streams.numpy("stops").uniform(low, high, experts)).round()


class PpoTrainer:
    """Trains experts for `experts_training.make_blocks`.

    Args:
        config: hyper-parameters.
        simulator: of the environment.
    """

    def __init__(self, config: PpoConfig, simulator: PerturbedSimulator) -> None:
        self._config, self._simulator = config, simulator

    @property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """What is taken from observations, and by what they are then divided, (O,) each."""
        return self._config.normalisation

    def described(self) -> dict[str, Any]:
        """Return the hyper-parameters, JSON values."""
        return asdict(self._config)

    def train(self, settings: Mapping[str, NDArray[np.float64]], streams: Streams) -> Networks:
        """Return stacked policies; see `experts_training.Trainer`."""
        config = self._config
        experts = len(next(iter(settings.values())))
        physics = {
            name: np.repeat(values, config.environments) for name, values in settings.items()
        }
        stops = drawn_stops(config.least_updates, config.updates, experts=experts, streams=streams)
        ppo = StackedPpo(config, self._simulator.with_physics(physics), experts, streams)
        return ppo.policy.stopped(stops, lambda _: ppo.update())


class _Rollout(NamedTuple):
    """What E experts did in N episodes for T steps; rows of an expert are T N = M."""

    inputs: Tensor
    """(E, M, O)."""
    actions: Tensor
    """(E, M) int64."""
    log_probabilities: Tensor
    """(E, M), before the update."""
    advantages: Tensor
    """(E, M)."""
    targets: Tensor
    """(E, M) of the value."""


class StackedPpo:
    """Trains E experts.

    Args:
        config: hyper-parameters.
        simulator: with physics of E N rows, an expert's after another's.
        experts: E.
        streams: public random streams.
    """

    def __init__(
        self, config: PpoConfig, simulator: PerturbedSimulator, experts: int, streams: Streams
    ) -> None:
        self._config, self._simulator, self._experts = config, simulator, experts
        self._normalisation = PpoTrainer(config, simulator).normalisation
        self._starts = streams.numpy("starts")
        self._generator = torch.Generator().manual_seed(streams.integer("actions and batches"))
        initial = torch.Generator().manual_seed(streams.integer("networks"))
        width = len(config.scale)
        self.policy = Networks.drawn(
            experts, (width, *config.hidden, simulator.actions), 0.01, initial
        )
        self._value = Networks.drawn(experts, (width, *config.hidden, 1), 1.0, initial)
        self._parameters = [*self.policy.tensors, *self._value.tensors]
        for parameter in self._parameters:
            parameter.requires_grad_()
        self._adam = torch.optim.Adam(self._parameters, lr=config.learning_rate, foreach=True)
        rows = experts * config.environments
        self._states = simulator.reset(rows, self._starts)
        self._ages = self._starts.integers(config.max_steps, size=rows)
        self._updates = 0

    def update(self) -> None:
        """Let every expert act, and learn from it once."""
        config = self._config
        left = 1 - self._updates / config.updates
        for group in self._adam.param_groups:
            group["lr"] = config.learning_rate * left
        rollout = self._act()
        rows = rollout.actions.shape[1]
        size = rows // config.minibatches
        for _ in range(config.epochs):
            order = torch.randperm(rows, generator=self._generator)
            for start in range(0, size * config.minibatches, size):
                chosen = order[start : start + size]
                self._learn(_Rollout(*(part[:, chosen] for part in rollout)))
        self._updates += 1

    def kept(self) -> dict[str, Tensor]:
        """Return what `restore` needs: networks, Adam's state and the number of updates."""
        found = {"updates": torch.tensor(self._updates)}
        for index, parameter in enumerate(self._parameters):
            state = {"value": parameter.detach(), **self._adam.state[parameter]}
            found |= {f"{name}_{index}": one.contiguous().clone() for name, one in state.items()}
        return found

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        """Go on from what `kept` returned, in fresh episodes."""
        self._updates = int(kept["updates"])
        for index, parameter in enumerate(self._parameters):
            parameter.data.copy_(kept[f"value_{index}"])
            self._adam.state[parameter] = {
                name: kept[f"{name}_{index}"].clone() for name in ("step", "exp_avg", "exp_avg_sq")
            }

    @torch.no_grad()
    def _act(self) -> _Rollout:
        """Return T steps of every episode; one that ends begins anew."""
        config, count = self._config, self._experts
        shape = (config.rollout_steps, count, config.environments)
        inputs = torch.empty(*shape, len(config.scale))
        actions = torch.empty(shape, dtype=torch.int64)
        logs, rewards, values = (torch.empty(shape) for _ in range(3))
        going, following = torch.empty(shape), torch.empty(shape)
        for step in range(config.rollout_steps):
            inputs[step] = self._seen(self._states)
            odds = self.policy(inputs[step]).log_softmax(dim=2)
            values[step] = self._value(inputs[step]).squeeze(2)
            noise = torch.empty_like(odds).exponential_(generator=self._generator)
            actions[step] = (odds - noise.log()).argmax(dim=2)
            logs[step] = odds.gather(2, actions[step][..., None]).squeeze(2)
            moved, earned, ended = self._simulator.step(
                self._states, actions[step].flatten().numpy()
            )
            self._ages += 1
            cut = (self._ages >= config.max_steps) & ~ended
            rewards[step] = self._as_rows(earned * config.reward_scale)
            if cut.any():
                rewards[step] += config.discount * self._after(moved, cut)
            over = ended | cut
            going[step] = self._as_rows(~over)
            self._states = self._renewed(moved, over)
        last = self._value(self._seen(self._states)).squeeze(2)
        following[:-1], following[-1] = values[1:], last
        advantages = _advantages(
            rewards + config.discount * going * following - values,
            going,
            config.discount * config.trace_decay,
        )
        parts = (inputs, actions, logs, advantages, advantages + values)
        return _Rollout(*(part.transpose(0, 1).flatten(1, 2) for part in parts))

    def _learn(self, rows: _Rollout) -> None:
        """Take one gradient step of each expert on ``rows``."""
        config = self._config
        odds = self.policy(rows.inputs).log_softmax(dim=2)
        chosen = odds.gather(2, rows.actions[..., None]).squeeze(2)
        ratio = (chosen - rows.log_probabilities).exp()
        spread, mean = torch.std_mean(rows.advantages, dim=1, keepdim=True)
        advantages = (rows.advantages - mean) / (spread + 1e-8)
        clipped = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)
        gain = torch.minimum(ratio * advantages, clipped * advantages)
        entropy = -(odds.exp() * odds).sum(dim=2)
        error = (self._value(rows.inputs).squeeze(2) - rows.targets).square()
        losses = 0.5 * error - gain - config.entropy_weight * entropy
        self._adam.zero_grad()
        losses.mean(dim=1).sum().backward()  # type: ignore[no-untyped-call]
        clip_each(self._parameters, config.gradient_norm)
        self._adam.step()

    def _after(self, states: NDArray[np.float64], cut: NDArray[np.bool_]) -> Tensor:
        """Return the values of states where an episode was cut, zeros elsewhere, ``(E, N)``."""
        return self._value(self._seen(states)).squeeze(2) * self._as_rows(cut)

    def _renewed(self, states: NDArray[np.float64], over: NDArray[np.bool_]) -> NDArray[np.float64]:
        count = int(over.sum())
        if count:
            states[over] = self._simulator.reset(count, self._starts)
            self._ages[over] = 0
        return states

    def _seen(self, states: NDArray[np.float64]) -> Tensor:
        shown = torch.from_numpy(self._simulator.observe(states))
        offset, scale = self._normalisation
        normal = (shown - offset) / scale
        return normal.view(self._experts, self._config.environments, -1)

    def _as_rows(self, values: NDArray[np.float64] | NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(values).float().view(self._experts, self._config.environments)


def clip_each(parameters: list[Tensor], most: float) -> None:
    """Scale the gradients of each expert, along the first axis, to a norm of at most ``most``."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    squares = torch.stack([one.flatten(1).square().sum(dim=1) for one in gradients]).sum(dim=0)
    factors = (most / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    for one in gradients:
        one *= factors.view(-1, *[1] * (one.dim() - 1))


def _advantages(errors: Tensor, going: Tensor, decay: float) -> Tensor:
    """Return the discounted sums of later temporal-difference ``errors`` ``(T, E, N)``."""
    sums = errors.clone()
    for step in reversed(range(len(sums) - 1)):
        sums[step] += decay * going[step] * sums[step + 1]
    return sums
