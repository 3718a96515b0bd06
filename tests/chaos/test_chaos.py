"""A few of the kills that ``make chaos`` makes all of: each command ends, whole."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SEED = 1
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of a short harness; in a process of its own, which forks for each kill."""
    words = ("--short", "--seed", str(SEED), "--work", str(tmp_path_factory.mktemp("chaos")))
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_run_that_is_disturbed_ends_as_if_it_were_not(rows: list[dict[str, Any]]) -> None:
    found = [row for row in rows if "fault" in row]
    assert [row["error"] for row in found] == [None] * 4
    assert {row["fault"] for row in found} == {
        *("SIGKILL", "SIGHUP", "replies late and doubled", "ledger deleted"),
    }
    assert {row["ended"] for row in found} <= {"--resume", "by itself", "before the kill", "spent"}


@pytest.mark.parametrize(
    "what",
    [
        "between run.json and config.yaml",
        "while the certificate is attached",
        "a resume that removes the dataset",
    ],
)
def test_a_paid_run_goes_on(rows: list[dict[str, Any]], what: str) -> None:
    (row,) = [row for row in rows if row.get("what") == what]
    assert row["error"] is None
    begun = what != "between run.json and config.yaml"
    assert (row["ended"], row["calls"]) == ("--resume" if begun else "called again", 1)


def test_imports_and_collections_that_were_killed_leave_nothing(rows: list[dict[str, Any]]) -> None:
    others = [row for row in rows if not row.get("scenario", "run").startswith("run")]
    assert {row["scenario"] for row in others} == {
        *("import, sensitive", "import, public", "collect, replay", "collect, experts"),
    }
    assert [row for row in others if row["error"]] == []
    assert {row["ended"] for row in others} <= {"called again", "before the kill"}
    assert "called again" in {row["ended"] for row in others}
