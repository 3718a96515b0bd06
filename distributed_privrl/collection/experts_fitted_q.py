"""Q-learning of many experts at once from one memory of what all of them did.

The settings differ in rewards and in the noise of the efficacies, not in what a treatment does. So
what one expert saw teaches every other one of equal noise: rows are kept without the drugs'
penalties, and each expert adds its own.

Reference: Ernst et al., "Clinical data based optimal STI strategies for HIV" (2006), section IV,
for learning from a growing memory; van Hasselt et al., "Deep reinforcement learning with double
Q-learning" (2016); Pohlen et al., "Observe and look further" (2018), section 3.1, for values on
the scale of a square root, since returns span four powers of ten.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from distributed_privrl.collection.experts_ppo import Networks, clip_each, drawn_stops
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.hiv import HivTreatment, noisy_efficacies, treat

_LINEAR = 1e-2
"""Epsilon of Pohlen et al.: what keeps the scale's inverse well-behaved."""


@dataclass(frozen=True, kw_only=True)
class FittedQConfig:
    """How the experts of a block are trained.

    Args:
        max_steps: steps of an episode.
        hidden: widths of the hidden layers, with hyperbolic tangents.
        rounds: the most times that an expert acts and then learns.
        least_rounds: the fewest. Each expert stops at a number in between, drawn evenly on a
            logarithmic scale: experts differ in strength, as in expert-level DP, figure 2.
        episodes: episodes of all experts in a round, as many of each; at least one of each.
        gradient_steps: of a round.
        batch_size: rows of a gradient step, the same ones for all experts of equal noise.
        learning_rate: of Adam.
        discount: of rewards.
        polyak: rate at which the target network follows.
        explorations: shares of random actions, one of which each episode has; the first round's
            are all random.
        gradient_norm: largest norm of an expert's gradient.
        offset: taken from observations.
        scale: by which they are then divided.
    """

    max_steps: int
    hidden: tuple[int, ...] = (64,)
    rounds: int = 40
    least_rounds: int = 15
    episodes: int = 100
    gradient_steps: int = 100
    batch_size: int = 128
    learning_rate: float = 2e-3
    discount: float = 0.99
    polyak: float = 0.01
    explorations: tuple[float, ...] = (0.02, 0.1, 0.3)
    gradient_norm: float = 10.0
    offset: tuple[float, ...] = (5.7, 2.7, 2.0, 1.2, 3.5, 2.7)
    scale: tuple[float, ...] = (0.4, 1.0, 0.8, 0.4, 1.0, 1.0)


class _Rows(NamedTuple):
    """What happened; rows of one noise."""

    inputs: Tensor
    """(N, O), normalised."""
    actions: Tensor
    """(N,) int64."""
    following: Tensor
    """(N, O), normalised."""
    earned: Tensor
    """(N,) without penalties."""

    def joined(self, other: "_Rows") -> "_Rows":
        return _Rows(*(torch.cat(pair) for pair in zip(self, other, strict=True)))


class FittedQTrainer:
    """Trains experts for `experts_training.make_blocks`.

    Args:
        config: hyper-parameters.
        simulator: the default patient.
    """

    def __init__(self, config: FittedQConfig, simulator: HivTreatment) -> None:
        self._config, self._simulator = config, simulator

    @property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """What is taken from observations, and by what they are then divided, (O,) each."""
        return torch.tensor(self._config.offset), torch.tensor(self._config.scale)

    def described(self) -> dict[str, Any]:
        """Return the hyper-parameters, JSON values."""
        return asdict(self._config)

    def train(self, settings: Mapping[str, NDArray[np.float64]], streams: Streams) -> Networks:
        """Return stacked policies; see `experts_training.Trainer`."""
        config = self._config
        experts = len(settings["efficacy_noise"])
        stops = drawn_stops(config.least_rounds, config.rounds, experts=experts, streams=streams)
        learner = _Learner(config, self._simulator, self.normalisation, settings, streams)

        def train(turn: int) -> None:
            learner.act(all_random=turn == 1)
            for _ in range(config.gradient_steps):
                learner.learn()

        return learner.values.stopped(stops, train)


