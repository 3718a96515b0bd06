"""Where long work is, on standard error: bars on a terminal, lines elsewhere.

How long a step of private rounds takes depends on how many units took part, which is private
(PRIVACY.md, section 5). So times are shown for stages that are known to read no sensitive row, and
for no others: a stage that is new shows its count alone.
"""

import contextlib
import sys
import time
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from distributed_privrl.cli.logs import as_json, progress_line
from distributed_privrl.core import interrupts
from distributed_privrl.core.progress import Progress, mark_of

TIMED_STAGES = ("collecting", "public pre-training", "sampling", "training agents")
"""How the names of the stages start that read public and synthetic rows alone."""


def is_timed(stage: str) -> bool:
    """Say whether rate and remaining time of a stage may be shown.

    Privacy: ``private rounds`` and every stage that is not in ``TIMED_STAGES`` may not.
    """
    return stage.startswith(TIMED_STAGES)


@contextlib.contextmanager
def shown_progress(console: Console | None = None) -> Iterator[Progress]:
    """Yield what work tells its progress to, and tidy the terminal up at the end.

    Args:
        console: where it is shown; default standard error.
    """
    console = console or Console(file=sys.stderr)
    if not console.is_terminal:
        yield PlainProgress()
        return
    with Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    ) as bars:
        yield BarProgress(bars)


class TimeColumn(ProgressColumn):
    """Rate and remaining time of a stage that may show them; nothing for the others."""

    def render(self, task: Task) -> Text:
        """Return the text beside the bar of one stage."""
        if not is_timed(task.description) or task.speed is None:
            return Text("")
        left = "" if task.time_remaining is None else f" {task.time_remaining:.0f} s left"
        return Text(f"{task.speed:.3g}/s{left}")


class BarProgress:
    """One bar a stage. Work that tells of a step rests, and is stopped if that was asked for.

    Args:
        bars: the display.
    """

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._stages = {task.description: task.id for task in bars.tasks}

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Move the stage's bar; see `core.progress.Progress`."""
        if stage not in self._stages:
            self._stages[stage] = self._bars.add_task(stage, total=total, note=note)
        self._bars.update(self._stages[stage], completed=done, total=total, note=note)
        interrupts.rest()


class PlainProgress:
    """A line at the start, at a hundredth, at every tenth and at the end of a stage.

    Work that tells of a step rests, and is stopped if that was asked for.
    """

    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, str]] = {}
        self._started: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Write a line if the stage came to its next mark; see `core.progress.Progress`.

        The first hundredth is one, so that a long stage soon shows that it goes on. At the end
        another note is another line: what ends after the last step is told, too.
        """
        self._tell(stage, done, total, note)
        interrupts.rest()

    def _tell(self, stage: str, done: int, total: int, note: str) -> None:
        mark = mark_of(done, total)
        if self._shown.get(stage) == (shown := (mark, note if mark == 100 else "")):
            return
        self._shown[stage] = shown
        started = self._started.setdefault(stage, time.monotonic())
        seconds = f"{time.monotonic() - started:.0f}" if is_timed(stage) and done else ""
        if as_json():
            typer.echo(progress_line(stage, done, total, seconds=seconds, note=note), err=True)
            return
        parts = (f"{stage} {done}/{total}", f"{seconds} s" if seconds else "", note)
        typer.echo(", ".join(part for part in parts if part), err=True)
