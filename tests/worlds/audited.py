"""Runs that are audited: members, others who were held out, and public bounds of both."""

from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.config import RunConfig
from distributed_privrl.experiments.audit import Audit, audit_run
from tests.worlds.world import World

MEMBERS, OTHERS = "audit/members-v0", "audit/others-v0"
BOUNDS = """
observation: {low: -1.8, high: 1.8}
action: {low: -1, high: 1}
reward: [-1.8, 1.8]
"""


class Audited(World):
    """A store, and runs on it that have the budget they ask for."""

    def __init__(self, folder: Path, bounds: str = BOUNDS) -> None:
        super().__init__(folder, bounds=bounds)

    def train(
        self, name: str, config: RunConfig, *, key: int | None = None, **options: Any
    ) -> None:
        """Run without reports."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
            )
            self.afford(config).start(config, name, insecure_key=key, **options)

    def audit(self, name: str, out: Path, **settings: Any) -> Audit:
        """Audit a run against `OTHERS`, if ``settings`` name nobody else."""
        about = {"held_out": OTHERS, "store": self.store, "ledger_url": self.url}
        return audit_run(self.folder / name, out=out, **(about | settings))
