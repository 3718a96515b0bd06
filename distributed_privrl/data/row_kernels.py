"""Kernels of the fingerprint: 128-bit hashes of rows, sums over units, sums over all.

Rows are hashed four 32-bit words at a time: two 64-bit halves, each xored with a constant, are
multiplied to 128 bits, whose halves are folded; these add up over the words of a row. It is the way
of XXH3 (Collet 2019), with one set of constants for each of two lanes. A last product of both lanes
makes what is added over rows: multisets are told apart by sums of such values (Clarke, Devadas, van
Dijk, Gassend and Suh 2003, MSet-Add-Hash). Constants are public: nobody is kept from making rows
that collide on purpose, and whose data are fingerprinted has nothing to gain from it.
"""

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 256
"""Rows hashed together: their lanes stay in the first cache."""
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_NAN = np.uint32(0x7FC00000)
_ZERO = np.uint32(0)
_HALF = np.uint64(32)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xBF58476D1CE4E5B9)


@intrinsic
def _multiply(typing, one, other):  # type: ignore[no-untyped-def]
    """Return the low and the high half of the product of two 64-bit numbers."""
    signature = types.UniTuple(types.uint64, 2)(types.uint64, types.uint64)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        wide, word = cgutils.ir.IntType(128), cgutils.ir.IntType(64)
        first, second = (builder.zext(value, wide) for value in arguments)
        product = builder.mul(first, second)
        high = builder.lshr(product, cgutils.ir.Constant(wide, 64))
        halves = builder.trunc(product, word), builder.trunc(high, word)
        return context.make_tuple(builder, signature.return_type, halves)

    return signature, generate


@numba.njit(cache=True, nogil=True, inline="always")
def _fold(one, other):  # type: ignore[no-untyped-def]
    low, high = _multiply(one, other)
    return low ^ high


@numba.njit(cache=True, nogil=True, inline="always")
def _pair(words, i):  # type: ignore[no-untyped-def]
    return np.uint64(words[i]) | (np.uint64(words[i + 1]) << _HALF)


@numba.njit(cache=True, nogil=True)
def _canonical(words, out):  # type: ignore[no-untyped-def]
    """Write float32 bit patterns with one zero and one NaN."""
    for i in range(len(words)):
        magnitude = np.uint32(words[i] & _MAGNITUDE)
        word = _ZERO if magnitude == _ZERO else words[i]
        out[i] = _NAN if magnitude > _INFINITY else word


@numba.njit(cache=True, nogil=True)
def _add_part(words, width, rows, keys, key, first, second):  # type: ignore[no-untyped-def]
    """Add the columns of a part to both lanes of its rows; return the next key."""
    for column in range(0, width, 4):
        left = width - column
        a, b, c, d = keys[key, 0], keys[key, 1], keys[key, 2], keys[key, 3]
        if left >= 4:
            for i in range(rows):
                four = words[i * width + column : i * width + column + 4]
                low, high = _pair(four, 0), _pair(four, 2)
                first[i] += _fold(low ^ a, high ^ b)
                second[i] += _fold(low ^ c, high ^ d)
        else:
            for i in range(rows):
                some = words[i * width + column : i * width + width]
                low = np.uint64(some[0]) if left == 1 else _pair(some, 0)
                high = np.uint64(some[2]) if left == 3 else np.uint64(0)
                first[i] += _fold(low ^ a, high ^ b)
                second[i] += _fold(low ^ c, high ^ d)
        key += 1
    return key


@numba.njit(cache=True, nogil=True)
def hash_blocks(  # type: ignore[no-untyped-def]
    observations, actions, successors, rewards, terminated, widths, keys, pairs, steps, rows
):
    """Hash N rows.

    Args:
        observations: (N O,) uint32, the bits of float32 numbers, row after row.
        actions: (N A,) uint32.
        successors: (N O,) uint32, next observations.
        rewards: (N,) uint32.
        terminated: (N,) bool.
        widths: (2,) int64, O and A.
        keys: (K, 4) uint64, K at least 2 ceil(O / 4) + ceil(A / 4) + 2.
        pairs: (N,) uint64, overwritten by hashes of observation and action.
        steps: (2, N) uint64, overwritten by hashes of observation, action and next observation.
        rows: (2, N) uint64, overwritten by hashes of those with reward and terminated.
    """
    width, action_width = widths[0], widths[1]
    first, second = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    words = np.empty(BLOCK * max(width, action_width, 1), np.uint32)
    for start in range(0, len(rewards), BLOCK):
        stop = min(start + BLOCK, len(rewards))
        count = stop - start
        first[:] = keys[0, 0] + np.uint64(width) * _GOLDEN
        second[:] = keys[0, 1] + np.uint64(action_width) * _GOLDEN
        _canonical(observations[start * width : stop * width], words)
        key = _add_part(words, width, count, keys, 1, first, second)
        _canonical(actions[start * action_width : stop * action_width], words)
        key = _add_part(words, action_width, count, keys, key, first, second)
        own = pairs[start:stop]
        for i in range(count):  # an array given to a slice takes seconds to compile
            own[i] = first[i]
        _canonical(successors[start * width : stop * width], words)
        key = _add_part(words, width, count, keys, key, first, second)
        _canonical(rewards[start:stop], words)
        ends = terminated[start:stop]
        step_low, step_high = steps[0, start:stop], steps[1, start:stop]
        row_low, row_high = rows[0, start:stop], rows[1, start:stop]
        a, b = keys[key, 0], keys[key, 1]
        for i in range(count):
            step_low[i], step_high[i] = first[i], second[i]
            last = np.uint64(words[i]) | (np.uint64(ends[i]) << _HALF)
            low, high = _multiply(first[i] ^ a, second[i] ^ b ^ (last * _GOLDEN))
            row_low[i] = low ^ second[i]
            row_high[i] = high ^ (last * _GOLDEN) ^ first[i]


