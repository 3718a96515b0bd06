"""A run of PriMORL, step by step: bounds, private rounds over trajectories, a policy in the model.

Reference: paper 001, algorithms 2 and 4.
"""

from pathlib import Path

from distributed_privrl.agents.deployment import export_torchscript
from distributed_privrl.core.files import storage_errors
from distributed_privrl.core.random import Streams
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.methods.primorl.config import MopoConfig, PrimorlConfig
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts
from distributed_privrl.methods.primorl.mopo import MinibatchSpec, MinibatchTrainer
from distributed_privrl.methods.primorl.planning import (
    check_config,
    check_dataset,
    plan_primorl,
)
from distributed_privrl.methods.primorl.policy_training import (
    PolicyTrainer,
    PolicyTrainerSpec,
    keep_most_promising,
    trained_policy,
)
from distributed_privrl.methods.primorl.start_states import (
    NoisyStarts,
    StartStates,
    environment_starts,
    release_start_states,
)
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.rounds.bounding import find_bounds
from distributed_privrl.rounds.charging import (
    count_units,
    held_budget,
    open_charge,
    settle_charge,
)
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.context import LearnedPolicy, MethodResult, RunContext
from distributed_privrl.rounds.dynamics_update import DynamicsUpdate
from distributed_privrl.rounds.encoders import search_ranges
from distributed_privrl.rounds.parameters import FlatParameters
from distributed_privrl.rounds.plan import RoundPlan
from distributed_privrl.rounds.training import TrainingSpec, train_in_rounds
from distributed_privrl.rounds.worker import StoredShard

INITIAL = "initial.safetensors"
TRAINED = "rounds.safetensors"
STEPS_A_CALL = 50


def run_primorl(config: PrimorlConfig, context: RunContext) -> MethodResult:
    """Run PriMORL and return its policy and its ensemble.

    Raises:
        ConfigError: configuration and datasets do not fit together.
        BudgetError: the ledger refuses; nothing has been drawn.

    Privacy: unit ``data.unit`` (a trajectory, or whoever shares a column's value), relation
    ``privacy.relation``; scaling from public facts, or from quantiles found with noise (event
    ``pure_dp``); start states from a public simulator, or a Gaussian found with noise (event
    ``laplace``); the number of units declared or counted with noise; beyond that, sensitive rows
    touch the ensemble through private rounds alone (event ``poisson_gaussian``). The policy is
    trained in the ensemble: post-processing. Without ``privacy.epsilon`` nothing is protected, and
    the certificate says ``non_private``.
    """
    check_config(config)
    check_dataset(config, context.store)
    data, relation = config.data, Relation(config.privacy.relation)
    ranges = search_ranges(data, context.store, relation=relation)
    EnsembleFacts.of(config.model, data, context.store, ranges)
    with held_budget(data, config.privacy, context):
        units, count_stage = count_units(data, context, relation=relation)
        plan = plan_primorl(config, units)
        stages = [] if count_stage is None else [count_stage]
        found = None
        if ranges is not None:
            found, stage = find_bounds(data, context, ranges, relation=relation, units=units)
            stages.append(stage)
        facts = EnsembleFacts.of(config.model, data, context.store, found)
        starts, start_stages = _starts(config, context, facts, relation=relation, units=units)
        stages += start_stages
        open_charge(data, context, plan)
    entries = [f"{context.run_id}/{stage.name}" for stage in stages]
    _initialise(config, context, facts)
    if isinstance(config, MopoConfig):
        _train_on_minibatches(config, context, facts)
    else:
        _train_ensemble(config, context, facts, plan)
    spare_rounds = 0
    if plan.mechanism is not None:
        stage, spare_rounds = settle_charge("ensemble", data, context, plan)
        stages.append(stage)
        entries.append(context.run_id)
    spec = _policy_spec(config, context, facts, starts)
    _train_policy(spec, context, workers=config.runtime.workers)
    return MethodResult(
        stages=tuple(stages),
        spare_rounds=spare_rounds,
        ledger_entries=tuple(entries),
        release=_release(config, context, spec),
    )


def _starts(
    config: PrimorlConfig,
    context: RunContext,
    facts: EnsembleFacts,
    *,
    relation: Relation,
    units: UnitCount,
) -> tuple[StartStates, list[Stage]]:
    """Return where rollouts begin, and what that cost."""
    asked = config.training.policy.starts
    if isinstance(asked, NoisyStarts):
        starts, stage = release_start_states(
            asked,
            config.data,
            context,
            encoder=facts.encoder,
            bounds=facts.bounds,
            relation=relation,
            units=units,
        )
        return starts, [stage]
    environment = str(config.data.environment)
    streams = Streams(config.seed).child("starts")
    return environment_starts(environment, count=asked, streams=streams), []


