"""A folder with datasets and a ledger, in which tests run whole methods."""

import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import run as program
from distributed_privrl.experiments.accounts import give_budget
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget
from distributed_privrl.stages.context import RunContext
from tests.worlds.ledgers import url_of


class World:
    """A store, a ledger, and a place for runs.

    Args:
        folder: that holds all of it.
        master: a store to copy; None: the one in ``folder``, if there is any.
        bounds: what ``bounds.yaml`` says.
    """

    dataset = ""
    """Gets a budget if no other dataset is named."""
    allowed: ClassVar[dict[str, Any]] = {"epsilon": 5.0, "delta": 1e-5, "unit": "transition"}
    """The budget, where nothing else is said."""
    key: int | None = None
    """Seeds the noise of a run; None draws it as a real run does."""

    def __init__(self, folder: Path, master: DatasetStore | None = None, bounds: str = "") -> None:
        if master is not None:
            shutil.copytree(master.root, folder / "datasets")
        self.folder, self.store = folder, DatasetStore(folder / "datasets")
        self.url, self.bounds = url_of(folder), folder / "bounds.yaml"
        if bounds:
            self.bounds.write_text(bounds)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.url)

    def budget(
        self, dataset: str = "", *, unrelated_to: Sequence[str] = (), why: str = "", **changes: Any
    ) -> Self:
        """Give a dataset a budget, `allowed` but for ``changes``."""
        give_budget(
            self.store,
            self.ledger,
            dataset=dataset or self.dataset,
            budget=PrivacyBudget(**{**self.allowed, **changes}),
            unrelated_to=unrelated_to,
            why=why,
        )
        return self

    def afford(self, config: RunConfig) -> Self:
        """Give the sensitive dataset the budget that a run asks for."""
        set_budget(config, self.store, self.url)
        return self

    def start(
        self,
        config: RunConfig,
        name: str = "run",
        *,
        executor: Executor | None = None,
        **options: Any,
    ) -> program.RunResult:
        """Run ``config`` in the folder ``name``."""
        return program.run(
            config,
            executor or LocalExecutor(),
            out=self.folder / name,
            ledger_url=self.url,
            store=self.store,
            **options,
        )

    def config(self, **changes: Any) -> Any:
        """Return the configuration of `run`; ``section__key=value`` changes it."""
        raise NotImplementedError

    def run(
        self,
        name: str = "run",
        *,
        executor: Executor | None = None,
        resume: bool = False,
        progress: Progress = silent,
        **changes: Any,
    ) -> program.RunResult:
        """Run `config`; ``key`` may be another one than this world's."""
        options = {"resume": resume, "progress": progress}
        options["insecure_key"] = changes.pop("key", self.key)
        return self.start(self.config(**changes), name, executor=executor, **options)

    def finish(
        self, config: RunConfig, patch: pytest.MonkeyPatch
    ) -> tuple[program.RunResult, RunContext]:
        """Run without reports; return the result, and a context as an audit opens it."""
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        result = self.afford(config).start(config)
        folder = result.directory.working(private=True)
        return result, self.context(result.directory.run_id, folder=folder, fingerprint="")

    def context(self, run_id: str = "run", key: int | None = None, **changes: Any) -> RunContext:
        """Return what is around a method of a run here."""
        values: dict[str, Any] = {
            "folder": self.folder,
            "executor": LocalExecutor(),
            "store": self.store,
            "ledger": self.ledger,
            "fingerprint": "f1",
            "progress": silent,
        }
        return RunContext(run_id=run_id, insecure_key=key, **(values | changes))
