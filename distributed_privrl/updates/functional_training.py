"""Local training of any module on many units in lock-step, each with parameters of its own."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from distributed_privrl.updates.ensemble_clipping import EnsembleClip
from distributed_privrl.updates.federated import row_order
from distributed_privrl.updates.federated_config import FederatedConfig
from distributed_privrl.updates.local_update import RowLoss, UnitBatch
from distributed_privrl.updates.parameters import FlatParameters


class _Losses(nn.Module):
    """A row loss as a module, so that its parameters can be given."""

    def __init__(self, module: nn.Module, row_loss: RowLoss) -> None:
        super().__init__()
        self.module = module
        self._row_loss = row_loss

    def forward(self, rows: Tensor, draws: Tensor) -> Tensor:
        return self._row_loss(self.module, rows, draws)


@dataclass
class FunctionalTrainer:
    """Steps many units at once, by `torch.func`; see `LocalTrainer`.

    The path of modules without a kernel, of GPUs, and the oracle of kernels in tests. It computes
    where the module is.

    Privacy: units never meet. Each has parameters of its own, and every operation works on each
    unit's numbers alone, in shapes that follow from public slots. What comes back is clipped and
    rounded to the lattice unit by unit on the CPU (`EnsembleClip`), so that sums are exact whatever
    the device rounded on the way.

    Args:
        module: the network; its parameters are re-pointed to one flat vector.
        row_loss: loss of each row; rows must not meet in it.
        config: of the local training.
        clip: between batches, where the configuration asks for it.
        units_at_once: memory grows with them.
    """

    module: nn.Module
    row_loss: RowLoss
    config: FederatedConfig
    clip: EnsembleClip
    units_at_once: int = 64
    _flat: FlatParameters = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._flat = FlatParameters(self.module)
        self._losses = _Losses(self.module, self.row_loss)
        self._shapes = {name: p.shape for name, p in self.module.named_parameters()}
        self._gradients = vmap(grad(self._mean_loss), randomness="error")

    @property
    def draw_count(self) -> int:
        """The loss's normals, and one an epoch that sorts the rows."""
        return self.row_loss.draw_count + self.config.epochs * self.config.shuffle

    def differences(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> Iterator[NDArray[np.floating]]:
        """Yield start - end of consecutive units' training; see `LocalTrainer.differences`."""
        self._flat.load(parameters)
        for part in batch.micro_batches(sys.maxsize, self.units_at_once):
            yield self._train(part)

    def _train(self, batch: UnitBatch) -> NDArray[np.floating]:
        config, device = self.config, self._flat.vector.device
        start = self._flat.vector.detach()
        theta = start.repeat(len(batch), 1)  # PriMORL, algorithm 2, lines 7 and 8
        own = np.arange(batch.rows.shape[1]) < batch.row_counts[:, None]
        valid = batch.valid & own
        rows = np.where(valid[:, :, None], batch.rows, np.float32(0))
        order = np.broadcast_to(
            row_order(batch, config, draws_used=self.row_loss.draw_count),
            (len(batch), config.epochs, rows.shape[1]),
        )
        loss_draws = batch.draws[:, :, : self.row_loss.draw_count]
        # A public number of steps: how many rows the others have changes nothing for a unit.
        begins = range(0, rows.shape[1], config.batch_size)
        steps = list(itertools.product(range(config.epochs), begins))  # lines 9 to 11
        for number, (epoch, begin) in enumerate(steps):
            chosen = order[:, epoch, begin : begin + config.batch_size, None]
            part_rows, part_draws, part_valid = (
                torch.from_numpy(np.take_along_axis(values, chosen, axis=1)).to(device, start.dtype)
                for values in (rows, loss_draws, valid[:, :, None])
            )
            mask = part_valid[:, :, 0]
            gradients = self._gradients(theta, part_rows, part_draws, mask)
            stepped = theta * config.kept - config.learning_rate * gradients  # line 12
            theta = torch.where(mask.any(dim=1, keepdim=True), stepped, theta)
            if config.projection == "batch" and number + 1 < len(steps):
                theta = start + self._clipped(theta - start)  # line 13
        return (start - theta).cpu().numpy()  # line 16, with the other sign

    def _clipped(self, moved: Tensor) -> Tensor:
        """Return what a batch has moved, ``(U, P)``, back within the bound."""
        groups, segments = self.clip.layout.group_count(self.clip.strategy), self.clip.segments
        squares = moved.new_zeros(len(moved), groups, dtype=torch.float64)
        for start, stop, group in segments.tolist():
            squares[:, group] += moved[:, start:stop].double().square().sum(dim=1)
        factors = torch.from_numpy(self.clip.factors(squares.sqrt().cpu().numpy()))
        sizes = torch.from_numpy(segments[:, 1] - segments[:, 0])
        spread = factors[:, segments[:, 2]].to(moved.dtype).repeat_interleave(sizes, dim=1)
        spread = spread.to(moved.device)
        return torch.where(spread == 0, 0.0, moved * spread)

    def _mean_loss(self, vector: Tensor, rows: Tensor, draws: Tensor, mask: Tensor) -> Tensor:
        """Return the mean loss of one unit's valid rows, zero without any."""
        parameters = {
            f"module.{name}": vector[self._flat.slices[name]].view(shape)
            for name, shape in self._shapes.items()
            if name in self._flat.slices
        }
        losses = functional_call(self._losses, parameters, (rows, draws))
        mean: Tensor = (losses * mask).sum() / mask.sum().clamp(min=1)
        return mean
