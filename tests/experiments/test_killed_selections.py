"""A private selection that is killed has paid, released nothing, and is cleared away."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from distributed_privrl.cli.app import app
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.store import FOLDER_VARIABLE
from distributed_privrl.experiments.sweeps.memory import MEMORY
from distributed_privrl.experiments.sweeps.selection import select
from distributed_privrl.privacy.verification import verify_certificate
from tests.worlds.choosing import Choosing, drawn, make_quick
from tests.worlds.intake import RELEASED

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0
COMMAND = """
import sys, time
from pathlib import Path
import pytest
from distributed_privrl.cli import main
from distributed_privrl.experiments.sweeps.pool import SelectionWorker
from distributed_privrl.privacy.repetitions import TrialCount
from tests.worlds.choosing import make_quick

make_quick(pytest.MonkeyPatch())
TrialCount.draw = lambda self, bits=None: 4
tried, mark, ended = SelectionWorker._tried, Path(sys.argv.pop(1)), []

def until_killed(self, overrides, folder):
    kept = tried(self, overrides, folder)
    ended.append(kept)
    if len(ended) == 2:
        mark.with_suffix(".part").write_text(str(self._memory))
        mark.with_suffix(".part").rename(mark)
        time.sleep(600)
    return kept

SelectionWorker._tried = until_killed
main()
"""
"""The command line, where trials are quick, and the second one never ends."""


class Killed(Choosing):
    """A world in which selections are killed once their first trial has a score."""

    @property
    def environment(self) -> dict[str, str]:
        return {FOLDER_VARIABLE: str(self.store.root), "PRIVRL_LEDGER": self.url}

    def words(self, name: str) -> list[str]:
        return ["sweep", str(self.file), "--out", str(self.folder / name)]

    def privrl(self, *words: str) -> Result:
        return CliRunner().invoke(app, list(words), env=self.environment, prog_name="privrl")

    @contextmanager
    def middle(self, name: str) -> Iterator[Path]:
        """Yield the folder in memory of a selection that is in its second trial; then kill it."""
        mark = self.folder / f"mark-{name}"
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(mark), *self.words(name)],
            cwd=ROOT,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            end = time.monotonic() + PATIENCE
            while not mark.exists():
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < end, "no trial has ended"
                time.sleep(0.05)
            yield Path(mark.read_text())
        finally:
            process.send_signal(signal.SIGKILL)
            said = process.communicate()[0]
        assert process.returncode == -signal.SIGKILL
        shown = [line for line in said.splitlines() if line.startswith("private selection")]
        assert shown == ["private selection 0/1, how many trials there are, nobody learns"]

    def check_spent(self, name: str, entries: int) -> None:
        """Check that a killed selection is charged, and that nothing of it is to be had."""
        found = self.ledger.entries()
        assert [entry.status for entry in found] == ["open"] * entries
        assert all(self.ledger.answer(entry.id) is None for entry in found)
        (account,) = self.ledger.accounts()
        assert account.spent_epsilon == pytest.approx(sum(entry.epsilon for entry in found))
        assert RELEASED not in self.store.ids()
        out = self.folder / name
        kept = {str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()}
        assert kept == {"checkpoint/run.json", "sweep.yaml"}


def test_a_selection_that_is_killed_is_spent_and_leaves_nothing_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Killed(tmp_path)
    sweep = world.sweep()
    with world.middle("first") as first:
        assert first.parent == MEMORY
        assert list(first.rglob(RELEASED)), "the best trial lies in memory"
        assert first.stat().st_mode & 0o777 == 0o700
    world.check_spent("first", 1)

    resumed = world.privrl(*world.words("first"), "--resume")
    assert resumed.exit_code == 4
    assert "a private selection does not resume" in resumed.stderr
    again = world.privrl(*world.words("first"))
    assert again.exit_code == 2
    assert "does not go on" in again.stderr
    assert "choose another --out" in again.stderr
    (entry,) = world.ledger.entries()
    settled = world.privrl("ledger", "settle", entry.id.partition("/")[0], "--yes")
    assert world.ledger.accounts()[0].spent_epsilon == entry.epsilon, settled.output
    world.check_spent("first", 1)

    make_quick(monkeypatch)
    with drawn(2):
        done = select(
            sweep,
            LocalExecutor(),
            out=tmp_path / "second",
            ledger_url=world.url,
            store=world.store,
        )
    assert not first.exists(), "what was left in memory is destroyed by the next start"
    assert done.certificate is not None
    entries = world.ledger.entries()
    assert sorted(entry.status for entry in entries) == ["open", "settled"]
    assert len({entry.epsilon for entry in entries}) == 1
    (account,) = world.ledger.accounts()
    assert account.spent_epsilon == pytest.approx(2 * done.epsilon)
    verified = verify_certificate(
        tmp_path / "second" / "certificate.json",
        ledger=world.ledger,
        outputs_root=world.store.root,
    )
    (own,) = verified.certificate.ledger_entries
    assert next(one for one in entries if one.id == own).status == "settled"
