"""DP-APVI and DP-VAPVI as declared runs: statistics released backwards through time, the policy.

Reference: DP-VAPVI, algorithms 1 and 2.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from distributed_privrl.core.errors import SpentError
from distributed_privrl.data.shards import ShardRef, shard_refs
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.counts import CountSpec, CountWorker
from distributed_privrl.methods.value_iteration.linear_settings import (
    LinearSettings,
    statistics_spec,
)
from distributed_privrl.methods.value_iteration.plan import (
    Sizes,
    StatisticsPlan,
    check_config,
    linear_effort,
    linear_plan,
    tabular_effort,
    tabular_plan,
)
from distributed_privrl.methods.value_iteration.problem import (
    declared_sizes,
    linear_reward_range,
    sizes,
    tabular_facts,
)
from distributed_privrl.methods.value_iteration.resolution import (
    Resolution,
    linear_count_noise,
    linear_resolution,
    tabular_count_noise,
    tabular_resolution,
)
from distributed_privrl.methods.value_iteration.rows import StoredTrajectories
from distributed_privrl.methods.value_iteration.settings import (
    Settings,
    linear_settings,
    tabular_settings,
)
from distributed_privrl.methods.value_iteration.statistics import StatisticsSpec, StatisticsWorker
from distributed_privrl.methods.value_iteration.tabular_settings import TabularSettings
from distributed_privrl.methods.value_iteration.verdict import (
    verdict_of_counts,
    verdict_of_features,
)
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.context import ReleasedFiles, RunContext
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.verdict import Verdict

CHECKPOINT = "steps.safetensors"
STAGE = "value iteration"


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows: public facts.

    Args:
        size: numbers of states and actions.
        settings: of the program, with the planned noise; None until it is planned.
    """

    size: tuple[int, int]
    settings: Settings | None = None


class StatisticsMethod(DeclaredMethod[World]):
    """A policy from statistics that are released backwards through time.

    Args:
        config: of the run.
    """

    config: ApviConfig | VapviConfig
    worker: ClassVar[type]

    def __init__(self, config: ApviConfig | VapviConfig) -> None:
        self.config = config

    @abc.abstractmethod
    def plan(self, units: UnitCount, size: Sizes | None) -> StatisticsPlan:
        """Return the plan for ``units`` and numbers of states and actions, if they are known."""

    @abc.abstractmethod
    def effort(self, plan: StatisticsPlan, size: Sizes | None) -> Effort:
        """Return the work of a plan."""

    @abc.abstractmethod
    def resolution(self, noise_multiplier: float, units: int) -> Resolution:
        """Return what can be seen of ``units`` through noise of this multiplier."""

    @abc.abstractmethod
    def verdict(self, seen: Resolution, units: int) -> Verdict:
        """Return what that leaves of the data."""

    @abc.abstractmethod
    def settings(self, plan: StatisticsPlan, size: Sizes) -> Settings:
        """Return what the program is built from."""

    @abc.abstractmethod
    def worker_spec(self, settings: Settings, source: StoredTrajectories) -> Any:
        """Return what a worker is built from."""

    def check(self, context: RunContext) -> World:
        """Return the sizes of the problem; see `DeclaredMethod.check`."""
        size = sizes(self.config.data, context.store)
        # Whatever is refused is refused here, before units are counted with noise.
        self.settings(self.plan(UnitCount(value=1, source="declared"), size), size)
        return World(size=size)

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the release of all time steps, and what can be seen through its noise."""
        size = declared_sizes(self.config) if world is None else world.size
        plan = self.plan(units, size)
        if plan.step_noise is not None:
            seen = self.resolution(plan.step_noise.noise_multiplier, units.value)
            details = {**plan.details, **seen.facts()}
            plan = replace(plan, details=details, verdict=self.verdict(seen, units.value))
        plan = replace(plan, effort=self.effort(plan, size))
        return (StagePlan(name="statistics", plan=plan),)

    def ready(self, world: World, stages: Sequence[StagePlan]) -> World:
        """Return the world with the settings of the planned noise."""
        return replace(world, settings=self.settings(_plan_of(stages[0]), world.size))

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Release the statistics, backwards through time."""
        from distributed_privrl.methods.value_iteration.programs import Programs
        from distributed_privrl.stages.training import StepsSpec, release_in_steps

        settings = world.settings
        assert settings is not None
        most = self.config.model.max_trajectories_per_unit
        specs = [
            self.worker_spec(settings, StoredTrajectories(ref=ref, max_trajectories_per_unit=most))
            for ref in _refs(self.config, context)
        ]
        steps = StepsSpec(
            worker_cls=self.worker,
            workers=specs,
            program=Programs(settings),
            checkpoint=context.folder / CHECKPOINT,
            stage=STAGE,
        )
        plan = _plan_of(stage)
        done = release_in_steps(steps, self.config, context, plan)
        if done < plan.rounds:
            raise SpentError(
                f"crashes used up the spare steps: {done} of {plan.rounds} are done and none is"
                " left; start a new run with a higher training.spare"
            )
        return world

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Return the policy in the last checkpoint."""
        from distributed_privrl.methods.value_iteration.programs import Programs
        from distributed_privrl.rounds.checkpoint import load_checkpoint

        assert world.settings is not None
        path = context.folder / CHECKPOINT
        tensors, state = load_checkpoint(path, run_id=context.run_id, stage="rounds")
        program = Programs(world.settings)()
        program.restore(tensors, state.round_index)
        return Released(release=ReleasedFiles(save=program.policy().save))


class TabularMethod(StatisticsMethod):
    """DP-APVI, or APVI without ``privacy.epsilon``.

    Privacy: unit ``data.unit``, at most ``model.max_trajectories_per_unit`` trajectories each;
    relation ``privacy.relation``; sensitivity: `tabular_sensitivities`; event: one
    ``discrete_gaussian`` or ``discrete_laplace`` a time step (from a million cells on ``gaussian``
    or ``laplace``), or one in all when pooled. Every cell is released, and all else is
    computed from released cells and public facts.
    """

    config: ApviConfig
    worker = CountWorker

    def check_config(self) -> None:
        """Refuse units, keys and public facts that the method cannot take."""
        check_config(self.config, halves=False)
        tabular_facts(self.config.model, self.config.data)

    def plan(self, units: UnitCount, size: Sizes | None) -> StatisticsPlan:
        """Return the plan for ``units``."""
        return tabular_plan(self.config, units, sizes=size, spent=self.spent)

    def effort(self, plan: StatisticsPlan, size: Sizes | None) -> Effort:
        """Return the work of a plan."""
        return tabular_effort(self.config, plan, size)

    def resolution(self, noise_multiplier: float, units: int) -> Resolution:
        """Return how a count's noise compares with the visits that it may count."""
        noise = tabular_count_noise(self.config, noise_multiplier)
        return tabular_resolution(self.config, noise, units=units)

    def verdict(self, seen: Resolution, units: int) -> Verdict:
        """Return what the noise leaves of the counts."""
        return verdict_of_counts(self.config, seen, units)

    def settings(self, plan: StatisticsPlan, size: Sizes) -> TabularSettings:
        """Return what the program is built from."""
        return tabular_settings(self.config, plan, states=size[0], actions=size[1])

    def worker_spec(self, settings: Settings, source: StoredTrajectories) -> CountSpec:
        """Return what a worker counts, and of what."""
        assert isinstance(settings, TabularSettings)
        return CountSpec(source=source, layout=settings.layout)


