"""Makes pictures of the reports for the site: ``python -m tests.docs.screenshots``.

The tutorial's run is run, at its own size, in a folder of its own, and a headless Chromium looks at
both of its reports. Without a Chromium that starts there are no pictures: this says so, and the
site is built with a note in their place.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.docs.pages import ROOT, Fence, all_fences
from tests.docs.transcript import settings_of, typed

PICTURES = ROOT / "runs" / "screenshots"
PAGE = ROOT / "docs" / "tutorial.md"
REPORTS = {
    "report": "runs/health/report.html",
    "private-report": "runs/health/private/report.html",
}
"""Names of the pictures, and what the run wrote."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1100, 1500)
SECONDS = 120
_NOT_NEEDED = ("privrl init", "privrl plan", "privrl rehearse", "privrl certificate")


def main() -> None:
    """Make the pictures anew, or say that there are none."""
    shutil.rmtree(PICTURES, ignore_errors=True)
    found, problem = browser(), "no Chromium was found; `make chromium`, as root, installs it"
    if found is not None:
        problem = tried(found)
    if found is None or problem:
        sys.stderr.write(f"NO SCREENSHOTS: the site has no pictures of the reports: {problem}\n")
        return
    PICTURES.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for fence in needed(PAGE):
            if fence.name:
                (folder / fence.name).write_text(fence.text)
            else:
                typed(fence, folder, settings_of(folder))
        for picture, report in REPORTS.items():
            photograph(found, folder / report, PICTURES / f"{picture}.png")


def browser() -> str | None:
    """Return the path of a Chromium on this machine, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def tried(program: str) -> str:
    """Return why a browser takes no picture here, such as for want of a sandbox; empty: it does."""
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "page.html"
        page.write_text("<p>A page.</p>")
        try:
            photograph(program, page, page.with_suffix(".png"))
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return ""


def needed(page: Path) -> Iterator[Fence]:
    """Yield files and code of a page down to its run, without what the run does not need."""
    for fence in all_fences(page):
        if fence.name:
            yield fence
        elif fence.is_code and not fence.left_out:
            lines = fence.text.splitlines(keepends=True)
            kept = "".join(line for line in lines if not line.startswith(_NOT_NEEDED))
            yield replace(fence, text=kept)
            if "privrl run" in kept:
                return


def photograph(program: str, page: Path, picture: Path) -> None:
    """Write the beginning of a page, as a browser shows it, as PNG.

    Raises:
        ChildProcessError: the browser made none.
        subprocess.TimeoutExpired: it did not end.
    """
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *(program, "--headless", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", f"--window-size={SIZE[0]},{SIZE[1]}"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *(f"--screenshot={picture}", page.resolve().as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode or not picture.exists():
        raise ChildProcessError(f"{program} made no picture of {page}:\n{done.stderr}")


if __name__ == "__main__":
    main()
