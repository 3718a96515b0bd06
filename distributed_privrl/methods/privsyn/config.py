"""Configuration of `privsyn`."""

from typing import Annotated, Literal

from pydantic import Field

from distributed_privrl.core.config import (
    OutputConfig,
    PositiveInt,
    Probability,
    RunConfig,
    StrictModel,
)
from distributed_privrl.marginals.config import CountedConfig, DrawConfig, TableConfig


class PrivsynTable(CountedConfig):
    """How the table is counted."""

    bins: Annotated[int, Field(ge=2, le=256)] = Field(
        default=32, description="bins of a number in joint counts at most; noise decides below that"
    )

    @property
    def counted(self) -> TableConfig:
        """The same as a stage of marginals takes it; public rows tell no relations."""
        return TableConfig(**self.model_dump(), public_prior=False)


class UpdatingConfig(DrawConfig):
    """Adjusting rows to the marginals, and drawing the release."""

    rows: PositiveInt | None = Field(
        default=None,
        description="rows that are adjusted together (default: as many as are released, 20,000 at"
        " least and 1,000,000 at most)",
    )
    iterations: PositiveInt = Field(
        default=60, description="times that rows are adjusted to each marginal, at most"
    )

    def pool(self, size: int) -> int:
        """Return how many rows are adjusted for a release of ``size``."""
        return self.rows or min(max(size, 20_000), 1_000_000)


class PrivsynTraining(StrictModel):
    """How the budget is spent, and how rows are made."""

    columns_share: Probability = Field(
        default=0.1, description="part of the budget that counts single columns"
    )
    scores_share: Probability = Field(
        default=0.1,
        description="part of the budget that says how far each pair of columns is from unrelated",
    )
    sampling: UpdatingConfig = UpdatingConfig()

    @property
    def tables_share(self) -> float:
        """Part of the budget that measures the pairs that were selected."""
        return 1 - self.columns_share - self.scores_share


class PrivsynConfig(RunConfig):
    """Private synthetic transitions by PrivSyn."""

    method: Literal["privsyn"] = "privsyn"
    model: PrivsynTable = PrivsynTable()
    training: PrivsynTraining = PrivsynTraining()
    output: OutputConfig
