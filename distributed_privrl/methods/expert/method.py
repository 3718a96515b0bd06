"""A run of the expert level: stable prefixes, then private rounds with noiseless steps between.

Reference: Expert-level DP, algorithms 2 and 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from distributed_privrl.agents.experts import policies_digest
from distributed_privrl.data.trajectories import TRANSITION, Trajectories
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.noiseless_steps import (
    StableSpec,
    StableTrainer,
    StableTrainerSpec,
    save_rows,
)
from distributed_privrl.methods.expert.plan import (
    RunPlan,
    check_config,
    check_dataset,
    plan_parts,
)
from distributed_privrl.methods.expert.prefix_stage import FILTER, FilterPlan, run_filter
from distributed_privrl.methods.expert.release import (
    STABLE_TRAINING,
    filter_answer,
    learned_policy,
    stable_dataset,
)
from distributed_privrl.methods.expert.report import write_facts, write_private_report
from distributed_privrl.methods.expert.update import AgentFacts, AgentUpdate
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.rounds.worker import StoredShard
from distributed_privrl.stages.charging import declared_units
from distributed_privrl.stages.context import (
    RunContext,
)
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.public_work import take_steps
from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.stages.training import TrainingSpec, train_in_rounds, write_initial

ROUNDS_STAGE = "rounds"
INITIAL = "initial.safetensors"
ROUNDS = "rounds.safetensors"
STABLE_ROWS = "stable_rows.safetensors"


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

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the filter and the rounds, each with its part of the budget, or one with all."""
        parts = []
        if self.plan.filter is not None:
            parts.append(StagePlan(name=FILTER, plan=self.plan.filter, entry=FILTER))
        if self.plan.rounds is not None:
            parts.append(StagePlan(name=ROUNDS_STAGE, plan=self.plan.rounds))
        return tuple(parts)

    def policies(self, context: RunContext) -> str | None:
        """Return the digest of the policies that the filter hosts."""
        if self.plan.filter is None:
            return None
        return policies_digest(context.store, self.config.data.sensitive)

    def before(self, world: World, context: RunContext) -> None:
        """Write the parameters that the rounds start from, the same for the same public seed."""
        if self.plan.rounds is not None:
            write_initial(context.folder / INITIAL, world.facts.networks(), context)

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Release the stable prefixes, or train in rounds and on them."""
        if isinstance(stage.plan, FilterPlan):
            return replace(world, stable=run_filter(self.config, context, stage.plan))
        assert isinstance(stage.plan, RoundPlan)
        spec = _stable_spec(self.config, context, world)
        _train_in_rounds(self.config, context, world.facts, stage.plan, spec)
        return world

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Train on the prefixes where no rounds did; return policy, prefixes and their report."""
        config, trained = self.config, context.folder / ROUNDS
        if self.plan.rounds is None:
            trained = _train_on_prefixes(context, _stable_spec(config, context, world, alone=True))
        threshold = None if self.plan.filter is None else self.plan.filter.mechanism.threshold
        write_facts(context.folder, filter_answer(context, world.stable))
        write_private_report(config, context, threshold=threshold)
        return Released(
            release=learned_policy(config, context, world.facts, trained),
            beside=stable_dataset(config, context, world.stable, certified),
        )


def _stable_spec(
    config: ExpertConfig, context: RunContext, world: World, *, alone: bool = False
) -> StableSpec:
    """Return what noiseless steps are built from; the released rows are kept in a file."""
    path, facts, stable = context.folder / STABLE_ROWS, world.facts, world.stable
    if stable is not None and not path.exists():
        save_rows(path, facts.rows(stable.transitions(TRANSITION)), context.run_id)
    return StableSpec(
        facts=facts,
        run_id=context.run_id,
        rows=None if stable is None else path,
        steps=config.training.stable_steps,
        rounds=config.training.rounds,
        ema_decay=config.training.optimiser.ema_decay if alone else 0.0,
    )


def _train_in_rounds(
    config: ExpertConfig,
    context: RunContext,
    facts: AgentFacts,
    plan: RoundPlan,
    spec: StableSpec,
) -> None:
    """Algorithm 3: noisy rounds on pool B, and noiseless steps on the released prefixes."""
    training = config.training

    def update(clip_norm: float | None) -> AgentUpdate:
        return AgentUpdate(
            facts=facts,
            clip_norm=clip_norm,
            micro_batch_rows=training.rows_at_once(config.runtime),
            federated=training.federated if training.local == "federated" else None,
        )

    rounds = TrainingSpec(
        source=lambda ref: StoredShard(ref=ref, encoder=facts.encoder_json),
        local_update=update,
        initial=context.folder / INITIAL,
        checkpoint=context.folder / ROUNDS,
        copies=training.rows_per_expert,  # algorithm 4, line 4
        public_update=spec,
    )
    train_in_rounds(rounds, config, context, plan)


def _train_on_prefixes(context: RunContext, spec: StableSpec) -> Path:
    """Noiseless steps alone, where the whole budget went into the filter."""
    trainer = StableTrainerSpec(stable=spec, checkpoint=context.folder / STABLE_TRAINING)
    take_steps(
        StableTrainer, [trainer], context, total=spec.rounds, label="training on stable prefixes"
    )
    return trainer.checkpoint
