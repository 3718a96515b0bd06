"""`policy_value` as a declared run: an agent from released rows, four noisy sums of real ones.

Reference: Jiang, Li, "Doubly robust off-policy value evaluation for reinforcement learning" (2016).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.agents.names import AGENTS_FOR
from distributed_privrl.core.errors import ConfigError, SpentError
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.data.proper import proper_transitions
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.policy_value.config import PolicyValueConfig
from distributed_privrl.methods.policy_value.plan import (
    ValuePlan,
    check_config,
    deviation_of,
    plan_effort,
    value_plan,
)
from distributed_privrl.methods.policy_value.sums import value_of
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.context import ReleasedFiles, RunContext
from distributed_privrl.stages.encoders import foreseen_columns
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan

if TYPE_CHECKING:
    from distributed_privrl.agents.policy import Policy
    from distributed_privrl.evaluation.off_policy.released import ReleasedModels

AGENT, CHECKPOINT = "agent.safetensors", "sums.safetensors"
STAGE, TRAINING = "value", "training the agent"


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows: public facts.

    Args:
        observation_space: of both datasets.
        action_space: of both.
        plan: that is drawn by; None until it is made.
    """

    observation_space: Space
    action_space: Space
    plan: ValuePlan | None = None


@dataclass(frozen=True)
class PolicyValueMethod(DeclaredMethod[World]):
    """What an agent that was trained on a release would earn where others acted.

    Args:
        config: of the run.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; a unit moves four integer sums by
    `UNIT_L1` at most in L1, twice under ``replace_one``; event: one ``discrete_laplace``. The agent
    and all that is fitted are post-processing of ``model.release``.
    """

    config: PolicyValueConfig

    def check_config(self) -> None:
        """Refuse what the configuration alone tells."""
        check_config(self.config)

    def check(self, context: RunContext) -> World:
        """Return the spaces; see `DeclaredMethod.check`."""
        from distributed_privrl.evaluation.off_policy.released import check_countable
        from distributed_privrl.evaluation.trainer import check_trainer
        from distributed_privrl.methods.policy_value.agent import trainer_of

        info = context.store.info(self.config.data.sensitive)
        check_countable(info.action_space)
        check_trainer(trainer_of(self.config), info.action_space)
        if info.kind == "transitions":
            raise ConfigError(
                f"{info.id} holds independent transitions, and what a policy earns is told by whole"
                " episodes: import it with its trajectories' column"
            )
        return World(observation_space=info.observation_space, action_space=info.action_space)

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the one release."""
        return (StagePlan(name="value", plan=value_plan(self.config, units, spent=self.spent)),)

    def foreseen_stages(
        self, store: DatasetStore | None, units: UnitCount
    ) -> tuple[StagePlan, ...]:
        """Return the same, with its work for the spaces that public facts tell."""
        stages, known = self.stages(None, units), foreseen_columns(self.config.data, store)
        if known is None or self.config.training.trainer not in AGENTS_FOR["Discrete"]:
            return stages
        spaces = known.observation_space, known.action_space
        effort = plan_effort(self.config, units.value, spaces)
        return tuple(replace(one, plan=replace(one.plan, effort=effort)) for one in stages)

    def ready(self, world: World, stages: Sequence[StagePlan]) -> World:
        """Return the world with the plan."""
        plan = stages[0].plan
        assert isinstance(plan, ValuePlan)
        return replace(world, plan=plan)

    def before(self, world: World, context: RunContext) -> None:
        """Train the agent on released rows, unless it was before."""
        from distributed_privrl.methods.policy_value.agent import train_on_release

        path, steps = context.folder / AGENT, self.config.training.steps
        if path.exists():
            return
        train_on_release(
            self.config,
            context.store,
            observation_space=world.observation_space,
            action_space=world.action_space,
            told=lambda done: context.progress(TRAINING, done, steps),
        ).save(path)

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Fit the models on released rows, and release the sums."""
        from distributed_privrl.methods.policy_value.program import Programs, SumSpec, SumWorker
        from distributed_privrl.stages.training import StepsSpec, release_in_steps

        assert world.plan is not None
        data, model = self.config.data, self.config.model
        policy, models = self._judged(world, context)
        refs = shard_refs(
            context.store,
            data.sensitive,
            count=self.config.runtime.most_workers,
            unit=data.unit,
            max_rows_per_unit=data.max_length,
        )
        steps = StepsSpec(
            worker_cls=SumWorker,
            workers=[
                SumSpec(
                    ref=ref,
                    max_trajectories_per_unit=model.max_trajectories_per_unit,
                    returns=model.returns,
                    action_space=world.action_space,
                    policy=policy,
                    models=models,
                )
                for ref in refs
            ],
            program=Programs(world.plan.release),
            checkpoint=context.folder / CHECKPOINT,
            stage=STAGE,
        )
        if release_in_steps(steps, self.config, context, world.plan) < world.plan.rounds:
            raise SpentError(
                "the run died between drawing its noise and keeping the result, and one release is"
                " all that it paid for: start a new run"
            )
        return world

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Return the figures, and the policy that they are of."""
        from distributed_privrl.rounds.checkpoint import load_checkpoint

        plan = world.plan
        assert plan is not None
        tensors, _ = load_checkpoint(
            context.folder / CHECKPOINT, run_id=context.run_id, stage="rounds"
        )
        sums: NDArray[np.float64] = tensors["sums"].numpy().astype(np.float64)
        deviation = 0.0 if plan.release is None else deviation_of(plan.release)
        model, units = self.config.model, plan.units.value
        found = value_of(sums, units=units, returns=model.returns, deviation=deviation)
        _, models = self._judged(world, context)
        figures = {
            "value of the policy": found.policy,
            "standard error of the value": found.policy_error,
            "return of who acted": found.acted,
            "gain over who acted": found.policy - found.acted,
            "standard error of the gain": found.gain_error,
            "noise of a mean": found.noise_error,
            "agreement": models.agreement,
            "units": units,
            "returns": list(model.returns),
            "horizon": model.horizon,
            "trainer": self.config.training.trainer,
            "release": model.release,
        }

        def save(path: Path) -> None:
            write_atomically(path, json.dumps(figures, indent=1) + "\n")

        def copy(path: Path) -> None:
            shutil.copyfile(context.folder / AGENT, path)

        return Released(release=ReleasedFiles(save=save, beside={self.config.output.policy: copy}))

    def _judged(self, world: World, context: RunContext) -> tuple[Policy, ReleasedModels]:
        """Return the agent's policy, and what released rows say of it; post-processing."""
        from distributed_privrl.agents.policy import Policy
        from distributed_privrl.evaluation.off_policy.judge import decided
        from distributed_privrl.evaluation.off_policy.models import Cells
        from distributed_privrl.evaluation.off_policy.released import ReleasedModels

        policy = Policy.load(context.folder / AGENT, finite=False)
        models = ReleasedModels.fit(
            proper_transitions(context.store, self.config.model.release),
            decided(policy, Cells.discrete(world.action_space)),
            observation_space=world.observation_space,
            action_space=world.action_space,
            horizon=self.config.model.horizon,
            streams=Streams(self.config.seed).child("models"),
        )
        return policy, models
