"""Float64 standard normals from a keystream, at the speed of memory.

One AES-256-CTR keystream word gives a radius, another an angle, and both coordinates of the point
are used (Box and Muller, 1958). The loops have no branches and call nothing, so that the compiler
vectorises them; the logarithm, sine and cosine are the polynomials of fdlibm, and a normal agrees
with the exact function of its two words to a relative error below 1e-15.

The radius uses all 64 bits: u = (word + 1/2) / 2^64 is never 0, and radii reach
sqrt(2 ln 2^65) = 9.49. The angle uses 64 bits: two choose the quadrant, 62 the place inside it.
"""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numba import types
from numpy.typing import NDArray

BLOCK = 32_768  # normals a block: words and normals stay in a core's second-level cache
_WORD_BYTES = 8

# ln 2 in two parts, and fdlibm's minimax coefficients, lowest degree first
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_SIN = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_COS = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)
_ONE = np.int64(0x3FF0000000000000)  # the bits of 1.0
_HALF_SQRT2 = np.int64(0x3FE6A09E00000000)  # the bits of (nearly) sqrt(1/2)
_FRACTION = np.int64(0x000FFFFFFFFFFFFF)
_ANGLE_UNIT = math.pi / 2 * 2.0**-62


def _compile(signatures: list[Any]) -> Callable[[Callable[..., None]], Any]:
    """Compile for the given types now; keep the machine code on disk where a folder allows it.

    ``contract`` lets a product and a sum share one rounding and changes nothing else.
    """

    def decorate(function: Callable[..., None]) -> Any:
        options = {"error_model": "numpy", "fastmath": {"contract"}, "nogil": True}
        try:
            return numba.njit(signatures, cache=True, **options)(function)
        except RuntimeError:  # neither the package nor the home folder can be written
            return numba.njit(signatures, **options)(function)

    return decorate


