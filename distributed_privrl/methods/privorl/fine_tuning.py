"""The private rounds of PrivORL, from what pre-training left.

Reference: PrivORL, algorithm 1, line 13; algorithm 2, line 19.
"""

from dataclasses import replace
from pathlib import Path

from distributed_privrl.methods.privorl.config import PrivorlConfig
from distributed_privrl.methods.privorl.curiosity import NovelUpdateFactory
from distributed_privrl.methods.privorl.parts import Parts
from distributed_privrl.methods.privorl.release import PRETRAINED, TRAINED
from distributed_privrl.methods.privorl.update import DiffusionUpdate, private_network
from distributed_privrl.rounds.checkpoint import load_checkpoint, save_checkpoint
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.devices import device_of
from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.stages.training import TrainingSpec, train_in_rounds
from distributed_privrl.updates.parameters import FlatParameters

START = "start.safetensors"


def fine_tune(config: PrivorlConfig, context: RunContext, parts: Parts, plan: RoundPlan) -> None:
    """Algorithm 1, line 13, and algorithm 2, line 19: private rounds over the sensitive units.

    Args:
        config: of the run.
        context: of the run.
        parts: of the variant.
        plan: of the rounds, whose charge is open.

    Privacy: unit, relation and events are those of the plan, which was charged; see
    `train_in_rounds`.
    """
    training = config.training

    def update(clip_norm: float | None) -> DiffusionUpdate:
        return DiffusionUpdate(
            synthesizer=parts.synthesizer,
            seed=config.seed,
            clip_norm=clip_norm,
            micro_batch_rows=training.rows_at_once(config.runtime),
            device=device_of(config.runtime),
        )

    spec = TrainingSpec(
        source=parts.rows.shard,
        local_update=update,
        initial=_start(config, context, parts),
        checkpoint=context.folder / TRAINED,
        copies=training.noise_multiplicity,
        all_rows=parts.all_rows,
        most_rows=parts.most_rows,
        public_update=_novel_update(config, context, update(plan.clip_norm), plan),
    )
    train_in_rounds(spec, config, context, plan)


def _start(config: PrivorlConfig, context: RunContext, parts: Parts) -> Path:
    """Return the checkpoint that rounds begin from: without what public data alone teach."""
    pretrained, start = context.folder / PRETRAINED, context.folder / START
    if not parts.synthesizer.public_parts:
        return pretrained
    network = private_network(
        parts.synthesizer, config.seed, pretrained=pretrained, run_id=context.run_id
    )
    _, state = load_checkpoint(pretrained, run_id=context.run_id, stage="pretraining")
    save_checkpoint(start, {"parameters": FlatParameters(network).vector}, state)
    return start


def _novel_update(
    config: PrivorlConfig, context: RunContext, update: DiffusionUpdate, plan: RoundPlan
) -> NovelUpdateFactory | None:
    """Return what adds novel samples to each noisy sum; the server, which reserves no GPU, does."""
    if plan.samples == 0:
        return None
    training = config.training
    return NovelUpdateFactory(
        update=replace(update, device="cpu"),
        samples=plan.samples,
        candidates=training.expected_batch_size,
        copies=training.noise_multiplicity,
        sampler_steps=training.pretraining.curiosity_sampler_steps,
        seed=config.seed,
        pretrained=context.folder / PRETRAINED,
        run_id=context.run_id,
    )
