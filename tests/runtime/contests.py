"""Processes of a private selection for tests on Ray: they talk, and some of them die."""

import logging
import os
import signal
import warnings
from pathlib import Path
from typing import Any

from tests.worlds.choosing import QuickWorker


class TalkingWorker(QuickWorker):
    """A process whose trials talk, by every way that there is."""

    def _tried(self, overrides: Any, folder: Path) -> Any:
        print("a trial")
        os.write(1, b"a trial\n")
        os.write(2, b"a trial\n")
        logging.getLogger("distributed_privrl.trials").error("a trial")
        warnings.warn("a trial", stacklevel=1)
        return super()._tried(overrides, folder)


class DyingWorker(QuickWorker):
    """A process that dies of a trial."""

    def _tried(self, overrides: Any, folder: Path) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class FailingWorker(TalkingWorker):
    """A process whose trials fail but for the first one."""

    def _tried(self, overrides: Any, folder: Path) -> Any:
        kept = super()._tried(overrides, folder) if self._best is None else None
        if kept is None:
            raise ValueError("a trial fails")
        return kept
