"""Configuration of the server's step; a plan reads it, and so it imports no torch."""

from typing import Literal

from pydantic import Field

from distributed_privrl.core.config import PositiveFloat, StrictModel


class OptimiserConfig(StrictModel):
    """The step's rule and the exponential moving average of the parameters."""

    rule: Literal["adam", "sgd"] = Field(
        default="adam", description="sgd at learning_rate 1 moves by the noisy mean itself"
    )
    learning_rate: PositiveFloat = Field(default=3e-4, description="step size")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of Adam's first moment")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="decay of Adam's second moment")
    schedule: Literal["constant", "cosine"] = Field(
        default="constant", description="learning rate over the rounds"
    )
    ema_decay: float = Field(
        default=0.999, ge=0, lt=1, description="decay of the parameters' average; 0: the last ones"
    )
