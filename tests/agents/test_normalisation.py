import numpy as np
import pytest

from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.core.errors import ConfigError


def test_fit_is_mean_and_standard_deviation_plus_a_thousandth() -> None:
    fitted = Normalisation.fit(np.array([[0.0, 5.0], [2.0, 5.0]]))
    np.testing.assert_allclose(fitted.mean, [1, 5])
    np.testing.assert_allclose(fitted.spread, [1.001, 0.001], rtol=1e-6)
    np.testing.assert_allclose(fitted.apply(np.array([[2.001, 5.0]])), [[1.0, 0.0]], atol=1e-6)


def test_identity_changes_nothing() -> None:
    rows = np.array([[1.0, -2.0]], dtype=np.float32)
    np.testing.assert_array_equal(Normalisation.identity(2).apply(rows), rows)


@pytest.mark.parametrize(
    ("mean", "spread"), [([0.0, 0.0], [1.0]), ([0.0], [0.0]), ([0.0], [np.nan])]
)
def test_wrong_arrays_are_refused(mean: list[float], spread: list[float]) -> None:
    with pytest.raises(ConfigError):
        Normalisation(mean=np.array(mean, np.float32), spread=np.array(spread, np.float32))
