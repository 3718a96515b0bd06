"""A trained deterministic policy: observations in, actions of the environment out."""

import copy
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import safetensors
import safetensors.torch
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.agents.networks import actor_widths
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.core.checks import check_delta
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import atomic_path, storage_errors
from distributed_privrl.data.action_levels import ActionLevels
from distributed_privrl.data.bombs import check_holes
from distributed_privrl.data.spaces import (
    Space,
    box_bounds,
    part_width,
    space_from_json,
    space_to_json,
    supported_space,
)
from distributed_privrl.models.layers import check_weights, mlp

_BEHAVIOUR = "behaviour."


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


class Acting(NamedTuple):
    """What a policy acts by; the networks are plain MLPs with ReLU of encoded observations."""

    network: nn.Sequential
    """(N, O) to what decides: (N, A) before the hyperbolic tangent (further columns are ignored),
    or a score of each discrete action."""
    behaviour: nn.Sequential | None = None
    """(N, O) to logits of the behaviour policy over discrete actions."""
    threshold: float = 0.0
    """Discrete actions must be more than this times as likely as the likeliest one."""


def likely_scores(scores: Tensor, behaviour_logits: Tensor, threshold: float) -> Tensor:
    """Return ``scores``, minus infinity where the behaviour policy hardly ever acts so.

    Args:
        scores: (N, A).
        behaviour_logits: (N, A).
        threshold: least likelihood relative to the likeliest action, exclusive.

    Reference: Fujimoto et al., "Benchmarking batch deep reinforcement learning algorithms" (2019),
    algorithm 1.
    """
    probabilities = behaviour_logits.softmax(dim=1)
    relative = probabilities / probabilities.amax(dim=1, keepdim=True)
    return scores.masked_fill(relative <= threshold, -torch.inf)


def on_cpu(acting: Acting) -> Acting:
    """Return what decides on the CPU: itself where it is there, else a copy."""
    if next(acting.network.parameters()).device.type == "cpu":
        return acting
    behaviour = None if acting.behaviour is None else copy.deepcopy(acting.behaviour).cpu()
    return Acting(copy.deepcopy(acting.network).cpu(), behaviour, acting.threshold)


def decide(acting: Acting, inputs: Tensor, action_space: Space) -> Tensor:
    """Return what is done: ``(N, A)`` in [-1, 1], or positions of discrete actions ``(N,)``.

    Args:
        acting: what decides.
        inputs: (N, O), encoded.
        action_space: Box or Discrete.
    """
    output: Tensor = acting.network(inputs)
    if not isinstance(action_space, Discrete):
        return output[:, : part_width(action_space)].tanh()
    if acting.behaviour is not None:
        output = likely_scores(output, acting.behaviour(inputs), acting.threshold)
    return output.argmax(dim=1)


