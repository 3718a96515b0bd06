"""A run of the expert level: stable prefixes, then private rounds with noiseless steps between.

Reference: paper 004, algorithms 2 and 3.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from distributed_privrl.agents.deployment import export_torchscript
from distributed_privrl.agents.experts import policies_digest
from distributed_privrl.data.trajectories import TRANSITION, Trajectories
from distributed_privrl.methods.expert.agent import AgentFacts, AgentUpdate
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.planning import (
    RunPlan,
    SelectivePlan,
    check_dataset,
    plan_parts,
)
from distributed_privrl.methods.expert.prefix_stage import FILTER, filter_context, run_filter
from distributed_privrl.methods.expert.report import write_facts, write_private_report
from distributed_privrl.methods.expert.training import (
    StableSpec,
    StableTrainer,
    StableTrainerSpec,
    save_rows,
)
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.metrics import Answer, settled_answer
from distributed_privrl.rounds.charging import charges_of, held_budget, open_charges, settle_charge
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.context import (
    CertifiedDataset,
    LearnedPolicy,
    MethodResult,
    RunContext,
    SyntheticTrajectories,
)
from distributed_privrl.rounds.parameters import FlatParameters
from distributed_privrl.rounds.plan import Plan
from distributed_privrl.rounds.training import TrainingSpec, train_in_rounds
from distributed_privrl.rounds.worker import StoredShard

INITIAL = "initial.safetensors"
ROUNDS = "rounds.safetensors"
STABLE_ROWS = "stable_rows.safetensors"
STABLE_TRAINING = "stable_training.safetensors"
STEPS_A_CALL = 25


def run_expert(config: ExpertConfig, context: RunContext) -> MethodResult:
    """Run both parts and return the policy, and the stable prefixes where a dataset is named.

    Raises:
        ConfigError: configuration and dataset do not fit together.
        BudgetError: the ledger refuses; nothing has been drawn.

    Privacy: unit ``data.unit`` (an expert), relation ``policy_level``: one expert's policy is
    removed or made null; what realised trajectories show beyond it is not protected. The filter
    releases prefixes (events ``pure_dp`` and ``approximate_dp``) and reads each expert's first
    trajectories alone; the rounds (event ``poisson_gaussian``, at |B| / m, each of them) read the
    others alone: a public split by index, so that both add up. Noiseless steps, the target network
    and Adam's moments are post-processing. Without ``privacy.epsilon`` nothing is protected, and
    the certificate says ``non_private``.
    """
    plan = plan_parts(config)
    check_dataset(config, context.store, plan)
    facts = AgentFacts.of(config.model, config.data, context.store, seed=config.seed)
    charges = _charges(config, context, plan)
    with held_budget(config.data, config.privacy, context, charges):
        open_charges(context, charges)
    stages: list[Stage] = []
    entries: list[str] = []
    stable, answer, spare_rounds = None, None, 0
    if plan.filter is not None:
        stable = run_filter(config, context, plan.filter)
        own = filter_context(context)
        stage, left = settle_charge(FILTER, config.data, own, plan.filter)
        stages.append(stage)
        entries.append(own.run_id)
        spare_rounds += left
        answer = _answer(own, stable)
    spec = _stable_spec(config, context, facts, stable, alone=plan.rounds is None)
    trained = _train(config, context, facts, plan.rounds, spec)
    if plan.rounds is not None and plan.rounds.mechanism is not None:
        stage, left = settle_charge("rounds", config.data, context, plan.rounds)
        stages.append(stage)
        entries.append(context.run_id)
        spare_rounds += left
    write_facts(context.folder, answer)
    threshold = None if plan.filter is None else plan.filter.mechanism.threshold
    write_private_report(config, context, threshold=threshold)
    return MethodResult(
        stages=tuple(stages),
        spare_rounds=spare_rounds,
        ledger_entries=tuple(entries),
        release=_release(config, context, facts, trained),
        beside=_stable_dataset(config, context, stable, stages),
    )


def _answer(context: RunContext, stable: Trajectories) -> Answer[Trajectories]:
    """Return the stable prefixes as the answer of the filter's settled entry."""
    entry = context.ledger.reserved(context.run_id)
    assert entry is not None
    return settled_answer(entry, stable)


