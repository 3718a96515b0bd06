"""Who takes part in a private round, and the randomness that belongs to a unit.

Inclusion is Poisson: each unit takes part by a coin of its own. Positions of the included units are
private: they stay in the worker that drew them and go into no log, checkpoint or argument.
"""

import hashlib
import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

from distributed_privrl.core.checks import check_probability
from distributed_privrl.privacy.noise_kernel import normals_from_words
from distributed_privrl.privacy.process_secret import ProcessSecret


class PoissonSampler(Protocol):
    """Tosses one coin for each unit of a shard in each round."""

    def draw(
        self, unit_ids: NDArray[np.uint64], sampling_probability: float, round_index: int
    ) -> NDArray[np.int64]:
        """Return the positions in ``unit_ids`` of the units that take part, ascending.

        Args:
            unit_ids: ``(U,)``, each unit once.
            sampling_probability: of each unit, in (0, 1], independent of all others.
            round_index: number of the round.

        Returns:
            ``(included,)``; the length is Binomial(U, sampling_probability).

        Raises:
            ConfigError: ``sampling_probability`` is out of range.

        Privacy:
            The unit and relation are the caller's. The positions are no release: they are private,
            and they are what Poisson subsampling in ``poisson_gaussian`` events relies on.
        """
        ...


class SecurePoissonSampler(ProcessSecret):
    """Poisson sampling from a generator keyed by the operating system's entropy.

    The number of included units is binomial and the subset is uniform given its size, which is the
    law of independent coins at a cost that grows with the batch, not with the shard.
    """

    def __init__(self) -> None:
        super().__init__()
        key = int.from_bytes(os.urandom(16), "big")
        self._generator = np.random.Generator(AESCounter(key=key))

    def draw(
        self, unit_ids: NDArray[np.uint64], sampling_probability: float, round_index: int
    ) -> NDArray[np.int64]:
        """Return the positions that take part; see `PoissonSampler.draw`. Never repeats."""
        check_probability("sampling_probability", sampling_probability)
        self._check_usable()
        size = self._generator.binomial(len(unit_ids), sampling_probability)
        positions = self._generator.choice(len(unit_ids), size, replace=False, shuffle=False)
        return np.sort(positions).astype(np.int64, copy=False)

    def _forget(self, reason: str) -> None:
        if self._gone is None:
            del self._generator
        super()._forget(reason)


class KeyedPoissonSampler:
    """Coins that are a function of (key, unit, round): the same however units are sharded.

    For tests alone: whoever knows the key knows who took part.

    Args:
        key: of the keyed hash.
    """

    def __init__(self, key: int) -> None:
        self._coins = UnitRandomness(key)

    def draw(
        self, unit_ids: NDArray[np.uint64], sampling_probability: float, round_index: int
    ) -> NDArray[np.int64]:
        """Return the positions that take part; see `PoissonSampler.draw`."""
        check_probability("sampling_probability", sampling_probability)
        coins = self._coins.uniforms(unit_ids, round_index, 1, stream=-1)[:, 0]
        return np.flatnonzero(coins < sampling_probability).astype(np.int64, copy=False)


class UnitRandomness:
    """Randomness of a unit's local update: a function of (key, unit, round, stream).

    Diffusion times, diffusion noise and the like. It protects nobody: the guarantee holds whatever
    a local update does, so a fast keyed hash is enough.

    Args:
        key: of the keyed hash; None takes one from the operating system's entropy.
    """

    def __init__(self, key: int | None) -> None:
        self._key = int.from_bytes(os.urandom(16), "big") if key is None else key

    def uniforms(
        self, unit_ids: NDArray[np.uint64], round_index: int, count: int, stream: int = 0
    ) -> NDArray[np.float64]:
        """Return ``(U, count)`` uniforms in [0, 1).

        Args:
            unit_ids: ``(U,)``.
            round_index: number of the round.
            count: numbers a unit.
            stream: another stream gives independent numbers.
        """
        words = self._words("uniforms", unit_ids, round_index, count, stream)
        words >>= np.uint64(11)
        return np.asarray(words * 2.0**-53, np.float64)

    def normals(
        self, unit_ids: NDArray[np.uint64], round_index: int, count: int, stream: int = 0
    ) -> NDArray[np.float64]:
        """Return ``(U, count)`` standard normals; arguments as in `uniforms`."""
        pairs = (count + 1) // 2
        words = self._words("normals", unit_ids, round_index, 2 * pairs, stream)
        radius_words, angle_words = words[:, :pairs].ravel(), words[:, pairs:].ravel()
        normals = np.empty((2, len(unit_ids), pairs))
        normals_from_words(radius_words, angle_words, normals[0].ravel(), normals[1].ravel())
        return np.concatenate(normals, axis=1)[:, :count]

    def _words(
        self, kind: str, unit_ids: NDArray[np.uint64], round_index: int, count: int, stream: int
    ) -> NDArray[np.uint64]:
        name = f"{self._key}/{kind}/{stream}/{round_index}"
        unit_seed, counter_seed = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], "<u8")
        units = _mixed(np.asarray(unit_ids, np.uint64) ^ unit_seed)
        counters = _mixed(np.arange(count, dtype=np.uint64) ^ counter_seed)
        return _mixed(units[:, None] ^ counters)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble ``words`` in place: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    words += np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
