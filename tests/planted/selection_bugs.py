"""Bugs in choices by the exponential mechanism: scale, sensitivity, what is charged."""

from collections.abc import Callable
from typing import Any

import pytest

from distributed_privrl.privacy.choosing import SecureChooser
from distributed_privrl.privacy.selection import ExponentialSelection

Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_scale(factor: float) -> Plant:
    """The secure source draws at another scale: at half of it a choice costs twice its charge."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = SecureChooser.choose_exponential

        def choose(self: SecureChooser, scores: Any, *, scale: float, tag: int = 0) -> int:
            return right(self, scores, scale=factor * scale, tag=tag)

        patch.setattr(SecureChooser, "choose_exponential", choose)

    return plant


def permute_and_flip(patch: pytest.MonkeyPatch) -> None:
    """Candidates are drawn by permute-and-flip, which has another law at the same scale."""

    def choose(self: SecureChooser, scores: Any, *, scale: float, tag: int = 0) -> int:
        return self.choose([max(scores) - score for score in scores], scale=scale, tag=tag)

    patch.setattr(SecureChooser, "choose_exponential", choose)


def scale_of_monotone_scores(patch: pytest.MonkeyPatch) -> None:
    """The scale is that of scores which all move in one direction: D / epsilon."""
    right = ExponentialSelection.scale.fget
    assert right is not None
    patch.setattr(ExponentialSelection, "scale", property(lambda self: right(self) / 2))


def half_charged(patch: pytest.MonkeyPatch) -> None:
    """A choice states half of its range."""
    right = ExponentialSelection.event.fget
    assert right is not None
    patch.setattr(
        ExponentialSelection,
        "event",
        property(lambda self: right(self).model_copy(update={"epsilon": self.epsilon / 2})),
    )


def noisier_than_charged(patch: pytest.MonkeyPatch) -> None:
    """The scale is twice what the charge pays for."""
    right = ExponentialSelection.scale.fget
    assert right is not None
    patch.setattr(ExponentialSelection, "scale", property(lambda self: 2 * right(self)))