@_compile(["void(uint64[::1], uint64[::1], float64[::1], float64[::1])"])
def normals_from_words(
    radius_words: NDArray[np.uint64],
    angle_words: NDArray[np.uint64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
) -> None:
    """Write two independent standard normals for each pair of uniform words.

    Args:
        radius_words: ``(P,)``.
        angle_words: ``(P,)``.
        first: ``(P,)``, overwritten.
        second: ``(P,)``, overwritten.
    """
    for i in range(radius_words.shape[0]):
        # ln u, with u = 2^k (1 + f) and 1 + f in [sqrt(1/2), sqrt(2))
        u = (np.float64(radius_words[i]) + 0.5) * 2.0**-64
        bits = np.float64(u).view(np.int64) + (_ONE - _HALF_SQRT2)
        k = np.float64((bits >> np.int64(52)) - np.int64(1023))
        f = np.int64((bits & _FRACTION) + _HALF_SQRT2).view(np.float64) - 1.0
        s = f / (2.0 + f)
        z = s * s
        tail = _LOG[4] + z * (_LOG[5] + z * _LOG[6])
        tail = z * (_LOG[0] + z * (_LOG[1] + z * (_LOG[2] + z * (_LOG[3] + z * tail))))
        half_square = 0.5 * f * f
        log_u = k * _LN2_HIGH - ((half_square - (s * (half_square + tail) + k * _LN2_LOW)) - f)
        radius = np.sqrt(max(-2.0 * log_u, 0.0))
        # a uniform angle in [-pi/4, pi/4), then one of four quadrants from the two lowest bits
        word = np.int64(angle_words[i])
        a = np.float64(word >> np.int64(2)) * _ANGLE_UNIT
        q = a * a
        sine = _SIN[2] + q * (_SIN[3] + q * (_SIN[4] + q * _SIN[5]))
        sine = a + a * q * (_SIN[0] + q * (_SIN[1] + q * sine))
        cosine = _COS[2] + q * (_COS[3] + q * (_COS[4] + q * _COS[5]))
        cosine = q * q * (_COS[0] + q * (_COS[1] + q * cosine))
        cosine = 1.0 - (0.5 * q - cosine)
        sign = word << np.int64(63)
        cosine = np.int64(np.float64(cosine).view(np.int64) ^ sign).view(np.float64)
        swap = (word & np.int64(2)) != 0
        first[i] = radius * (cosine if swap else sine)
        second[i] = radius * (sine if swap else cosine)


# Sums that come through Ray are read-only; a writable array is taken as one.
_SUMS = [types.Array(kind, 1, "C", readonly=True) for kind in (types.float64, types.float32)]
_VECTOR = types.Array(types.float64, 1, "C")


@_compile([types.void(sums, _VECTOR, _VECTOR, types.float64, types.float64) for sums in _SUMS])
def add_on_lattice(
    values: NDArray[np.float64] | NDArray[np.float32],
    normals: NDArray[np.float64],
    out: NDArray[np.float64],
    factor: float,
    granularity: float,
) -> None:
    """Write ``(rint(values/granularity) + rint(normals*factor)) * granularity`` to ``out``.

    A sum of zero is written as +0: the sign of a zero would tell that of a value below the lattice.

    Args:
        values: ``(N,)``.
        normals: ``(N,)``.
        out: ``(N,)``, overwritten; may be ``values``.
        factor: standard deviation / granularity.
        granularity: a power of two, so that dividing by it is exact.
    """
    inverse = 1.0 / granularity
    for i in range(out.shape[0]):
        steps = np.rint(np.float64(values[i]) * inverse) + np.rint(normals[i] * factor)
        out[i] = (steps + 0.0) * granularity


class KeyedStream:
    """Uniform words and standard normals from one AES-256-CTR keystream; never the same twice.

    Not safe for use from two threads at once.

    Args:
        key: 32 bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._keystream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        self._zeros = bytes(BLOCK * _WORD_BYTES)
        self._words = np.zeros(BLOCK, np.uint64)
        self._normals = np.zeros(BLOCK)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return ``(count,)`` uniform 64-bit words."""
        return np.frombuffer(self._keystream.update(bytes(count * _WORD_BYTES)), np.uint64)

    def fill(self, normals: NDArray[np.float64]) -> None:
        """Overwrite ``normals`` ``(N,)`` with standard normals."""
        for start in range(0, len(normals), BLOCK):
            target = normals[start : start + BLOCK]
            target[:] = self._next_block(len(target))
        self._wipe()

    def add(
        self,
        values: NDArray[np.float64] | NDArray[np.float32],
        out: NDArray[np.float64],
        factor: float,
        granularity: float,
    ) -> None:
        """Add fresh normals on the lattice, a block at a time; see `add_on_lattice`."""
        for start in range(0, len(values), BLOCK):
            block = slice(start, start + BLOCK)
            normals = self._next_block(len(values[block]))
            add_on_lattice(values[block], normals, out[block], factor, granularity)
        self._wipe()

    def _next_block(self, count: int) -> NDArray[np.float64]:
        pairs = (count + 1) // 2
        words, normals = self._words[: 2 * pairs], self._normals[: 2 * pairs]
        size = 2 * pairs * _WORD_BYTES
        self._keystream.update_into(memoryview(self._zeros)[:size], words.view(np.uint8).data)
        normals_from_words(words[:pairs], words[pairs:], normals[:pairs], normals[pairs:])
        return normals[:count]

    def _wipe(self) -> None:
        self._words.fill(0)
        self._normals.fill(0)


class DrawnAhead:
    """One vector of standard normals, prepared by a thread of this process, used once and wiped.

    Args:
        key: 32 bytes.
        dimension: length N of the vector.
    """

    def __init__(self, key: bytes, dimension: int) -> None:
        self._stream = KeyedStream(key)
        self._normals = np.zeros(dimension)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise")
        self._ready: Future[None] | None = self._prepare()

    def fits(self, dimension: int) -> bool:
        """Say whether the vector prepared is of this dimension."""
        return len(self._normals) == dimension

    def add(
        self,
        values: NDArray[np.float64] | NDArray[np.float32],
        out: NDArray[np.float64],
        factor: float,
        granularity: float,
    ) -> None:
        """Add the prepared normals on the lattice and begin the next; see `add_on_lattice`."""
        ready, self._ready = self._ready, None  # an interrupt must not leave it to be used again
        try:
            (ready or self._prepare()).result()
            add_on_lattice(values, self._normals, out, factor, granularity)
        finally:
            self._normals.fill(0)
            self._ready = self._prepare()

    def close(self) -> None:
        """End the thread and wipe the vector."""
        self._thread.shutdown()
        self._normals.fill(0)

    def _prepare(self) -> Future[None]:
        return self._thread.submit(self._stream.fill, self._normals)
