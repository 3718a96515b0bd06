"""The wheel in a clean environment, outside the checkout: ``make wheel``.

It takes ``dist/*.whl``, as ``python -m build`` leaves it, and what the lock says of the rest.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

from tests.docs.pages import ROOT, all_fences, command_lines

Privrl = Callable[..., str]
"""Runs the command line with some words, and returns what it prints."""


def first_steps(privrl: Privrl, folder: Path) -> None:
    """Type the README's way from a CSV to a private dataset in ``folder``.

    Args:
        privrl: stands in ``folder``, with datasets and a ledger of its own.
        folder: an empty one.
    """
    readme = ROOT / "README.md"
    for fence in all_fences(readme):
        if fence.name in ("stays.csv", "schema.yaml", "bounds.yaml", "stays.yaml"):
            (folder / fence.name).write_text(fence.text)
    (beginning, *rest) = (
        number
        for number, line in enumerate(command_lines(readme))
        if line.startswith("privrl import ") or line.startswith("privrl export ")
    )
    for line in command_lines(readme)[beginning : rest[0] + 1]:
        print(f"$ {line}\n{privrl(*line.split()[1:])}")


def privrl_of(environment: Path, folder: Path) -> Privrl:
    """Return the command line of a virtual environment, which stands in ``folder``."""
    settings = {
        "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
        "HOME": str(folder),
        "MINARI_DATASETS_PATH": str(folder / "datasets"),
        "PRIVRL_LEDGER": f"sqlite:///{folder / 'ledger.sqlite'}",
        "OMP_NUM_THREADS": "1",
    }

    def privrl(*words: str) -> str:
        done = subprocess.run(
            [str(environment / "bin" / "privrl"), *words],
            cwd=folder,
            env=settings,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"privrl {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    return privrl


def main() -> None:
    """Install the wheel, and run the command line from there."""
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"dist/ must hold one wheel, it has {len(wheels)}: python -m build")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        environment, folder = Path(name) / "venv", Path(name) / "place"
        folder.mkdir()
        venv.create(environment, with_pip=True)
        pip = [str(environment / "bin" / "pip"), "--disable-pip-version-check", "install"]
        pip.append("--no-compile")  # of 20,000 modules most are never imported
        lock = ["-c", str(ROOT / "requirements.lock")]
        bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        subprocess.run([*pip, *lock, str(wheels[0])], check=True, cwd=folder, env=bare)
        privrl = privrl_of(environment, folder)
        print(privrl("--version"), privrl("--help"))
        first_steps(privrl, folder)
        print(privrl("demo", "--method", "apvi", "--out", "demo"))
    print(f"wheel: {wheels[0].name} works in {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
