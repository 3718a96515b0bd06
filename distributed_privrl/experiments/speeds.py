"""How fast a machine is, as `speed_probe` measured it, and the minutes of a plan."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import platformdirs

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.stages.effort import Effort

UNCERTAIN = 2.5
"""An estimate may be this many times too small or too large."""
_GIGABYTE = 1e9


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Seconds of a core that work takes on a machine.

    Args:
        start: of a run without work: imports, checks, writing, reports.
        joint_count: a joint count.
        round: a private round, beside its rows.
        private_row: a row of clipped gradients times a weight.
        learned_step: a step of plain training of a network, beside its rows.
        learned_row: a row of plain training times a weight.
        drawn_row: a drawn row times a weight.
        memory: bytes of a small run, in one process.
        machine: where it was measured.
    """

    start: float
    joint_count: float
    round: float
    private_row: float
    learned_step: float
    learned_row: float
    drawn_row: float
    memory: float
    machine: str

    def seconds(self, effort: Effort, workers: int = 1) -> float:
        """Return the seconds that a run takes, of which workers share the clipped gradients.

        Args:
            effort: of the run.
            workers: with a core each.
        """
        alone = (
            self.start
            + effort.joint_counts * self.joint_count
            + effort.rounds * self.round
            + effort.learned_steps * self.learned_step
            + effort.learned_rows * self.learned_row
            + effort.drawn_rows * self.drawn_row
        )
        return alone + effort.private_rows * self.private_row / workers

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` wrote.

        Raises:
            ValueError: it is something else.
        """
        values = json.loads(text)
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            raise ValueError("no speeds")
        machine = str(values.pop("machine"))
        return cls(machine=machine, **{name: float(value) for name, value in values.items()})


REFERENCE = Speeds(
    start=11.5,
    joint_count=2.2,
    round=0.04,
    private_row=1.3e-10,
    learned_step=4.2e-4,
    learned_row=7.6e-11,
    drawn_row=3.8e-11,
    memory=1.6e9,
    machine="2 cores of an AMD EPYC with AVX-512",
)
"""For machines that nobody measured."""


def speeds_file() -> Path:
    """Return where the speeds of this machine are kept."""
    return Path(platformdirs.user_data_dir("privrl")) / "speeds.json"


def stored_speeds() -> Speeds | None:
    """Return what `speed_probe.measure` found on this machine; None: nobody asked this version.

    Raises:
        StorageError: the file cannot be read.
    """
    path = speeds_file()
    if not path.exists():
        return None
    with storage_errors(f"read {path}"):
        text = path.read_text()
    try:
        return Speeds.from_json(text)
    except (ValueError, TypeError):
        return None


def store_speeds(speeds: Speeds) -> Path:
    """Keep the speeds of this machine, and return where.

    Raises:
        StorageError: the file cannot be written.
    """
    path = speeds_file()
    with storage_errors(f"make {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, speeds.to_json())
    return path


@dataclass(frozen=True, kw_only=True)
class Time:
    """What a run takes on a machine; an estimate.

    Args:
        minutes: of wall time, where each worker has a core.
        gigabytes: of memory, in all processes.
        machine: where speeds were measured.
        measured: whether that was this machine.
    """

    minutes: float
    gigabytes: float
    machine: str
    measured: bool

    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan --json`` writes."""
        return {
            "minutes": float(f"{self.minutes:.2g}"),
            "minutes_between": [float(f"{minutes:.2g}") for minutes in self._between],
            "gigabytes": float(f"{self.gigabytes:.2g}"),
            "machine": self.machine,
            "measured": self.measured,
        }

    @property
    def _between(self) -> tuple[float, float]:
        return self.minutes / UNCERTAIN, self.minutes * UNCERTAIN


def time_of(config: RunConfig, effort: Effort, speeds: Speeds | None) -> Time:
    """Return what a run takes.

    Args:
        config: of the run.
        effort: of its plan.
        speeds: of this machine; None: nobody measured it.
    """
    known = REFERENCE if speeds is None else speeds
    workers = config.runtime.least_workers if effort.rounds else 1
    processes = 1 if config.runtime.executor == "local" else 1 + config.runtime.least_workers
    return Time(
        minutes=known.seconds(effort, workers) / 60,
        gigabytes=(processes * known.memory + effort.memory) / _GIGABYTE,
        machine=known.machine,
        measured=speeds is not None,
    )
