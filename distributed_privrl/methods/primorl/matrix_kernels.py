"""Products of small float32 matrices that stay in a core's cache, at the speed of its arithmetic.

A library's product spends longer on finding out what to do than on a 16 x 64 x 64 product. Here a
tile of the result stays in vector registers, which compiled loops do not manage by themselves; so
the tile is written in the compiler's intermediate code, which turns its vectors into whatever the
processor has. All matrices lie in flat arrays, and are named by where they start.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WIDE_REGISTERS = bool(binding.get_host_cpu_features().get("avx512f"))
LANES = 16 if _WIDE_REGISTERS else 8
"""Numbers in a vector; rows of matrices are padded to a multiple of it."""
TILE_ROWS = 4
"""Rows of a product are computed so many at once, so that what holds them has a multiple of it."""
_TILE_VECTORS = 4 if _WIDE_REGISTERS else 2
_TILE_COLUMNS = _TILE_VECTORS * LANES

_FLOAT, _INDEX = ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_CONTRACT = ("contract",)  # a product and a sum may share one rounding

# 2^f for |f| <= 1/2 to a relative error of 7.5e-8
_EXP2 = tuple(
    np.float32(c)
    for c in (1.0000001, 0.6931469, 0.24022120, 0.055507131, 0.0096755419, 0.0013276472)
)
_LOG2_E = np.float32(1.4426950408889634)
_SHIFTER = np.float32(1.5 * 2**23)  # adding it leaves a number's integer part in the lowest bits
_LARGEST_EXPONENT = np.float32(100.0)

INNER = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""Options of functions that only compiled code calls."""


