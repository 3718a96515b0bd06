"""The gradient local update: per-unit gradients, clipped to one norm, summed exactly."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.updates import book_keeping
from distributed_privrl.updates.book_keeping import ClippedCall
from distributed_privrl.updates.exact_sums import ExactSum, check_full_float32
from distributed_privrl.updates.local_update import RowLoss, RowLosses, UnitBatch
from distributed_privrl.updates.parameters import FlatParameters
from distributed_privrl.updates.unit_rows import UnitRows

PerUnitGradients = Literal["auto", "book_keeping", "opacus", "single", "formed"]


class _Accumulate(Protocol):
    def add_clipped_gradients(
        self,
        row_losses: RowLosses,
        *,
        units: UnitRows,
        clip_norm: float | None,
        total: ExactSum,
    ) -> list[ClippedCall]: ...

    def add_calls(self, clipped: Sequence[ClippedCall], total: ExactSum) -> None: ...

    def close(self) -> None: ...


class OpacusGradients:
    """Per-unit gradients of any module that Opacus knows, each formed in full.

    The path for modules with layers that book-keeping has no adapter for, and its oracle in tests.
    Memory grows with units x parameters: keep micro-batches small.
    """

    def __init__(self, flat: FlatParameters) -> None:
        from opacus import GradSampleModule

        self._flat = flat
        self._wrapped = GradSampleModule(flat.module, batch_first=True, loss_reduction="sum")

    def add_clipped_gradients(
        self,
        row_losses: RowLosses,
        *,
        units: UnitRows,
        clip_norm: float | None,
        total: ExactSum,
    ) -> list[ClippedCall]:
        """Add each unit's clipped gradient to ``total``; see `BookKeeping`."""
        self._wrapped.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            losses = row_losses(self._wrapped, slice(None))
            losses.sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            samples: list[Tensor] = [
                getattr(p, "grad_sample")  # noqa: B009 - set by Opacus, unknown to the type
                for p in self._flat.module.parameters()
                if p.requires_grad
            ]
            if any(len(sample) != units.rows for sample in samples):
                raise ValueError(
                    f"every layer must have the batch's {units.rows} rows on its first axis: a"
                    " unit's vector would be cut into several, each with a clip norm of its own"
                )
            vectors = torch.cat([sample.reshape(len(sample), -1) for sample in samples], dim=1)
            total.add_rows(slice(None), clip_rows(units.total(vectors), clip_norm).contiguous())
        self._wrapped.zero_grad(set_to_none=True)
        return []

    def add_calls(self, clipped: Sequence[ClippedCall], total: ExactSum) -> None:
        """Add nothing: all gradients were formed."""

    def close(self) -> None:
        """Remove Opacus' hooks."""
        self._wrapped.remove_hooks()


class SingleGradients:
    """The gradient of one unit after the other, whatever the module is made of.

    Memory is that of one gradient. Tied weights and layers of other packages are autograd's own
    affair, and a unit's bits depend on no other unit.

    Args:
        flat: the module's parameters.
    """

    def __init__(self, flat: FlatParameters) -> None:
        self._flat = flat
        self._parameters = [p for p in flat.module.parameters() if p.requires_grad]

    def add_clipped_gradients(
        self,
        row_losses: RowLosses,
        *,
        units: UnitRows,
        clip_norm: float | None,
        total: ExactSum,
    ) -> list[ClippedCall]:
        """Add each unit's clipped gradient to ``total``; see `BookKeeping`."""
        for unit in range(len(units)):
            _, rows = units.part(unit, 1)
            loss = row_losses(self._flat.module, rows).sum()
            found = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
            vector = torch.cat([one.reshape(-1) for one in found])[None]
            total.add_rows(slice(None), clip_rows(vector, clip_norm).contiguous())
        return []

    def add_calls(self, clipped: Sequence[ClippedCall], total: ExactSum) -> None:
        """Add nothing: all gradients were formed."""

    def close(self) -> None:
        """Nothing was hooked."""


def clip_rows(vectors: Tensor, clip_norm: float | None) -> Tensor:
    """Return each row scaled to norm at most ``clip_norm``; a non-finite row becomes zero.

    Args:
        vectors: ``(U, P)``.
        clip_norm: L2 bound; None returns the rows as they are.

    Privacy: per-unit sensitivity; norms in float64, measured again after scaling.
    """
    if clip_norm is None:
        return vectors
    for _ in range(2):
        norms = vectors.double().norm(dim=1)
        vectors = torch.where(torch.isfinite(norms)[:, None], vectors, 0.0)
        factors = torch.clamp(clip_norm * book_keeping.SAFETY / norms.clamp(min=1e-300), max=1.0)
        factors = torch.where(torch.isfinite(factors), factors, 0.0)
        vectors = vectors * factors[:, None].to(vectors.dtype)
    return vectors


def _check_uncoupled(module: nn.Module) -> None:
    coupling = [
        name or type(layer).__name__
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._NormBase)
        and (isinstance(layer, nn.modules.batchnorm._BatchNorm) or layer.track_running_stats)
    ]
    if coupling:
        raise UnsafeError(
            f"layer {', '.join(coupling)} normalises over the batch: one unit would move every"
            " other unit's gradient; use LayerNorm or GroupNorm"
        )


