"""`marginals_j`: whole trajectories from noisy marginals of their steps."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import DRIFT_KEY
from distributed_privrl.data.trajectories import TRANSITION, Trajectories
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.rollout import Rollout, known_before
from distributed_privrl.marginals.run import World
from distributed_privrl.marginals.stage import (
    MarginalsStage,
    Table,
    adaptive_program,
    rollout_columns,
    stored_steps,
)
from distributed_privrl.methods.marginals.config import MarginalsJConfig
from distributed_privrl.methods.marginals.method import MarginalsMethod
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.stages.context import RunContext, SyntheticTrajectories
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
        self.config.training.sampling.longest(self.config.data)

    @property
    def table(self) -> Table:
        """What makes the columns of a step."""
        return rollout_columns(self.config.data, self.config.model, longest=self._longest)

    def stage(self, world: World) -> MarginalsStage[TableModel]:
        """Return what the run counts: the steps of trajectories."""
        return MarginalsStage(
            columns=world.columns,
            table=self.config.model,
            program=adaptive_program,
            source=stored_steps,
            given=known_before(world.columns),
            asked=world.asked,
        )

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Draw the synthetic trajectories."""
        config = self.config
        rollout = functools.cache(lambda: Rollout(self.model(world, context), self._longest))

        def chunks() -> Iterator[Trajectories]:
            return rollout().chunks(
                config.output.size,
                at_once=config.training.sampling.chunk_trajectories,
                streams=Streams(config.seed).child(context.stream),
                progress=context.progress,
            )

        def facts() -> dict[str, Any]:
            return {DRIFT_KEY: rollout().drift.facts()}

        return Released(release=SyntheticTrajectories(chunks=chunks, facts=facts))

    @property
    def _longest(self) -> int:
        return self.config.training.sampling.longest(self.config.data)
