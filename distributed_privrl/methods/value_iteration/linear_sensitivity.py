"""How far one unit can move the statistics of DP-VAPVI, and the vector of a symmetric matrix.

Every statistic of a time step is a sum with at most m terms a unit: w phi phi^T or w phi y, with
|phi| <= 1, w in (0, 1] and |y| <= M. A term is the zero vector where a trajectory has no such step.

Reference: DP-VAPVI, algorithm 2, line 2 (K_1 and K_2; phi_1 to phi_3).
"""

import math

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.units import Relation


def gram_sensitivity(relation: Relation, *, max_trajectories_per_unit: int = 1) -> float:
    """Return the L2 sensitivity of a Gram matrix sum of w phi phi^T in Frobenius norm.

    Each term has norm <= 1, and two of them a product <phi phi^T, psi psi^T> = <phi, psi>^2 >= 0:
    replacing one moves the sum by sqrt 2 at most, adding or removing one by 1.

    Args:
        relation: when two datasets are neighbours.
        max_trajectories_per_unit: m, which multiplies both.

    Raises:
        ConfigError: the relation is not defined for trajectories, or m is not above zero.
    """
    factor = math.sqrt(2) if _replaces(relation) else 1.0
    return factor * check_positive("max_trajectories_per_unit", max_trajectories_per_unit)


def vector_sensitivity(
    relation: Relation, *, bound: float, max_trajectories_per_unit: int = 1
) -> float:
    """Return the L2 sensitivity of a vector sum of w phi y.

    Replacing one term moves the sum by 2 M at most (phi against -phi), adding or removing by M.

    Args:
        relation: when two datasets are neighbours.
        bound: M, the largest |y|: (H - h)^2 for y = V^2, H - h for V, H - h + 1 for r + V.
        max_trajectories_per_unit: m, which multiplies both.

    Raises:
        ConfigError: the relation is not defined for trajectories, or a number is not above zero.
    """
    factor = 2.0 if _replaces(relation) else 1.0
    check_positive("max_trajectories_per_unit", max_trajectories_per_unit)
    return factor * check_positive("bound", bound) * max_trajectories_per_unit


def vector_to_symmetric(vector: NDArray[np.float64], blocks: int) -> NDArray[np.float64]:
    """Return symmetric matrices ``(B, k, k)`` of a vector whose L2 norm is their Frobenius norm.

    The vector has the diagonal as it is, and sqrt 2 times what lies above it. Noise of variance v
    on it is noise (Z + Z^T) / sqrt 2 with Var Z = v / 2 on a matrix: v on its diagonal, v / 2
    beside it.

    Args:
        vector: ``(B k (k + 1) / 2,)``.
        blocks: B.
    """
    entries = vector.reshape(blocks, -1)
    width = math.isqrt(2 * entries.shape[1])
    rows, columns, scale = triangle(width)
    matrices = np.empty((blocks, width, width))
    matrices[:, rows, columns] = matrices[:, columns, rows] = entries / scale
    return matrices


def triangle(
    width: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return rows and columns of a symmetric matrix's entries, and their factors in its vector."""
    rows, columns = np.triu_indices(width)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2))


def _replaces(relation: Relation) -> bool:
    if relation is Relation.POLICY_LEVEL:
        raise ConfigError(
            f"relation must be replace_one, add_or_remove or replace_with_null, got {relation}"
        )
    return relation is Relation.REPLACE_ONE