class _Learner:
    """The experts of a block, in training."""

    def __init__(
        self,
        config: FittedQConfig,
        simulator: HivTreatment,
        normalisation: tuple[Tensor, Tensor],
        settings: Mapping[str, NDArray[np.float64]],
        streams: Streams,
    ) -> None:
        self._config, self._simulator, self._normalisation = config, simulator, normalisation
        self._source = streams.numpy("episodes")
        self._generator = torch.Generator().manual_seed(streams.integer("batches"))
        initial = torch.Generator().manual_seed(streams.integer("networks"))
        self._noise = settings["efficacy_noise"]
        levels, members = np.unique(self._noise, return_inverse=True)
        self._members = torch.from_numpy(members)
        self._memories: list[_Rows | None] = [None] * len(levels)
        self._penalties = _penalties(simulator, settings)
        self._experts = len(self._noise)
        widths = (len(config.scale), *config.hidden, simulator.actions)
        self.values = Networks.drawn(self._experts, widths, 0.1, initial)
        self._target = Networks(
            [one.clone() for one in self.values.weights],
            [one.clone() for one in self.values.biases],
        )
        for parameter in self.values.tensors:
            parameter.requires_grad_()
        self._adam = torch.optim.Adam(self.values.tensors, lr=config.learning_rate, foreach=True)

    @torch.no_grad()
    def act(self, *, all_random: bool) -> None:
        """Let every expert act, and remember what happened."""
        config = self._config
        each = max(1, config.episodes // self._experts)
        rows, noise = self._experts * each, np.repeat(self._noise, each)
        random = self._source.choice(config.explorations, rows) if not all_random else 1.0
        states, happened = self._simulator.reset(rows, self._source), []
        inputs = self._seen(states)
        for _ in range(config.max_steps):
            best = self.values(inputs.view(self._experts, each, -1)).argmax(dim=2).flatten()
            other = self._source.integers(self._simulator.actions, size=rows)
            actions = np.where(self._source.random(rows) < random, other, best.numpy())
            states = treat(states, noisy_efficacies(actions, noise, self._source))
            following = self._seen(states)
            earned = torch.from_numpy(_unpunished(self._simulator, states)).float()
            happened.append(_Rows(inputs, torch.from_numpy(actions), following, earned))
            inputs = following
        members = self._members.repeat_interleave(each)
        for level, memory in enumerate(self._memories):
            own = _Rows(
                *(
                    torch.cat([part[members == level] for part in parts])
                    for parts in zip(*happened, strict=True)
                )
            )
            self._memories[level] = own if memory is None else memory.joined(own)

    def learn(self) -> None:
        """Take one gradient step of each expert."""
        batch = self._batch()
        chosen = batch.actions[..., None]
        with torch.no_grad():
            best = self.values(batch.following).argmax(dim=2, keepdim=True)
            later = self._target(batch.following).gather(2, best).squeeze(2)
            paid = self._penalties.gather(1, batch.actions)
            targets = _scaled(batch.earned - paid + self._config.discount * _unscaled(later))
        found = self.values(batch.inputs).gather(2, chosen).squeeze(2)
        self._adam.zero_grad()
        losses = smooth_l1_loss(found, targets, reduction="none").mean(dim=1)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        clip_each(self.values.tensors, self._config.gradient_norm)
        self._adam.step()
        with torch.no_grad():
            torch._foreach_lerp_(self._target.tensors, self.values.tensors, self._config.polyak)

    def _batch(self) -> _Rows:
        """Return rows ``(E, B)`` for each expert, of its noise."""
        size, drawn = self._config.batch_size, []
        for memory in self._memories:
            assert memory is not None
            rows = torch.randint(len(memory.actions), (size,), generator=self._generator)
            drawn.append(_Rows(*(part[rows] for part in memory)))
        stacked = (torch.stack(parts)[self._members] for parts in zip(*drawn, strict=True))
        return _Rows(*stacked)

    def _seen(self, states: NDArray[np.float64]) -> Tensor:
        offset, scale = self._normalisation
        return (torch.from_numpy(self._simulator.observe(states)) - offset) / scale


def _unpunished(simulator: HivTreatment, states: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what arriving in ``states`` earns where no drug was given, ``(M,)``."""
    return simulator.rewards(states, np.zeros(len(states), dtype=np.int64))


def _penalties(simulator: HivTreatment, settings: Mapping[str, NDArray[np.float64]]) -> Tensor:
    """Return what each action costs each expert, ``(E, A)``."""
    changed = {name: values for name, values in settings.items() if name.endswith("_penalty")}
    patients = simulator.with_physics(changed)
    states = np.zeros((len(settings["efficacy_noise"]), 6))
    actions = range(simulator.actions)
    costs = [-patients.rewards(states, np.full(len(states), action)) for action in actions]
    return torch.from_numpy(np.stack(costs, axis=1)).float()


def _scaled(values: Tensor) -> Tensor:
    """Return Pohlen et al.'s h: a square root, and a little of the value itself."""
    return values.sign() * ((values.abs() + 1).sqrt() - 1) + _LINEAR * values


def _unscaled(values: Tensor) -> Tensor:
    """Return the inverse of `_scaled`."""
    root = (1 + 4 * _LINEAR * (values.abs() + 1 + _LINEAR)).sqrt()
    return values.sign() * (((root - 1) / (2 * _LINEAR)).square() - 1)