class LinearMethod(StatisticsMethod):
    """DP-VAPVI (or private PEVI), or its exact form without ``privacy.epsilon``.

    Privacy: unit ``data.unit``, at most ``model.max_trajectories_per_unit`` trajectories each;
    relation ``privacy.relation``; sensitivities: `linear_settings.releases`; event: one
    ``discrete_gaussian`` a time step for all its statistics together (``gaussian`` where a Gram
    matrix has a million numbers), and with ``model.split`` one in each of two branches that see
    disjoint units.
    """

    config: VapviConfig
    worker = StatisticsWorker

    def check_config(self) -> None:
        """Refuse units, keys and public facts that the method cannot take."""
        check_config(self.config, halves=self.config.halves)
        linear_reward_range(self.config.model, self.config.data)

    def plan(self, units: UnitCount, size: Sizes | None) -> StatisticsPlan:
        """Return the plan for ``units``."""
        return linear_plan(self.config, units, sizes=size, spent=self.spent)

    def effort(self, plan: StatisticsPlan, size: Sizes | None) -> Effort:
        """Return the work of a plan."""
        return linear_effort(self.config, plan, size)

    def resolution(self, noise_multiplier: float, units: int) -> Resolution:
        """Return how a count's noise compares with the visits that it may count."""
        noise = linear_count_noise(self.config, noise_multiplier)
        return linear_resolution(self.config, noise, units=units)

    def verdict(self, seen: Resolution, units: int) -> Verdict:
        """Return what the noise leaves of the regressions."""
        return verdict_of_features(self.config, seen, units)

    def settings(self, plan: StatisticsPlan, size: Sizes) -> LinearSettings:
        """Return what the program is built from."""
        return linear_settings(self.config, plan, states=size[0], actions=size[1])

    def worker_spec(self, settings: Settings, source: StoredTrajectories) -> StatisticsSpec:
        """Return what a worker sums, and of what."""
        assert isinstance(settings, LinearSettings)
        return statistics_spec(settings, source)


def _plan_of(stage: StagePlan) -> StatisticsPlan:
    assert isinstance(stage.plan, StatisticsPlan)
    return stage.plan


def _refs(config: Any, context: RunContext) -> list[ShardRef]:
    return shard_refs(
        context.store,
        config.data.sensitive,
        count=config.runtime.most_workers,
        unit=config.data.unit,
        max_rows_per_unit=config.data.max_length,
    )
