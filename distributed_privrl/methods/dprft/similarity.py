"""Similarities in whole numbers: the same bits on any machine, in any order, beside any documents.

An encoder's vector is rounded to whole numbers of norm `RADIUS` at most. Every partial sum of a
product of two such vectors is then a whole number of at most 2^24, which float32 holds exactly: no
order of additions, no kernel and no shape of a block changes a bit (PRIVACY.md, section 14). A
document's score is so a function of it and of the synthetic text alone.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.text.turns import CELLS, COUNT_CELLS

RADIUS = 2**12
"""Largest norm of a rounded vector; its square is the largest whole number of float32 in a row."""
_SHARE_STEPS, _LOG_STEPS = 1024, 512
_ENTROPY_STEPS = 2**30
_SMOOTHING = 0.01
"""Added to each cell of a synthetic text's turns, so that its logarithm is bounded."""


def _entropy_table() -> NDArray[np.int64]:
    """Return p log p of each share p, in steps."""
    shares = np.arange(_SHARE_STEPS + 1) / _SHARE_STEPS
    logs = np.log(np.maximum(shares, 1 / _SHARE_STEPS))
    return np.rint(_ENTROPY_STEPS * shares * logs).astype(np.int64)


_ENTROPY = _entropy_table()
"""Read, not computed: a vector's place in a batch may change the last bit of a logarithm."""


@dataclass(frozen=True)
class Rounded:
    """Texts as whole numbers, in float32.

    Args:
        vectors: (B, d), norms at most `RADIUS`.
        turns: (B, `CELLS`): shares of a document's turns, or negative logarithms of a synthetic
            text's; None: structure does not count.
        entropy: (B,) of a document's shares; zeros for synthetic texts.
    """

    vectors: NDArray[np.float32]
    turns: NDArray[np.float32] | None
    entropy: NDArray[np.float64]

    def part(self, rows: slice) -> "Rounded":
        """Return some of the texts."""
        turns = None if self.turns is None else self.turns[rows]
        return Rounded(self.vectors[rows], turns, self.entropy[rows])


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Scores of documents and synthetic texts: cosine, less weighted divergences of their turns.

    Args:
        dimension: of the encoder's vectors (d).
        structure_weight: of the sum of two divergences, KL(document || synthetic), of words a turn
            and of similarities of neighbouring turns; 0: cosine alone.

    Raises:
        ConfigError: a value is out of range.

    Reference: paper 003, sections 3.2 and 4.2.
    """

    dimension: int
    structure_weight: float = 0.0

    def __post_init__(self) -> None:
        check_positive("dimension", self.dimension)
        if self.dimension > RADIUS:
            raise ConfigError(f"dimension={self.dimension} is above {RADIUS}: take another encoder")
        if not 0 <= self.structure_weight <= 16:
            raise ConfigError(f"structure_weight must be in [0, 16], got {self.structure_weight}")

    @property
    def scale(self) -> int:
        """Norm of a unit vector in steps: rounding adds sqrt(d)/2 at most, up to `RADIUS`."""
        return math.floor(RADIUS - math.sqrt(self.dimension) / 2)

    @property
    def steps(self) -> int:
        """Whole numbers of a score of 1."""
        return self.scale**2

    def vectors(self, encoded: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return an encoder's vectors (B, d) in whole numbers; what is no number makes zeros."""
        if encoded.ndim != 2 or encoded.shape[1] != self.dimension:
            raise ConfigError(f"the encoder gave {encoded.shape}, not (B, {self.dimension})")
        rows = encoded.astype(np.float64)
        rows[~np.isfinite(rows).all(axis=1)] = 0
        norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        rows *= self.scale / np.where(norms > 0, norms, 1)
        return np.rint(rows).astype(np.float32)

    def documents(self, encoded: NDArray[np.float32], turns: NDArray[np.float64]) -> Rounded:
        """Return documents in whole numbers.

        Args:
            encoded: (N, d), the encoder's.
            turns: (N, `CELLS`), see `turn_statistics`.
        """
        entropy = np.zeros(len(encoded))
        if not self.structure_weight:
            return Rounded(self.vectors(encoded), None, entropy)
        shares = np.floor(turns * _SHARE_STEPS).astype(np.int64)
        entropy = _ENTROPY[shares].sum(axis=1) / _ENTROPY_STEPS  # whole numbers: exact
        return Rounded(self.vectors(encoded), shares.astype(np.float32), entropy)

    def synthetic(self, encoded: NDArray[np.float32], turns: NDArray[np.float64]) -> Rounded:
        """Return synthetic texts in whole numbers; arguments as for `documents`."""
        zeros = np.zeros(len(encoded))
        if not self.structure_weight:
            return Rounded(self.vectors(encoded), None, zeros)
        smooth = turns + _SMOOTHING
        for half in (smooth[:, :COUNT_CELLS], smooth[:, COUNT_CELLS:]):
            half /= half.sum(axis=1, keepdims=True)
        logs = np.rint(-np.log(smooth) * _LOG_STEPS)
        return Rounded(self.vectors(encoded), logs.astype(np.float32), zeros)

    def check(self, synthetic: Rounded) -> None:
        """Refuse synthetic texts for which products would not be exact.

        Raises:
            UnsafeError: they are not what `synthetic` returns.
        """
        numbers = synthetic.vectors
        whole = numbers.dtype == np.float32 and bool((numbers == np.rint(numbers)).all())
        if not whole or (_squares(numbers) > RADIUS**2).any():
            raise UnsafeError("synthetic vectors must be whole numbers of norm at most 4096")
        logs = synthetic.turns
        if (logs is None) != (not self.structure_weight):
            raise UnsafeError("turns and structure_weight go together")
        if logs is not None:
            most = RADIUS**2 // (2 * _SHARE_STEPS)
            proper = (logs == np.rint(logs)) & (logs >= 0) & (logs <= most)
            if logs.shape != (len(numbers), CELLS) or not proper.all():
                raise UnsafeError("turns of synthetic texts must be whole numbers from 0 to 8192")

    def scores(self, documents: Rounded, synthetic: Rounded) -> NDArray[np.float32]:
        """Return scores (N, B) in steps: whole numbers, between -`RADIUS`^2 and `RADIUS`^2.

        Args:
            documents: N of them.
            synthetic: B texts that passed `check`.
        """
        found: NDArray[np.float32] = documents.vectors @ synthetic.vectors.T  # exact, see above
        if documents.turns is None or synthetic.turns is None:
            return found
        crossed = (documents.turns @ synthetic.turns.T).astype(np.float64)  # exact, too
        divergence = crossed / (_SHARE_STEPS * _LOG_STEPS) + documents.entropy[:, None]
        lowered = found - np.rint(self.structure_weight * self.steps * divergence)
        return np.clip(lowered, -(RADIUS**2), RADIUS**2).astype(np.float32)


def _squares(rounded: NDArray[np.float32]) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        squares: NDArray[np.float64] = np.square(rounded.astype(np.float64)).sum(axis=1)
    return squares
