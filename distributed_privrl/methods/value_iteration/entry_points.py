"""What the tool sees of DP-APVI and DP-VAPVI: the entry points' functions.

Naming a method, and planning a run of it, imports no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.core.progress import Progress
from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.method import LinearMethod, TabularMethod

if TYPE_CHECKING:
    from distributed_privrl.evaluation.report import Section
    from distributed_privrl.evaluation.source import Sourced

_NO_GPUS = "its workers only add up integers, which is no work for a GPU"


def _study(
    config: ApviConfig | VapviConfig, folder: Path, progress: Progress
) -> list[dict[str, Any]]:
    """Simulate the learning in a known problem; see `Inspection`."""
    from distributed_privrl.methods.value_iteration.report import study

    return study(config, folder, progress)


def _policy_sections(
    config: ApviConfig | VapviConfig, path: "Sourced[Path]", results: "Sourced[Sequence[Any]]"
) -> "list[Section]":
    """Write what a report says of the policy; see `Inspection`."""
    from distributed_privrl.methods.value_iteration.report import policy_sections

    return policy_sections(config, path, results)


def apvi() -> Method:
    """Return the method ``apvi``."""
    return Method(
        config=ApviConfig,
        declare=TabularMethod,
        summary="private policy for finitely many states, from noisy counts (DP-APVI)",
        inspection=Inspection(study=_study, file_report=_policy_sections, headline="this policy"),
        cpus_because=_NO_GPUS,
    )


def vapvi() -> Method:
    """Return the method ``vapvi``."""
    return Method(
        config=VapviConfig,
        declare=LinearMethod,
        summary="private policy for linear features, from noisy regressions (DP-VAPVI, redesigned)",
        inspection=Inspection(study=_study, file_report=_policy_sections, headline="this policy"),
        cpus_because=_NO_GPUS,
    )
