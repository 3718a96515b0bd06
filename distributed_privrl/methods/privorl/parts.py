"""What a variant of PrivORL trains and releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed_privrl.methods.privorl.pretraining import Rows
    from distributed_privrl.methods.privorl.release import ChunkDrawer
    from distributed_privrl.methods.privorl.update import Synthesizer
    from distributed_privrl.stages.context import Release


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a variant trains and releases, once the scaling of its columns is known.

    Args:
        rows: reads and encodes the data.
        synthesizer: the model.
        drawer: draws the release, chunk by chunk.
        release: what comes of the folder of chunks, and of what drew them.
        all_rows: every row of a unit takes part in its vector, not one drawn for each copy.
        most_rows: public bound on a unit's rows, for ``all_rows``.
    """

    rows: Rows
    synthesizer: Synthesizer
    drawer: ChunkDrawer
    release: Callable[[Path, ChunkDrawer], Release]
    all_rows: bool = False
    most_rows: int | None = None
