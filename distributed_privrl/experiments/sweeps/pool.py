"""The processes of a private selection: each runs hidden trials and keeps the best one alone.

Nothing of a trial is written to a disk, logged or told to anybody: its folder lies in memory, and
is destroyed as soon as a better one is there.
"""

import contextlib
import io
import logging
import os
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.silence import silent_descriptors
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.trainer import Trainer, find_trainer
from distributed_privrl.experiments.agents import Trials
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.publishing import publisher_of
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.run import RunResult, run
from distributed_privrl.experiments.sweeps.config import ScoreConfig, overrides_of
from distributed_privrl.experiments.sweeps.memory import check_memory, guarded_folder
from distributed_privrl.experiments.sweeps.scores import score_of
from distributed_privrl.privacy.certificate import Certificate
from distributed_privrl.privacy.events import EVENTS, Event


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """What a process of the pool is built from.

    Args:
        values: of the run, without what is searched.
        root: of the datasets.
        reads: ids of those that every trial reads.
        score: what tells the best trial.
        events: that a trial may be charged for at most, as JSON values.
        memory: a folder in memory.
        trainers: of agents, by name.
        more: trainers beside the plain loops, by name; rows of trials stay in the process.
    """

    values: Mapping[str, Any]
    root: str
    reads: Sequence[str]
    score: ScoreConfig
    events: Sequence[Mapping[str, Any]]
    memory: str
    trainers: Sequence[str] = ()
    more: Mapping[str, Trainer] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Winner:
    """All that leaves of a selection.

    Args:
        config: of the trial, as JSON values.
        score: of it.
        files: that it released, by their path under the datasets' or the run's folder.
        certificate: of the trial alone: what it assumes and who was counted.
        agents: what agents trained on it earned.
    """

    config: Mapping[str, Any]
    score: float
    files: Mapping[str, bytes]
    certificate: Certificate
    agents: Trials


@dataclass(frozen=True, kw_only=True)
class _Kept:
    score: float
    config: RunConfig
    folder: Path
    result: RunResult
    store: DatasetStore


class SelectionWorker:
    """Runs trials one after the other, and keeps the best.

    Args:
        spec: what it is built from.

    Raises:
        UnsafeError: its node has no folder in memory, or too little is free there.
        ConfigError: its node does not see the datasets: all its trials would fail, after the
            charge.

    What agents' trainers leave when a process first uses them, such as names that Ray keeps, is
    left here, before there are trials: it is the same however many there are.

    Privacy: a trial is a run of the product with a ledger of its own, which is destroyed with it:
        the selection was charged for all of them before. A trial that fails, or that was charged
        for more than the selection reckons with, has no score and is not drawn again.
    """

    def __init__(self, spec: PoolSpec) -> None:
        self._spec = spec
        self._best: _Kept | None = None
        self._open = contextlib.ExitStack()
        memory = Path(spec.memory)
        check_memory(memory)  # of this node, which may be another one than the command's
        self._store, self._folders = _here(spec)  # read once: nobody counts trials by it
        for name in spec.trainers:
            find_trainer(name, more=spec.more).prepare()
        self._memory = self._open.enter_context(guarded_folder(memory))

    def run(self, trials: Sequence[Mapping[str, Any]]) -> float | None:
        """Run trials, given by their values of the axes, and return the best one's score."""
        for overrides in trials:
            folder: Path | None = None
            with _silence():
                try:
                    folder = Path(tempfile.mkdtemp(dir=self._memory))
                    with _temporary_in(folder):
                        kept = self._tried(overrides, folder)
                except Exception:  # a failed trial scores minus infinity, whatever it failed of
                    kept = None
            before = self._best
            if kept is not None and (before is None or kept.score > before.score):
                self._best, kept = kept, before
                if before is not None:
                    shutil.rmtree(before.folder, ignore_errors=True)
            elif folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        return None if self._best is None else self._best.score

    def hand_over(self, wanted: bool) -> Winner | None:
        """Return the best trial if it is wanted, and destroy all that is left."""
        try:
            best = self._best
            return _winner(best) if wanted and best is not None else None
        finally:
            self.close()

    def close(self) -> None:
        """Destroy all that is left."""
        self._best = None
        self._open.close()

    def _tried(self, overrides: Mapping[str, Any], folder: Path) -> _Kept | None:
        spec = self._spec
        config = parse_config(spec.values, source="a trial", overrides=overrides_of(overrides))
        store = _own_store(self._folders, folder / "datasets")
        ledger = f"sqlite:///{(folder / 'ledger.sqlite').absolute()}"
        set_budget(config, store, ledger)
        runtime = {"executor": "local", "pretrained": None}  # nothing lies outside the folder
        here = config.model_copy(update={"runtime": config.runtime.model_copy(update=runtime)})
        with contextlib.closing(LocalExecutor()) as executor:
            result = run(
                here,
                executor,
                out=folder / "run",
                ledger_url=ledger,
                store=store,
                more_trainers=spec.more,
                reports=spec.score.by == "policy",
                anyway=True,
            )
        check_covered(result.certificate, EVENTS.validate_python(list(spec.events)))
        score = score_of(spec.score, config, result, store)
        if score is None:
            return None
        return _Kept(score=score, config=config, folder=folder, result=result, store=store)


