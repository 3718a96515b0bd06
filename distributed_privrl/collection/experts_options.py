"""Options of the recipes of experts."""

from typing import Any

from pydantic import Field

from distributed_privrl.core.config import PositiveInt, StrictModel


class ExpertOptions(StrictModel):
    """Options of the recipes of experts."""

    experts: PositiveInt = Field(default=3000, description="number of experts")
    trajectories: PositiveInt = Field(default=20, description="trajectories of each expert")
    max_length: PositiveInt | None = Field(
        default=None, description="steps of a trajectory at most (default: the recipe's)"
    )
    minimum_probability: float = Field(
        default=0.02, gt=0, lt=1, description="of each action but the one an expert prefers"
    )
    training: dict[str, Any] = Field(
        default_factory=dict, description="hyper-parameters of the training, e.g. {hidden: [64]}"
    )
    reference_episodes: PositiveInt = Field(
        default=100, description="episodes behind each reference return"
    )
    keep_policies: bool = Field(
        default=False, description="leave the blocks of experts beside the datasets"
    )
