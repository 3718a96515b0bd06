"""Configuration of PrivORL's pre-training, and of the rows that it learns from."""

from typing import Annotated, Literal

from pydantic import Field

from distributed_privrl.core.config import PositiveInt, StrictModel
from distributed_privrl.marginals.config import TableConfig, TrajectoryTableConfig
from distributed_privrl.marginals.plan import SelectionConfig
from distributed_privrl.rounds.optimiser_config import OptimiserConfig


class ReleasedMarginalsConfig(StrictModel):
    """Marginals that the run releases first, to pre-train on what is drawn from them."""

    share: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.5,
        description="part of epsilon and delta that marginals cost; the rounds have the rest",
    )
    table: TableConfig = TableConfig()
    selection: SelectionConfig = SelectionConfig()


class MarginalRowsConfig(ReleasedMarginalsConfig):
    """The same with rows that are drawn from them."""

    rows: PositiveInt = Field(default=100_000, description="rows drawn to pre-train on")


class MarginalTrajectoriesConfig(ReleasedMarginalsConfig):
    """The same with whole trajectories that are drawn from them."""

    trajectories: PositiveInt = Field(
        default=10_000, description="trajectories drawn to pre-train on"
    )
    table: TrajectoryTableConfig = TrajectoryTableConfig()


class PretrainingConfig(StrictModel):
    """Curiosity-driven pre-training on public rows (PrivORL, algorithm 1, lines 2 to 12)."""

    steps: Annotated[int, Field(ge=0)] = Field(
        default=5000, description="gradient steps; 0 trains on sensitive rows alone (DPDM)"
    )
    batch_size: PositiveInt = Field(default=1024, description="public rows a step (B)")
    curiosity_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.3, description="share of a batch replaced by novel rows (p); 0: PDP-Diffusion"
    )
    curiosity_sampler_steps: PositiveInt = Field(
        default=3, description="noise levels of the cheap sampler that makes rows to score"
    )
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=1e-3, schedule="cosine")

    @property
    def from_marginals(self) -> bool:
        """Whether rows to pre-train on are drawn from marginals that the run releases."""
        return False


class SourcedPretrainingConfig(PretrainingConfig):
    """Pre-training on public rows, or on rows that the run releases as marginals."""

    source: Literal["public", "marginals"] = Field(
        default="public",
        alias="from",
        description="public: rows of data.public; marginals: rows drawn from marginals of the"
        " sensitive ones, which the run releases first, for part of its budget",
    )

    @property
    def from_marginals(self) -> bool:
        """Whether rows to pre-train on are drawn from marginals that the run releases."""
        return self.source == "marginals"


class ArPretrainingConfig(SourcedPretrainingConfig):
    """The same with larger steps, and no novel rows."""

    steps: Annotated[int, Field(ge=0)] = Field(
        default=4000, description="gradient steps; 0 trains on sensitive rows alone (DPDM)"
    )
    curiosity_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of a batch replaced by novel rows (p); 0: PDP-Diffusion"
    )
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=2e-3, schedule="cosine")
    marginals: MarginalRowsConfig = MarginalRowsConfig()


class FragmentPretrainingConfig(PretrainingConfig):
    """Pre-training on public fragments (PrivORL, algorithm 2, lines 8 to 18)."""

    steps: Annotated[int, Field(ge=0)] = Field(
        default=4000, description="gradient steps; 0 trains on sensitive rows alone (DPDM)"
    )
    batch_size: PositiveInt = Field(default=64, description="public rows a step (B)")


class ArJPretrainingConfig(FragmentPretrainingConfig, SourcedPretrainingConfig):
    """The same with larger steps, no novel rows, and public data or marginals to learn from."""

    curiosity_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of a batch replaced by novel rows (p); 0: PDP-Diffusion"
    )
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=3e-3, schedule="cosine")
    marginals: MarginalTrajectoriesConfig = MarginalTrajectoriesConfig()


class TokenPretrainingConfig(FragmentPretrainingConfig):
    """The same without novel rows."""

    curiosity_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of a batch replaced by novel rows (p)"
    )
