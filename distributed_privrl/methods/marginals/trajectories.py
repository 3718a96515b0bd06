"""`marginals_j`: whole trajectories from noisy marginals of their steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.trajectories import TRANSITION, Trajectories
from distributed_privrl.marginals.columns import (
    ENDS,
    TableColumns,
    step_columns,
    time_groups,
    trajectory_columns,
)
from distributed_privrl.marginals.counting import StoredSteps
from distributed_privrl.marginals.rollout import Rollout, known_before
from distributed_privrl.marginals.stage import MarginalsStage
from distributed_privrl.methods.marginals.config import MarginalsJConfig
from distributed_privrl.methods.marginals.method import MarginalsMethod, World
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.stages.context import RunContext, SyntheticTrajectories
from distributed_privrl.stages.encoders import bounds_of
from distributed_privrl.stages.method import Released


@dataclass(frozen=True)
class TrajectoryMarginalsMethod(MarginalsMethod):
    """Whole trajectories: first states, then step after step.

    Privacy: as `MarginalsMethod`; a row is a step with its time, the action before it and whether
    the trajectory ends there, and a unit's rows are those of all its trajectories.
    """

    config: MarginalsJConfig
    needs_successors: ClassVar[bool] = True

    def check_config(self) -> None:
        """Refuse what the configuration alone tells."""
        super().check_config()
        if self.config.data.unit == TRANSITION:
            raise ConfigError(
                "data.unit=transition: marginals_j releases trajectories; set data.unit to"
                " trajectory or to a column such as patient_id, or take method marginals"
            )
        self._longest()

    def columns(self, context: RunContext, found: Bounds | None) -> TableColumns:
        """Return the columns of a step; see `MarginalsMethod.columns`."""
        data, model = self.config.data, self.config.model
        info = context.store.info(data.sensitive)
        steps = step_columns(
            info.observation_space,
            info.action_space,
            bounds_of(data, context.store, found),
            next_observation=model.coding(data),
            ends=len(ENDS),
        )
        groups = 2 if model.stationary else time_groups(self._longest())
        return trajectory_columns(steps, groups=groups, previous=model.previous_action)

    def stage(self, world: World) -> MarginalsStage:
        """Return what the run counts: the steps of trajectories."""
        return MarginalsStage(
            columns=world.columns,
            table=self.config.model,
            source=lambda ref: StoredSteps(ref=ref, max_trajectories_per_unit=UNIT_WEIGHT),
            given=known_before(world.columns),
        )

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Draw the synthetic trajectories."""
        rollout = Rollout(self.model(world, context), self._longest())
        config = self.config
        most, streams = config.training.sampling.chunk_trajectories, Streams(config.seed)

        def chunks() -> Iterator[Trajectories]:
            for index, start in enumerate(range(0, config.output.size, most)):
                count = min(most, config.output.size - start)
                yield rollout.draw(count, streams.child("sampling").numpy(f"chunk/{index}"))

        return Released(release=SyntheticTrajectories(chunks=chunks, facts=dict))

    def _longest(self) -> int:
        longest = self.config.longest
        if longest is None:
            raise ConfigError(
                "training.sampling.max_length is not set: give the steps of a synthetic trajectory"
                " at most"
            )
        return longest
