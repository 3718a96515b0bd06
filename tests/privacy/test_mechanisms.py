import math

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.events import DiscreteLaplaceEvent
from distributed_privrl.privacy.mechanisms import (
    DiscreteLaplaceRelease,
    noisy_count,
)
from distributed_privrl.privacy.noise import SecureNoise, SeededNoise


class Spy(SeededNoise):
    """Keeps what it was asked for."""

    def __init__(self):
        super().__init__(0)
        self.calls = []

    def add_discrete_laplace(self, values, **arguments):
        self.calls.append(arguments)
        return super().add_discrete_laplace(values, **arguments)


def test_discrete_laplace_noise_and_event_agree():
    release, source = DiscreteLaplaceRelease(sensitivity=2, scale=4.0), Spy()
    released = release.release(np.array([10, 20]), source, tag=1)
    assert source.calls == [{"scale": 4.0, "tag": 1}]
    assert released.dtype == np.int64
    assert release.event == DiscreteLaplaceEvent(parameter=0.25, sensitivity=2)


def test_a_count_has_sensitivity_one_and_costs_what_was_asked():
    release = noisy_count(epsilon=0.05)
    assert release.event.parameter == pytest.approx(0.05, rel=1e-15)
    assert release.event.sensitivity == 1
    counts = np.array([release.release(np.array([1000]), SecureNoise())[0] for _ in range(2)])
    assert (np.abs(counts - 1000) < 20 * 45).all()


@pytest.mark.parametrize(
    "changed", [{"sensitivity": 0}, {"scale": 0.0}, {"scale": math.inf}, {"count": 0}]
)
def test_releases_refuse_impossible_values(changed):
    with pytest.raises(ConfigError):
        DiscreteLaplaceRelease(**{"sensitivity": 1, "scale": 1.0, **changed})


def test_integer_releases_refuse_what_is_no_integer_or_out_of_range():
    with pytest.raises(ConfigError, match="integer"):
        DiscreteLaplaceRelease(sensitivity=1.5, scale=1.0)
    with pytest.raises(ConfigError, match="epsilon"):
        noisy_count(epsilon=0.0)


@pytest.mark.parametrize("values", [np.zeros((2, 2), np.int64), np.zeros(0, np.int64)])
def test_a_release_takes_one_vector(values):
    release = DiscreteLaplaceRelease(sensitivity=1, scale=1.0)
    with pytest.raises(ConfigError, match=r"\(N,\)"):
        release.release(values, SeededNoise(0))
