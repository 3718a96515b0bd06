"""The admissions, and tiny private selections on them: the judge is another hospital's table."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.evaluation import plots
from distributed_privrl.experiments import reports
from distributed_privrl.experiments.sweeps import selection
from distributed_privrl.experiments.sweeps.config import Sweep, load_sweep
from distributed_privrl.experiments.sweeps.pool import PoolSpec, SelectionWorker
from distributed_privrl.experiments.sweeps.selection import Selected, select
from distributed_privrl.marginals import belief
from distributed_privrl.privacy.repetitions import TrialCount
from tests.marginals.programs import chained
from tests.worlds.intake import Intake, config_values, public_admissions, write
from tests.worlds.overrides import changed

JUDGE = "intake/judge-v0"
SEEDS = [0, 10**9]
"""So many that no two trials draw one, and no value of one is met by chance."""


def sweep_values(bounds: Path, **changes: Any) -> dict[str, Any]:
    """Return a private selection; ``section__key=value`` changes it."""
    values = config_values(
        bounds,
        search={"model.bins": {"choice": [4, 6]}, "seed": {"integers": SEEDS}},
        selection={
            "pays": "private",
            "law": "geometric",
            "mean": 3,
            "actors": 2,
            "score": {"by": "fidelity", "to": JUDGE},
        },
    )
    return changed(values, changes)


class Choosing(Intake):
    """The admissions, a judge, a ledger with a budget, and a folder in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        write(self.store, JUDGE, public_admissions(200), metadata={"declared_public": True})
        self.memory = folder / "memory"
        self.memory.mkdir()
        self.budget()

    @property
    def file(self) -> Path:
        return self.folder / "sweep.yaml"

    def sweep(self, **changes: Any) -> Sweep:
        """Write a sweep's file, and return what it says."""
        self.file.write_text(yaml.safe_dump(sweep_values(self.bounds, **changes)))
        return load_sweep(self.file)

    def select(
        self,
        name: str = "run",
        *,
        executor: Executor | None = None,
        progress: Progress = silent,
        **changes: Any,
    ) -> Selected:
        """Run a private selection."""
        return select(
            self.sweep(**changes),
            executor or LocalExecutor(),
            out=self.folder / name,
            ledger_url=self.url,
            store=self.store,
            progress=progress,
            memory=self.memory,
        )


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Let trials estimate in no time, and reports draw nothing and compare nothing."""
    patch.setattr(belief, "estimated", chained)
    for name in ("render", "column_histograms"):
        patch.setattr(plots, name, lambda *_, **__: b"<svg/>")
    patch.setattr(reports, "usefulness_sections", lambda *_, **__: [])


class QuickWorker(SelectionWorker):
    """A process of the pool, elsewhere, whose trials are quick."""

    def __init__(self, spec: PoolSpec) -> None:
        make_quick(pytest.MonkeyPatch())
        super().__init__(spec)


@contextlib.contextmanager
def drawn(count: int) -> Iterator[list[int]]:
    """Let every selection draw this number of trials; yield what was drawn, as it happens."""
    seen: list[int] = []

    def draw(self: TrialCount, bits: Any = None) -> int:
        seen.append(count)
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialCount, "draw", draw)
        yield seen


def use_quick_workers(patch: pytest.MonkeyPatch) -> None:
    """Let selections start `QuickWorker`."""
    patch.setattr(selection, "SelectionWorker", QuickWorker)
