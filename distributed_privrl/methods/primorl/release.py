"""What a run of PriMORL releases: the policy in two forms, and the ensemble."""

from pathlib import Path

from distributed_privrl.agents.deployment import export_torchscript
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.methods.primorl.policy_training import PolicyTrainerSpec, trained_policy
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.context import ReleasedFiles, RunContext


def learned_policy(
    config: PrimorlConfig, context: RunContext, spec: PolicyTrainerSpec
) -> ReleasedFiles:
    """Return the policy that was trained in the ensemble, with the ensemble beside it."""

    def save_ensemble(path: Path) -> None:
        tensors, _ = load_checkpoint(spec.ensemble, run_id=context.run_id, stage="rounds")
        spec.facts.save(tensors["ema"], path)

    return ReleasedFiles(
        save=lambda path: trained_policy(spec).save(path),
        beside={
            config.output.torchscript: lambda path: export_torchscript(trained_policy(spec), path),
            config.output.ensemble: save_ensemble,
        },
    )
