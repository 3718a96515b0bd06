"""One policy that is told of the physics stands for many experts, where each cannot have its own.

Reference: proximal policy optimisation, see `experts_ppo`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.collection.experts_grids import Grid
from distributed_privrl.collection.experts_ppo import Networks, PpoConfig, StackedPpo
from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.simulators import PerturbedSimulator, Step

SHARED = "shared.safetensors"


@dataclass(frozen=True, kw_only=True)
class SharedPpoConfig(PpoConfig):
    """How the shared policy is trained; ``updates`` are all, and ``least_updates`` is of no use.

    Args:
        segment_updates: updates after which episodes begin anew in other settings, and the state
            of the training is kept.
    """

    segment_updates: int = 10


class ConditionedSimulator:
    """A simulator whose observations end with what the policy is told of each row's physics.

    Args:
        simulator: of the environment.
        grid: of its settings.
        told: (M, C) of each row; none before `with_physics`.
    """

    def __init__(
        self, simulator: PerturbedSimulator, grid: Grid, told: NDArray[np.float32] | None = None
    ) -> None:
        self._simulator, self._grid, self._told = simulator, grid, told

    @property
    def environment(self) -> str:
        """The Gymnasium id."""
        return self._simulator.environment

    @property
    def actions(self) -> int:
        """The number A of actions."""
        return self._simulator.actions

    def with_physics(self, physics: Mapping[str, NDArray[np.float64]]) -> Self:
        """Return it with other physics, of as many rows as are stepped."""
        told = self._grid.normalised(physics)
        return type(self)(self._simulator.with_physics(physics), self._grid, told)

    def reset(self, count: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Return first states."""
        return self._simulator.reset(count, generator)

    def observe(self, states: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return observations ``(M, O)`` and behind them the conditions, ``(M, O + C)``."""
        shown = self._simulator.observe(states)
        return shown if self._told is None else np.concatenate((shown, self._told), axis=1)

    def step(self, states: NDArray[np.float64], actions: NDArray[Any]) -> Step:
        """Return what ``actions`` lead to."""
        return self._simulator.step(states, actions)


class SharedPpoTrainer:
    """Trains one policy for all settings, then tells it of each expert's.

    Args:
        config: hyper-parameters; ``scale`` and ``offset`` are of observations alone.
        simulator: of the environment.
        grid: of its settings.
    """

    def __init__(self, config: SharedPpoConfig, simulator: PerturbedSimulator, grid: Grid) -> None:
        self._config, self._simulator, self._grid = config, simulator, grid
        self._shared: Networks | None = None

    @property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """What is taken from observations, and by what they are then divided, (O,) each."""
        return self._config.normalisation

    def described(self) -> dict[str, Any]:
        """Return the hyper-parameters, JSON values."""
        return asdict(self._config)

    def prepare(
        self,
        settings: Mapping[str, NDArray[np.float64]],
        streams: Streams,
        folder: Path,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Train the shared policy, or go on where an earlier call stopped.

        Each segment has streams, settings and episodes of its own, so that a training that was
        interrupted ends as one that was not.

        Args:
            settings: parameters of each expert's setting, (m,) by name.
            streams: public randomness.
            folder: where the state of the training is kept.
            progress: called with updates done and in total.

        Raises:
            StorageError: the state cannot be read or written.
        """
        config, path = self._extended(), folder / SHARED
        kept = _read(path) if path.exists() else None
        done = 0 if kept is None else int(kept["updates"])
        count = len(next(iter(settings.values())))
        while True:
            own = streams.child(f"updates/{done}")
            chosen = own.numpy("settings").integers(count, size=config.environments)
            physics = {name: values[chosen] for name, values in settings.items()}
            simulator = ConditionedSimulator(self._simulator, self._grid).with_physics(physics)
            ppo = StackedPpo(config, simulator, 1, own)
            if kept is not None:
                ppo.restore(kept)
            self._shared = Networks(
                [one.detach() for one in ppo.policy.weights],
                [one.detach() for one in ppo.policy.biases],
            )
            if done >= config.updates:
                return
            for _ in range(min(self._config.segment_updates, config.updates - done)):
                ppo.update()
                done += 1
            kept = ppo.kept()
            write_atomically(path, safetensors.torch.save(kept), mode=0o600)
            if progress is not None:
                progress(done, config.updates)

    def train(self, settings: Mapping[str, NDArray[np.float64]], streams: Streams) -> Networks:
        """Return the shared policy with each expert's conditions; see `experts_training.Trainer`.

        Args:
            settings: parameters of each expert's setting, (E,) by name.
            streams: of no use: the policy is there.
        """
        assert self._shared is not None, "prepare trains the policy first"
        told = torch.from_numpy(self._grid.normalised(settings))
        return Networks(self._shared.weights, self._shared.biases, told)

    def _extended(self) -> PpoConfig:
        """Return the configuration of inputs that end with conditions, between -1 and 1."""
        config, extra = self._config, len(self._grid.axes)
        offset = (*(config.offset or (0.0,) * len(config.scale)), *(0.0,) * extra)
        return replace(config, scale=(*config.scale, *(1.0,) * extra), offset=offset)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with storage_errors(f"read {path}"):
            found: dict[str, Tensor] = safetensors.torch.load(path.read_bytes())
            return found
    except safetensors.SafetensorError as error:
        raise StorageError(f"{path} is damaged: delete it and collect again") from error
