"""Known vulnerabilities of what ``requirements.lock`` names: ``make audit-deps``.

pip-audit lives in an environment of its own, `.venv-audit`: it is no dependency of the package.
Where it cannot be installed, or its service knows none of the packages (a mirror of an index has no
advisories, and pip-audit then finds "no known vulnerabilities"), nothing was audited: that is said,
and is no failure.
"""

import json
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-audit"
NOT_RUN = "audit-deps did not run"
OPTIONS = ("--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json")

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)


def audit(run: Run = _run, environment: Path = ENVIRONMENT) -> int:
    """Audit the lock, say what was found, and return the exit code.

    Args:
        run: runs a command.
        environment: where pip-audit is.
    """
    tool = environment / "bin" / "pip-audit"
    if not tool.exists():
        venv.create(environment, with_pip=True)
        words = [str(environment / "bin" / "python"), "-m", "pip", "-q", "install", "pip-audit"]
        if run(words).returncode:
            return _not_run("pip-audit could not be installed")
    done = run([str(tool), *OPTIONS, "-r", str(ROOT / "requirements.lock")])
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return _not_run(f"its service could not be asked ({reason[:200]})")
    audited = [package for package in found if "vulns" in package]
    if not audited:
        return _not_run("its service knows none of the packages")
    vulnerable = [package for package in audited if package["vulns"]]
    for package in vulnerable:
        names = ", ".join(one["id"] for one in package["vulns"])
        sys.stdout.write(f"{package['name']} {package['version']}: {names}\n")
    skipped = [package["name"] for package in found if "vulns" not in package]
    sys.stdout.write(
        f"{len(audited)} packages audited, {len(vulnerable)} with known vulnerabilities\n"
    )
    if skipped:
        sys.stdout.write(f"not audited: {', '.join(skipped)}\n")
    return int(bool(vulnerable))


def _not_run(reason: str) -> int:
    sys.stdout.write(f"{NOT_RUN}: {reason}; nothing is known of vulnerabilities\n")
    return 0


if __name__ == "__main__":
    sys.exit(audit())
