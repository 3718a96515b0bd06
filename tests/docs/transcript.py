"""Writes what the commands of a page print below them: ``python -m tests.docs.transcript PAGE``.

A block of language ``output`` shows what the block of code before it printed. The page's code is
run in order, in a new folder, with datasets and a ledger of its own; files that the page shows are
there from the beginning. What is printed is not shortened but for progress and for ``MOST_LINES``.
The number behind ``<!-- seconds -->`` is the CPU time of all of it, which is much the same whatever
else a machine does.
"""

import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.docs.pages import ROOT, Fence, all_fences

MOST_LINES = 30
_PROGRESS = re.compile(r"^.+ \d+/\d+(,.*)?$|^initiated datasets repo")


def main() -> None:
    """Write the transcripts of the pages that the command line names."""
    for name in sys.argv[1:]:
        page = Path(name).resolve()
        page.write_text(with_transcript(page))


def with_transcript(page: Path) -> str:
    """Return the page with the outputs of its code as they are now."""
    text, place, start = page.read_text(), 0, cpu_seconds()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = settings_of(folder)
        printed = ""
        for fence in all_fences(page):
            if fence.name:
                (folder / fence.name).write_text(fence.text)
            if fence.is_code and not fence.left_out:
                printed = typed(fence, folder, settings)
            elif fence.language == "output":
                block = f"```output\n{fence.text}```"
                place = text.index(block, place)
                new = f"```output\n{printed.replace(name, '.')}```"
                text = text[:place] + new + text[place + len(block) :]
                place += len(new)
    seconds = f"{cpu_seconds() - start:.0f}"
    sys.stderr.write(f"{page.relative_to(ROOT)}: {seconds} CPU s\n")
    return re.sub(r"(?<=<!-- seconds -->)\d+", seconds, text)


def cpu_seconds() -> float:
    """Return the CPU time of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def settings_of(folder: Path) -> dict[str, str]:
    """Return the variables under which a page is typed: datasets and ledger lie in ``folder``."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MINARI_DATASETS_PATH": str(folder / "datasets"),
        "PRIVRL_LEDGER": f"sqlite:///{folder / 'ledger.sqlite'}",
        "COLUMNS": "100",
    }


def typed(fence: Fence, folder: Path, settings: Mapping[str, str]) -> str:
    """Run a block and return the last lines of what it prints, progress left out."""
    if fence.language == "python":
        command = [sys.executable, "-c", fence.text]
    else:
        program = f"{sys.executable} -m distributed_privrl.cli "
        command = ["bash", "-ec", re.sub(r"^privrl ", program, fence.text, flags=re.M)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != fence.exit_code:
        raise SystemExit(f"{fence.text}\n{done.stdout}")
    lines = [line.rstrip() for line in done.stdout.splitlines() if not _PROGRESS.match(line)]
    kept = lines if len(lines) <= MOST_LINES else [*lines[:MOST_LINES], ".."]
    return "".join(f"{line}\n" for line in kept)


if __name__ == "__main__":
    main()
