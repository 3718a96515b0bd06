"""Ridge regression from sums, noisy or not."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear_settings import Ridge

_SMALLEST = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Regression:
    """The inverse of a regularised Gram matrix, block by block.

    Args:
        features: the public feature map.
        inverse: ``(B, k, k)``.
        noise: standard deviation of the matrix's noise beside its diagonal; 0 without.
    """

    features: FeatureMap
    inverse: NDArray[np.float64]
    noise: float = 0.0

    def parameters(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the parameters ``(B, k)`` for the sums of phi y ``(B, k)``."""
        return np.asarray((self.inverse @ sums[..., None])[..., 0])

    def predict(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return <phi, parameters> for the sums of phi y ``(B, k)``, (S, A)."""
        return self.features.predict(self.parameters(sums))

    def uncertainty(self) -> NDArray[np.float64]:
        """Return |phi|_{Lambda^-1}, (S, A)."""
        return np.sqrt(np.maximum(self.features.quadratic(self.inverse), 0))

    def sensitivity_to_noise(self) -> NDArray[np.float64]:
        """Return |Lambda^-1 phi|, (S, A): the standard deviation of <phi, w> for noise of 1."""
        return np.sqrt(self.features.quadratic(self.inverse @ self.inverse))


def regression(
    features: FeatureMap,
    gram: NDArray[np.float64],
    ridge: Ridge,
    *,
    noise: float = 0.0,
    matrices: int = 1,
    failure: float = 0.1,
) -> Regression:
    """Return the regression of a Gram matrix.

    Args:
        features: the public feature map.
        gram: ``(B, k, k)``, symmetric.
        ridge: how it is made positive definite.
        noise: standard deviation of its noise beside the diagonal; 0 without.
        matrices: noisy blocks of the whole run, that share ``failure``.
        failure: probability with which the shift may be too small for one of them.
    """
    values, vectors = np.linalg.eigh(gram)
    if ridge.projection:
        values = np.maximum(values, 0)
    added = ridge.penalty + ridge.noise_factor * 2 * noise * math.sqrt(features.width)
    if ridge.shift:
        added += noise_shift(noise, features.width, matrices=matrices, failure=failure)
    values = values + added
    # Without a projection an eigenvalue may be anything but zero.
    values = np.where(np.abs(values) < _SMALLEST, _SMALLEST, values)
    inverse = (vectors / values[:, None, :]) @ vectors.transpose(0, 2, 1)
    return Regression(features=features, inverse=inverse, noise=noise)


def noise_shift(noise: float, width: int, *, matrices: int, failure: float) -> float:
    """Return E / 2: what the noise of ``matrices`` matrices stays above, all at once.

    The noise s (G + G^T) / sqrt 2, G of standard normals, has a largest eigenvalue of 2 s sqrt(k)
    at most in expectation, which is sqrt(2) s Lipschitz in G: it exceeds 2 s sqrt(k) + sqrt(2) s t
    with probability exp(-t^2 / 2) at most, and minus the smallest eigenvalue has the same law.

    Args:
        noise: s, the standard deviation beside the diagonal.
        width: k.
        matrices: number of matrices.
        failure: probability that one of them has a smaller eigenvalue than minus the result.

    Reference: DP-VAPVI, algorithm 2 (K_1, K_2); the constants of its E are in an appendix.
    """
    return 2 * noise * (math.sqrt(width) + math.sqrt(math.log(matrices / failure)))
