"""Bugs in what one trajectory's local training adds: how an ensemble is clipped, and divided."""

from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.updates.ensemble_clipping import EnsembleClip
from distributed_privrl.updates.federated import FederatedUpdate
from tests.gates.federated import UPDATE


def clip_each_group_at_c(patch: pytest.MonkeyPatch) -> None:
    """Each member, or each layer of each, is clipped at C: together sqrt(N), sqrt(N L) times C."""
    patch.setattr(EnsembleClip, "bound", property(lambda self: self.clip_norm))


def clip_by_members_alone(patch: pytest.MonkeyPatch) -> None:
    """Per-layer bounds forget the layers: C / sqrt(N) for each of N L parts."""

    def bound(self: EnsembleClip) -> Any:
        assert self.clip_norm is not None
        return self.clip_norm / np.sqrt(1 if self.strategy == "concatenated" else 4)

    patch.setattr(EnsembleClip, "bound", property(bound))


def no_clip_after_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    """What the last local batch adds is not clipped any more."""

    def unclipped(self: EnsembleClip, vectors: Any, total: Any) -> None:
        finite = np.isfinite(self.norms(vectors)).all(axis=1)
        total.add_rows(slice(None), torch.from_numpy(vectors[finite]))

    patch.setattr(EnsembleClip, "add_clipped", unclipped)


def bad_units_kept(patch: pytest.MonkeyPatch) -> None:
    """A vector that is not finite passes as if it were short."""
    right = EnsembleClip.norms
    patch.setattr(
        EnsembleClip, "norms", lambda self, v: np.nan_to_num(right(self, v), nan=0.0, posinf=0.0)
    )


def a_bad_unit_drops_the_others(patch: pytest.MonkeyPatch) -> None:
    """One vector that is not finite empties the whole batch."""
    right = EnsembleClip.add_clipped

    def dropped(self: EnsembleClip, vectors: Any, total: Any) -> None:
        if np.isfinite(vectors).all():
            right(self, vectors, total)

    patch.setattr(EnsembleClip, "add_clipped", dropped)


def realised_denominator(patch: pytest.MonkeyPatch) -> None:
    """Each worker's sum is scaled as if its batch had its expected size."""
    right = FederatedUpdate.clipped_sum

    def scaled(self: FederatedUpdate, parameters: Any, batch: Any) -> Any:
        return right(self, parameters, batch) * 15 / max(len(batch), 1)

    patch.setattr(FederatedUpdate, "clipped_sum", scaled)


def clip_the_sum(patch: pytest.MonkeyPatch) -> None:
    """The batch's sum is clipped, not each trajectory."""
    right = EnsembleClip.add_clipped

    def summed(self: EnsembleClip, vectors: Any, total: Any) -> None:
        right(self, vectors.sum(axis=0, keepdims=True), total)

    patch.setattr(EnsembleClip, "add_clipped", summed)


def wrong_clip_norm(patch: pytest.MonkeyPatch) -> None:
    """Trajectories are clipped at another norm than the mechanism's."""
    right = EnsembleClip.__post_init__

    def changed(self: EnsembleClip) -> None:
        right(self)
        assert self.clip_norm == UPDATE.clip_norm is not None
        object.__setattr__(self, "clip_norm", 1.2 * UPDATE.clip_norm)

    patch.setattr(EnsembleClip, "__post_init__", changed)