def padded(size: int, multiple: int = LANES) -> int:
    """Return ``size`` rounded up to a multiple."""
    return -(-size // multiple) * multiple


def _pointer(context: Any, builder: Any, kind: Any, array: Any, start: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [start])


def _vector_at(builder: Any, base: Any, offset: Any) -> Any:
    return builder.bitcast(builder.gep(base, [offset]), _VECTOR.as_pointer())


def _spread(builder: Any, scalar: Any) -> Any:
    """Return a vector of which every lane is ``scalar``."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    one = builder.insert_element(undefined, scalar, ir.Constant(_INDEX, 0))
    first = ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES)
    return builder.shuffle_vector(one, undefined, first)


def _multiply_and_add(builder: Any, left: Any, right: Any, addend: Any) -> Any:
    product = builder.fmul(left, right, flags=_CONTRACT)
    return builder.fadd(addend, product, flags=_CONTRACT)


def _tile(vectors: int) -> Any:
    """Return an intrinsic for C <- beta C + alpha A B, C of `TILE_ROWS` rows, ``vectors`` wide."""
    cells = [(row, vector) for row in range(TILE_ROWS) for vector in range(vectors)]

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def tile(  # type: ignore[no-untyped-def]
        _, a, a_start, a_row, a_step, b, b_start, b_row, depth, c, c_start, c_row, alpha, beta
    ):
        whole = types.intp
        signature = types.void(
            *(a, whole, whole, whole, b, whole, whole, whole, c, whole, whole),
            *(types.float32, types.float32),
        )

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            left, right, out = (
                _pointer(context, builder, signature.args[i], args[i], args[i + 1])
                for i in (0, 4, 8)
            )
            a_row, a_step, b_row, depth, c_row = (args[i] for i in (2, 3, 6, 7, 10))
            number = args[1].type
            zero = ir.Constant(_VECTOR, [0.0] * LANES)
            sums = {cell: cgutils.alloca_once_value(builder, zero) for cell in cells}
            with cgutils.for_range(builder, depth) as loop:
                row_of_b = builder.gep(right, [builder.mul(loop.index, b_row)])
                rights = [
                    builder.load(_vector_at(builder, row_of_b, number(v * LANES)), align=4)
                    for v in range(vectors)
                ]
                step = builder.mul(loop.index, a_step)
                for row in range(TILE_ROWS):
                    place = builder.add(builder.mul(a_row, number(row)), step)
                    factor = _spread(builder, builder.load(builder.gep(left, [place])))
                    for v in range(vectors):
                        total = builder.load(sums[row, v])
                        total = _multiply_and_add(builder, factor, rights[v], total)
                        builder.store(total, sums[row, v])
            alpha, beta = _spread(builder, args[11]), _spread(builder, args[12])
            anew = builder.fcmp_ordered("==", args[12], ir.Constant(_FLOAT, 0.0))
            for row, v in cells:
                place = builder.add(builder.mul(c_row, number(row)), number(v * LANES))
                target = _vector_at(builder, out, place)
                kept = builder.fmul(beta, builder.load(target, align=4), flags=_CONTRACT)
                kept = builder.select(anew, zero, kept)  # what was there may be no number
                total = builder.load(sums[row, v])
                builder.store(_multiply_and_add(builder, alpha, total, kept), target, align=4)
            return context.get_dummy_value()

        return signature, generate

    return tile


_wide_tile, _narrow_tile = _tile(_TILE_VECTORS), _tile(1)


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _transpose_block(_, a, a_start, a_row, b, b_start, b_row):  # type: ignore[no-untyped-def]
    """Write the transpose of a square of `LANES` rows: neighbours exchange ever larger halves."""
    whole = types.intp
    signature = types.void(a, whole, whole, b, whole, whole)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _pointer(context, builder, signature.args[0], args[0], args[1])
        target = _pointer(context, builder, signature.args[3], args[3], args[4])
        number = args[1].type

        def row(base: Any, width: Any, index: int) -> Any:
            return _vector_at(builder, base, builder.mul(width, number(index)))

        rows = [builder.load(row(source, args[2], i), align=4) for i in range(LANES)]
        span = 1
        while span < LANES:
            first = [k if not k & span else LANES + k - span for k in range(LANES)]
            second = [k + span if not k & span else LANES + k for k in range(LANES)]
            masks = [ir.Constant(ir.VectorType(_INDEX, LANES), lanes) for lanes in (first, second)]
            for i in range(LANES):
                if not i & span:
                    pair = rows[i], rows[i + span]
                    rows[i], rows[i + span] = (builder.shuffle_vector(*pair, m) for m in masks)
            span *= 2
        for i in range(LANES):
            builder.store(rows[i], row(target, args[5], i), align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _times_power_of_two(_, value, shifted):  # type: ignore[no-untyped-def]
    """Return ``value * 2^n``, n in the lowest bits of ``shifted``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, shifted = (builder.bitcast(argument, _INDEX) for argument in args)
        exponent = builder.shl(shifted, ir.Constant(_INDEX, 23))
        return builder.bitcast(builder.add(value, exponent), _FLOAT)

    return types.float32(types.float32, types.float32), generate


@numba.njit(**INNER, inline="always")
def exponential(x):  # type: ignore[no-untyped-def]
    """Return e^x of a float32, e^+-69 beyond 69; loops over it become vectors."""
    scaled = min(max(x * _LOG2_E, -_LARGEST_EXPONENT), _LARGEST_EXPONENT)
    shifted = scaled + _SHIFTER
    f = scaled - (shifted - _SHIFTER)
    power = _EXP2[4] + f * _EXP2[5]
    power = _EXP2[0] + f * (_EXP2[1] + f * (_EXP2[2] + f * (_EXP2[3] + f * power)))
    return _times_power_of_two(power, shifted)


@numba.njit(**INNER)
def multiply(  # type: ignore[no-untyped-def]
    a, a_start, a_row, a_step, b, b_start, b_row, depth, c, c_start, c_row, rows, columns,
    alpha, beta,
):  # fmt: skip
    """C <- beta C + alpha A B, or alpha A B whatever C held where beta is 0.

    A ``(rows, depth)`` has element (i, k) at ``a_start + i a_row + k a_step``; the rows of B
    ``(depth, columns)`` and C ``(rows, columns)`` lie ``b_row`` and ``c_row`` apart. Rows are
    computed up to the next multiple of `TILE_ROWS`; columns are a multiple of `LANES`.
    """
    j = 0
    while j < columns:
        wide = j + _TILE_COLUMNS <= columns
        for i in range(0, rows, TILE_ROWS):
            left, out = a_start + i * a_row, c_start + i * c_row + j
            if wide:
                _wide_tile(
                    a, left, a_row, a_step, b, b_start + j, b_row, depth, c, out, c_row, alpha, beta
                )
            else:
                _narrow_tile(
                    a, left, a_row, a_step, b, b_start + j, b_row, depth, c, out, c_row, alpha, beta
                )
        j += _TILE_COLUMNS if wide else LANES


@numba.njit(**INNER)
def transpose(a, a_start, rows, columns, b):  # type: ignore[no-untyped-def]
    """Write the transpose of A ``(rows, columns)``, both multiples of `LANES`, to ``b``."""
    for i in range(0, rows, LANES):
        for j in range(0, columns, LANES):
            _transpose_block(a, a_start + i * columns + j, columns, b, j * rows + i, rows)