def _charges(config: ExpertConfig, context: RunContext, plan: RunPlan) -> list[Charge]:
    """Return what both parts cost; they are charged together, before either draws."""
    parts: list[tuple[RunContext, Plan]] = []
    policies = None
    if plan.filter is not None:
        parts.append((filter_context(context), plan.filter))
        policies = policies_digest(context.store, config.data.sensitive)
    if plan.rounds is not None:
        parts.append((context, plan.rounds))
    return charges_of(config.data, context, parts, policies=policies)


def _stable_spec(
    config: ExpertConfig,
    context: RunContext,
    facts: AgentFacts,
    stable: Trajectories | None,
    *,
    alone: bool,
) -> StableSpec:
    """Return what noiseless steps are built from; the released rows are kept in a file."""
    path = context.folder / STABLE_ROWS
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


def _train(
    config: ExpertConfig,
    context: RunContext,
    facts: AgentFacts,
    plan: SelectivePlan | None,
    spec: StableSpec,
) -> Path:
    """Train the agent and return the checkpoint that holds it."""
    if plan is None:
        return _train_on_prefixes(context, spec)
    _initialise(context, facts)
    _train_in_rounds(config, context, facts, plan, spec)
    return context.folder / ROUNDS


def _initialise(context: RunContext, facts: AgentFacts) -> None:
    """Write the parameters that the rounds start from, the same for the same public seed."""
    path = context.folder / INITIAL
    if path.exists():
        return
    state = CheckpointState(run_id=context.run_id, round_index=0, stage="pretraining")
    save_checkpoint(path, {"parameters": FlatParameters(facts.networks()).vector}, state)


def _train_in_rounds(
    config: ExpertConfig,
    context: RunContext,
    facts: AgentFacts,
    plan: SelectivePlan,
    spec: StableSpec,
) -> None:
    """Algorithm 3: noisy rounds on pool B, and noiseless steps on the released prefixes."""
    training = config.training

    def update(clip_norm: float | None) -> AgentUpdate:
        return AgentUpdate(
            facts=facts,
            clip_norm=clip_norm,
            micro_batch_rows=training.micro_batch_rows,
            federated=training.federated if training.local == "federated" else None,
        )

    rounds = TrainingSpec(
        source=lambda ref: StoredShard(ref=ref, encoder=facts.encoder_json),
        local_update=update,
        initial=context.folder / INITIAL,
        checkpoint=context.folder / ROUNDS,
        copies=training.rows_per_expert,
        public_update=spec,
    )
    train_in_rounds(rounds, config, context, plan)


def _train_on_prefixes(context: RunContext, spec: StableSpec) -> Path:
    """Noiseless steps alone, where the whole budget went into the filter."""
    trainer = StableTrainerSpec(stable=spec, checkpoint=context.folder / STABLE_TRAINING)
    group = context.executor.start(StableTrainer, [trainer], repeat_lost_calls=True)
    done = group.call("progress")[0]
    while done < spec.rounds:
        done = group.call("advance", {"rounds": STEPS_A_CALL})[0]
        context.progress("training on stable prefixes", done, spec.rounds)
    group.close()
    return trainer.checkpoint


def _release(
    config: ExpertConfig, context: RunContext, facts: AgentFacts, trained: Path
) -> LearnedPolicy:
    """Return the policy of the parameters' average, or of the last ones where none is kept."""
    stage: Literal["policy", "rounds"] = "policy" if trained.name == STABLE_TRAINING else "rounds"
    tensors, _ = load_checkpoint(trained, run_id=context.run_id, stage=stage)
    kept = "ema" if config.training.optimiser.ema_decay else "parameters"
    policy = facts.policy(tensors[kept])
    return LearnedPolicy(
        save=policy.save, beside={config.output.torchscript: partial(export_torchscript, policy)}
    )


def _stable_dataset(
    config: ExpertConfig,
    context: RunContext,
    stable: Trajectories | None,
    stages: list[Stage],
) -> tuple[CertifiedDataset, ...]:
    """Return the stable prefixes as a dataset of their own, if one is asked for and any were."""
    if config.output.dataset is None or stable is None or not len(stable):
        return ()

    def chunks() -> Iterator[Trajectories]:
        yield stable

    return (
        CertifiedDataset(
            dataset=config.output.dataset,
            trajectories=SyntheticTrajectories(chunks=chunks, facts=dict),
            stages=tuple(stage for stage in stages if stage.name == FILTER),
            ledger_entries=(filter_context(context).run_id,),
        ),
    )
