"""What ``make audit-deps`` says, whatever pip-audit answers."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.audit_deps import NOT_RUN, audit

GOOD = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found"}
OFFLINE = "requests.exceptions.ConnectionError: refused"


@pytest.mark.parametrize(
    ("dependencies", "code", "said"),
    [
        ([GOOD], 0, "1 packages audited, 0 with known vulnerabilities"),
        ([GOOD, BAD], 1, "b 2: CVE-1, CVE-2"),
        ([GOOD, UNKNOWN], 0, "not audited: c"),
        ([UNKNOWN], 0, f"{NOT_RUN}: its service knows none of the packages"),
        (None, 0, f"{NOT_RUN}: its service could not be asked ({OFFLINE})"),
    ],
)
def test_only_what_was_audited_counts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    dependencies: list[dict[str, object]] | None,
    code: int,
    said: str,
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip-audit").touch()
    text = "" if dependencies is None else json.dumps({"dependencies": dependencies})

    def run(words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([str(words)], 1, text, f"Traceback\n{OFFLINE}\n")

    assert audit(run, tmp_path) == code
    assert said in capsys.readouterr().out


def test_a_tool_that_cannot_be_installed_is_no_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.audit_deps.venv.create", lambda *_, **__: None)
    failed = subprocess.CompletedProcess([""], 1, "", "no index")
    assert audit(lambda _: failed, tmp_path) == 0
    assert f"{NOT_RUN}: pip-audit could not be installed" in capsys.readouterr().out
