"""``doctor``: whether this machine can run everything, and what to do where it cannot."""

import importlib.metadata
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from distributed_privrl.cli.helptext import LedgerUrl, examples
from distributed_privrl.cli.text import show_table
from distributed_privrl.core.errors import PrivRLError
from distributed_privrl.core.memory import available_memory

if TYPE_CHECKING:
    from distributed_privrl.data.store import DatasetStore

PYTHON = (3, 11)
PACKAGES = {
    "distributed_privrl": "distributed_privrl",
    "torch": "torch",
    "ray": "ray",
    "numpy": "numpy",
    "dp-accounting": "dp_accounting",
    "opendp": "opendp",
    "gymnasium": "gymnasium",
    "minari": "minari",
}
"""Distributions and the module of each: imported in a process of its own, which may crash."""

ENVIRONMENT_MODULES = ("gymnasium_robotics", "mujoco", "dm_control", "Box2D", "icu_sepsis")
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
GIB = 2**30
WANTED_MEMORY, LEAST_MEMORY = 8 * GIB, 2 * GIB
WANTED_DISK, LEAST_DISK = 10 * GIB, GIB
IMPORT_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the doctor.

    Args:
        level: ``problem`` stops some verb, ``warn`` costs speed or comfort.
        name: what was looked at.
        text: what was found.
        advice: what to do about it.
    """

    level: Literal["ok", "warn", "problem"]
    name: str
    text: str
    advice: str = ""


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "doctor",
        epilog=examples(
            "privrl doctor",
            "privrl doctor --ledger postgresql://privrl@db.internal/ledger",
            "privrl doctor --measure",
        ),
    )(doctor)


def doctor(
    ledger: LedgerUrl = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="measure how fast it is, for the minutes of `privrl plan`"),
    ] = False,
) -> None:
    """Check whether this machine can run everything.

    Looks at Python, packages, processor, threads, memory, disk, datasets, ledger and Ray's token.
    With --measure it runs small runs on invented rows for a minute or two, and keeps what they took
    in your data folder: `privrl plan` makes minutes and memory of it.
    """
    if measure:
        _measure()
        return
    findings = list(examine(ledger=ledger))
    show_table(
        ("level", "what", "finding"),
        [
            (finding.level, finding.name, "; ".join(filter(None, (finding.text, finding.advice))))
            for finding in findings
        ],
    )
    problems = sum(finding.level == "problem" for finding in findings)
    if problems:
        typer.echo(f"error: {problems} problem(s): do what the lines above say", err=True)
        raise typer.Exit(1)


def _measure() -> None:
    """Measure this machine, keep what was found, and say it."""
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.experiments.speed_probe import measure
    from distributed_privrl.experiments.speeds import store_speeds

    with shown_progress() as progress:
        found = measure(f"this machine ({os.cpu_count()} CPUs)", progress=progress)
    path = store_speeds(found)
    show_table(
        ("work", "seconds of a core"),
        [
            ("a run's start and reports", f"{found.start:.1f}"),
            ("a joint count of marginals", f"{found.joint_count:.2f}"),
            ("a private round", f"{found.round:.3f}"),
            ("1,000 steps of a small network's training", f"{1e3 * found.learned_step:.2f}"),
            ("1,000 rows of 100,000 weights, clipped", f"{1e8 * found.private_row:.3f}"),
            ("the same, plain", f"{1e8 * found.learned_row:.3f}"),
            ("the same, drawn", f"{1e8 * found.drawn_row:.3f}"),
        ],
    )
    typer.echo(f"kept in {path}")


def examine(*, ledger: str | None) -> Iterator[Finding]:
    """Yield what was found, one finding after the other.

    Args:
        ledger: URL of the ledger; None: the default one.
    """
    from distributed_privrl.data.store import DatasetStore

    store = DatasetStore()
    yield python_version(sys.version_info[:3])
    for distribution, module in PACKAGES.items():
        yield package(distribution, module)
    yield environments()
    yield processor(Path("/proc/cpuinfo"))
    yield threads(os.environ.get("OMP_NUM_THREADS"))
    yield memory(available_memory())
    kept = store.root.parent if store.is_remote else store.root
    for name, folder in (("disk here", Path()), ("disk of datasets", kept)):
        yield disk(name, folder)
    if store.is_remote:
        yield datasets_stored(store)
    else:
        yield datasets_folder(store.root, lambda: len(store.ids()))
    yield from ledger_findings(ledger)
    yield ray_token()


def python_version(version: tuple[int, ...]) -> Finding:
    """Judge the version of Python."""
    text = ".".join(map(str, version))
    if version[:2] == PYTHON:
        return Finding(level="ok", name="python", text=text)
    wanted = ".".join(map(str, PYTHON))
    return Finding(level="problem", name="python", text=text, advice=f"use Python {wanted}")


def package(distribution: str, module: str) -> Finding:
    """Import one package in another process."""
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            level="problem",
            name=distribution,
            text="not installed",
            advice="install again: pip install -c requirements.lock -e .",
        )
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(
            level="problem",
            name=distribution,
            text=f"{version} takes longer than {IMPORT_SECONDS} s to import",
            advice="free the processor or the disk, then look again",
        )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Finding(
            level="problem",
            name=distribution,
            text=f"{version} cannot be imported ({reason})",
            advice="install again: pip install -c requirements.lock -e .",
        )
    return Finding(level="ok", name=distribution, text=version)


def environments() -> Finding:
    """Look for the packages of the extra ``envs``."""
    missing = [name for name in ENVIRONMENT_MODULES if importlib.util.find_spec(name) is None]
    if not missing:
        return Finding(level="ok", name="extra envs", text="installed")
    return Finding(
        level="warn",
        name="extra envs",
        text=f"{', '.join(missing)} missing",
        advice="pip install 'distributed_privrl[envs]' brings the mazes and other environments",
    )


def processor(cpuinfo: Path) -> Finding:
    """Read which fast instructions the processor has."""
    if not cpuinfo.is_file():
        return Finding(level="ok", name="processor", text=f"{os.cpu_count()} CPUs")
    flags = next(
        (line.split() for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), []
    )
    found = [name for name in CPU_FEATURES if name in flags]
    text = f"{os.cpu_count()} CPUs, {' '.join(found) or 'no AVX2'}"
    if "amx_bf16" in found or "avx512_bf16" in found:
        return Finding(level="ok", name="processor", text=text)
    return Finding(
        level="warn",
        name="processor",
        text=text,
        advice="no bf16 (AMX or AVX-512 BF16): sampling takes several times longer",
    )


def threads(value: str | None) -> Finding:
    """Judge ``OMP_NUM_THREADS``, which is 1 unless the user set it."""
    text = f"OMP_NUM_THREADS={value}"
    if value == "1":
        return Finding(level="ok", name="threads", text=text)
    return Finding(
        level="warn",
        name="threads",
        text=text,
        advice="unset it: workers run in parallel, threads inside them slow each other down",
    )


def memory(available: int | None) -> Finding:
    """Judge how many bytes of memory are free."""
    if available is None:
        return Finding(level="ok", name="memory", text="unknown on this system")
    return _amount(
        "memory",
        available,
        least=LEAST_MEMORY,
        wanted=WANTED_MEMORY,
        text="available",
        advice="lower runtime.workers or close other programs",
    )


def disk(name: str, folder: Path) -> Finding:
    """Judge the free space of the disk that holds ``folder``, which need not exist yet."""
    free = shutil.disk_usage(existing_parent(folder)).free
    return _amount(
        name,
        free,
        least=LEAST_DISK,
        wanted=WANTED_DISK,
        text=f"free at {folder.absolute()}",
        advice="free some space or choose another folder",
    )


def datasets_folder(root: Path, count: Callable[[], int]) -> Finding:
    """Say whether datasets can be written, and how many there are."""
    name = "datasets"
    if not os.access(existing_parent(root), os.W_OK | os.X_OK):
        return Finding(
            level="problem",
            name=name,
            text=f"{root} cannot be written",
            advice="set MINARI_DATASETS_PATH to a folder that can",
        )
    return Finding(level="ok", name=name, text=f"{count()} in {root}")


def datasets_stored(store: "DatasetStore") -> Finding:
    """Say whether an object store answers, and how many datasets it has."""
    from distributed_privrl.core.errors import StorageError

    unseen = "whether the bucket encrypts cannot be seen from here"
    try:
        text = f"{len(store.ids())} in {store.shown}; {unseen}"
        return Finding(level="ok", name="datasets", text=text)
    except StorageError as error:
        text, _, advice = str(error).rpartition(": ")
        return Finding(level="problem", name="datasets", text=text, advice=advice)


def ledger_findings(url: str | None) -> Iterator[Finding]:
    """Say where the ledger is and whether it can be used; makes none."""
    from distributed_privrl.privacy.ledger import Ledger
    from distributed_privrl.privacy.ledger.storage import ledger_source, ledger_url, shown_url

    name = "ledger"
    try:
        parsed = ledger_url(url)
        shown = shown_url(parsed)
        path = Path(str(parsed.database))
        if parsed.get_backend_name() == "sqlite" and not path.exists():
            yield _new_ledger(name, f"{shown} (from {ledger_source(url)})", path)
            return
        opened = Ledger(url)
        try:
            text = f"{len(opened.accounts())} budgets in {shown}"
        finally:
            opened.close()
    except PrivRLError as error:
        yield Finding(level="problem", name=name, text=str(error))
        return
    yield Finding(level="ok", name=name, text=text)
    if parsed.get_backend_name() == "sqlite" and not os.access(path, os.W_OK):
        yield Finding(
            level="problem",
            name=name,
            text=f"{path} is read-only",
            advice="give yourself the right",
        )


def _new_ledger(name: str, shown: str, path: Path) -> Finding:
    if os.access(existing_parent(path), os.W_OK | os.X_OK):
        return Finding(level="ok", name=name, text=f"will be made at {shown}")
    return Finding(
        level="problem",
        name=name,
        text=f"{shown} cannot be made",
        advice="give --ledger or PRIVRL_LEDGER a URL such as sqlite:////data/ledger.sqlite",
    )


def ray_token() -> Finding:
    """Judge who may read Ray's token: who has it can read sums before the noise."""
    from distributed_privrl.runtime.session import TOKEN_FILE

    path = TOKEN_FILE.expanduser()
    if not path.exists():
        return Finding(level="ok", name="ray token", text="none yet: each run makes its own")
    mode = stat.S_IMODE(path.stat().st_mode)
    text = f"{path} has mode {mode:04o}"
    if mode & 0o077:
        return Finding(
            level="warn",
            name="ray token",
            text=text,
            advice=f"others can read it: chmod 600 {path}",
        )
    return Finding(level="ok", name="ray token", text=text)


def existing_parent(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    absolute = path.expanduser().absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.exists())


def _amount(name: str, value: int, *, least: int, wanted: int, text: str, advice: str) -> Finding:
    shown = f"{value / GIB:.1f} GiB {text}"
    if value >= wanted:
        return Finding(level="ok", name=name, text=shown)
    return Finding(
        level="problem" if value < least else "warn", name=name, text=shown, advice=advice
    )
