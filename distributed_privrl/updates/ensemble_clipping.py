"""Ensemble clipping: one trajectory moves all members of an ensemble by C at most, together.

Reference: PriMORL, section 4.2 and algorithm 3; McMahan et al. 2018, arXiv:1812.06210.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.updates.exact_sums import ExactSum
from distributed_privrl.updates.federated_config import ClipStrategy

_SAFETY = 1.0 - 2.0**-20  # more than scaling a float32 vector can round
_MEASURED = 1.0 - 2.0**-30  # more than a float64 norm of millions of numbers can round


@dataclass(frozen=True, kw_only=True)
class EnsembleLayout:
    """Where members and layers lie in a flat vector.

    The vector holds one tensor after the other, each with the members on its first axis.

    Args:
        members: N.
        layers: for each layer the numbers of one member in each of the layer's tensors, such as
            ``((inputs * outputs, outputs), ...)`` for weights and biases.

    Example:
        >>> EnsembleLayout(members=2, layers=((6, 3),)).segments("flat")
        array([[ 0,  6,  0],
               [ 6, 12,  1],
               [12, 15,  0],
               [15, 18,  1]])
    """

    members: int
    layers: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> "EnsembleLayout":
        """Return the layout of a module's trainable parameters, as an ensemble of one.

        Tensors of the same submodule are a layer.
        """
        named = [(name.rpartition(".")[0], p) for name, p in module.named_parameters()]
        trained = [(owner, p.numel()) for owner, p in named if p.requires_grad]
        layers = itertools.groupby(trained, key=lambda pair: pair[0])
        return cls(members=1, layers=tuple(tuple(size for _, size in own) for _, own in layers))

    @property
    def dimension(self) -> int:
        """Length P of the vector."""
        return self.members * sum(map(sum, self.layers))

    def group_count(self, strategy: ClipStrategy) -> int:
        """Return the number G of parts that are clipped each for itself: 1, N or N L."""
        layers = len(self.layers) if strategy == "per_layer" else 1
        return 1 if strategy == "concatenated" else self.members * layers

    def segments(self, strategy: ClipStrategy) -> NDArray[np.int64]:
        """Return start, stop and group of the vector's segments, ``(S, 3)``, in its order."""
        rows, start = [], 0
        for layer, sizes in enumerate(self.layers):
            for size in sizes:
                for member in range(self.members):
                    group = {
                        "concatenated": 0,
                        "flat": member,
                        "per_layer": member * len(self.layers) + layer,
                    }[strategy]
                    rows.append((start, start + size, group))
                    start += size
        return np.array(rows, np.int64)


@dataclass(frozen=True, kw_only=True)
class EnsembleClip:
    """Bounds the L2 norm of a unit's whole vector.

    ``concatenated`` scales the vector to norm C; ``flat`` each member to C / sqrt(N); ``per_layer``
    each layer of each member to C / sqrt(N L). Nothing is scaled up.

    Args:
        layout: of the vector.
        clip_norm: C; None: nothing is scaled, for training without privacy.
        strategy: which of the three.

    Raises:
        ConfigError: ``clip_norm`` is not above zero, or another strategy.

    Privacy:
        Unit: whatever one row of `add_clipped` comes from. Relation: its becoming null, or being
        removed. Sensitivity: ``clip_norm`` in L2, over all members and layers together; norms in
        float64, measured again after scaling; a row of which any number is not finite adds zeros.
        Sums are exact. Event: none before the server's noise; ``poisson_gaussian`` with it.
    """

    layout: EnsembleLayout
    clip_norm: float | None
    strategy: ClipStrategy = "concatenated"

    def __post_init__(self) -> None:
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)
        if self.strategy not in ("concatenated", "flat", "per_layer"):
            raise ConfigError(
                f"strategy must be concatenated, flat or per_layer, got {self.strategy!r}"
            )

    @property
    def bound(self) -> float:
        """The largest norm of a group (algorithm 3, line 3); infinite without clipping."""
        if self.clip_norm is None:
            return math.inf
        return self.clip_norm / math.sqrt(self.layout.group_count(self.strategy))

    @cached_property
    def segments(self) -> NDArray[np.int64]:
        """Start, stop and group of each segment, ``(S, 3)``."""
        return self.layout.segments(self.strategy)

    def add_clipped(self, vectors: NDArray[np.floating], total: ExactSum) -> None:
        """Add each row of ``vectors``, clipped and rounded to the lattice, to ``total``.

        Args:
            vectors: ``(U, P)``, contiguous; overwritten by what was rounded.
            total: added to in place.
        """
        norms = self.norms(vectors)
        finite = np.isfinite(norms).all(axis=1, keepdims=True)
        scale(vectors, self.segments, np.where(finite, self.factors(norms), 0.0))
        scale(vectors, self.segments, self.factors(self.norms(vectors)))
        total.count(len(vectors))
        total.add_rows(slice(None), torch.from_numpy(vectors))

    def norms(self, vectors: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the L2 norm of each group of each row, ``(U, P) -> (U, G)``."""
        squares = np.zeros((len(vectors), self.layout.group_count(self.strategy)))
        add_squares(vectors, self.segments, squares)
        return np.sqrt(squares)

    def factors(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each group is multiplied by: at most 1, and 1 up to the bound or for NaN."""
        longer = norms > self.bound * _MEASURED  # algorithm 3, line 4
        return np.where(longer, self.bound * _SAFETY / np.where(longer, norms, 1.0), 1.0)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _sum_of_squares(values):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(len(values)):
        value = np.float64(values[i])
        total += value * value
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def add_squares(vectors, segments, out):  # type: ignore[no-untyped-def]
    """Add the squared norm of every segment to its group's, in float64, ``(U, G)``."""
    for unit in range(len(vectors)):
        for start, stop, group in segments:
            out[unit, group] += _sum_of_squares(vectors[unit, start:stop])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def scale(vectors, segments, factors):  # type: ignore[no-untyped-def]
    """Multiply every segment by its group's factor in place; zero also what is not finite."""
    for unit in range(len(vectors)):
        for start, stop, group in segments:
            factor = vectors.dtype.type(factors[unit, group])
            own = vectors[unit, start:stop]
            if factor == 0:
                own[:] = 0
            elif factor != 1:
                for i in range(len(own)):
                    own[i] *= factor
