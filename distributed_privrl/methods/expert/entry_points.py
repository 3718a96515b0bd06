"""What the tool sees of the expert level: the entry points' functions.

Naming the method, and planning a run of it, imports no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.core.progress import Progress
from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.method import ExpertMethod

if TYPE_CHECKING:
    from distributed_privrl.evaluation.report import Section
    from distributed_privrl.evaluation.source import Sourced


def _study(config: ExpertConfig, folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Try the policy; see `Inspection`."""
    from distributed_privrl.methods.expert.report import study

    return study(config, folder, progress)


def _policy_sections(
    config: ExpertConfig, path: "Sourced[Path]", results: "Sourced[Sequence[Any]]"
) -> "list[Section]":
    """Write what a report says of the policy; see `Inspection`."""
    from distributed_privrl.methods.expert.report import policy_sections

    return policy_sections(config, path, results)


def expert() -> Method:
    """Return the method ``expert``."""
    return Method(
        config=ExpertConfig,
        declare=ExpertMethod,
        summary="private policy from many experts, each of whose policies is hidden",
        on_gpus=True,
        inspection=Inspection(
            study=_study,
            file_report=_policy_sections,
            headline="mean return of the policy",
            own_clipping=lambda config: config.training.local == "federated",
        ),
    )