def _initialise(config: PrimorlConfig, context: RunContext, facts: EnsembleFacts) -> None:
    """Write the parameters that the rounds start from, the same for the same public seed."""
    path = context.folder / INITIAL
    if path.exists():
        return
    tensors = {"parameters": FlatParameters(facts.build(config.seed)).vector}
    state = CheckpointState(run_id=context.run_id, round_index=0, stage="pretraining")
    save_checkpoint(path, tensors, state)


def _train_ensemble(
    config: PrimorlConfig, context: RunContext, facts: EnsembleFacts, plan: RoundPlan
) -> None:
    """Algorithm 2: private rounds over the sensitive units."""
    training = config.training

    def update(clip_norm: float | None) -> DynamicsUpdate:
        if plan.mechanism is None and training.clip:
            clip_norm = training.clip_norm  # as private runs do, and it protects nobody
        return facts.update(training.local, clip_norm)

    spec = TrainingSpec(
        source=lambda ref: StoredShard(ref=ref, encoder=facts.encoder_json),
        local_update=update,
        initial=context.folder / INITIAL,
        checkpoint=context.folder / TRAINED,
        copies=training.local.steps or 1,
        all_rows=training.local.steps is None,
        most_rows=config.data.max_length,
    )
    train_in_rounds(spec, config, context, plan)


def _train_on_minibatches(config: MopoConfig, context: RunContext, facts: EnsembleFacts) -> None:
    training = config.training
    spec = MinibatchSpec(
        run_id=context.run_id,
        source=_all_rows(config, context, facts),
        facts=facts,
        initial=context.folder / INITIAL,
        checkpoint=context.folder / TRAINED,
        steps=training.rounds,
        batch_size=training.expected_batch_size,
        optimiser=training.optimiser,
        seed=config.seed,
    )
    group = context.executor.start(MinibatchTrainer, [spec], repeat_lost_calls=True)
    done = group.call("progress")[0]
    while done < spec.steps:
        done = group.call("advance", {"steps": STEPS_A_CALL})[0]
        context.progress("models without privacy", done, spec.steps)
    group.close()


def _all_rows(config: PrimorlConfig, context: RunContext, facts: EnsembleFacts) -> StoredShard:
    (ref,) = shard_refs(
        context.store,
        config.data.sensitive,
        count=1,
        unit=config.data.unit,
        max_rows_per_unit=config.data.max_length,
    )
    return StoredShard(ref=ref, encoder=facts.encoder_json)


def _policy_spec(
    config: PrimorlConfig, context: RunContext, facts: EnsembleFacts, starts: StartStates
) -> PolicyTrainerSpec:
    return PolicyTrainerSpec(
        run_id=context.run_id,
        ensemble=context.folder / TRAINED,
        facts=facts,
        starts=starts,
        folder=context.folder,
        config=config.training.policy,
        horizon=config.rollout_horizon,
        evaluation=config.evaluation,
        environment=config.data.environment,
        seed=config.seed,
        real=_all_rows(config, context, facts) if isinstance(config, MopoConfig) else None,
    )


def _train_policy(spec: PolicyTrainerSpec, context: RunContext, *, workers: int) -> None:
    """Algorithm 4: SAC inside the pessimistic model, once or from several seeds."""
    trainings = spec.restarts()
    total, done = spec.config.steps * len(trainings), 0
    for first in range(0, len(trainings), workers):
        together = trainings[first : first + workers]
        for training in together:
            with storage_errors(f"create {training.folder}"):
                training.folder.mkdir(parents=True, exist_ok=True)
        group = context.executor.start(PolicyTrainer, together, repeat_lost_calls=True)
        before, target = done, done + spec.config.steps * len(together)
        done += sum(group.call("progress"))
        while done < target:
            done = before + sum(group.call("advance", {"steps": STEPS_A_CALL}))
            context.progress("policy in the model", done, total)
        group.close()
    keep_most_promising(spec)


def _release(config: PrimorlConfig, context: RunContext, spec: PolicyTrainerSpec) -> LearnedPolicy:
    def save_ensemble(path: Path) -> None:
        tensors, _ = load_checkpoint(spec.ensemble, run_id=context.run_id, stage="rounds")
        spec.facts.save(tensors["ema"], path)

    return LearnedPolicy(
        save=lambda path: trained_policy(spec).save(path),
        beside={
            config.output.torchscript: lambda path: export_torchscript(trained_policy(spec), path),
            config.output.ensemble: save_ensemble,
        },
    )
