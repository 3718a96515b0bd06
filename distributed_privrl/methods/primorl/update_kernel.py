"""Local training of a dynamics ensemble on one trajectory after the other, compiled.

One (trajectory, member) stays in a core's cache: forward pass, backward pass and step of a batch
are products of `matrix_kernels`, loops between them become vectors. Parameters of a member lie one
layer after the other, each a padded weight ``(inputs, outputs)`` and its bias; what pads is zero
and stays zero.

Reference: PriMORL, algorithm 2, lines 7 to 16.
"""

import hashlib
from pathlib import Path
from typing import Any

import numba
import numpy as np

from distributed_privrl.methods.primorl import matrix_kernels
from distributed_privrl.methods.primorl.matrix_kernels import (
    INNER,
    TILE_ROWS,
    exponential,
    multiply,
    transpose,
)

# columns of the table of layers
INPUTS, OUTPUTS, PADDED_INPUTS, PADDED_OUTPUTS = 0, 1, 2, 3
WEIGHT, BIAS = 4, 5  # where they start in a member's padded parameters
FLAT_WEIGHT, FLAT_BIAS = 6, 7  # where those of the first member start in the flat vector
ACTIVATION = 8  # where the layer's inputs start, for one row
TABLE_COLUMNS = 9

_START, _NEXT = np.int64(0), np.int64(1)  # a plain 0 or 1 would compile a product once more
_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_NORM_BLOCK = 1024  # float32 squares summed before float64 takes over


@numba.njit(**INNER, fastmath={"contract"})
def _activate(values, slopes):  # type: ignore[no-untyped-def]
    """SiLU in place, x / (1 + e^-x), and its slope."""
    for i in range(len(values)):
        x = values[i]
        sigmoid = _ONE / (_ONE + exponential(-x))
        activated = x * sigmoid
        values[i] = activated
        slopes[i] = sigmoid + activated * (_ONE - sigmoid)


@numba.njit(**INNER, fastmath={"contract"})
def _multiply_elements(values, factors):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        values[i] *= factors[i]


@numba.njit(**INNER)
def _copy(values, out):  # type: ignore[no-untyped-def]
    """Copy one by one: an array given to a slice takes seconds to compile."""
    for i in range(len(values)):
        out[i] = values[i]


@numba.njit(**INNER, fastmath={"contract"})
def _output_gradient(output, width, targets, means, raw, rows, bounds):  # type: ignore[no-untyped-def]
    """Replace ``output`` ``(B, 2T, padded)`` by the gradient in it of the mean loss.

    With the bounds v of the variance and the network's raw log-variance r, the variance is
    v_min + 1 / (1 / v_max + e^-r): the exponential of the softly bounded log-variance.
    """
    count = targets.shape[1]
    for row in range(rows):
        for k in range(count):
            means[row * count + k] = output[row * width + k]
            raw[row * count + k] = output[row * width + count + k]
    least, most = bounds
    inverse_rows = _ONE / np.float32(rows)
    flat = targets.reshape(-1)
    for i in range(rows * count):
        grown = exponential(raw[i])
        share = _ONE / (_ONE + grown / most)
        below = grown * share
        precision = _ONE / (least + below)
        error = means[i] - flat[i]
        means[i] = inverse_rows * error * precision
        slope = below * precision * share
        raw[i] = inverse_rows * _HALF * (_ONE - error * error * precision) * slope
    for row in range(rows):
        for k in range(count):
            output[row * width + k] = means[row * count + k]
            output[row * width + count + k] = raw[row * count + k]


