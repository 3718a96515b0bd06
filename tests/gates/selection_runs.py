"""Private selections that are watched: what they leave behind, say, start and ask for."""

import contextlib
import logging
import os
import re
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.executor import LocalExecutor, LocalWorkerGroup
from distributed_privrl.experiments.sweeps.pool import SelectionWorker
from distributed_privrl.experiments.sweeps.selection import Selected
from distributed_privrl.privacy.repetitions import TrialCount
from tests.gates.leaks import TEXTS
from tests.worlds.choosing import Choosing, make_quick
from tests.worlds.events import as_text

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
RANDOM = re.compile(r"(?<![.\d])[0-9a-fA-F]{16,}|\d{4}-\d\d-\d\dT[\d:.+]+")
"""Ids, hashes and times; what tells of a selection must be found in something else."""
FORMLESS = {".parquet", ".hdf5", ".key"}
"""What is looked at by name alone; rows that were drawn are of any size."""


@dataclass
class Seen:
    """What there is to see of a selection.

    Args:
        world: where it was.
        count: how many trials were drawn.
        result: what it gave; None: it ended otherwise.
        ended: the error it ended with.
        tried: trials that were begun.
        charged_at_draw: charges in the ledger when the number was drawn, one a draw.
        over: when the last trial had ended.
        said: on standard output and error, and logged, and warned of.
        progress: what progress was told.
        asked: processes that were started, and what was asked of all of them.
    """

    world: Choosing
    count: int
    result: Selected | None = None
    ended: BaseException | None = None
    tried: int = 0
    charged_at_draw: list[list[str]] = field(default_factory=list)
    over: float = 0.0
    said: str = ""
    progress: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def files(self) -> dict[str, str]:
        """Text of every file of the world, by its path; of a database, what is in it."""
        root = self.world.folder
        return {
            str(path.relative_to(root)): _text(path)
            for path in sorted(root.rglob("*"))
            if not path.is_dir()
        }

    @property
    def texts(self) -> dict[str, str]:
        """All that can be read, by where it is."""
        texts = {
            **self.files,
            "what was said": self.said,
            "progress": "\n".join(self.progress),
            "processes": "\n".join(self.asked),
        }
        here = str(self.world.folder)
        return {where: text.replace(here, "") for where, text in texts.items()}


def forms(texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts without their numbers, ids and times: what is left is their form."""
    return {where: NUMBER.sub("#", RANDOM.sub("*", text)) for where, text in texts.items()}


def numbers(texts: Mapping[str, str]) -> dict[str, list[float]]:
    """Return the numbers of texts, in their order."""
    return {
        where: [float(one) for one in NUMBER.findall(RANDOM.sub("*", text))]
        for where, text in texts.items()
    }


def _text(path: Path) -> str:
    if path.suffix == ".sqlite":
        with contextlib.closing(sqlite3.connect(path)) as database:
            return "\n".join(database.iterdump())
    if path.suffix == ".tfevents":
        return as_text(path)
    if path.suffix in FORMLESS:
        return ""
    assert path.suffix in TEXTS, f"{path} is of a kind that nobody looks into"
    return path.read_text()


class WatchingExecutor(LocalExecutor):
    """Runs workers in this process, and notes down what is started and asked."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self._asked = asked

    def start(self, worker_cls: type, shards: Sequence[Any], **options: Any) -> LocalWorkerGroup:
        self._asked.append(f"{worker_cls.__name__} x {len(shards)}")
        group = super().start(worker_cls, shards, **options)
        call = group.call

        def noted(method: str, *arguments: Any, **keywords: Any) -> list[Any]:
            self._asked.append(method)
            return call(method, *arguments, **keywords)

        group.call = noted  # type: ignore[method-assign]
        return group


def watched_selection(
    folder: Path,
    count: int,
    *,
    fails: Callable[[int], bool] = lambda number: False,
    interrupts: int | None = None,
    between: Callable[[Seen], None] | None = None,
    **changes: Any,
) -> Seen:
    """Run a private selection of so many trials.

    Args:
        folder: a new one.
        count: of trials.
        fails: says of which trials, by their number from 0 on, nothing comes.
        interrupts: the trial in which somebody presses Ctrl-C.
        between: called with what was seen before the same is asked for once more.
        changes: of the sweep.
    """
    folder.mkdir(parents=True)
    seen = Seen(world=Choosing(folder), count=count)
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        for name in ("tmp", "home"):
            (folder / name).mkdir()
        patch.setattr(tempfile, "tempdir", str(folder / "tmp"))
        for variable in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            patch.setenv(variable, str(folder / "home"))
        _watch_draws(patch, seen)
        _watch_trials(patch, seen, fails, interrupts)
        _select(seen, **changes)
        if between is not None:
            between(seen)
            _select(seen, **changes)
    return seen


def _select(seen: Seen, **changes: Any) -> None:
    seen.result = seen.ended = None
    with heard(seen):
        try:
            seen.result = seen.world.select(
                executor=WatchingExecutor(seen.asked),
                progress=lambda *facts: seen.progress.append(" ".join(map(str, facts))),
                **changes,
            )
        except BaseException as error:
            seen.ended = error


def _watch_draws(patch: pytest.MonkeyPatch, seen: Seen) -> None:
    def draw(self: TrialCount, bits: Any = None) -> int:
        entries = seen.world.ledger.entries()
        seen.charged_at_draw.append([entry.id for entry in entries])
        return seen.count

    patch.setattr(TrialCount, "draw", draw)


def _watch_trials(
    patch: pytest.MonkeyPatch,
    seen: Seen,
    fails: Callable[[int], bool],
    interrupts: int | None,
) -> None:
    """Count trials, let some of them fail, and let all of them talk."""
    right = SelectionWorker._tried

    def tried(self: Any, overrides: Any, folder: Path) -> Any:
        number, seen.tried = seen.tried, seen.tried + 1
        print(f"trial {number}")
        os.write(1, f"trial {number}\n".encode())
        os.write(2, f"trial {number}\n".encode())
        logging.getLogger("distributed_privrl.trials").error("trial %d", number)
        warnings.warn(f"trial {number}", stacklevel=1)
        if number == interrupts:
            raise KeyboardInterrupt
        if fails(number):
            raise ValueError(f"trial {number} fails")
        kept = right(self, overrides, folder)
        seen.over = time.time()
        return kept

    patch.setattr(SelectionWorker, "_tried", tried)


@contextlib.contextmanager
def heard(seen: Seen) -> Iterator[None]:
    """Note down what is written to standard output and error by anything, logged or warned of."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    with tempfile.TemporaryFile("w+", dir="/tmp") as heard_by, contextlib.ExitStack() as stack:
        for stream in (1, 2):
            kept = os.dup(stream)
            stack.callback(os.close, kept)
            os.dup2(heard_by.fileno(), stream)
            stack.callback(os.dup2, kept, stream)
        warned = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        logging.getLogger().addHandler(handler)
        stack.callback(logging.getLogger().removeHandler, handler)
        yield
        heard_by.seek(0)
        lines += heard_by.read().splitlines()
        lines += [str(one.message) for one in warned]
    seen.said += "\n".join(lines)
