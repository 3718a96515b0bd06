"""What the tool sees of `dprft`: the entry point's function.

Naming the method, and planning a run of it, imports no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.dprft.config import DprftConfig
from distributed_privrl.methods.dprft.method import DprftMethod

if TYPE_CHECKING:
    from distributed_privrl.evaluation.report import Section
    from distributed_privrl.evaluation.source import Sourced


def _text_sections(
    config: DprftConfig, path: "Sourced[Path]", results: "Sourced[Sequence[Any]]"
) -> "list[Section]":
    """Write what a report says of the texts; see `Inspection`."""
    from distributed_privrl.methods.dprft.report import text_sections

    return text_sections(config, path, results)


def dprft() -> Method:
    """Return the method ``dprft``."""
    return Method(
        config=DprftConfig,
        declare=DprftMethod,
        summary="texts of a language model tuned by private votes from a corpus it never reads",
        inspection=Inspection(file_report=_text_sections),
    )
