"""How many numbers networks learn, from their sizes alone: for plans, which import no torch."""

import itertools
from collections.abc import Collection, Sequence

from distributed_privrl.models.row_bins import RowBins


def dense_weights(widths: Sequence[int]) -> int:
    """Return the weights and biases of linear layers.

    Args:
        widths: of the input, the hidden layers and the output.

    Example:
        >>> dense_weights((2, 3, 1))
        13
    """
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))


def waves_width(columns: int, frequencies: int) -> int:
    """Return how many numbers `layers.Waves` makes of ``columns`` numbers."""
    return columns * (1 + 2 * frequencies)


def factor_weights(
    bins: RowBins,
    *,
    hidden: Sequence[int],
    column_frequencies: int,
    context: int = 0,
    fixed: Collection[str] = (),
) -> int:
    """Return how many numbers an `AutoregressiveNetwork` learns.

    Args:
        bins: the variables of a row.
        hidden: widths of each variable's hidden layers.
        column_frequencies: see `waves_width`.
        context: numbers that all networks are shown beside the columns.
        fixed: parts of a row whose networks learn nothing.
    """
    return sum(
        dense_weights(
            (max(1, waves_width(one.start, column_frequencies) + context), *hidden, one.size)
        )
        for one in bins.variables
        if one.part not in fixed
    )


def denoiser_weights(
    row_width: int,
    *,
    width: int,
    depth: int,
    time_width: int,
    fourier_features: int,
    column_frequencies: int,
) -> int:
    """Return how many numbers a `ResidualMLPDenoiser` learns; arguments as there."""
    embedding = dense_weights((fourier_features + 1, time_width, time_width))
    shown = dense_weights((waves_width(row_width, column_frequencies), time_width, width))
    return (
        embedding
        + shown
        + depth * dense_weights((width, width))
        + dense_weights((width, row_width))
    )
