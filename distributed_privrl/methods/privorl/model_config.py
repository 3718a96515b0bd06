"""Configuration of PrivORL's models: of rows, of fragments, of steps, of tokens."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from distributed_privrl.core.config import PositiveFloat, PositiveInt
from distributed_privrl.stages.coding import CodingConfig

if TYPE_CHECKING:
    from distributed_privrl.models.ddpm import DDPM
    from distributed_privrl.models.edm import EDM


class ModelConfig(CodingConfig):
    """The same, and how a network is shown them."""

    column_frequencies: Annotated[int, Field(ge=0)] = Field(
        default=4, description="sines and cosines of each column that the network is shown"
    )


class DenoiserConfig(ModelConfig):
    """The residual MLP and its diffusion (PrivORL, appendix F-A: width 1024, depth 6)."""

    width: PositiveInt = Field(default=256, description="width of the residual blocks")
    depth: PositiveInt = Field(default=5, description="number of residual blocks")
    time_width: PositiveInt = Field(default=128, description="width of the noise level's embedding")
    fourier_features: PositiveInt = Field(default=16, description="of the noise level")
    activation: Literal["relu", "silu"] = Field(default="silu", description="nonlinearity")
    normalise: bool = Field(
        default=True, description="LayerNorm without parameters before each nonlinearity"
    )
    sigma_data: PositiveFloat = Field(default=1.0, description="standard deviation of the rows")
    p_mean: float = Field(default=-1.2, description="mean of log noise level in training")
    p_std: PositiveFloat = Field(default=1.2, description="deviation of log noise level")

    def diffusion(self) -> "EDM":
        """Return the diffusion's constants."""
        from distributed_privrl.models.edm import EDM

        return EDM(sigma_data=self.sigma_data, p_mean=self.p_mean, p_std=self.p_std)


RowPart = Literal["observation", "action", "reward", "next_observation", "terminal"]
"""The last one says whether a row ends its trajectory, and a step also whether it is cut there."""
END: RowPart = "terminal"


class AutoregressiveConfig(ModelConfig):
    """Bins and factors of the autoregressive model."""

    column_frequencies: Annotated[int, Field(ge=0)] = Field(
        default=6, description="sines and cosines of each column that the networks are shown"
    )
    bins: Annotated[int, Field(ge=2)] = Field(
        default=128, description="bins of a number at most, half of them even, half by public rows"
    )
    hidden: tuple[PositiveInt, ...] = Field(
        default=(128, 128), description="widths of the hidden layers of each variable's network"
    )
    public_parts: tuple[RowPart, ...] = Field(
        default=(),
        description="parts of a row that public data alone teach: where sensitive ones follow the"
        " same rules, e.g. [next_observation] for the same physics",
    )


class FragmentModelConfig(ModelConfig):
    """Fragments of trajectories and the diffusion of them (PrivORL, section VI, appendix F-A)."""

    next_observation: Literal["absolute", "difference"] = Field(
        default="absolute", description="code s' as it is, or as s' - s"
    )
    column_frequencies: Annotated[int, Field(ge=0)] = Field(
        default=0, description="sines and cosines of each column that the network is shown"
    )
    horizon: Literal[8, 16, 32, 64, 128] = Field(default=32, description="steps of a fragment (H)")
    width: PositiveInt = Field(default=64, description="width of a token, or of the finest level")
    diffusion_steps: Annotated[int, Field(ge=2)] = Field(
        default=200, description="noise levels of the diffusion (T)"
    )
    schedule: Literal["cosine", "linear"] = Field(
        default="cosine", description="how the noise grows with its level"
    )
    prediction: Literal["velocity", "noise"] = Field(
        default="velocity", description="what the network predicts; the paper's is noise"
    )
    loss: Literal["l2", "huber", "l1"] = Field(
        default="l2", description="of the prediction; the paper's l1 learns medians, not means"
    )

    def ddpm(self) -> "DDPM":
        """Return the diffusion."""
        from distributed_privrl.models.ddpm import DDPM

        return DDPM(steps=self.diffusion_steps, schedule=self.schedule, prediction=self.prediction)


def _divides_width(heads: int, info: ValidationInfo) -> int:
    width = info.data.get("width")
    if width is not None and width % heads:
        raise ValueError(f"must divide model.width={width}")
    return heads


class TransformerConfig(FragmentModelConfig):
    """The transformer of PrivORL-j (paper: width 256, six blocks, four heads)."""

    depth: PositiveInt = Field(default=4, description="number of blocks")
    heads: PositiveInt = Field(
        default=4, validate_default=True, description="attention heads; must divide the width"
    )

    _divides = field_validator("heads")(_divides_width)


class UNetConfig(FragmentModelConfig):
    """The temporal U-Net of PrivORL-j-U."""

    depth: PositiveInt = Field(default=3, description="number of levels")


class StepModelConfig(AutoregressiveConfig):
    """Bins and factors of a step, given the step before it."""

    horizon: Literal[8, 16, 32, 64, 128] = Field(
        default=32, description="steps whose mean loss is one row's (H)"
    )
    bins: Annotated[int, Field(ge=2)] = Field(
        default=64, description="bins of a number at most, half of them even, half by public rows"
    )
    hidden: tuple[PositiveInt, ...] = Field(
        default=(32, 32), description="widths of the hidden layers of each variable's network"
    )
    first_weight: PositiveFloat = Field(
        default=1.0,
        description="weight of an episode's first observation, where a step has 1/H",
    )


class TokenModelConfig(ModelConfig):
    """Tokens of steps, and the transformer of them (PrivORL, appendix E, DP-Transformer)."""

    next_observation: Literal["absolute"] = Field(
        default="absolute", description="s' is the next observation's tokens"
    )
    column_frequencies: Annotated[int, Field(ge=0)] = Field(
        default=6, description="sines and cosines of a bin's rank that the network is shown"
    )
    horizon: Literal[8, 16, 32, 64, 128] = Field(
        default=8,
        description="steps that a token may look back on, and whose mean loss is one row's (H)",
    )
    bins: Annotated[int, Field(ge=2)] = Field(
        default=64, description="bins of a number at most, half of them even, half by public rows"
    )
    width: PositiveInt = Field(default=32, description="width of a token")
    depth: PositiveInt = Field(default=2, description="number of blocks")
    heads: PositiveInt = Field(
        default=4, validate_default=True, description="attention heads; must divide the width"
    )
    first_weight: PositiveFloat = Field(
        default=1.0,
        description="weight of an episode's first observation, where a step has 1/H",
    )

    _divides = field_validator("heads")(_divides_width)