class Policy:
    """Acts by MLPs of normalised observations: a hyperbolic tangent, or the best discrete action.

    Args:
        network: see `Acting`.
        behaviour: see `Acting`; Discrete actions only.
        threshold: see `Acting`, in [0, 1).
        normalisation: of the observations, fitted on the training data.
        observation_space: Box, or Discrete (one-hot).
        action_space: Box with finite bounds, or Discrete.
        levels: of a Box's actions: the networks decide among their combinations, as if Discrete.

    Raises:
        ConfigError: the action space has no finite bounds, or ``threshold`` is out of range.
    """

    def __init__(
        self,
        network: nn.Sequential,
        behaviour: nn.Sequential | None = None,
        threshold: float = 0.0,
        *,
        normalisation: Normalisation,
        observation_space: Space,
        action_space: Space,
        levels: ActionLevels | None = None,
    ) -> None:
        check_delta("threshold", threshold)
        self.network = network
        self.behaviour = behaviour
        self.threshold = threshold
        self.normalisation = normalisation
        self.observation_space = observation_space
        self.action_space = action_space
        self.levels = levels
        self.decided_space = action_space if levels is None else levels.space
        decided = self.decided_space
        self._start = int(decided.start) if isinstance(decided, Discrete) else 0
        self._scale = None if isinstance(decided, Discrete) else ActionScale.of(decided)

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return the actions for ``observations`` ``(N, O)``, or ``(N,)`` if Discrete.

        Returns:
            float32 ``(N, A)`` of a Box, or int64 ``(N,)`` of a Discrete space.
        """
        inputs = torch.from_numpy(
            encode_observations(self.observation_space, observations, self.normalisation)
        )
        acting = Acting(self.network, self.behaviour, self.threshold)
        with torch.inference_mode():
            decided = decide(acting, inputs, self.decided_space).numpy()
        if self._scale is not None:
            return self._scale.from_unit(decided)
        if self.levels is not None:
            return self.levels.values(decided)
        actions: NDArray[Any] = decided + self._start
        return actions

    def save(self, path: Path) -> None:
        """Write the policy to ``path``: weights as safetensors, the rest as JSON in its header.

        Raises:
            StorageError: the file cannot be written.
        """
        networks = {"": self.network, _BEHAVIOUR: self.behaviour}
        present = {prefix: network for prefix, network in networks.items() if network is not None}
        description = {
            "widths": {prefix: actor_widths(network) for prefix, network in present.items()},
            "threshold": self.threshold,
            "mean": self.normalisation.mean.tolist(),
            "spread": self.normalisation.spread.tolist(),
            "observation_space": json.loads(space_to_json(self.observation_space)),
            "action_space": json.loads(space_to_json(self.action_space)),
            **({} if self.levels is None else {"levels": self.levels.levels}),
        }
        weights = {
            prefix + name: value.contiguous()
            for prefix, network in present.items()
            for name, value in network.state_dict().items()
        }
        content = safetensors.torch.save(weights, {"policy": json.dumps(description)})
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)

    @classmethod
    def load(cls, path: Path | str, *, finite: bool = True) -> Self:
        """Return the policy that `save` wrote to ``path``.

        Args:
            path: of its file.
            finite: refuse weights that are no finite numbers. A run whose policy diverged was paid
                for, and shows it.

        Raises:
            StorageError: the file cannot be read, or holds no policy.
        """
        path = Path(path)
        try:
            with storage_errors(f"read {path}"):
                check_holes(path)
                content = path.read_bytes()
            with safetensors.safe_open(path, framework="pt") as file:
                description = json.loads(file.metadata()["policy"])
            return cls._from(description, safetensors.torch.load(content), finite=finite)
        except ConfigError as error:
            raise StorageError(f"{path} holds no policy ({error}): train it again") from error
        except (
            safetensors.SafetensorError,
            RecursionError,
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            raise StorageError(f"{path} holds no policy: train it again") from error

    @classmethod
    def _from(
        cls, description: dict[str, Any], weights: dict[str, Tensor], *, finite: bool
    ) -> Self:
        shapes = description["widths"]
        pairs = [pair for widths in shapes.values() for pair in itertools.pairwise(widths)]
        needed = sum((a + 1) * b for a, b in pairs)
        check_weights(weights.values(), needed=needed, finite=finite)
        networks = {prefix: mlp(widths, torch.Generator()) for prefix, widths in shapes.items()}
        for prefix, network in networks.items():
            network.load_state_dict(
                {
                    name.removeprefix(prefix): value
                    for name, value in weights.items()
                    if name.startswith(_BEHAVIOUR) == bool(prefix)
                }
            )
        observation_space, action_space = (
            supported_space(name, space_from_json(json.dumps(description[name])))
            for name in ("observation_space", "action_space")
        )
        levels = description.get("levels")
        return cls(
            networks[""],
            networks.get(_BEHAVIOUR),
            description["threshold"],
            normalisation=Normalisation(
                mean=np.asarray(description["mean"], np.float32),
                spread=np.asarray(description["spread"], np.float32),
            ),
            observation_space=observation_space,
            action_space=action_space,
            levels=ActionLevels.of(levels, action_space) if levels is not None else None,
        )


def encode_observations(
    space: Space, observations: NDArray[Any], normalisation: Normalisation
) -> NDArray[np.float32]:
    """Return what a network sees ``(N, O)``: normalised numbers, or one-hot rows.

    Args:
        space: the observation space.
        observations: (N, ...) of a Box, or (N,) integers of a Discrete space.
        normalisation: of the columns; one-hot rows use `Normalisation.identity`.

    Raises:
        ConfigError: a MultiDiscrete space, or observations that are not a row each.
    """
    if isinstance(space, MultiDiscrete):
        raise ConfigError(f"observation space must be a Box or Discrete for this agent: {space}")
    if isinstance(space, Discrete):
        rows = np.eye(int(space.n), dtype=np.float32)[np.asarray(observations) - int(space.start)]
    else:
        rows, width = np.asarray(observations, dtype=np.float32), part_width(space)
        if rows.ndim < 2 or rows.size != len(rows) * width:
            raise ConfigError(f"observations must be (N, {width}), got {rows.shape}")
        rows = rows.reshape(len(rows), width)
    return normalisation.apply(rows)


def encode_actions(space: Space, actions: NDArray[Any]) -> NDArray[np.float32]:
    """Return what a network sees ``(N, A)``: a Box's actions scaled to [-1, 1], or one-hot rows.

    Args:
        space: the action space.
        actions: (N, A) of a Box, or (N,) integers of a Discrete space.

    Raises:
        ConfigError: a Discrete action outside its space, or a space without finite bounds.
    """
    if not isinstance(space, Discrete):
        return ActionScale.of(space).to_unit(actions)
    positions = np.asarray(actions) - int(space.start)
    if len(positions) and not (positions.min() >= 0 and positions.max() < space.n):
        raise ConfigError(f"actions must lie in {space}, got {actions.min()} to {actions.max()}")
    rows: NDArray[np.float32] = np.eye(int(space.n), dtype=np.float32)[positions]
    return rows


def fit_observations(space: Space, observations: NDArray[Any]) -> Normalisation:
    """Return the normalisation of training ``observations`` ``(N, O)``; one-hot rows stay."""
    if isinstance(space, Discrete):
        return Normalisation.identity(part_width(space))
    return Normalisation.fit(observations)
