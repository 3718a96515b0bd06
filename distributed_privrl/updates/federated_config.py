"""Settings of a unit's local training; a plan checks them, and so it imports no torch.

Reference: PriMORL, algorithms 2 and 3.
"""

from dataclasses import dataclass
from typing import Literal

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError

ClipStrategy = Literal["concatenated", "flat", "per_layer"]


@dataclass(frozen=True, kw_only=True)
class FederatedConfig:
    """Local training on one unit's rows, and how its result is clipped.

    Args:
        batch_size: rows of a local batch (B).
        epochs: local epochs over a unit's rows (E).
        learning_rate: of the local steps.
        weight_decay: a step keeps 1 - learning_rate x weight_decay of a parameter.
        projection: clip after every local batch (algorithm 2, line 13), or after the last alone.
        strategy: clip the whole ensemble, each member, or each layer of each member.
        shuffle: take a unit's rows in an order of its own instead of as recorded.

    Raises:
        ConfigError: a value is out of range.
    """

    batch_size: int = 16
    epochs: int = 1
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    projection: Literal["batch", "end"] = "batch"
    strategy: ClipStrategy = "concatenated"
    shuffle: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "learning_rate"):
            check_positive(name, getattr(self, name))
        if not 0 <= self.learning_rate * self.weight_decay < 1:
            raise ConfigError(
                f"learning_rate x weight_decay must lie in [0, 1), got {self.learning_rate:g} x"
                f" {self.weight_decay:g}"
            )
        if self.projection not in ("batch", "end"):
            raise ConfigError(f"projection must be batch or end, got {self.projection!r}")

    @property
    def kept(self) -> float:
        """What weight decay leaves of a parameter in one step."""
        return 1 - self.learning_rate * self.weight_decay
