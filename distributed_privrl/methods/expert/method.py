"""A run of the expert level: stable prefixes, then private rounds with noiseless steps between.

Reference: Expert-level DP, algorithms 2 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from distributed_privrl.agents.experts import policies_digest
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.facts import AgentFacts
from distributed_privrl.methods.expert.plan import (
    RunPlan,
    check_config,
    check_dataset,
    check_networks,
    learned_weights,
    plan_effort,
    plan_parts,
)
from distributed_privrl.methods.expert.prefix_plan import FILTER, FilterPlan
from distributed_privrl.methods.expert.verdict import verdict_of_experts
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.charging import declared_units
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.encoders import foreseen_columns
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.round_plan import RoundPlan

ROUNDS_STAGE = "rounds"


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows.

    Args:
        facts: public facts of the agent.
        stable: the released prefixes; None: no filter has run.
    """

    facts: AgentFacts
    stable: Trajectories | None = None


@dataclass(frozen=True)
class ExpertMethod(DeclaredMethod[World]):
    """Both parts of a run; its policy, and the stable prefixes where a dataset is named.

    Privacy: unit ``data.unit`` (an expert), relation ``policy_level``: one expert's policy is
    removed or made null; what realised trajectories show beyond it is not protected. The filter
    releases prefixes (events ``pure_dp`` and ``approximate_dp``) and reads each expert's first
    trajectories alone; the rounds (event ``poisson_gaussian``, at |B| / m, each of them) read the
    others alone: a public split by index, so that both add up. Noiseless steps, the target network
    and Adam's moments are post-processing.
    """

    config: ExpertConfig

    @cached_property
    def plan(self) -> RunPlan:
        """The plans of both parts, for as many experts as are declared."""
        return plan_parts(self.config, declared_units(self.config.data))

    def check_config(self) -> None:
        """Refuse settings that do not fit together."""
        check_config(self.config)

    def check(self, context: RunContext) -> World:
        """Return the agent's facts; see `DeclaredMethod.check`."""
        config = self.config
        check_dataset(config, context.store, self.plan)
        return World(
            facts=AgentFacts.of(config.model, config.data, context.store, seed=config.seed)
        )

    def check_machine(self, world: World, context: RunContext) -> None:
        """Refuse GPUs that are not there, and stored networks that the filter cannot host."""
        from distributed_privrl.stages.devices import check_device

        check_device(self.config.runtime, context.executor)
        if self.plan.filter is not None:
            check_networks(self.config, context.store)

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the filter and the rounds, each with its part of the budget, or one with all."""
        if world is None:
            return self._judged(None)
        return self._judged(
            (world.facts.encoder.observation_space, world.facts.encoder.action_space)
        )

    def _judged(self, spaces: tuple[Space, Space] | None) -> tuple[StagePlan, ...]:
        """Return the stages; the last one has the verdict on both."""
        parts = []
        if self.plan.filter is not None:
            parts.append(StagePlan(name=FILTER, plan=self.plan.filter, entry=FILTER))
        if self.plan.rounds is not None:
            parts.append(StagePlan(name=ROUNDS_STAGE, plan=self.plan.rounds))
        weights = None if spaces is None else learned_weights(self.config, *spaces)
        verdict = verdict_of_experts(self.config, self.plan.filter, self.plan.rounds, weights)
        *before, last = parts
        return (*before, replace(last, plan=replace(last.plan, verdict=verdict)))

    def foreseen_stages(
        self, store: DatasetStore | None, units: UnitCount
    ) -> tuple[StagePlan, ...]:
        """Return the same, with its work for the spaces that public facts tell."""
        known = foreseen_columns(self.config.data, store)
        if known is None:
            return self._judged(None)
        spaces = known.observation_space, known.action_space
        *before, last = self._judged(spaces)
        effort = plan_effort(self.config, self.plan, *spaces)
        return (*before, replace(last, plan=replace(last.plan, effort=effort)))

    def policies(self, context: RunContext) -> str | None:
        """Return the digest of the policies that the filter hosts."""
        if self.plan.filter is None:
            return None
        return policies_digest(context.store, self.config.data.sensitive)

    def before(self, world: World, context: RunContext) -> None:
        """Write the parameters that the rounds start from, the same for the same public seed."""
        from distributed_privrl.methods.expert.training import write_networks

        if self.plan.rounds is not None:
            write_networks(context, world.facts)

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Release the stable prefixes, or train in rounds and on them."""
        from distributed_privrl.methods.expert.prefix_stage import run_filter
        from distributed_privrl.methods.expert.training import train_agent

        if isinstance(stage.plan, FilterPlan):
            return replace(world, stable=run_filter(self.config, context, stage.plan))
        assert isinstance(stage.plan, RoundPlan)
        train_agent(self.config, context, world.facts, stage.plan, stable=world.stable)
        return world

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Train on the prefixes where no rounds did; return policy, prefixes and their report."""
        from distributed_privrl.methods.expert.release import (
            filter_answer,
            learned_policy,
            stable_dataset,
        )
        from distributed_privrl.methods.expert.report import write_facts, write_private_report
        from distributed_privrl.methods.expert.training import ROUNDS, train_on_prefixes

        config, trained = self.config, context.folder / ROUNDS
        if self.plan.rounds is None:
            trained = train_on_prefixes(config, context, world.facts, stable=world.stable)
        threshold = None if self.plan.filter is None else self.plan.filter.mechanism.threshold
        write_facts(context.folder, filter_answer(context, world.stable))
        write_private_report(config, context, threshold=threshold)
        return Released(
            release=learned_policy(config, context, world.facts, trained),
            beside=stable_dataset(config, context, world.stable, certified),
        )
