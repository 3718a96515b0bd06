"""What a run of the expert level releases: the policy, and the stable prefixes beside it."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from distributed_privrl.agents.deployment import export_torchscript
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.facts import AgentFacts
from distributed_privrl.methods.expert.prefix_plan import FILTER
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.metrics import Answer, settled_answer
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.context import (
    CertifiedDataset,
    ReleasedFiles,
    RunContext,
    SyntheticTrajectories,
)

STABLE_TRAINING = "stable_training.safetensors"


def filter_answer(context: RunContext, stable: Trajectories | None) -> Answer[Trajectories] | None:
    """Return the stable prefixes as the answer of the filter's settled entry."""
    if stable is None:
        return None
    entry = context.ledger.reserved(f"{context.run_id}/{FILTER}")
    assert entry is not None
    return settled_answer(entry, stable)


def learned_policy(
    config: ExpertConfig, context: RunContext, facts: AgentFacts, trained: Path
) -> ReleasedFiles:
    """Return the policy of the parameters' average, or of the last ones where none is kept."""
    stage: Literal["policy", "rounds"] = "policy" if trained.name == STABLE_TRAINING else "rounds"
    tensors, _ = load_checkpoint(trained, run_id=context.run_id, stage=stage)
    kept = "ema" if config.training.optimiser.ema_decay else "parameters"
    policy = facts.policy(tensors[kept])
    return ReleasedFiles(
        save=policy.save, beside={config.output.torchscript: partial(export_torchscript, policy)}
    )


def stable_dataset(
    config: ExpertConfig,
    context: RunContext,
    stable: Trajectories | None,
    stages: Sequence[Stage],
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
            ledger_entries=(f"{context.run_id}/{FILTER}",),
        ),
    )