@numba.njit(cache=True, nogil=True)
def add_items(items, keys, lanes):  # type: ignore[no-untyped-def]
    """Add what stands for each item, 256 bits, to four lanes.

    Args:
        items: (2, N) uint64.
        keys: (4,) uint64.
        lanes: (4,) uint64, sums modulo 2^64.
    """
    low, high = items[0], items[1]
    a, b, c, d = lanes[0], lanes[1], lanes[2], lanes[3]
    for i in range(len(low)):
        one, two = _multiply(low[i] ^ keys[0], high[i] ^ keys[1])
        three, four = _multiply(low[i] ^ keys[2], high[i] ^ keys[3])
        a, b, c, d = a + (one ^ high[i]), b + (two ^ low[i]), c + three, d + four
    lanes[0], lanes[1], lanes[2], lanes[3] = a, b, c, d


@numba.njit(cache=True, nogil=True)
def sum_runs(ids, hashes, run_ids, run_sums):  # type: ignore[no-untyped-def]
    """Add up the hashes of rows that follow each other with the same id; return how many runs.

    Args:
        ids: (N,) uint64.
        hashes: (N,) uint64.
        run_ids: (N,) uint64, overwritten.
        run_sums: (N,) uint64, overwritten.
    """
    run = -1
    for i in range(len(ids)):
        if run >= 0 and ids[i] == run_ids[run]:
            run_sums[run] += hashes[i]
        else:
            run += 1
            run_ids[run], run_sums[run] = ids[i], hashes[i]
    return run + 1


@numba.njit(cache=True, nogil=True)
def add_to_table(ids, sums, table):  # type: ignore[no-untyped-def]
    """Add sums to their units' in an open hash table; return how many units are new.

    The places of a block are read before they are written: a read waits for memory, and nothing
    keeps the processor from waiting for many at once. (What was read is returned, too, lest the
    compiler leave it out.)

    Args:
        ids: (R,) uint64, none zero.
        sums: (R,) uint64.
        table: (C, 2) uint64, C a power of two above the number of units: id and sum; an id of zero
            is a free place.
    """
    last = np.uint64(len(table) - 1)
    places, seen, new = np.empty(BLOCK, np.uint64), np.uint64(0), 0
    for start in range(0, len(ids), BLOCK):
        some, added = ids[start : start + BLOCK], sums[start : start + BLOCK]
        for i in range(len(some)):
            place = _fold(some[i] ^ _GOLDEN, _ODD) & last
            places[i] = place
            seen |= table[place, 0]
        for i in range(len(some)):
            place = places[i]
            while table[place, 0] != some[i] and table[place, 0] != 0:
                place = (place + np.uint64(1)) & last
            if table[place, 0] == 0:
                table[place, 0] = some[i]
                new += 1
            table[place, 1] += added[i]
    return new, seen


@numba.njit(cache=True, nogil=True)
def sample(hashes, offset, factor, most, chosen, order):  # type: ignore[no-untyped-def]
    """Choose rows by their hashes and a key; return how many.

    Args:
        hashes: (N,) uint64.
        offset: of the key.
        factor: of the key, odd.
        most: (hash ^ offset) factor mod 2^64 is at most that.
        chosen: (N,) int64, overwritten by their positions.
        order: (N,) uint64, overwritten by those products.
    """
    count = 0
    for i in range(len(hashes)):
        value = (hashes[i] ^ offset) * factor
        if value <= most:
            chosen[count], order[count] = i, value
            count += 1
    return count
