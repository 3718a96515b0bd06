"""The training of a run's agent: private rounds, and noiseless steps on released prefixes.

Reference: Expert-level DP, algorithm 3.
"""

from pathlib import Path

from distributed_privrl.data.trajectories import TRANSITION, Trajectories
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.facts import AgentFacts
from distributed_privrl.methods.expert.noiseless_steps import (
    StableSpec,
    StableTrainer,
    StableTrainerSpec,
    save_rows,
)
from distributed_privrl.methods.expert.release import STABLE_TRAINING
from distributed_privrl.methods.expert.update import AgentUpdate
from distributed_privrl.rounds.worker import StoredShard
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.devices import device_of
from distributed_privrl.stages.public_work import take_steps
from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.stages.training import TrainingSpec, train_in_rounds, write_initial

INITIAL = "initial.safetensors"
ROUNDS = "rounds.safetensors"
STABLE_ROWS = "stable_rows.safetensors"


def write_networks(context: RunContext, facts: AgentFacts) -> None:
    """Write the parameters that the rounds start from, unless they are there."""
    write_initial(context.folder / INITIAL, facts.networks(), context)


def _stable_spec(
    config: ExpertConfig,
    context: RunContext,
    facts: AgentFacts,
    stable: Trajectories | None,
    *,
    alone: bool = False,
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


def train_agent(
    config: ExpertConfig,
    context: RunContext,
    facts: AgentFacts,
    plan: RoundPlan,
    *,
    stable: Trajectories | None,
) -> None:
    """Algorithm 3: noisy rounds on pool B, and noiseless steps on the released prefixes.

    Args:
        config: of the run.
        context: around the run; the charge of the rounds is open.
        facts: of the agent.
        plan: of the rounds.
        stable: the released prefixes; None: no filter has run.
    """
    training = config.training

    def update(clip_norm: float | None) -> AgentUpdate:
        return AgentUpdate(
            facts=facts,
            clip_norm=clip_norm,
            micro_batch_rows=training.rows_at_once(config.runtime),
            federated=training.federated if training.local == "federated" else None,
            device=device_of(config.runtime),
        )

    rounds = TrainingSpec(
        source=lambda ref: StoredShard(ref=ref, encoder=facts.encoder_json),
        local_update=update,
        initial=context.folder / INITIAL,
        checkpoint=context.folder / ROUNDS,
        copies=training.rows_per_expert,  # algorithm 4, line 4
        public_update=_stable_spec(config, context, facts, stable),
    )
    train_in_rounds(rounds, config, context, plan)


def train_on_prefixes(
    config: ExpertConfig, context: RunContext, facts: AgentFacts, *, stable: Trajectories | None
) -> Path:
    """Take noiseless steps alone, where the whole budget went into the filter.

    Args:
        config: of the run.
        context: around the run.
        facts: of the agent.
        stable: the released prefixes.

    Returns:
        Where the trained parameters are.
    """
    spec = _stable_spec(config, context, facts, stable, alone=True)
    trainer = StableTrainerSpec(stable=spec, checkpoint=context.folder / STABLE_TRAINING)
    take_steps(
        StableTrainer, [trainer], context, total=spec.rounds, label="training on stable prefixes"
    )
    return trainer.checkpoint
