"""What the tool sees of `policy_value`: the entry point's function.

Naming the method, and planning a run of it, imports no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.policy_value.config import PolicyValueConfig
from distributed_privrl.methods.policy_value.method import PolicyValueMethod

if TYPE_CHECKING:
    from distributed_privrl.evaluation.report import Section
    from distributed_privrl.evaluation.source import Sourced


def _value_sections(
    config: PolicyValueConfig, path: "Sourced[Path]", results: "Sourced[Sequence[Any]]"
) -> "list[Section]":
    """Write what a report says of the value; see `Inspection`."""
    from distributed_privrl.methods.policy_value.report import value_sections

    return value_sections(config, path, results)


def policy_value() -> Method:
    """Return the method ``policy_value``."""
    return Method(
        config=PolicyValueConfig,
        declare=PolicyValueMethod,
        summary="what an agent trained on a release would earn in reality, as a noisy figure",
        inspection=Inspection(file_report=_value_sections),
    )
