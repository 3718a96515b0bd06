"""How many numbers networks learn, from their sizes alone: for plans, which import no torch."""

import itertools
from collections.abc import Collection, Sequence

from distributed_privrl.core.checks import check_positive
from distributed_privrl.models.row_bins import RowBins, Variable

STEP_FEATURES = 64
"""Fixed features of a diffusion step, in networks of fragments."""
POSITION_FEATURES = 64
"""Fixed features of a token's place in a transformer."""
START_FEATURES = 2
"""What stands before the tokens of a `TokenTransformer`."""
WIDENING = 4
"""Times that the MLP in an `AttentionBlock` is wider than a token."""
KERNEL = 3
"""Steps that a convolution of a `TrajectoryUNet` sees."""
_END_BITS = 2


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


def step_parts(observation_width: int, action_width: int) -> list[int]:
    """Return the widths of a step's five parts, which sum to S.

    Args:
        observation_width: numbers of an encoded observation (O).
        action_width: numbers of an encoded action (A).

    Raises:
        ConfigError: a width is not positive.

    Example:
        >>> step_parts(observation_width=4, action_width=2)
        [4, 2, 1, 4, 2]
    """
    check_positive("observation_width", observation_width)
    check_positive("action_width", action_width)
    return [observation_width, action_width, 1, observation_width, _END_BITS]


def block_weights(width: int) -> int:
    """Return how many numbers an `AttentionBlock` learns.

    Args:
        width: of a token.
    """
    return (
        dense_weights((width, 3 * width))
        + dense_weights((width, width))
        + dense_weights((width, WIDENING * width, width))
    )


def transformer_weights(
    observation_width: int,
    action_width: int,
    *,
    width: int,
    depth: int,
    column_frequencies: int,
) -> int:
    """Return how many numbers a `TrajectoryTransformer` learns; arguments as there.

    Example:
        >>> transformer_weights(4, 2, width=256, depth=6, column_frequencies=0)
        5830157
    """
    parts = step_parts(observation_width, action_width)
    shown = [waves_width(part, column_frequencies) for part in parts]
    return (
        dense_weights((STEP_FEATURES, width, width))
        + dense_weights((sum(shown) + 1, width, len(parts) * width))
        + sum(dense_weights((part, width, width)) for part in shown)
        + dense_weights((POSITION_FEATURES, width))
        + depth * block_weights(width)
        + sum(dense_weights((width, width, part)) for part in parts)
    )


def token_weights(
    variables: Sequence[Variable], *, width: int, depth: int, column_frequencies: int
) -> int:
    """Return how many numbers a `TokenTransformer` learns; arguments as there.

    Args:
        variables: of a step, those of the next observation left out.
        width: of a token.
        depth: number of blocks.
        column_frequencies: see `waves_width`.
    """
    shown = [code_width(one, column_frequencies) for one in variables]
    return (
        dense_weights((START_FEATURES, width))
        + dense_weights((POSITION_FEATURES, width))
        + sum(dense_weights((numbers, width)) for numbers in shown)
        + depth * block_weights(width)
        + sum(dense_weights((width, one.size)) for one in variables)
    )


def code_width(variable: Variable, column_frequencies: int) -> int:
    """Return how many fixed numbers stand for a category of a variable; see `category_codes`."""
    if variable.kind == "number":
        return waves_width(1, column_frequencies)
    return variable.size


def unet_weights(
    observation_width: int,
    action_width: int,
    *,
    width: int,
    depth: int,
    column_frequencies: int,
) -> int:
    """Return how many numbers a `TrajectoryUNet` learns; arguments as there.

    Example:
        >>> unet_weights(4, 2, width=64, depth=3, column_frequencies=0)
        1078925
    """
    columns, context = sum(step_parts(observation_width, action_width)), 2 * width
    shown = waves_width(columns, column_frequencies)
    widths = [width * 2**level for level in range(depth)]
    levels = list(itertools.pairwise(widths))

    def residual(inputs: int, outputs: int) -> int:
        skip = 0 if inputs == outputs else dense_weights((inputs, outputs))
        return (
            dense_weights((KERNEL * inputs, outputs))
            + dense_weights((context, outputs))
            + dense_weights((KERNEL * outputs, outputs))
            + skip
        )

    return (
        dense_weights((STEP_FEATURES, context, context))
        + dense_weights((shown + 1, context, context))
        + dense_weights((KERNEL * shown, width))
        + sum(residual(one, one) for one in widths)
        + sum(dense_weights((KERNEL * fine, coarse)) for fine, coarse in levels)
        + sum(residual(fine + coarse, fine) for fine, coarse in levels)
        + dense_weights((KERNEL * width, columns))
    )
