"""The local update of a dynamics ensemble: compiled, or by automatic differentiation."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.methods.primorl import update_kernel as kernel
from distributed_privrl.methods.primorl.matrix_kernels import LANES, TILE_ROWS, padded
from distributed_privrl.models.dynamics import LOG_VARIANCE_RANGE, DynamicsEnsemble, gaussian_nll
from distributed_privrl.updates.ensemble_clipping import EnsembleClip, EnsembleLayout
from distributed_privrl.updates.federated import FederatedUpdate, row_order
from distributed_privrl.updates.federated_config import FederatedConfig
from distributed_privrl.updates.functional_training import FunctionalTrainer
from distributed_privrl.updates.local_update import UnitBatch

_NUMBERS_AT_ONCE = 2**20  # of units' vectors


@dataclass(frozen=True)
class TransitionColumns:
    """Which columns of an encoded row a model is given, and which it predicts.

    Args:
        inputs: of state and action.
        targets: of the state's difference, then the reward.
    """

    inputs: tuple[int, ...]
    targets: tuple[int, ...]

    @classmethod
    def of(cls, layout: RowLayout) -> "TransitionColumns":
        """Return the columns of a layout.

        Raises:
            ConfigError: its rows hold the next observation itself.
        """
        if layout.coding.next_observation != "difference":
            raise ConfigError("a dynamics model needs rows with next_observation='difference'")
        columns = {name: range(layout.width)[block] for name, block in layout.blocks.items()}
        return cls(
            inputs=(*columns["observation"], *columns["action"]),
            targets=(*columns["next_observation"], *columns["reward"]),
        )


@dataclass(frozen=True)
class DynamicsRowLoss:
    """The negative log-likelihood of each row, summed over members; no draws.

    Args:
        columns: of inputs and targets.
    """

    columns: TransitionColumns
    draw_count: int = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the losses ``(M,)`` of rows ``(M, D)``."""
        mean, log_variance = module(rows[:, self.columns.inputs])
        return gaussian_nll(mean, log_variance, rows[:, self.columns.targets]).sum(dim=0)


@dataclass(frozen=True, kw_only=True)
class DynamicsUpdate:
    """Builds the local update in a worker's process; knows public facts alone.

    Args:
        columns: of inputs and targets in a row.
        members: N.
        hidden: widths of the hidden layers.
        config: of the local training.
        clip_norm: L2 bound C of a unit's vector; None without privacy.
        log_variance_range: public bounds.
        engine: ``kernel`` is compiled for CPUs, float32; ``functional`` is its oracle in tests.
        device: where units are trained on; on all but the CPU by ``functional``.
    """

    columns: TransitionColumns
    members: int
    hidden: tuple[int, ...]
    config: FederatedConfig
    clip_norm: float | None
    log_variance_range: tuple[float, float] = LOG_VARIANCE_RANGE
    engine: Literal["kernel", "functional"] = "kernel"
    device: str = "cpu"

    @property
    def draw_count(self) -> int:
        """Standard normals of a row: one an epoch, if rows are shuffled."""
        return self.config.epochs * self.config.shuffle

    def ensemble(self, generator: torch.Generator) -> DynamicsEnsemble:
        """Return a freshly initialised ensemble."""
        return DynamicsEnsemble(
            len(self.columns.inputs),
            len(self.columns.targets),
            members=self.members,
            hidden=self.hidden,
            log_variance_range=self.log_variance_range,
            generator=generator,
        )

    def __call__(self) -> FederatedUpdate:
        """Return a fresh local update; its parameters come with each call."""
        ensemble = self.ensemble(torch.Generator())
        layers = tuple((i * o, o) for i, o in itertools.pairwise(ensemble.widths))
        layout = EnsembleLayout(members=self.members, layers=layers)
        clip = EnsembleClip(layout=layout, clip_norm=self.clip_norm, strategy=self.config.strategy)
        if self.engine == "functional" or self.device != "cpu":
            network, loss = ensemble.to(self.device), DynamicsRowLoss(self.columns)
            return FederatedUpdate(FunctionalTrainer(network, loss, self.config, clip), clip)
        return FederatedUpdate(DynamicsTrainer(ensemble, self.columns, self.config, clip), clip)