@numba.njit(**INNER)
def _forward(layers, theta, activations, slopes, output, capacity, rows):  # type: ignore[no-untyped-def]
    """Write the inputs of every layer, their slopes, and the last layer's ``output``."""
    last = len(layers) - 1
    full = (rows + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
    for index in range(last + 1):
        layer = layers[index]
        width, bias = layer[PADDED_OUTPUTS], theta[layer[BIAS] :]
        target = output if index == last else activations
        start = 0 if index == last else layers[index + 1, ACTIVATION] * capacity
        for row in range(full):
            first = start + row * width
            _copy(bias[:width], target[first : first + width])
        multiply(
            activations, layer[ACTIVATION] * capacity, layer[PADDED_INPUTS], _NEXT,
            theta, layer[WEIGHT], width, layer[INPUTS],
            target, start, width, full, width, _ONE, _ONE,
        )  # fmt: skip
        if index < last:
            own = slice(start, start + rows * width)
            _activate(target[own], slopes[own])


@numba.njit(**INNER, fastmath={"contract"})
def _step_bias(bias, gradient, rows, rate, kept):  # type: ignore[no-untyped-def]
    width = len(bias)
    for j in range(width):
        bias[j] *= kept
    for row in range(rows):
        own = gradient[row * width : (row + 1) * width]
        for j in range(width):
            bias[j] -= rate * own[j]


@numba.njit(**INNER)
def _backward_and_step(  # type: ignore[no-untyped-def]
    layers, theta, activations, slopes, gradients, turned, capacity, rows, rate, kept
):
    """Step every layer along the gradient; ``gradients[0]`` holds that of the output."""
    full = (rows + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
    own, other = gradients[0], gradients[1]
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        inputs, outputs = layer[PADDED_INPUTS], layer[PADDED_OUTPUTS]
        start = layer[ACTIVATION] * capacity
        if index > 0:
            transpose(theta, layer[WEIGHT], inputs, outputs, turned)
            multiply(
                own, _START, outputs, _NEXT, turned, _START, inputs, layer[OUTPUTS],
                other, _START, inputs, full, inputs, _ONE, _ZERO,
            )  # fmt: skip
            _multiply_elements(other[: rows * inputs], slopes[start : start + rows * inputs])
        multiply(
            activations, start, _NEXT, inputs, own, _START, outputs, rows,
            theta, layer[WEIGHT], outputs, layer[INPUTS], outputs, -rate, kept,
        )  # fmt: skip
        _step_bias(theta[layer[BIAS] : layer[BIAS] + outputs], own, rows, rate, kept)
        own, other = other, own


@numba.njit(**INNER, fastmath={"contract", "reassoc"})
def _squared_distance(theta, start, zero):  # type: ignore[no-untyped-def]
    """Return the squared distance, computed in the precision of ``zero``."""
    total = zero
    for i in range(len(theta)):
        difference = zero + theta[i] - start[i]
        total += difference * difference
    return np.float64(total)


@numba.njit(**INNER, fastmath={"contract"})
def _shrink(theta, start, factor):  # type: ignore[no-untyped-def]
    for i in range(len(theta)):
        theta[i] = start[i] + factor * (theta[i] - start[i])


@numba.njit(**INNER)
def _project(theta, start, groups, bound):  # type: ignore[no-untyped-def]
    """Move each group of ``theta - start`` back to norm ``bound`` where it is longer."""
    for begin, end in groups:
        squares = 0.0
        for first in range(begin, end, _NORM_BLOCK):
            block = slice(first, min(first + _NORM_BLOCK, end))
            squares += _squared_distance(theta[block], start[block], _ZERO)
        if squares == np.inf:  # of float32
            squares = _squared_distance(theta[begin:end], start[begin:end], np.float64(0.0))
        if squares > bound * bound:
            own = slice(begin, end)
            _shrink(theta[own], start[own], np.float32(bound / np.sqrt(squares)))


@numba.njit(**INNER)
def _gather(row_table, valid, chosen, inputs, targets, into, width, wanted):  # type: ignore[no-untyped-def]
    """Copy the valid ones of the chosen rows; return how many they are."""
    count = 0
    for row in chosen:
        if valid[row]:
            for k in range(len(inputs)):
                into[count * width + k] = row_table[row, inputs[k]]
            for k in range(len(targets)):
                wanted[count, k] = row_table[row, targets[k]]
            count += 1
    return count


@numba.njit(**INNER)
def _write_difference(layers, members, start, theta, out):  # type: ignore[no-untyped-def]
    """Write ``start - theta`` without its padding, in the order of the flat vector."""
    size = len(theta) // members
    for layer in layers:
        inputs, outputs, width = layer[INPUTS], layer[OUTPUTS], layer[PADDED_OUTPUTS]
        for member in range(members):
            for i in range(inputs + 1):  # the last of them is the bias
                source = member * size + (layer[WEIGHT] + i * width if i < inputs else layer[BIAS])
                target = layer[FLAT_WEIGHT] + (member * inputs + i) * outputs
                if i == inputs:
                    target = layer[FLAT_BIAS] + member * outputs
                for j in range(outputs):
                    out[target + j] = start[source + j] - theta[source + j]


def _compiled(products: str) -> Any:
    """Return `train_units`; the cache knows it by this file and by what it closes over.

    Args:
        products: digest of the other file that is compiled into it.
    """

    @numba.njit(cache=True, nogil=True, error_model="numpy")
    def train_units(  # type: ignore[no-untyped-def]
        layers, members, start, rows, valid, counts, order, inputs, targets, batch_size,
        rate, kept, variance_bounds, groups, bound, out,
    ):  # fmt: skip
        """Write ``start - end`` of each unit's local training.

        Args:
            layers: int64 ``(L, TABLE_COLUMNS)``.
            members: N.
            start: float32 ``(N S,)``, the padded parameters of one member after the other.
            rows: float32 ``(U, K, D)``.
            valid: ``(U, K)``.
            counts: int64 ``(U,)``, rows of each unit.
            order: int64 ``(U or 1, E, K or more)``: in which order an epoch takes the rows.
            inputs: int64 ``(I,)``, their columns.
            targets: int64 ``(T,)``, their columns.
            batch_size: B.
            rate: float32, the local learning rate.
            kept: float32, what weight decay leaves of a parameter.
            variance_bounds: float32, the least and the most.
            groups: int64 ``(G, 2)``, begin and end of what is projected together between batches.
            bound: of each group's distance from its start; infinite: no projection.
            out: float32 ``(U, P)``, overwritten.
        """
        assert len(products) > 0
        size = len(start) // members
        capacity = (batch_size + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
        widest = layers[:, PADDED_OUTPUTS].max()
        area = max(widest, layers[:, PADDED_INPUTS].max()) * capacity
        held = (layers[-1, ACTIVATION] + layers[-1, PADDED_INPUTS]) * capacity
        activations, slopes = np.zeros(held, np.float32), np.zeros(held, np.float32)
        gradients = np.zeros((2, area), np.float32)
        turned = np.zeros((layers[:, PADDED_INPUTS] * layers[:, PADDED_OUTPUTS]).max(), np.float32)
        wanted = np.zeros((batch_size, len(targets)), np.float32)
        means, raw = np.zeros(wanted.size, np.float32), np.zeros(wanted.size, np.float32)
        theta = np.empty_like(start)
        for unit in range(len(rows)):
            _copy(start, theta)  # lines 7 and 8
            epochs = order[min(unit, len(order) - 1)]
            for epoch in range(len(epochs)):  # line 9
                for begin in range(0, counts[unit], batch_size):  # lines 10 and 11
                    end = min(begin + batch_size, counts[unit])
                    count = _gather(
                        rows[unit], valid[unit], epochs[epoch, begin:end], inputs, targets,
                        activations, layers[0, PADDED_INPUTS], wanted,
                    )  # fmt: skip
                    if count == 0:
                        continue
                    for member in range(members):
                        own = theta[member * size : (member + 1) * size]
                        _forward(layers, own, activations, slopes, gradients[0], capacity, count)
                        _output_gradient(
                            gradients[0], layers[-1, PADDED_OUTPUTS], wanted, means, raw, count,
                            variance_bounds,
                        )  # fmt: skip
                        _backward_and_step(  # line 12
                            layers, own, activations, slopes, gradients, turned, capacity, count,
                            rate, kept,
                        )  # fmt: skip
                    last = epoch == len(epochs) - 1 and end == counts[unit]
                    if bound < np.inf and not last:
                        _project(theta, start, groups, bound)  # line 13
            _write_difference(layers, members, start, theta, out[unit])  # line 16

    return train_units


train_units = _compiled(hashlib.sha256(Path(matrix_kernels.__file__).read_bytes()).hexdigest())
