"""What the tool sees of PriMORL and MOPO: the entry points' functions.

Naming a method, and planning a run of it, imports no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.progress import Progress
from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.primorl.config import MopoConfig, PrimorlConfig
from distributed_privrl.methods.primorl.method import PrimorlMethod

if TYPE_CHECKING:
    from distributed_privrl.evaluation.report import Section
    from distributed_privrl.evaluation.source import Sourced


def _study(config: PrimorlConfig, folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Try the policy and its ensemble; see `Inspection`."""
    from distributed_privrl.methods.primorl.study import study

    return study(config, folder, progress)


def _policy_sections(
    config: PrimorlConfig, path: "Sourced[Path]", results: "Sourced[Sequence[Any]]"
) -> "list[Section]":
    """Write what a report says of the policy; see `Inspection`."""
    from distributed_privrl.methods.primorl.report import policy_sections

    return policy_sections(config, path, results)


def primorl() -> Method:
    """Return the method ``primorl``."""
    return _models(PrimorlConfig, "private policy from an ensemble of dynamics models (PriMORL)")


def mopo() -> Method:
    """Return the method ``mopo``."""
    return _models(MopoConfig, "policy from dynamics models, without privacy (MOPO, for reference)")


def _models(config: type[RunConfig], summary: str) -> Method:
    return Method(
        config=config,
        declare=PrimorlMethod,
        summary=summary,
        on_gpus=True,
        inspection=Inspection(
            study=_study,
            file_report=_policy_sections,
            headline="mean return of the policy",
            own_clipping=lambda _: True,
        ),
    )
