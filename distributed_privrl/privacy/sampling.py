"""Who takes part in a private round, where, and the randomness that belongs to a unit.

Everything here is a function of one secret, of public names and of a unit's id: a call that is
repeated after a worker died gives the same answer, and another draw of noise, which has another
nonce, gets other coins. Positions of the included units are private: they stay in the worker that
drew them and go into no log, checkpoint or argument.
"""

import hashlib
import hmac
import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive, check_probability
from distributed_privrl.privacy.process_secret import ProcessSecret

SECRET_BYTES = 32
EMPTY = -1
"""A slot that no unit has."""
_WORD_BITS = 64
_OVERFLOW_BITS = 64  # a block has more units than slots with probability 2^-64 at most


class RoundSecret(ProcessSecret):
    """The secret of a run's private rounds, from which keys for each purpose follow.

    Args:
        value: 32 bytes that the ledger's reservation holds.
    """

    def __init__(self, value: bytes) -> None:
        super().__init__()
        if len(value) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(value)}")
        self._value = value

    def key(self, purpose: str) -> bytes:
        """Return the 32-byte key of ``purpose``: HMAC-SHA-256 of its name.

        Raises:
            UnsafeError: the process was forked.
        """
        self._check_usable()
        return hmac.digest(self._value, purpose.encode(), "sha256")

    def _forget(self, reason: str) -> None:
        if self._gone is None:
            del self._value
        super()._forget(reason)


