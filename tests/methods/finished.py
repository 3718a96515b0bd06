"""A finished run, opened again as an audit opens it."""

from pathlib import Path

import pytest

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.stages.context import RunContext


def ledger_of(folder: Path) -> str:
    """Return the URL of a ledger in ``folder``."""
    return f"sqlite:///{folder / 'ledger.sqlite'}"


def finished_run(
    settings: RunConfig, store: DatasetStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[program.RunResult, RunContext]:
    """Run without reports in ``folder``/run; return the result and a context around it."""
    url = ledger_of(folder)
    set_budget(settings, store, url)
    monkeypatch.setattr(program, "write_reports", lambda *_: None)
    result = program.run(settings, LocalExecutor(), out=folder / "run", ledger_url=url, store=store)
    context = RunContext(
        run_id=result.directory.run_id,
        folder=result.directory.working(private=True),
        executor=LocalExecutor(),
        store=store,
        ledger=Ledger(url),
        fingerprint="",
        progress=silent,
    )
    return result, context
