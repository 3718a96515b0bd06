"""Bugs in what one unit can add to a round: clipping, bad numbers, the cutting of units."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data import shards
from distributed_privrl.updates import book_keeping, gradient
from distributed_privrl.updates.book_keeping import BookKeeping
from distributed_privrl.updates.gradient import GradientLocalUpdate, OpacusGradients
from distributed_privrl.updates.unit_rows import UnitRows

Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_clip_norm(factor: float) -> Plant:
    """Units are clipped to another norm than the mechanism's."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = GradientLocalUpdate.__post_init__

        def changed(self: GradientLocalUpdate) -> None:
            if self.clip_norm is not None:
                self.clip_norm *= factor
            right(self)

        patch.setattr(GradientLocalUpdate, "__post_init__", changed)

    return plant


def bad_units_kept(patch: pytest.MonkeyPatch) -> None:
    """A vector that is not finite is scaled like any other."""
    everything = torch.ones((), dtype=torch.bool)

    class Blind:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def isfinite(self, values: torch.Tensor) -> torch.Tensor:
            return everything.expand(values.shape)

    for module in (book_keeping, gradient):
        patch.setattr(module, "torch", Blind())


def bad_units_raise(patch: pytest.MonkeyPatch) -> None:
    right = book_keeping._unit_norms

    def checked(*arguments: Any) -> Any:
        norms = right(*arguments)
        if not bool(torch.isfinite(norms).all()):
            raise ConfigError("a gradient is not finite")
        return norms

    patch.setattr(book_keeping, "_unit_norms", checked)


def bad_units_drop_the_batch(patch: pytest.MonkeyPatch) -> None:
    """One bad unit makes the whole micro-batch null."""
    bad_units_kept(patch)
    for path in (BookKeeping, OpacusGradients):
        right = path.add_clipped_gradients

        def safe(self: Any, losses: Any, *, total: Any, right: Any = right, **k: Any) -> Any:
            before = total.total.clone()
            clipped = right(self, losses, total=total, **k)
            added = [total.total, *(call.gradients for call, _ in clipped)]
            if all(bool(torch.isfinite(numbers).all()) for numbers in added):
                return clipped
            total.total.copy_(before)
            return []

        patch.setattr(path, "add_clipped_gradients", safe)


def bad_units_are_logged(patch: pytest.MonkeyPatch) -> None:
    right = book_keeping._unit_norms

    def watched(*arguments: Any) -> Any:
        norms = right(*arguments)
        if not bool(torch.isfinite(norms).all()):
            logging.getLogger("distributed_privrl").warning("skipped a gradient")
        return norms

    patch.setattr(book_keeping, "_unit_norms", watched)


def clip_each_layer(patch: pytest.MonkeyPatch) -> None:
    """Every layer is clipped to C, so that a unit has norm sqrt(L) C."""
    whole = book_keeping._clip

    def each(layers: Any, **keywords: Any) -> Any:
        return [clipped for layer in layers for clipped in whole([layer], **keywords)]

    patch.setattr(book_keeping, "_clip", each)


def clip_each_copy(patch: pytest.MonkeyPatch) -> None:
    """Every copy of a unit is clipped and added, so that a unit has norm copies x C."""
    right = BookKeeping.add_clipped_gradients

    def each(self: BookKeeping, losses: Any, *, units: UnitRows, **keywords: Any) -> Any:
        return right(self, losses, units=UnitRows(units.rows, 1), **keywords)

    patch.setattr(BookKeeping, "add_clipped_gradients", each)


def clip_the_sum(patch: pytest.MonkeyPatch) -> None:
    """The sum is clipped, not each unit: one unit can turn it round, by 2 C."""
    right = GradientLocalUpdate.clipped_sum

    def clipped(self: GradientLocalUpdate, parameters: Any, batch: Any) -> Any:
        assert self.clip_norm is not None
        bound, self.clip_norm = self.clip_norm, None
        total = right(self, parameters, batch)
        self.clip_norm = bound
        norm = np.linalg.norm(total.astype(np.float64))
        return total * (min(1.0, len(batch) * bound / norm) if norm else 1.0)

    patch.setattr(GradientLocalUpdate, "clipped_sum", clipped)


def huge_units_are_lost(patch: pytest.MonkeyPatch) -> None:
    """Scaling by 1 / norm^2: safe, and useless."""
    right = gradient.clip_rows

    def squared(vectors: torch.Tensor, clip_norm: float | None) -> torch.Tensor:
        return right(right(vectors, clip_norm) * 0.5, clip_norm)

    patch.setattr(gradient, "clip_rows", squared)


def float32_norms(patch: pytest.MonkeyPatch) -> None:
    def clip(vectors: torch.Tensor, clip_norm: float | None) -> torch.Tensor:
        assert clip_norm is not None
        norms = vectors.norm(dim=1, keepdim=True)
        return vectors * torch.clamp(clip_norm / norms, max=1.0)

    patch.setattr(gradient, "clip_rows", clip)


def float32_row_kernels(patch: pytest.MonkeyPatch) -> None:
    def norms(rows: torch.Tensor) -> torch.Tensor:
        return rows.norm(dim=1).square().double()

    def scale(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        rows.mul_(factors[:, None])
        return norms(rows)

    patch.setattr(book_keeping, "squared_norms", norms)
    patch.setattr(book_keeping, "scale_rows_", scale)


def rows_are_units(patch: pytest.MonkeyPatch) -> None:
    """A unit with many rows takes part once for each of them."""

    def group(row_units: Any, cap: int | None) -> Any:
        order = np.argsort(row_units, kind="stable")
        return order, row_units[order], np.ones(len(order), np.int64)

    patch.setattr(shards, "rows_by_unit", group)


def trajectories_are_units(patch: pytest.MonkeyPatch) -> None:
    """A unit whose rows do not lie together counts once for each run of them."""

    def group(row_units: Any, cap: int | None) -> Any:
        starts = np.flatnonzero(np.diff(row_units, prepend=row_units[:1] + 1))
        lengths = np.diff(np.r_[starts, len(row_units)])
        return np.arange(len(row_units)), row_units[starts], lengths

    patch.setattr(shards, "rows_by_unit", group)
