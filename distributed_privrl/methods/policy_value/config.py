"""Configuration of `policy_value`."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from distributed_privrl.core.config import (
    DatasetId,
    FilesOutputConfig,
    PositiveInt,
    ReleasePrivacyConfig,
    RunConfig,
    StrictModel,
)


class PurePrivacyConfig(ReleasePrivacyConfig):
    """What a run of Laplace noise alone may cost."""

    delta: float = Field(default=0.0, ge=0, le=0, description="0: pure differential privacy")


class JudgedConfig(StrictModel):
    """What is valued, and by which public facts."""

    release: DatasetId = Field(
        description="id of a released dataset: the agent and all models are fitted on its rows"
    )
    returns: tuple[float, float] = Field(
        description="public: the least and the largest return of an episode"
    )
    horizon: PositiveInt = Field(description="public: steps of an episode; later ones are left out")
    max_trajectories_per_unit: PositiveInt = Field(
        default=50, description="public cap; a unit's further episodes are left out"
    )

    @model_validator(mode="after")
    def _rising(self) -> Self:
        low, high = self.returns
        if not -1e12 < low < high < 1e12:
            raise ValueError("returns must rise, and be finite")
        return self


class AgentConfig(StrictModel):
    """The agent that is trained on the release."""

    trainer: str = Field(
        default="discrete_cql", description="of discrete actions: discrete_cql, discrete_bcq or bc"
    )
    steps: PositiveInt = Field(default=10_000, description="gradient steps")
    options: dict[str, Any] = Field(
        default_factory=dict, description="hyper-parameters that differ, e.g. {alpha: 2}"
    )


class ValueOutputConfig(FilesOutputConfig):
    """What the run releases."""

    about: ClassVar[str] = "what a policy would earn on"

    figures: str = Field(
        default="value.json",
        pattern=r"^[\w-][\w.-]*\.json$",
        description="file of the figures in the run's folder",
    )
    policy: str = Field(
        default="policy.safetensors",
        pattern=r"^[\w-][\w.-]*\.safetensors$",
        description="file of the agent's policy in the run's folder",
    )

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files: the figures, and the policy that they are of."""
        return (self.figures, self.policy)


class PolicyValueConfig(RunConfig):
    """What a policy from a release would earn where others acted, with noise."""

    method: Literal["policy_value"] = "policy_value"
    privacy: PurePrivacyConfig
    model: JudgedConfig
    training: AgentConfig = AgentConfig()
    output: ValueOutputConfig = ValueOutputConfig()

    @property
    def releases(self) -> tuple[str, ...]:
        """Ids of datasets that were released before: the agent's."""
        return (self.model.release,)