@dataclass(frozen=True, kw_only=True)
class GradientUpdate:
    """Builds a `GradientLocalUpdate` in a worker's process; picklable, public facts alone.

    Args:
        build: returns the network, the same in every process.
        row_loss: see `GradientLocalUpdate`.
        clip_norm: see `GradientLocalUpdate`.
        micro_batch_rows: see `GradientLocalUpdate`.
        per_unit_gradients: see `GradientLocalUpdate`.
    """

    build: Callable[[], nn.Module]
    row_loss: RowLoss
    clip_norm: float | None
    micro_batch_rows: int
    per_unit_gradients: PerUnitGradients = "auto"

    @property
    def draw_count(self) -> int:
        """Standard normals that a row's loss needs."""
        return self.row_loss.draw_count

    def __call__(self) -> "GradientLocalUpdate":
        """Return the local update."""
        return GradientLocalUpdate(
            module=self.build(),
            row_loss=self.row_loss,
            clip_norm=self.clip_norm,
            micro_batch_rows=self.micro_batch_rows,
            per_unit_gradients=self.per_unit_gradients,
        )


@dataclass
class GradientLocalUpdate:
    """A unit's vector is the gradient of its mean loss over its rows, clipped once.

    Args:
        module: the network; its parameters are re-pointed to one flat vector.
        row_loss: loss of each row; rows must not meet in it, and stay on the first axis of what the
            module's layers see.
        clip_norm: L2 bound of a unit's vector; None for training without privacy.
        micro_batch_rows: rows computed at once, but all of a unit: memory does not depend on the
            batch beyond it.
        per_unit_gradients: ``auto`` takes book-keeping where it can, and Opacus elsewhere;
            ``single`` takes one unit after the other, for large modules of any kind; ``formed``
            takes book-keeping where it can and ``single`` elsewhere, and rounds each unit's vector
            by itself, so that the mechanism's ``sum_slack`` may be 0.

    Raises:
        ConfigError: book-keeping is asked for a module with a layer that it has no adapter for, or
            ``micro_batch_rows`` is not above zero.
        UnsafeError: a layer couples the rows of a batch, so that no unit's vector is its own.

    Reference: PrivORL, equations 2 and 7; Expert-level DP, algorithm 4, lines 5 and 6.
    """

    module: nn.Module
    row_loss: RowLoss
    clip_norm: float | None
    micro_batch_rows: int = 128
    per_unit_gradients: PerUnitGradients = "auto"
    _flat: FlatParameters = field(init=False, repr=False)
    _gradients: _Accumulate = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_uncoupled(self.module)
        check_positive("micro_batch_rows", self.micro_batch_rows)
        supported = book_keeping.supports(self.module)
        if self.per_unit_gradients == "book_keeping" and not supported:
            raise ConfigError(
                "per_unit_gradients=book_keeping needs all trainable parameters in layers that it"
                " has an adapter for (linear, embedding, LayerNorm, Conv1D); use auto or opacus"
            )
        self._flat = FlatParameters(self.module)
        if self._flat.vector.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"parameters are {self._flat.vector.dtype}: gradients are bounded and summed in"
                " float32 or float64 alone"
            )
        formed = self.per_unit_gradients == "formed"
        if self.per_unit_gradients == "single" or (formed and not supported):
            self._gradients = SingleGradients(self._flat)
        elif self.per_unit_gradients == "opacus" or not supported:
            self._gradients = OpacusGradients(self._flat)
        else:
            self._gradients = book_keeping.BookKeeping(self._flat, form_all=formed)
        self._total = ExactSum(self._flat.dimension, self.clip_norm, like=self._flat.vector)

    @property
    def dimension(self) -> int:
        """Length of a unit's vector."""
        return self._flat.dimension

    def clipped_sum(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> NDArray[np.float64]:
        """Return the sum over units of their clipped gradients; see `LocalUpdate.clipped_sum`.

        Privacy: one vector a unit, L2 norm <= clip_norm over all its rows and all layers; null for
        a unit whose gradient is not finite. Units are summed in float32 within the bound that the
        mechanism's ``sum_slack`` pays for, and exactly beyond.
        """
        check_full_float32()
        self._flat.load(parameters)
        self._total.clear(batch.share)
        clipped: list[ClippedCall] = []  # of micro-batches, up to as many rows as one may have
        latest: list[ClippedCall] = []
        rows = 0
        for part in batch.micro_batches(self.micro_batch_rows):
            self._total.count(len(part))
            if rows + part.valid.size > self.micro_batch_rows:
                self._gradients.add_calls([*clipped, *latest], self._total)
                clipped, latest, rows = [], [], 0
            # A network may write what it makes over what the micro-batch before had there.
            clipped += [_own_memory(call) for call in latest]
            latest = self._add(part)
            rows += part.valid.size
        self._gradients.add_calls([*clipped, *latest], self._total)
        return self._total.total.cpu().numpy()

    def _add(self, part: UnitBatch) -> list[ClippedCall]:
        device, dtype = self._flat.vector.device, self._flat.vector.dtype
        rows, draws, weights = (
            torch.from_numpy(values.reshape(part.valid.size, *values.shape[2:])).to(
                device, dtype, copy=True
            )
            for values in (part.rows, part.draws, part.valid * part.weights)
        )

        def row_losses(module: nn.Module, own: slice) -> Tensor:
            return self.row_loss(module, rows[own], draws[own]) * weights[own]

        return self._gradients.add_clipped_gradients(
            row_losses,
            units=UnitRows(*part.valid.shape),
            clip_norm=self.clip_norm,
            total=self._total,
        )

    def close(self) -> None:
        """Remove hooks from the module."""
        self._gradients.close()


def _own_memory(clipped: ClippedCall) -> ClippedCall:
    """Return a call whose numbers nobody else holds: those that were measured, whatever comes."""
    call, addends = clipped
    return call._replace(inputs=call.inputs.clone(), gradients=call.gradients.clone()), addends
