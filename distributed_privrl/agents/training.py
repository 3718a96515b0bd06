"""The one plain training loop: rows encoded in memory, one gather and one step of Adam a batch."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import (
    Policy,
    encode_actions,
    encode_observations,
    fit_observations,
    on_cpu,
)
from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space, part_width
from distributed_privrl.data.trajectories import Transitions

_BATCHES_DRAWN_TOGETHER = 256


def train_agent(
    algorithm: Algorithm[Any, Any],
    transitions: Transitions,
    *,
    observation_space: Space,
    action_space: Space,
    steps: int,
    streams: Streams,
    on_evaluation: Callable[[int, Policy], None] | None = None,
    evaluate_every: int = 5000,
    progress: Callable[[int], None] | None = None,
    device: str = "cpu",
) -> Policy:
    """Train an agent on ``transitions`` and return its policy, on the CPU.

    Observations are normalised by these transitions alone. All chance is drawn on the CPU, so that
    it is the same on every device.

    Args:
        algorithm: losses and update rule.
        transitions: the training data.
        observation_space: Box, or Discrete (one-hot).
        action_space: a kind that ``algorithm`` knows; a Box needs finite bounds.
        steps: gradient steps.
        streams: public random streams; the same streams give the same policy.
        on_evaluation: called with the step and the policy (which goes on learning; on another
            device a copy of it) every ``evaluate_every`` steps.
        evaluate_every: gradient steps between calls of ``on_evaluation``.
        progress: called with the step after every step.
        device: where networks and rows are while it trains.

    Raises:
        ConfigError: no transitions, or spaces that the algorithm cannot use.
    """
    check_positive("steps", steps)
    check_positive("evaluate_every", evaluate_every)
    if not len(transitions):
        raise ConfigError("transitions is empty: there is nothing to train on")
    algorithm.check_actions(action_space)
    discrete = isinstance(action_space, Discrete)
    sizes = Sizes(part_width(observation_space), part_width(action_space), discrete)
    generator = torch.Generator().manual_seed(streams.integer("initial weights"))
    networks = algorithm.networks(sizes, generator).to(device)
    normalisation = fit_observations(observation_space, transitions.observations)

    def policy() -> Policy:
        return Policy(
            *on_cpu(algorithm.acting(networks)),
            normalisation=normalisation,
            observation_space=observation_space,
            action_space=action_space,
        )

    rows = packed_rows(
        transitions,
        observation_space=observation_space,
        action_space=action_space,
        normalisation=normalisation,
    )
    batches = draw_batches(
        torch.from_numpy(rows).to(device),
        sizes,
        batch_size=algorithm.config.batch_size,
        noise_width=algorithm.noise_width(sizes),
        streams=streams,
    )
    optimiser = make_optimiser(algorithm, networks)
    for step in range(1, steps + 1):
        update(algorithm, networks, optimiser, next(batches), step=step, steps=steps)
        if on_evaluation is not None and step % evaluate_every == 0:
            on_evaluation(step, policy())
        if progress is not None:
            progress(step)
    return policy()


def make_optimiser(algorithm: Algorithm[Any, Any], networks: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser that `update` steps."""
    groups = algorithm.parameter_groups(networks)
    return torch.optim.Adam(groups, lr=algorithm.config.learning_rate, fused=True)


def update(
    algorithm: Algorithm[Any, Any],
    networks: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    *,
    step: int,
    steps: int,
) -> None:
    """Take a gradient step on one minibatch, and what follows it.

    Args:
        algorithm: losses and update rule.
        networks: changed in place.
        optimiser: from `make_optimiser`.
        batch: N rows; each counts the same.
        step: from 1.
        steps: how many there will be.
    """
    losses = algorithm.losses(networks, batch, step=step)
    optimiser.zero_grad()
    torch.autograd.backward(functools.reduce(torch.add, losses).mean())
    optimiser.step()
    algorithm.after_step(networks, optimiser, step=step, steps=steps)


def packed_rows(
    transitions: Transitions,
    *,
    observation_space: Space,
    action_space: Space,
    normalisation: Normalisation,
) -> NDArray[np.float32]:
    """Return encoded rows ``(N, R)``: observation, action, next observation, reward, continues.

    Args:
        transitions: N of them.
        observation_space: Box, or Discrete (one-hot).
        action_space: Box with finite bounds (scaled to [-1, 1]), or Discrete (one-hot).
        normalisation: of the observations.
    """
    columns = (
        encode_observations(observation_space, transitions.observations, normalisation),
        encode_actions(action_space, transitions.actions),
        encode_observations(observation_space, transitions.next_observations, normalisation),
        transitions.rewards[:, None],
        1 - transitions.terminated[:, None].astype(np.float32),
    )
    return np.concatenate(columns, axis=1, dtype=np.float32)


def draw_batches(
    rows: Tensor, sizes: Sizes, *, batch_size: int, noise_width: int, streams: Streams
) -> Iterator[Batch]:
    """Yield batches drawn with replacement, one gather each, for ever, on the rows' device.

    Args:
        rows: ``(N, R)`` from `packed_rows`.
        sizes: widths of observation and action.
        batch_size: rows of a batch.
        noise_width: normal draws of each row (Z).
        streams: public random streams.
    """
    generator = torch.Generator().manual_seed(streams.integer("batches"))
    noise_generator = torch.Generator().manual_seed(streams.integer("noise"))
    while True:
        shape = (_BATCHES_DRAWN_TOGETHER, batch_size)
        for indices in torch.randint(len(rows), shape, generator=generator).to(rows.device):
            noise = torch.randn(batch_size, noise_width, generator=noise_generator)
            yield as_batch(rows.index_select(0, indices), sizes, noise.to(rows.device))


def as_batch(rows: Tensor, sizes: Sizes, noise: Tensor) -> Batch:
    """Return the views of packed ``rows`` that losses read.

    Args:
        rows: ``(N, R)`` as from `packed_rows`.
        sizes: widths of observation and action.
        noise: ``(N, Z)``, standard normal.
    """
    pair = sizes.observation + sizes.action
    return Batch(
        pairs=rows[:, :pair],
        observations=rows[:, : sizes.observation],
        actions=rows[:, sizes.observation : pair],
        rewards=rows[:, -2],
        next_observations=rows[:, pair:-2],
        continues=rows[:, -1],
        noise=noise,
    )
