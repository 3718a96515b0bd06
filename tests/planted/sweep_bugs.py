"""Bugs in private selection: what tells the number of trials, what is paid too late or twice."""

import contextlib
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.sweeps import pool, scores, selection, winner
from distributed_privrl.experiments.sweeps.pool import SelectionWorker
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.metrics import PublicValue
from tests.worlds.ledgers import url_of

Plant = Callable[[pytest.MonkeyPatch], None]


def count_in_metrics(patch: pytest.MonkeyPatch) -> None:
    """The winner's metrics say how many it was better than."""
    _count(patch, lambda directory: directory.events)


def count_in_events(patch: pytest.MonkeyPatch) -> None:
    """TensorBoard shows how many the winner was better than."""
    _count(patch, lambda directory: directory.metrics)


def _count(patch: pytest.MonkeyPatch, forgotten: Callable[[RunDirectory], Path]) -> None:
    drawn, release = selection.drawn_trials, selection.release_winner
    counts: list[int] = []

    def noted(sweep: Any) -> Any:
        trials = drawn(sweep)
        counts[:] = [len(trials)]
        return trials

    def released(best: Any, event: Any, directory: RunDirectory, *rest: Any, **more: Any) -> Any:
        found = release(best, event, directory, *rest, **more)
        directory.write_metrics([{"losers": PublicValue(counts[0] - 1)}])
        forgotten(directory).unlink()
        return found

    patch.setattr(selection, "drawn_trials", noted)
    patch.setattr(selection, "release_winner", released)


def trials_are_told(patch: pytest.MonkeyPatch) -> None:
    """Nothing of a trial is silenced."""
    patch.setattr(pool, "_silence", contextlib.nullcontext)


def libraries_are_heard(patch: pytest.MonkeyPatch) -> None:
    """What is written past Python's streams is not silenced."""
    patch.setattr(pool, "silent_descriptors", contextlib.nullcontext)


def failures_are_warned_of(patch: pytest.MonkeyPatch) -> None:
    """Each trial that failed is a warning, once all are over."""
    run = SelectionWorker.run

    def warned(self: Any, trials: Any) -> Any:
        tried = SelectionWorker._tried  # as it is by now: watched
        failed: list[str] = []

        def noted(*arguments: Any) -> Any:
            try:
                return tried(*arguments)
            except Exception as error:
                failed.append(type(error).__name__)
                raise

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SelectionWorker, "_tried", noted)
            best = run(self, trials)
        for kind in failed:
            warnings.warn(f"one of them failed of {kind}", stacklevel=1)
        return best

    patch.setattr(SelectionWorker, "run", warned)


def a_call_a_trial(patch: pytest.MonkeyPatch) -> None:
    """Processes are asked for one trial at a time, as if trials were tasks."""

    def won(sweep: Any, group: Any) -> Any:
        found: list[float | None] = []
        for trial in selection.drawn_trials(sweep):
            found = group.call("run", per_worker=[{"trials": [trial]}, {"trials": []}])
        best = selection.best_of(found)
        wanted = [{"wanted": number == best} for number in range(group.size)]
        return [one for one in group.call("hand_over", per_worker=wanted) if one is not None]

    patch.setattr(selection, "_won", won)


def times_are_kept(patch: pytest.MonkeyPatch) -> None:
    """The folder's files say when the selection began."""
    patch.setattr(winner, "_forget_times", lambda directory: None)


def a_loser_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A trial that was better, until another was, keeps a file beside the datasets."""
    run = SelectionWorker.run

    def kept(self: Any, trials: Any) -> Any:
        best = None
        for number, trial in enumerate(trials):
            best = run(self, [trial])
            if number and best is not None:
                shutil.copy(self._best.folder / "run" / "config.yaml", Path(self._spec.root).parent)
        return best

    patch.setattr(SelectionWorker, "run", kept)


def memory_is_left(patch: pytest.MonkeyPatch) -> None:
    """What trials made lies in memory until the machine is switched off."""

    @contextlib.contextmanager
    def left(root: Path) -> Iterator[Path]:
        yield Path(tempfile.mkdtemp(dir=root))

    patch.setattr(pool, "guarded_folder", left)


def failures_are_drawn_again(patch: pytest.MonkeyPatch) -> None:
    """A trial that fails is replaced by another one, once."""
    run = SelectionWorker.run

    def again(self: Any, trials: Any) -> Any:
        tried = SelectionWorker._tried  # as it is by now: watched

        def twice(*arguments: Any) -> Any:
            with contextlib.suppress(Exception):
                return tried(*arguments)
            return tried(*arguments)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SelectionWorker, "_tried", twice)
            return run(self, trials)

    patch.setattr(SelectionWorker, "run", again)


def score_of_real_rows(patch: pytest.MonkeyPatch) -> None:
    """The best trial is the one that is nearest to the sensitive rows."""
    right = scores._likeness

    def likeness(score: Any, config: Any, result: Any, store: Any) -> float:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(scores, "shown_rows", _instead(score.to, config.data.sensitive))
            return right(score, config, result, store)

    patch.setattr(scores, "_likeness", likeness)


def _instead(one: str, other: str) -> Any:
    sampled = scores.shown_rows
    return lambda store, dataset: sampled(store, other if dataset == one else dataset)


def trials_reserve(patch: pytest.MonkeyPatch) -> None:
    """Trials are charged to the account, beside the selection."""
    run, start = pool.run, SelectionWorker.__init__
    urls: list[str] = []

    def started(self: Any, spec: Any) -> None:
        urls[:] = [url_of(Path(spec.root).parent)]
        start(self, spec)

    def charged(config: Any, executor: Any, **options: Any) -> Any:
        return run(config, executor, **(options | {"ledger_url": urls[0]}))

    patch.setattr(SelectionWorker, "__init__", started)
    patch.setattr(pool, "run", charged)


def charged_afterwards(patch: pytest.MonkeyPatch) -> None:
    """The charge is made once the winner is known."""
    right = Ledger.release_once

    def release_once(self: Ledger, charge: Any, *, draw: Any) -> Any:
        answer = draw()
        return right(self, charge, draw=lambda: answer)

    patch.setattr(Ledger, "release_once", release_once)


def it_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A selection that was interrupted goes on for the charge that it made."""
    begin, right = RunDirectory.begin, Ledger.release_once

    def begun(self: RunDirectory, noise_source: str) -> None:
        if not self.facts_path.exists():
            begin(self, noise_source)

    def shared(file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def release_once(self: Ledger, charge: Any, *, draw: Any) -> Any:
        try:
            return right(self, charge, draw=draw)
        except UnsafeError:
            return draw(), self.reserved(charge.entry_id)

    patch.setattr(selection, "_check_new", lambda out: None)
    patch.setattr(selection, "claim", shared)
    patch.setattr(RunDirectory, "begin", begun)
    patch.setattr(Ledger, "release_once", release_once)
