"""What a method is given to run with, and what it gives back."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.core.executor import Executor
from distributed_privrl.core.progress import Progress
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, Transitions
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.choosing import Chooser, SecureChooser, SeededChooser
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue
from distributed_privrl.privacy.noise import NoiseSource, SecureNoise, SeededNoise

if TYPE_CHECKING:
    from distributed_privrl.privacy.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Everything around a method that is not its configuration.

    Args:
        run_id: the run's name in the ledger.
        folder: where checkpoints and synthetic chunks are written.
        executor: starts workers.
        store: datasets.
        ledger: where charges are made.
        fingerprint: of the sensitive dataset; it stays in the ledger.
        progress: told where long work is.
        insecure_key: seeds private randomness in tests; the certificate is then invalid.
        make_private: makes the folder, for its owner alone, of what may never leave, and returns
            it; nothing in it is covered by a certificate.
        anyway: run what would be useless, too.
        stream: public stream that a release is drawn from: another one draws other rows of the
            same model.
        drawn: where chunks of what is drawn are written; None: in ``folder``.
    """

    run_id: str
    folder: Path
    executor: Executor
    store: DatasetStore
    ledger: "Ledger"
    fingerprint: str
    progress: Progress
    insecure_key: int | None = None
    make_private: Callable[[], Path] | None = None
    anyway: bool = False
    stream: str = "sampling"
    drawn: Path | None = None

    @property
    def drawn_folder(self) -> Path:
        """Where chunks of what is drawn are written."""
        return self.folder if self.drawn is None else self.drawn

    @staticmethod
    def noise_class(insecure_key: int | None) -> type[SecureNoise] | type[SeededNoise]:
        """Return the class of every noise source of a run."""
        return SecureNoise if insecure_key is None else SeededNoise

    def noise_source(self) -> NoiseSource:
        """Return a source for releases made in this process."""
        return SecureNoise() if self.insecure_key is None else SeededNoise(self.insecure_key)

    def chooser(self) -> Chooser:
        """Return what draws candidates in this process."""
        return SecureChooser() if self.insecure_key is None else SeededChooser(self.insecure_key)

    @property
    def noise_facts(self) -> tuple[str, bool, tuple[str, ...]]:
        """Name, certifiability and assumptions of every noise source of this run."""
        source = self.noise_class(self.insecure_key)
        return source.name, source.certifiable, source.assumptions


@dataclass(frozen=True, kw_only=True)
class SyntheticTransitions:
    """A synthetic dataset of independent transitions.

    Args:
        chunks: makes the transitions, chunk by chunk, in raw units.
    """

    chunks: Callable[[], Iterable[Transitions]]


@dataclass(frozen=True, kw_only=True)
class SyntheticTrajectories:
    """A synthetic dataset of whole trajectories.

    Args:
        chunks: makes the trajectories, chunk by chunk, in raw units.
        facts: figures about them for the dataset's metadata, JSON values, as public as they are;
            asked for once all chunks are drawn.
    """

    chunks: Callable[[], Iterable[Trajectories]]
    facts: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ReleasedFiles:
    """A policy, or figures, as files.

    Args:
        save: writes the first file that the output names, atomically.
        beside: what else is released with it: writers of files in the same folder, by name.
    """

    save: Callable[[Path], None]
    beside: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)


Release = SyntheticTransitions | SyntheticTrajectories | ReleasedFiles


@dataclass(frozen=True, kw_only=True)
class CertifiedDataset:
    """A dataset of trajectories that is released beside a policy, under a certificate of its own.

    Args:
        dataset: its id.
        trajectories: what it holds, with chunks in raw units.
        stages: what was charged for it alone.
        ledger_entries: ids of those charges.
    """

    dataset: str
    trajectories: SyntheticTrajectories
    stages: tuple[Stage, ...]
    ledger_entries: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """What a method releases.

    Args:
        stages: what was charged; empty without privacy.
        spare_rounds: rounds paid for beyond the planned ones and not reserved.
        ledger_entries: ids of the charges.
        release: what may leave once it is certified.
        beside: datasets that may leave too, under certificates of their own.
        metrics: further lines of ``metrics.jsonl``.
    """

    stages: tuple[Stage, ...]
    spare_rounds: int
    ledger_entries: tuple[str, ...]
    release: Release
    beside: tuple[CertifiedDataset, ...] = ()
    metrics: tuple[Mapping[str, PublicValue | ReleasedValue], ...] = ()
