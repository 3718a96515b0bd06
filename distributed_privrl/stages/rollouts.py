"""Configuration of whole trajectories that are drawn step after step, whatever the model is."""

from pydantic import Field

from distributed_privrl.core.config import DataConfig, PositiveInt, StrictModel
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.trajectories import TRAJECTORY


class RolloutConfig(StrictModel):
    """Drawing whole trajectories, step after step."""

    max_length: PositiveInt | None = Field(
        default=None,
        description="steps of a synthetic trajectory at most (default: data.max_length, if a"
        " trajectory is the unit)",
    )
    chunk_trajectories: PositiveInt = Field(default=1024, description="trajectories drawn at once")

    def longest(self, data: DataConfig) -> int:
        """Return the steps of a synthetic trajectory at most.

        ``data.max_length`` bounds all rows of a unit, so it stands for one trajectory's steps
        where that is the unit.

        Raises:
            ConfigError: neither length is set.
        """
        whole = data.unit == TRAJECTORY
        longest = self.max_length or (data.max_length if whole else None)
        if longest is None:
            also = ", or data.max_length" if whole else ""
            raise ConfigError(
                "training.sampling.max_length is not set: give the steps of a synthetic trajectory"
                f" at most{also}"
            )
        return longest
