"""Columns brought to mean 0 and standard deviation 1, by the training data alone."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError

_SPREAD_FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class Normalisation:
    """Subtracts ``mean`` and divides by ``spread``, column by column.

    Args:
        mean: (O,).
        spread: (O,), all above 0.

    Raises:
        ConfigError: the arrays do not fit together, or a spread is not above 0.
    """

    mean: NDArray[np.float32]
    spread: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.mean.shape != self.spread.shape or self.mean.ndim != 1:
            raise ConfigError(
                f"mean {self.mean.shape} and spread {self.spread.shape} must both be (O,)"
            )
        if not np.all(self.spread > 0):
            raise ConfigError(f"spread must be above 0 in every column, got {self.spread.min()}")

    @classmethod
    def fit(cls, observations: NDArray[Any]) -> Self:
        """Return the mean and the standard deviation + 0.001 of ``observations`` ``(N, O)``.

        The constant keeps columns that hardly vary in range, as CORL does.
        """
        wide = observations.astype(np.float64)
        return cls(
            mean=wide.mean(axis=0).astype(np.float32),
            spread=(wide.std(axis=0) + _SPREAD_FLOOR).astype(np.float32),
        )

    @classmethod
    def identity(cls, columns: int) -> Self:
        """Return the normalisation that changes nothing."""
        return cls(mean=np.zeros(columns, np.float32), spread=np.ones(columns, np.float32))

    def apply(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Return normalised ``observations`` ``(N, O)``."""
        result: NDArray[np.float32] = (observations - self.mean) / self.spread
        return result.astype(np.float32, copy=False)