class DynamicsTrainer:
    """Local training of a `DynamicsEnsemble` by the compiled kernel; see `LocalTrainer`.

    Args:
        ensemble: gives the sizes; its parameters are not used.
        columns: of inputs and targets.
        config: of the local training.
        clip: between batches, where the configuration asks for it.
    """

    def __init__(
        self,
        ensemble: DynamicsEnsemble,
        columns: TransitionColumns,
        config: FederatedConfig,
        clip: EnsembleClip,
    ) -> None:
        self._members, self._config, self._clip = ensemble.members, config, clip
        self._inputs, self._targets = np.array(columns.inputs), np.array(columns.targets)
        low, high = ensemble.log_variance_range
        self._variances = (np.float32(math.exp(low)), np.float32(math.exp(high)))
        self._layers, self._size = _table(ensemble.widths, ensemble.members)
        self._vectors = np.zeros((0, clip.layout.dimension), np.float32)

    @property
    def draw_count(self) -> int:
        """One an epoch, which sorts the rows, if they are shuffled."""
        return self._config.epochs * self._config.shuffle

    def differences(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> Iterator[NDArray[np.floating]]:
        """Yield start - end of consecutive units' training; see `LocalTrainer.differences`."""
        config, start = self._config, self._padded(parameters)
        dimension = self._clip.layout.dimension  # parameters may have more behind them
        at_once = max(1, _NUMBERS_AT_ONCE // dimension)
        if len(self._vectors) < min(at_once, len(batch)):
            self._vectors = np.zeros((min(at_once, len(batch)), dimension), np.float32)
        for first in range(0, len(batch), at_once):
            part = batch.part(first, first + at_once)
            vectors = self._vectors[: len(part)]
            kernel.train_units(
                layers=self._layers,
                members=self._members,
                start=start,
                rows=part.rows,
                valid=part.valid,
                counts=part.row_counts,
                order=row_order(part, config, draws_used=0),
                inputs=self._inputs,
                targets=self._targets,
                batch_size=config.batch_size,
                rate=np.float32(config.learning_rate),
                kept=np.float32(config.kept),
                variance_bounds=self._variances,
                groups=self._groups(),
                bound=self._clip.bound if config.projection == "batch" else math.inf,
                out=vectors,
            )
            yield vectors

    def _padded(self, parameters: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the parameters as the kernel has them, ``(N S,)``."""
        out = np.zeros((self._members, self._size), np.float32)
        for inputs, outputs, _, width, weight, bias, flat_weight, flat_bias, _ in self._layers:
            shape = self._members, inputs, outputs
            stop = flat_weight + math.prod(shape)
            own = out[:, weight : weight + inputs * width].reshape(self._members, inputs, width)
            own[:, :, :outputs] = parameters[flat_weight:stop].reshape(shape)
            out[:, weight : weight + inputs * width] = own.reshape(self._members, -1)
            biases = parameters[flat_bias : flat_bias + self._members * outputs]
            out[:, bias : bias + outputs] = biases.reshape(self._members, outputs)
        return out.ravel()

    def _groups(self) -> NDArray[np.int64]:
        """Return begin and end, among the padded parameters, of what is clipped together."""
        members = self._size * np.arange(self._members)
        if self._clip.strategy == "per_layer":
            begins = (members[:, None] + self._layers[:, kernel.WEIGHT]).ravel()
        else:
            begins = members if self._clip.strategy == "flat" else members[:1]
        return np.stack([begins, np.append(begins[1:], self._members * self._size)], axis=1)


def _table(widths: tuple[int, ...], members: int) -> tuple[NDArray[np.int64], int]:
    """Return the kernel's table of layers, and the padded numbers S of a member."""
    rows, size, flat, activation = [], 0, 0, 0
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        tall, wide = padded(inputs, LANES if layer else TILE_ROWS), padded(outputs)
        bias, flat_bias = size + tall * wide, flat + members * inputs * outputs
        rows.append((inputs, outputs, tall, wide, size, bias, flat, flat_bias, activation))
        size, flat, activation = bias + wide, flat_bias + members * outputs, activation + tall
    return np.array(rows, np.int64), size
