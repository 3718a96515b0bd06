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
    """What came of the kills; in a process of their own, which forks for each."""
    work = tmp_path_factory.mktemp("chaos")
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--short", "--seed", str(SEED), "--work", str(work)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "what",
    [
        "between run.json and config.yaml",
        "while the certificate is attached",
        "a resume that removes the dataset",
    ],
)
def test_a_paid_run_goes_on(rows: list[dict[str, Any]], what: str) -> None:
    (row,) = [row for row in rows if row["what"] == what]
    assert row["error"] is None
    begun = what != "between run.json and config.yaml"
    assert (row["ended"], row["calls"]) == ("--resume" if begun else "called again", 1)


def test_imports_and_collections_that_were_killed_leave_nothing(rows: list[dict[str, Any]]) -> None:
    others = [row for row in rows if not row["scenario"].startswith("run")]
    assert {row["scenario"] for row in others} == {
        *("import, sensitive", "import, public", "collect, replay", "collect, experts"),
    }
    assert [row for row in others if row["error"]] == []
    assert {row["ended"] for row in others} <= {"called again", "before the kill"}
    assert "called again" in {row["ended"] for row in others}
