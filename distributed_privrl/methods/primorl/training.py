"""The training of a run: the ensemble, in private rounds or on minibatches, then the policy.

Reference: PriMORL, algorithms 2 and 4.
"""

from distributed_privrl.core.files import storage_errors
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.methods.primorl.config import MopoConfig, PrimorlConfig
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts
from distributed_privrl.methods.primorl.mopo import MinibatchSpec, MinibatchTrainer
from distributed_privrl.methods.primorl.policy_training import (
    PolicyTrainer,
    PolicyTrainerSpec,
    keep_most_promising,
)
from distributed_privrl.methods.primorl.start_states import StartStates
from distributed_privrl.methods.primorl.update import DynamicsUpdate
from distributed_privrl.rounds.worker import StoredShard
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.devices import device_of
from distributed_privrl.stages.public_work import take_steps
from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.stages.training import TrainingSpec, train_in_rounds, write_initial

INITIAL = "initial.safetensors"
TRAINED = "rounds.safetensors"


def write_ensemble(config: PrimorlConfig, context: RunContext, facts: EnsembleFacts) -> None:
    """Write the parameters that the rounds start from, unless they are there."""
    write_initial(context.folder / INITIAL, facts.build(config.seed), context)


def train_in_private_rounds(
    config: PrimorlConfig, context: RunContext, facts: EnsembleFacts, plan: RoundPlan
) -> None:
    """Algorithm 2: private rounds over the sensitive units.

    Args:
        config: of the run.
        context: around the run; the charge of the rounds is open.
        facts: of the ensemble.
        plan: of the rounds.
    """
    training = config.training

    def update(clip_norm: float | None) -> DynamicsUpdate:
        if plan.mechanism is None and training.clip:
            clip_norm = training.clip_norm  # as private runs do, and it protects nobody
        return facts.update(training.local, clip_norm, device=device_of(config.runtime))

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


def train_on_minibatches(config: MopoConfig, context: RunContext, facts: EnsembleFacts) -> None:
    """Train MOPO's ensemble on all rows, without privacy.

    Args:
        config: of the run.
        context: around the run.
        facts: of the ensemble.
    """
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
        device=device_of(config.runtime),
    )
    take_steps(MinibatchTrainer, [spec], context, total=spec.steps, label="models without privacy")


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
        checkpoint_steps=config.runtime.checkpoint_steps,
        real=_all_rows(config, context, facts) if isinstance(config, MopoConfig) else None,
        device=device_of(config.runtime),
    )


def train_policy(
    config: PrimorlConfig, context: RunContext, facts: EnsembleFacts, starts: StartStates
) -> PolicyTrainerSpec:
    """Algorithm 4: SAC inside the pessimistic model, once or from several seeds.

    Args:
        config: of the run.
        context: around the run.
        facts: of the ensemble.
        starts: where rollouts begin.

    Returns:
        What the training was built from, which tells where the policy is.
    """
    spec, workers = _policy_spec(config, context, facts, starts), config.runtime.most_workers
    trainings = spec.restarts()
    for training in trainings:
        with storage_errors(f"create {training.folder}"):
            training.folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(trainings), workers):
        together = trainings[first : first + workers]
        take_steps(
            PolicyTrainer,
            together,
            context,
            total=spec.config.steps * len(together),
            label="policy in the model",
            before=spec.config.steps * first,
            in_all=spec.config.steps * len(trainings),
        )
    keep_most_promising(spec)
    return spec