class UnitPlacement(ProcessSecret):
    """Which block a unit belongs to, and its slot there: a keyed function of its id.

    A block's slots are filled by a uniformly random injection: units and empty slots are sorted by
    AES-256 of what they are called. If one unit is removed, an empty slot takes its place and no
    other unit moves, up to a relabelling that changes no probability.

    Args:
        secret: of the run.
        blocks: B, a public number that does not depend on how many workers there are.
    """

    def __init__(self, secret: RoundSecret, blocks: int) -> None:
        super().__init__()
        check_positive("blocks", blocks)
        self.blocks = blocks
        self._key = secret.key("places")

    def block_of(self, unit_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the block of each unit, ``(U,)``, uniform in 0 .. B - 1."""
        high = self._words(unit_ids, 0)[:, 0] >> np.uint64(32)
        return (high * np.uint64(self.blocks) >> np.uint64(32)).astype(np.int64)

    def slots(self, unit_ids: NDArray[np.uint64], *, block: int, least: int) -> NDArray[np.int64]:
        """Return which of a block's units has each slot, ``(S,)``; `EMPTY`: none.

        Args:
            unit_ids: ``(U,)`` of the block's units, each once.
            block: which one.
            least: slots that there are at least; more only if there are more units.
        """
        empty = np.arange(max(0, least - len(unit_ids)), dtype=np.uint64)
        places = np.concatenate([self._words(unit_ids, 1), self._words(empty, 2 + block)])
        order = np.lexsort((places[:, 1], places[:, 0]))
        return np.where(order < len(unit_ids), order, EMPTY).astype(np.int64)

    def _words(self, numbers: NDArray[np.uint64], domain: int) -> NDArray[np.uint64]:
        self._check_usable()
        plain = np.empty((len(numbers), 2), "<u8")
        plain[:, 0], plain[:, 1] = numbers, domain
        encryptor = Cipher(algorithms.AES256(self._key), modes.ECB()).encryptor()
        return np.frombuffer(encryptor.update(plain.tobytes()), "<u8").reshape(-1, 2)

    def _forget(self, reason: str) -> None:
        if self._gone is None:
            del self._key
        super()._forget(reason)


def slots_of_a_block(units: int, blocks: int) -> int:
    """Return how many slots a block needs so that it overflows with probability 2^-64 at most.

    Args:
        units: most units there are; each is in a block of its own with probability 1 / ``blocks``.
        blocks: of all.

    Reference: Bernstein's inequality.

    Example:
        >>> slots_of_a_block(1000, 1), slots_of_a_block(100_000, 10)
        (1000, 10982)
    """
    mean = units / blocks
    log = _OVERFLOW_BITS * math.log(2) + math.log(blocks)
    beyond = log / 3 + math.sqrt(log**2 / 9 + 2 * log * mean)
    return min(units, math.ceil(mean + beyond))


class SlotCoins(ProcessSecret):
    """Poisson sampling: a coin for each slot of a block in each draw, empty slots included.

    Args:
        secret: of the run.

    Privacy: the coins are what Poisson subsampling in ``poisson_gaussian`` events relies on. They
    are no release. A coin of probability q falls with the largest multiple of 2^-64 that is not
    above q; coins of different slots, blocks and nonces are words of AES-256 keystreams under
    different keys.
    """

    def __init__(self, secret: RoundSecret) -> None:
        super().__init__()
        self._secret = secret

    def draw(
        self, slots: int, sampling_probability: float, *, nonce: str, block: int
    ) -> NDArray[np.int64]:
        """Return the slots of a block that take part, ascending, ``(included,)``.

        Args:
            slots: of the block.
            sampling_probability: of each slot, in (0, 1], independent of all others.
            nonce: names the draw of noise that the coins belong to: the same one gives the same
                coins.
            block: which one.

        Raises:
            ConfigError: ``sampling_probability`` is out of range.
        """
        check_probability("sampling_probability", sampling_probability)
        self._check_usable()
        if sampling_probability == 1:
            return np.arange(slots, dtype=np.int64)
        key = self._secret.key(f"coins/{nonce}/{block}")
        keystream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        words = np.frombuffer(keystream.update(bytes(slots * 8)), "<u8")
        threshold = np.uint64(math.floor(math.ldexp(sampling_probability, _WORD_BITS)))
        return np.flatnonzero(words < threshold)


class UnitRandomness:
    """Randomness of a unit's local update: a function of (secret, unit, nonce, stream).

    Diffusion times, diffusion noise and the like. The guarantee holds whatever a local update does
    with it, so a fast keyed hash is enough; but it is the same when a call is repeated, so that no
    answer depends on which workers survived.

    Args:
        secret: of the run.
    """

    def __init__(self, secret: RoundSecret) -> None:
        self._key = secret.key("draws").hex()

    def uniforms(
        self, unit_ids: NDArray[np.uint64], nonce: str, count: int, stream: int = 0
    ) -> NDArray[np.float64]:
        """Return ``(U, count)`` uniforms in [0, 1).

        Args:
            unit_ids: ``(U,)``.
            nonce: names the draw of noise that they belong to.
            count: numbers a unit.
            stream: another stream gives independent numbers.
        """
        words = self._words("uniforms", unit_ids, nonce, count, stream)
        words >>= np.uint64(11)
        return np.asarray(words * 2.0**-53, np.float64)

    def normals(
        self, unit_ids: NDArray[np.uint64], nonce: str, count: int, stream: int = 0
    ) -> NDArray[np.float64]:
        """Return ``(U, count)`` standard normals; arguments as in `uniforms`."""
        from distributed_privrl.privacy.noise_kernel import normals_from_words

        pairs = (count + 1) // 2
        words = self._words("normals", unit_ids, nonce, 2 * pairs, stream)
        radius_words, angle_words = words[:, :pairs].ravel(), words[:, pairs:].ravel()
        normals = np.empty((2, len(unit_ids), pairs))
        normals_from_words(radius_words, angle_words, normals[0].ravel(), normals[1].ravel())
        return np.concatenate(normals, axis=1)[:, :count]

    def _words(
        self, kind: str, unit_ids: NDArray[np.uint64], nonce: str, count: int, stream: int
    ) -> NDArray[np.uint64]:
        name = f"{self._key}/{kind}/{stream}/{nonce}"
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
