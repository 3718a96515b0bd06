"""Symmetric matrices as the vectors that are released."""

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.methods.value_iteration.linear_sensitivity import triangle


def symmetric_to_vector(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the vector (B k (k + 1) / 2,) of matrices (B, k, k): see `vector_to_symmetric`."""
    rows, columns, scale = triangle(matrices.shape[-1])
    return np.asarray((matrices[:, rows, columns] * scale).reshape(-1))
