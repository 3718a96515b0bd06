"""What a cluster's Prometheus may know of a run: gauges of public facts, through the typed gate."""

import sys
from typing import Any

from distributed_privrl.core.progress import Progress, mark_of
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue, metrics_record

GAUGES = {
    "blocks_reserved": "blocks of private rounds that the ledger holds for the run",
    "epsilon_reserved": "epsilon of the rounds that are reserved",
    "workers_alive": "processes of a class that answer",
}
"""Each is called ``privrl_`` and its name; Ray puts ``ray_`` before it."""
KIND = "kind"
"""The one label of ours: a class of workers, for `GAUGES` that count processes."""

_made: dict[str, Any] = {}


def show(kind: str = "", **values: PublicValue | ReleasedValue) -> None:
    """Set gauges, where this process belongs to a Ray; elsewhere nothing happens.

    Args:
        kind: of the workers that are counted.
        values: by the names in `GAUGES`.

    Raises:
        TypeError: a value says neither that it is public nor who paid for it.

    Privacy: as ``metrics.jsonl``. A scrape has a time, so that a value that changes tells when it
    did: nothing is shown here that changes with each private round.
    """
    record = metrics_record(**values)
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    for name in values:
        if name not in _made:
            from ray.util.metrics import Gauge

            _made[name] = Gauge(f"privrl_{name}", GAUGES[name], tag_keys=(KIND,))
        _made[name].set(record[name], {KIND: kind})


class MeteredProgress:
    """Shows progress as before, and what is reserved as gauges.

    Privacy: gauges move where `PlainProgress` writes a line, at tenths of a stage: a scrape tells
    no more of the time of private rounds than the run's own lines do.

    Args:
        shown: the progress that a user sees.
    """

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._mark: tuple[str, int] | None = None

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Show progress; see `core.progress.Progress`."""
        self._shown(stage, done, total, note)

    def reserved(
        self, stage: str, done: int, total: int, *, blocks: PublicValue, epsilon: PublicValue
    ) -> None:
        """Set the gauges if the stage came to its next tenth."""
        mark = (stage, mark_of(done, total))
        if mark != self._mark:
            self._mark = mark
            show(blocks_reserved=blocks, epsilon_reserved=epsilon)
