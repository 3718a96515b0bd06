"""Runs the code of a page, or of a notebook, as a reader would type it, at tiny sizes."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.evaluation import plots, two_sample
from distributed_privrl.experiments.sweeps.job import Job
from distributed_privrl.experiments.sweeps.trial import run_trial
from distributed_privrl.privacy.ledger.storage import ledger_url
from distributed_privrl.runtime import launch, tuning
from tests.docs.pages import ROOT, Fence, all_fences
from tests.panels import OnePanelled

Smaller = Callable[[Sequence[str]], Sequence[str]]
"""Returns what is added to a command's words (verb first), so that it ends in a second or two."""


def in_folder(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Type in ``folder``, beside the repository's configurations; no Ray is started."""
    if not (folder / "tune_configs").exists():
        (folder / "tune_configs").symlink_to(ROOT / "tune_configs")
    patch.chdir(folder)
    patch.setattr(launch, "start_executor", lambda runtime: LocalExecutor())
    patch.setattr(tuning, "run_jobs", _one_after_another)


def leave_out_pictures(patch: pytest.MonkeyPatch) -> None:
    """Make what is in reports, but no pictures, and no trees that tell rows apart."""
    patch.setattr(plots, "Figure", OnePanelled)
    patch.setattr(plots, "render", lambda *_: b"<svg/>")
    patch.setattr(two_sample, "area", lambda *_, **__: 0.75)


def _one_after_another(jobs: Sequence[Job], *, ledger: str | None, **_: Any) -> list[Exception]:
    for job in jobs:
        run_trial(job, LocalExecutor(), ledger=str(ledger_url(ledger)))
    return []


def run_code(
    page: Path,
    patch: pytest.MonkeyPatch,
    *,
    smaller: Smaller = lambda words: (),
    names: Mapping[str, Any] | None = None,
) -> list[str]:
    """Run what a page quotes and does not leave out; return the command lines that were run.

    Args:
        page: its blocks run in order, Python's in one namespace.
        patch: of the environment's variables.
        smaller: keeps commands short.
        names: what the page's Python takes as given.
    """
    own = dict(os.environ)
    lines: list[str] = []
    namespace: dict[str, Any] = dict(names or {})
    for fence in all_fences(page):
        if not fence.is_code or fence.left_out:
            continue
        if fence.language == "python":
            exec(compile(fence.text, f"{page.name}: {fence.text[:40]!r}", "exec"), namespace)
            continue
        for line in _lines(fence):
            _type(line, fence.exit_code, own, patch, smaller)
            lines.append(line)
    return lines


def _lines(fence: Fence) -> list[str]:
    lines = [line.split("  #")[0].strip() for line in fence.text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _type(
    line: str, expected: int, own: Mapping[str, str], patch: pytest.MonkeyPatch, smaller: Smaller
) -> None:
    verb, *words = shlex.split(os.path.expandvars(line.replace("$PWD", str(Path.cwd()))))
    if verb == "export":
        for name, value in (word.split("=", 1) for word in words):
            patch.setenv(name, value)
        return
    if verb == "unset":
        for name in words:
            patch.setenv(name, own[name])
        return
    assert verb == "privrl", f"{line}: only privrl, export and unset are run; leave out the rest"
    done = CliRunner().invoke(app, [*words, *smaller(words)], prog_name="privrl")
    assert done.exit_code == expected, f"{line}\n{done.output}"


def run_cells(
    cells: Sequence[str], patch: pytest.MonkeyPatch, *, smaller: Smaller = lambda words: ()
) -> tuple[list[str], int]:
    """Run the code of a notebook; return the command lines that it typed, and its plots.

    Its commands run in this process, where a notebook starts one for each.

    Args:
        cells: run in order, in one namespace.
        patch: of what starts processes and shows plots.
        smaller: keeps commands short.
    """
    lines: list[str] = []
    plots = 0

    def typed(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", "distributed_privrl.cli"], command
        words = list(command[3:])
        lines.append(shlex.join(["privrl", *words]))
        done = CliRunner().invoke(app, [*words, *smaller(words)], prog_name="privrl")
        return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)

    def shown() -> None:
        nonlocal plots
        plots += 1
        assert plt.get_fignums(), "nothing is plotted"
        for number in plt.get_fignums():
            assert all(axes.has_data() for axes in plt.figure(number).axes)
        plt.close("all")

    patch.setattr(subprocess, "run", typed)
    patch.setattr(plt, "show", shown)
    namespace: dict[str, Any] = {}
    for cell in cells:
        exec(compile(cell, cell[:60], "exec"), namespace)
    return lines, plots
