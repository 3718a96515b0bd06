"""PriMORL as a declared run: bounds, private rounds over trajectories, a policy in the model.

Reference: PriMORL, algorithms 2 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.primorl.config import MopoConfig, NoisyStarts, PrimorlConfig
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts
from distributed_privrl.methods.primorl.plan import (
    check_config,
    check_dataset,
    ensemble_weights,
    plan_effort,
    plan_rounds,
)
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.bounding import bounds_question, first_bounds
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.encoders import foreseen_columns, search_ranges
from distributed_privrl.stages.first_releases import FirstRelease, Question
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.round_plan import RoundPlan

if TYPE_CHECKING:
    from distributed_privrl.methods.primorl.start_states import StartStates


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows.

    Args:
        ranges: where bounds are searched with noise; None: they are public.
        facts: of the ensemble, with bounds that are public or paid for.
        starts: where rollouts begin; None until it is known.
    """

    ranges: Bounds | None
    facts: EnsembleFacts
    starts: StartStates | None = None


@dataclass(frozen=True)
class PrimorlMethod(DeclaredMethod[World]):
    """A policy trained in a private ensemble of dynamics models, and the ensemble.

    Privacy: unit ``data.unit`` (a trajectory, or whoever shares a column's value), relation
    ``privacy.relation``; scaling from public facts, or from quantiles found with noise (event
    ``pure_dp``); start states from a public simulator, or a Gaussian found with noise (event
    ``discrete_laplace``); the number of units declared or counted with noise; beyond that,
    sensitive rows touch the ensemble through private rounds alone (event ``poisson_gaussian``). The
    policy is trained in the ensemble: post-processing.
    """

    config: PrimorlConfig

    def check_config(self) -> None:
        """Refuse settings that do not fit together."""
        check_config(self.config)

    def first_releases(self) -> tuple[FirstRelease[World], ...]:
        """Return the bounds and the start states, those that are found with noise."""
        bounds = first_bounds(self.config.data, self._ask_bounds)
        starts = self.config.training.policy.starts
        if not isinstance(starts, NoisyStarts):
            return bounds
        found = FirstRelease(
            name="starts",
            key="training.policy.starts",
            epsilon=starts.epsilon,
            ask=partial(self._ask_starts, starts),
        )
        return (*bounds, found)

    def check(self, context: RunContext) -> World:
        """Return the ensemble's facts; see `DeclaredMethod.check`."""
        config, store = self.config, context.store
        check_dataset(config, store)
        ranges = search_ranges(config.data, store, relation=self.relation)
        facts = EnsembleFacts.of(config.model, config.data, store, ranges)
        return World(ranges=ranges, facts=facts)

    def check_machine(self, world: World, context: RunContext) -> None:
        """Refuse workers that see no GPU where they are to compute on one."""
        from distributed_privrl.stages.devices import check_device

        check_device(self.config.runtime, context.executor)

    def _ask_bounds(self, world: World, units: UnitCount, context: RunContext) -> Question[World]:
        config = self.config
        assert world.ranges is not None

        def known(bounds: Bounds) -> World:
            facts = EnsembleFacts.of(config.model, config.data, context.store, bounds)
            return replace(world, facts=facts)

        asked = bounds_question(
            config.data, context, world.ranges, relation=self.relation, units=units
        )
        return asked.then(known)

    def _ask_starts(
        self, starts: NoisyStarts, world: World, units: UnitCount, context: RunContext
    ) -> Question[World]:
        from distributed_privrl.methods.primorl.start_states import starts_question

        asked = starts_question(
            starts,
            self.config.data,
            context,
            encoder=world.facts.encoder,
            bounds=world.facts.bounds,
            relation=self.relation,
            units=units,
        )
        return asked.then(lambda found: replace(world, starts=found))

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the rounds."""
        if world is None:
            return self._stages(units, None)
        encoder = world.facts.encoder
        return self._stages(units, (encoder.observation_space, encoder.action_space))

    def foreseen_stages(
        self, store: DatasetStore | None, units: UnitCount
    ) -> tuple[StagePlan, ...]:
        """Return the same for the spaces that public facts tell."""
        known = foreseen_columns(self.config.data, store)
        if known is None:
            return self._stages(units, None)
        return self._stages(units, (known.observation_space, known.action_space))

    def _stages(
        self, units: UnitCount, spaces: tuple[Space, Space] | None
    ) -> tuple[StagePlan, ...]:
        weights = None if spaces is None else ensemble_weights(self.config, *spaces)
        plan = plan_rounds(self.config, units, weights, spent=self.spent)
        if spaces is not None:
            plan = replace(plan, effort=plan_effort(self.config, *spaces))
        return (StagePlan(name="ensemble", plan=plan),)

    def ready(self, world: World, stages: Sequence[StagePlan]) -> World:
        """Return the world with start states, from a public simulator if none were released."""
        from distributed_privrl.methods.primorl.start_states import environment_starts

        asked = self.config.training.policy.starts
        if isinstance(asked, NoisyStarts):
            return world
        environment = str(self.config.data.environment)
        streams = Streams(self.config.seed).child("starts")
        return replace(world, starts=environment_starts(environment, count=asked, streams=streams))

    def before(self, world: World, context: RunContext) -> None:
        """Write the parameters that the rounds start from, the same for the same public seed."""
        from distributed_privrl.methods.primorl.training import write_ensemble

        write_ensemble(self.config, context, world.facts)

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Train the ensemble in private rounds; MOPO's on minibatches."""
        from distributed_privrl.methods.primorl.training import (
            train_in_private_rounds,
            train_on_minibatches,
        )

        if isinstance(self.config, MopoConfig):
            train_on_minibatches(self.config, context, world.facts)
        else:
            assert isinstance(stage.plan, RoundPlan)
            train_in_private_rounds(self.config, context, world.facts, stage.plan)
        return world

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Train the policy in the ensemble, and return both."""
        from distributed_privrl.methods.primorl.release import learned_policy
        from distributed_privrl.methods.primorl.training import train_policy

        assert world.starts is not None
        spec = train_policy(self.config, context, world.facts, world.starts)
        return Released(release=learned_policy(self.config, context, spec))
