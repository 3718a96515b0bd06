"""SAC: soft actor-critic with automatic temperature, in anything that steps in batches.

Reference: Haarnoja et al., "Soft actor-critic algorithms and applications" (2018), algorithm 1;
PriMORL, algorithm 4 (inside a pessimistic model).
"""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.agents.algorithm import Batch, Sizes, cosine_rate
from distributed_privrl.agents.edac import (
    EDAC,
    EDACLosses,
    EDACNetworks,
    edac_losses,
)
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import Acting, ActionScale, Policy, on_cpu
from distributed_privrl.agents.replay import ReplayBuffer, sampled_rows
from distributed_privrl.agents.sampled_actions import from_unit
from distributed_privrl.agents.settings import SacConfig
from distributed_privrl.agents.training import as_batch, make_optimiser, update
from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams


class BatchEnvironment(Protocol):
    """Something that steps many rows at once; methods depend on their arguments alone."""

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """Return start observations ``(count, O)``, float32, in raw units."""
        ...

    def step(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what follows ``actions``.

        Args:
            observations: (M, O), raw.
            actions: (M, A), raw, inside their bounds.
            generator: whatever chance the environment has comes from it.

        Returns:
            next observations (M, O), rewards (M,) and terminated (M,) bool.
        """
        ...


@dataclass(frozen=True)
class SAC(EDAC):
    """Soft actor-critic: EDAC with two critics and no diversity.

    Args:
        config: hyper-parameters.
    """

    config: SacConfig = field(default_factory=SacConfig)
    name: ClassVar[str] = "sac"

    def losses(self, networks: EDACNetworks, batch: Batch, *, step: int) -> EDACLosses:
        """Return all three losses; see `Algorithm.losses`."""
        return edac_losses(networks, batch, self.config, target_entropy=self.config.target_entropy)


class SacProgress(NamedTuple):
    """How it goes."""

    steps: int
    """Gradient steps so far."""
    episode_return: float
    """Mean return of the episodes that ended since the last report; nan if none did."""
    temperature: float
    """Weight of the entropy."""


class SacTrainer:
    """Soft actor-critic in an environment that steps in batches, resumable at any step.

    Observations and actions of the environment are raw; networks see normalised observations and
    actions in [-1, 1]. Rows start at different ages, so that episodes do not end all at once.
    All chance is drawn on the CPU, so that it is the same on every device, and ``state`` can be
    taken up on another one.

    Args:
        config: hyper-parameters.
        environment: where to act.
        observation_width: O.
        action_low: (A,) lower bounds.
        action_high: (A,) upper bounds.
        streams: public random streams; the same streams give the same policy.
        normalisation: of the observations, from public facts; None: as they are.
        real_rows: ``(N, R)`` packed as by `training.packed_rows` under the same normalisation;
            ``real_share`` of each batch comes from them. The policy then depends on them.
        device: where the networks, the buffer and the environment's rows are.

    Raises:
        ConfigError: bounds, rows or normalisation do not fit together.
    """

    def __init__(
        self,
        config: SacConfig,
        environment: BatchEnvironment,
        *,
        observation_width: int,
        action_low: NDArray[np.floating],
        action_high: NDArray[np.floating],
        streams: Streams,
        normalisation: Normalisation | None = None,
        real_rows: Tensor | None = None,
        device: str = "cpu",
    ) -> None:
        self._config, self._environment, self._device = config, environment, device
        check_positive("observation_width", observation_width)
        self._sizes = Sizes(observation_width, len(action_low))
        self._normalisation = normalisation or Normalisation.identity(observation_width)
        self._action_space = Box(np.float32(action_low), np.float32(action_high))
        scale = ActionScale.of(self._action_space)
        self._low, self._high, self._mean, self._spread = (
            torch.from_numpy(values).to(device)
            for values in (
                scale.low,
                scale.high,
                self._normalisation.mean,
                self._normalisation.spread,
            )
        )
        width = 2 * observation_width + len(action_low) + 2
        self._real_rows = _checked_rows(real_rows, width, device)
        self._generators = {
            name: torch.Generator().manual_seed(streams.integer(name))
            for name in ("initial weights", "environment", "exploration", "batches", "noise")
        }
        self._algorithm = SAC(config)
        initial = self._generators["initial weights"]
        self.networks = self._algorithm.networks(self._sizes, initial).to(device)
        self._optimiser = make_optimiser(self._algorithm, self.networks)
        self._buffer = ReplayBuffer(config.capacity, width, device=device)
        self.steps = 0
        """Gradient steps so far."""
        rows = config.environments
        self._observations = environment.reset(rows, self._generators["environment"])
        self._ages = torch.arange(rows, device=device) * config.horizon // rows
        self._returns = torch.where(self._ages > 0, torch.nan, 0.0)
        self._ended: list[Tensor] = []

    def advance(self, steps: int) -> SacProgress:
        """Take ``steps`` gradient steps, and the environment's steps that belong to them."""
        for _ in range(steps):
            if self.steps % self._config.gradient_steps == 0:
                self._collect()
            while self._buffer.size < self._config.warmup:
                self._collect()
            self._set_rates()
            self.steps += 1
            update(
                self._algorithm,
                self.networks,
                self._optimiser,
                self._batch(),
                step=self.steps,
                steps=self.steps,
            )
        ended = torch.cat([torch.empty(0, device=self._device), *self._ended])
        self._ended.clear()
        temperature = float(self.networks.log_temperature.detach().exp())
        return SacProgress(self.steps, float(ended[ended.isfinite()].mean()), temperature)

    def policy(self) -> Policy:
        """Return the deterministic policy, on the CPU.

        There it shares the trainer's weights and goes on learning; from another device it is a
        copy.
        """
        return Policy(
            *on_cpu(Acting(self.networks.actor)),
            normalisation=self._normalisation,
            observation_space=Box(-np.inf, np.inf, (self._sizes.observation,)),
            action_space=self._action_space,
        )

    def state(self) -> dict[str, Tensor]:
        """Return copies of everything that `restore` needs, the replay buffer included."""
        tensors = {f"networks.{k}": v.clone() for k, v in self.networks.state_dict().items()}
        for index, moments in self._optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{k}": v.clone() for k, v in moments.items()}
        tensors |= {f"buffer.{k}": v for k, v in self._buffer.state().items()}
        tensors |= {f"generator.{k}": v.get_state() for k, v in self._generators.items()}
        return tensors | {
            "observations": self._observations.clone(),
            "ages": self._ages.clone(),
            "returns": self._returns.clone(),
            "steps": torch.tensor(self.steps),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from ``state`` of a trainer with the same configuration and environment.

        Raises:
            ConfigError: it is not of such a trainer.
        """
        try:
            self._restore(state)
        except (KeyError, RuntimeError) as error:
            raise ConfigError(f"state is not of this trainer: {error}") from error

    def _restore(self, state: dict[str, Tensor]) -> None:
        self.networks.load_state_dict(_part(state, "networks."))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _part(state, "optimiser.").items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = value.clone()
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self._buffer.restore(_part(state, "buffer."))
        for name, generator in self._generators.items():
            generator.set_state(state[f"generator.{name}"])
        self._observations, self._ages, self._returns = (
            state[name].to(self._device, copy=True) for name in ("observations", "ages", "returns")
        )
        self.steps = int(state["steps"])
        self._ended.clear()

    @torch.no_grad()
    def _collect(self) -> None:
        """Act once in every row, keep what happened, and start anew those that ended."""
        source = self._generators["environment"]
        before, shown = self._observations, self._normalised(self._observations)
        unit = self._explore(shown)
        raw = from_unit(unit, self._low, self._high)
        after, total, terminated = self._environment.step(before, raw, source)
        self._ages += 1
        for _ in range(self._config.action_repeat - 1):
            going = ~terminated
            later, rewards, over = self._environment.step(after, raw, source)
            after = later.where(going[:, None], after)
            total = total + rewards.where(going, 0.0)
            terminated = terminated | (over & going)
            self._ages += going
        counted = (total / self._config.action_repeat + self._config.reward_offset)[:, None]
        columns = (shown, unit, self._normalised(after), counted, ~terminated[:, None])
        self._buffer.add(torch.cat(columns, dim=1))
        self._returns += total
        over = (terminated | (self._ages >= self._config.horizon)).nonzero().squeeze(1)
        self._observations = after
        if len(over):
            self._ended.append(self._returns[over])
            fresh = self._environment.reset(len(over), source)
            self._observations = after.index_copy(0, over, fresh)
            self._ages[over], self._returns[over] = 0, 0.0

    def _set_rates(self) -> None:
        """Set the learning rates of the next step, so that a resume takes it at the same ones."""
        over = self._config.decay_steps
        if over is not None:
            rate = cosine_rate(self._config.learning_rate, min(self.steps, over), over)
            for group in self._optimiser.param_groups:
                group["lr"] = rate

    def _explore(self, shown: Tensor) -> Tensor:
        """Return actions ``(M, A)`` in [-1, 1]: uniform in the warm-up, then the actor's."""
        source, shape = self._generators["exploration"], (len(shown), self._sizes.action)
        if self._buffer.size < self._config.warmup:
            return 2 * torch.rand(shape, generator=source).to(self._device) - 1
        noise = torch.randn(shape, generator=source).to(self._device)
        return self.networks.distribution(shown).sample(noise)[0]

    def _batch(self) -> Batch:
        count, source = self._config.batch_size, self._generators["batches"]
        real = 0 if self._real_rows is None else round(self._config.real_share * count)
        rows = self._buffer.sample(count - real, source)
        if self._real_rows is not None and real:
            recorded = sampled_rows(self._real_rows, real, source)
            recorded[:, -2] += self._config.reward_offset
            rows = torch.cat((rows, recorded))
        width = self._algorithm.noise_width(self._sizes)
        noise = torch.randn(count, width, generator=self._generators["noise"])
        return as_batch(rows, self._sizes, noise.to(self._device))

    def _normalised(self, observations: Tensor) -> Tensor:
        return (observations - self._mean) / self._spread


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _checked_rows(rows: Tensor | None, width: int, device: str) -> Tensor | None:
    if rows is not None and (rows.dim() != 2 or rows.shape[1] != width or not len(rows)):
        raise ConfigError(f"real_rows must be (N, {width}) with N > 0, got {tuple(rows.shape)}")
    return None if rows is None else rows.to(device)
