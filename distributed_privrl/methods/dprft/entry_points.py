"""What the tool sees of `dprft` and `dp_fine_tuning`: the entry points' functions.

Naming the method, and planning a run of it, imports no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.dprft.config import DprftConfig, FineTuningConfig, TextConfig
from distributed_privrl.methods.dprft.fine_tuning import FineTuningMethod
from distributed_privrl.methods.dprft.method import DprftMethod

if TYPE_CHECKING:
    from distributed_privrl.core.executor import Executor
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.evaluation.membership import TextAttack
    from distributed_privrl.evaluation.report import Section
    from distributed_privrl.evaluation.source import Sourced


def _text_sections(
    config: TextConfig, path: "Sourced[Path]", results: "Sourced[Sequence[Any]]"
) -> "list[Section]":
    """Write what a report says of the texts; see `Inspection`."""
    from distributed_privrl.methods.dprft.report import text_sections

    return text_sections(config, path, results)


def _comparison_sections(
    config: TextConfig, store: "DatasetStore", path: Path, executor: "Executor"
) -> "list[Section]":
    """Hold the texts against the documents; see `Inspection`."""
    from distributed_privrl.methods.dprft.comparison import comparison_sections

    return comparison_sections(config, store, path, executor)


def _open_attack(declared: Any, world: Any, context: Any) -> "TextAttack":
    """Open the membership attack; see `Inspection`."""
    from distributed_privrl.methods.dprft.attack import open_attack

    return open_attack(declared, world, context)


def dprft() -> Method:
    """Return the method ``dprft``."""
    return Method(
        config=DprftConfig,
        declare=DprftMethod,
        summary="texts of a language model tuned by private votes from a corpus it never reads",
        inspection=Inspection(file_report=_text_sections, real_report=_comparison_sections),
        on_gpus=True,
    )


def dp_fine_tuning() -> Method:
    """Return the method ``dp_fine_tuning``."""
    return Method(
        config=FineTuningConfig,
        declare=FineTuningMethod,
        summary="texts of a language model fine-tuned in private rounds, the baseline of dprft",
        inspection=Inspection(
            file_report=_text_sections, real_report=_comparison_sections, attack=_open_attack
        ),
        on_gpus=True,
    )
