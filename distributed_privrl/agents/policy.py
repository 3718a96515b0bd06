"""A trained deterministic policy: observations in, actions of the environment out."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.torch
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import nn

from distributed_privrl.agents.networks import actor_widths
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import atomic_path, storage_errors
from distributed_privrl.data.spaces import (
    Space,
    box_bounds,
    part_width,
    space_from_json,
    space_to_json,
    supported_space,
)
from distributed_privrl.models.layers import mlp


@dataclass(frozen=True, kw_only=True, eq=False)
class ActionScale:
    """Maps between a bounded Box of actions and [-1, 1].

    Args:
        low: (A,) lower bounds.
        high: (A,) upper bounds.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @classmethod
    def of(cls, space: Space) -> Self:
        """Return the scale of ``space``.

        Raises:
            ConfigError: not a Box, or a bound is infinite.
        """
        if not isinstance(space, Box):
            raise ConfigError(f"action space must be a Box for this agent, got {space}")
        low, high = box_bounds(space)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigError(f"action space must have finite bounds, got {space}")
        return cls(low=low, high=high)

    def to_unit(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Return environment ``actions`` ``(N, A)`` scaled to [-1, 1]."""
        scaled: NDArray[np.float32] = 2 * (actions - self.low) / (self.high - self.low) - 1
        return scaled.astype(np.float32, copy=False)

    def from_unit(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Return ``actions`` ``(N, A)`` in [-1, 1] as the environment's, inside its bounds."""
        raw = self.low + (actions + 1) / 2 * (self.high - self.low)
        clipped: NDArray[np.float32] = np.clip(raw, self.low, self.high)
        return clipped.astype(np.float32, copy=False)


class Policy:
    """Acts by the hyperbolic tangent of an MLP of normalised observations.

    Args:
        network: maps ``(N, O)`` to ``(N, A)``; a plain MLP with ReLU.
        normalisation: of the observations, fitted on the training data.
        observation_space: Box, or Discrete (one-hot).
        action_space: Box with finite bounds.

    Raises:
        ConfigError: the action space has no finite bounds.
    """

    def __init__(
        self,
        network: nn.Sequential,
        *,
        normalisation: Normalisation,
        observation_space: Space,
        action_space: Space,
    ) -> None:
        self.network = network
        self.normalisation = normalisation
        self.observation_space = observation_space
        self.action_space = action_space
        self._scale = ActionScale.of(action_space)

    def act(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Return actions ``(N, A)`` for ``observations`` ``(N, O)``, or ``(N,)`` if Discrete."""
        inputs = encode_observations(self.observation_space, observations, self.normalisation)
        with torch.inference_mode():
            output = self.network(torch.from_numpy(inputs)).tanh().numpy()
        return self._scale.from_unit(output)

    def save(self, path: Path) -> None:
        """Write the policy to ``path``: weights as safetensors, the rest as JSON in its header.

        Raises:
            StorageError: the file cannot be written.
        """
        description = {
            "widths": actor_widths(self.network),
            "mean": self.normalisation.mean.tolist(),
            "spread": self.normalisation.spread.tolist(),
            "observation_space": json.loads(space_to_json(self.observation_space)),
            "action_space": json.loads(space_to_json(self.action_space)),
        }
        weights = {name: value.contiguous() for name, value in self.network.state_dict().items()}
        content = safetensors.torch.save(weights, {"policy": json.dumps(description)})
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the policy that `save` wrote to ``path``.

        Raises:
            StorageError: the file cannot be read, or holds no policy.
        """
        with storage_errors(f"read {path}"):
            content = path.read_bytes()
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                description = json.loads(file.metadata()["policy"])
            network = mlp(description["widths"], torch.Generator())
            network.load_state_dict(safetensors.torch.load(content))
            spaces = [
                supported_space(name, space_from_json(json.dumps(description[name])))
                for name in ("observation_space", "action_space")
            ]
        except (
            safetensors.SafetensorError,
            KeyError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            raise StorageError(f"{path} holds no policy: train it again") from error
        return cls(
            network,
            normalisation=Normalisation(
                mean=np.asarray(description["mean"], np.float32),
                spread=np.asarray(description["spread"], np.float32),
            ),
            observation_space=spaces[0],
            action_space=spaces[1],
        )


def encode_observations(
    space: Space, observations: NDArray[Any], normalisation: Normalisation
) -> NDArray[np.float32]:
    """Return what a network sees ``(N, O)``: normalised numbers, or one-hot rows.

    Args:
        space: the observation space.
        observations: (N, ...) of a Box, or (N,) integers of a Discrete space.
        normalisation: of the columns; one-hot rows use `Normalisation.identity`.
    """
    if isinstance(space, Discrete):
        rows = np.eye(int(space.n), dtype=np.float32)[np.asarray(observations) - int(space.start)]
    else:
        rows = np.asarray(observations, dtype=np.float32).reshape(len(observations), -1)
    return normalisation.apply(rows)


def fit_observations(space: Space, observations: NDArray[Any]) -> Normalisation:
    """Return the normalisation of training ``observations`` ``(N, O)``; one-hot rows stay."""
    if isinstance(space, Discrete):
        return Normalisation.identity(part_width(space))
    return Normalisation.fit(observations)