def _here(spec: PoolSpec) -> tuple[DatasetStore, dict[str, Path]]:
    """Return the datasets of all trials, as this node sees them, and who keeps copies of them."""
    store = DatasetStore(spec.root)
    return store, {dataset: store.folder(dataset).absolute() for dataset in spec.reads}


@contextlib.contextmanager
def _temporary_in(folder: Path) -> Iterator[None]:
    """Let what libraries write into folders for temporary files lie in a trial's, in memory.

    Those that write the folder's name into the environment would make it anew after the trial.
    """
    before, environment = tempfile.tempdir, dict(os.environ)
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


def check_covered(certificate: Certificate, events: Sequence[Event]) -> None:
    """Check that a trial was charged for no more than a selection reckons with.

    Args:
        certificate: of the trial.
        events: that the selection was charged for, of one trial.

    Raises:
        UnsafeError: it was.
    """
    allowed, stated = _counts(events), Counter[str]()
    for stage in certificate.stages:
        stated += _counts(stage.events)
    if certificate.status != "valid" or any(stated[one] > allowed[one] for one in stated):
        raise UnsafeError("a trial was charged for more than the selection reckons with")


def _counts(events: Sequence[Event]) -> Counter[str]:
    found: Counter[str] = Counter()
    for event in events:
        count = getattr(event, "count", 1)
        single = event.model_copy(update={"count": 1}) if hasattr(event, "count") else event
        found[single.model_dump_json()] += count
    return found


def _own_store(folders: Mapping[str, Path], root: Path) -> DatasetStore:
    """Return a store in memory in which what a trial reads is linked, not copied."""
    for dataset, folder in folders.items():
        link = root / dataset
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder, target_is_directory=True)
    return DatasetStore(root)


def _winner(best: _Kept) -> Winner:
    directory = best.result.directory
    publisher = publisher_of(best.config, best.store, directory)
    root = directory.path if best.config.output.COUNTED is None else best.store.root
    return Winner(
        config={
            **best.config.model_dump(mode="json", exclude_unset=True),
            "method": best.config.method,
        },
        score=best.score,
        files={one.id: (root / one.id).read_bytes() for one in publisher.outputs()},
        certificate=best.result.certificate,
        agents=best.result.trials,
    )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Let nothing of a trial be printed, logged or warned of, by no library either.

    What a library writes past Python's streams would lie in the files that Ray keeps of a process.
    """
    before = logging.root.manager.disable
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        silent_descriptors(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
