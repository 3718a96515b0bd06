"""Expert policies over discrete actions: many networks of one form, stacked, in one file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.data.bombs import check_holes

Activation = Literal["tanh", "relu"]

_ROLE = "expert_policies"


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertPolicies:
    """E policies, each a small network; the action it scores highest is nearly always taken.

    That action has probability 1 - (A - 1) ``minimum_probability``, each other one
    ``minimum_probability``, rounded up in the last bit of float32, so that no reader finds less.

    Args:
        weights: of each layer, (E, in, out) float32; (1, in, out) where ``conditions`` are given.
        biases: of each layer, (E, out), or (1, out).
        activation: between layers.
        minimum_probability: p_min.
        unit_ids: (E,) uint64: the dataset's unit of each expert, `experts.unit_of_expert`.
        offset: (O,) taken from observations; a public fact.
        scale: (O,) by which they are then divided, above zero; a public fact.
        conditions: (E, C) what one shared network is told of each expert, after the observation.

    Raises:
        ConfigError: the arrays do not fit together, or ``minimum_probability`` is no probability
            that A actions can have.

    Reference: Expert-level DP, appendix B.1.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: Activation
    minimum_probability: float
    unit_ids: NDArray[np.uint64]
    offset: Tensor
    scale: Tensor
    conditions: Tensor | None = None

    def __post_init__(self) -> None:
        _check_form(self)

    def __len__(self) -> int:
        return len(self.unit_ids)

    @property
    def actions(self) -> int:
        """The number A of actions."""
        return int(self.weights[-1].shape[2])

    @property
    def observation_width(self) -> int:
        """The width O of observations."""
        return len(self.offset)

    @property
    def widths(self) -> list[int]:
        """Widths of the layers, the inputs first, a shared network's conditions among them."""
        return [int(self.weights[0].shape[1]), *(int(bias.shape[1]) for bias in self.biases)]

    def log_probabilities(self, expert: int, observations: Tensor) -> Tensor:
        """Return one expert's log-probability of each action, by one forward.

        Args:
            expert: position of the expert, from 0 on.
            observations: (L, O), raw.

        Returns:
            ``(L, A)`` float32.
        """
        if not 0 <= expert < len(self):
            raise ConfigError(f"expert must lie in 0 to {len(self) - 1}, got {expert}")
        layer = 0 if self.conditions is not None else expert
        hidden = self._inputs(observations, slice(expert, expert + 1))
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.addmm(bias[layer], self._activated(hidden, index), weight[layer])
        least, most = _log_probabilities(self.minimum_probability, self.actions)
        filled = torch.full_like(hidden, least)
        return filled.scatter_(1, hidden.argmax(dim=1, keepdim=True), most)

    def greedy(self, observations: Tensor) -> Tensor:
        """Return the likeliest action of each expert, ``(E, N, O)`` to ``(E, N)`` int64."""
        hidden = self._inputs(observations, slice(None))
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = self._activated(hidden, index)
            if len(weight) == 1:
                hidden = torch.addmm(bias[0], hidden.flatten(0, 1), weight[0])
                hidden = hidden.reshape(*observations.shape[:2], -1)
            else:
                hidden = torch.baddbmm(bias[:, None], hidden, weight)
        return hidden.argmax(dim=2)

    def act(self, observations: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return an action of each expert for each of its observations, by chance.

        Args:
            observations: (E, N, O), raw.
            generator: source of the draws.

        Returns:
            positions of actions ``(E, N)`` int64 and their log-probabilities ``(E, N)`` float32.
        """
        best = self.greedy(observations)
        least, most = _log_probabilities(self.minimum_probability, self.actions)
        drawn = torch.rand(best.shape, generator=generator, dtype=torch.float64)
        turn = (drawn / self.minimum_probability).long() + 1
        strays = turn < self.actions
        actions = torch.where(strays, (best + turn) % self.actions, best)
        return actions, torch.where(strays, least, most).float()

    def part(self, start: int, stop: int) -> Self:
        """Return the experts from ``start`` on, before ``stop``."""
        shared = self.conditions is not None
        return replace(
            self,
            weights=self.weights if shared else tuple(one[start:stop] for one in self.weights),
            biases=self.biases if shared else tuple(one[start:stop] for one in self.biases),
            unit_ids=self.unit_ids[start:stop],
            conditions=None if self.conditions is None else self.conditions[start:stop],
        )

    @classmethod
    def concatenate(cls, parts: Sequence["ExpertPolicies"]) -> Self:
        """Return the experts of ``parts``, which have one form, one after the other.

        Where they share a network it is that of the first part.

        Raises:
            ConfigError: there are no parts, or they do not fit together.
        """
        if len({(*part.widths, part.conditions is None) for part in parts}) != 1:
            raise ConfigError(f"parts must be of one form, got {len(parts)} of several or none")
        first, shared = parts[0], parts[0].conditions is not None
        layers = range(0 if shared else len(first.weights))
        weights = tuple(torch.cat([part.weights[index] for part in parts]) for index in layers)
        biases = tuple(torch.cat([part.biases[index] for part in parts]) for index in layers)
        told = [part.conditions for part in parts if part.conditions is not None]
        return cls(
            weights=weights or first.weights,
            biases=biases or first.biases,
            activation=first.activation,
            minimum_probability=first.minimum_probability,
            unit_ids=np.concatenate([part.unit_ids for part in parts]),
            offset=first.offset,
            scale=first.scale,
            conditions=torch.cat(told) if told else None,
        )

    def save(self, path: Path, *, mode: int = 0o600) -> None:
        """Write the policies to ``path`` as safetensors, atomically, for their owner alone.

        Raises:
            StorageError: the file cannot be written.
        """
        tensors = {
            "unit_ids": torch.from_numpy(self.unit_ids.view(np.int64).copy()),
            "offset": self.offset,
            "scale": self.scale,
            **{f"weight_{index}": value for index, value in enumerate(self.weights)},
            **{f"bias_{index}": value for index, value in enumerate(self.biases)},
            **({} if self.conditions is None else {"conditions": self.conditions}),
        }
        described = {
            "role": _ROLE,
            "layers": len(self.weights),
            "activation": self.activation,
            "minimum_probability": self.minimum_probability,
        }
        held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        content = safetensors.torch.save(held, {_ROLE: json.dumps(described)})
        write_atomically(path, content, mode=mode)

    @classmethod
    def load(cls, path: Path, start: int = 0, stop: int | None = None) -> Self:
        """Return policies that `save` wrote to ``path``; no more is read than is asked for.

        Args:
            path: the file.
            start: position of the first expert.
            stop: position after the last one; None: all that follow.

        Raises:
            StorageError: the file cannot be read, or holds no policies.
            ConfigError: the file has no such experts.
        """
        try:
            with storage_errors(f"read {path}"):
                check_holes(path)
            with storage_errors(f"read {path}"), safetensors.safe_open(path, "pt") as file:
                described = json.loads((file.metadata() or {})[_ROLE])
                count = file.get_slice("unit_ids").get_shape()[0]
                chosen = slice(start, count if stop is None else stop)
                if not 0 <= chosen.start < chosen.stop <= count:
                    raise ConfigError(
                        f"experts {chosen.start} to {chosen.stop} must lie in 0 to {count},"
                        f" which {path} holds"
                    )
                return cls._read(file, described, chosen)
        except ConfigError as error:
            if str(path) in str(error):
                raise
            raise StorageError(f"{path} holds no expert policies ({error})") from error
        except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{path} holds no expert policies: collect them again") from error

    @classmethod
    def _read(cls, file: Any, described: Mapping[str, Any], chosen: slice) -> Self:
        shared = "conditions" in file.keys()  # noqa: SIM118 - not a mapping
        rows = slice(None) if shared else chosen
        layers = range(described["layers"])
        return cls(
            weights=tuple(file.get_slice(f"weight_{index}")[rows] for index in layers),
            biases=tuple(file.get_slice(f"bias_{index}")[rows] for index in layers),
            activation=described["activation"],
            minimum_probability=described["minimum_probability"],
            unit_ids=file.get_slice("unit_ids")[chosen].numpy().view(np.uint64),
            offset=file.get_tensor("offset"),
            scale=file.get_tensor("scale"),
            conditions=file.get_slice("conditions")[chosen] if shared else None,
        )

    def _inputs(self, observations: Tensor, experts: slice) -> Tensor:
        inputs = (observations - self.offset) / self.scale
        if self.conditions is None:
            return inputs
        told = self.conditions[experts]
        told = told if observations.dim() == 2 else told[:, None]
        return torch.cat((inputs, told.expand(*observations.shape[:-1], -1)), dim=-1)

    def _activated(self, hidden: Tensor, layer: int) -> Tensor:
        if layer == 0:
            return hidden
        return hidden.tanh() if self.activation == "tanh" else hidden.relu()


def _log_probabilities(least: float, actions: int) -> tuple[float, float]:
    """Return the log-probabilities of any other action and of the likeliest one."""
    exact = (math.log(least), math.log1p(-(actions - 1) * least))
    low, high = (float(np.nextafter(np.float32(value), np.float32(1))) for value in exact)
    return low, min(high, 0.0)


def _check_form(policies: ExpertPolicies) -> None:
    """Check that the arrays fit together.

    Raises:
        ConfigError: they do not.
    """
    layers = list(zip(policies.weights, policies.biases, strict=False))
    stacked = 1 if policies.conditions is not None else len(policies)
    told = 0 if policies.conditions is None else int(policies.conditions.shape[-1])
    if policies.activation not in get_args(Activation):
        raise ConfigError(f"activation must be tanh or relu, got {policies.activation!r}")
    width = len(policies.offset) + told
    for index, (weight, bias) in enumerate(layers):
        out = bias.shape[-1]
        if tuple(weight.shape) != (stacked, width, out) or tuple(bias.shape) != (stacked, out):
            raise ConfigError(
                f"layer {index} must have weights ({stacked}, {width}, {out}) and biases"
                f" ({stacked}, {out}), got {tuple(weight.shape)} and {tuple(bias.shape)}"
            )
        width = out
    if not layers or len(policies.weights) != len(policies.biases):
        raise ConfigError(
            f"weights and biases must be of equally many layers, got {len(policies.weights)} and"
            f" {len(policies.biases)}"
        )
    tensors = (*policies.weights, *policies.biases, policies.offset, policies.scale)
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        raise ConfigError("weights, biases, offset and scale must be float32")
    if policies.conditions is not None and len(policies.conditions) != len(policies):
        raise ConfigError(
            f"conditions must have {len(policies)} rows, got {len(policies.conditions)}"
        )
    if policies.scale.shape != policies.offset.shape or not (policies.scale > 0).all():
        raise ConfigError(f"scale must be {len(policies.offset)} numbers > 0")
    if not 0 < policies.minimum_probability <= 1 / width:
        raise ConfigError(
            f"minimum_probability must lie in (0, 1/{width}] for {width} actions,"
            f" got {policies.minimum_probability!r}"
        )
