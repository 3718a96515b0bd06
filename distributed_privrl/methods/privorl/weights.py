"""How many numbers the private rounds of PrivORL learn; imports no torch."""

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.spaces import part_width
from distributed_privrl.methods.privorl.model_config import (
    AutoregressiveConfig,
    DenoiserConfig,
    TransformerConfig,
    UNetConfig,
)
from distributed_privrl.models.row_bins import RowBins
from distributed_privrl.models.sizes import (
    denoiser_weights,
    factor_weights,
    transformer_weights,
    unet_weights,
)

SMALLER_FACTORS = "smaller networks (model.hidden, model.bins) or fewer columns"
SMALLER_NETWORK = "a smaller network (model.width, model.depth) or fewer columns"


_CONTEXT = 2
"""Numbers beside the step before: whether there is none, and the clock."""


def step_context_width(step_width: int) -> int:
    """Return how many numbers the networks of a step are shown beside its own columns.

    Args:
        step_width: S, numbers of a step, of which the last one is not shown.
    """
    return step_width - 1 + _CONTEXT


def binned_weights(model: AutoregressiveConfig, bins: RowBins, *, context: int = 0) -> int:
    """Return what an autoregressive model learns in rounds; public parts learn nothing.

    Args:
        model: its configuration.
        bins: the variables of a row, or of a step.
        context: numbers that all networks are shown beside the columns.
    """
    return factor_weights(
        bins,
        hidden=model.hidden,
        column_frequencies=model.column_frequencies,
        context=context,
        fixed=model.public_parts,
    )


def row_weights(model: DenoiserConfig, row_width: int) -> int:
    """Return what the denoiser of rows learns.

    Args:
        model: its configuration.
        row_width: numbers in a row (D).
    """
    return denoiser_weights(
        row_width,
        width=model.width,
        depth=model.depth,
        time_width=model.time_width,
        fourier_features=model.fourier_features,
        column_frequencies=model.column_frequencies,
    )


def fragment_weights(model: TransformerConfig | UNetConfig, transitions: TransitionEncoder) -> int:
    """Return what the network of fragments learns.

    Args:
        model: its configuration.
        transitions: encodes each step's transition.
    """
    count = unet_weights if isinstance(model, UNetConfig) else transformer_weights
    return count(
        part_width(transitions.observation_space),
        part_width(transitions.action_space),
        width=model.width,
        depth=model.depth,
        column_frequencies=model.column_frequencies,
    )
