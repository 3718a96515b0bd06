"""What a trial of a sweep is given, and what comes of it; it imports neither torch nor Ray."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.experiments.events import NAME
from distributed_privrl.experiments.sweeps.config import ScoreConfig

RESULT = "trial.json"
RUN = "run"
_VERSION = re.compile(r"-v\d+$")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a process needs to run a trial; it holds no password and no row.

    Args:
        name: of the trial.
        values: of the axes, by their paths.
        config: of the run, as JSON values.
        folder: of the trial.
        root: of the datasets.
        public: public rows stand in, so that nothing is charged to anybody: the trial has a ledger
            of its own, and its certificate certifies nothing.
        score: what it is worth.
        anyway: run what its plan calls hopeless, too.
    """

    name: str
    values: Mapping[str, Any]
    config: Mapping[str, Any]
    folder: str
    root: str
    public: bool
    score: ScoreConfig
    anyway: bool = False

    @property
    def result_path(self) -> Path:
        """What is kept of a trial that has ended."""
        return Path(self.folder) / RESULT

    @property
    def run(self) -> Path:
        """The folder of its run."""
        return Path(self.folder) / RUN

    @property
    def events(self) -> Path:
        """Its score, for TensorBoard."""
        return Path(self.folder) / "events" / NAME


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What came of a trial.

    Args:
        name: of the trial.
        values: of the axes, by their paths.
        score: the higher the better; None: it has none.
        epsilon: that it was charged; None: it was not private, or failed.
        released: id of the dataset or path of the file.
        failed: kind of the error that ended it; empty: none did.
    """

    name: str
    values: Mapping[str, Any]
    score: float | None
    epsilon: float | None
    released: str
    failed: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**vars(self), "values": dict(self.values)}

    @classmethod
    def read(cls, path: Path) -> "TrialResult | None":
        """Return what a file holds; None: there is none.

        Raises:
            StorageError: it is damaged.
        """
        if not path.exists():
            return None
        with storage_errors(f"read {path}"):
            text = path.read_text()
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise StorageError(f"{path} is damaged: delete it and --resume") from error


def trial_config(config: RunConfig, name: str) -> dict[str, Any]:
    """Return a trial's configuration as JSON values: the run's, with datasets of its own name."""
    values = config.model_dump(mode="json", exclude_unset=True)
    values["method"] = config.method
    if dataset := values.get("output", {}).get("dataset"):
        version = _VERSION.search(dataset)
        assert version is not None
        digest = name.rpartition("-")[2]
        values["output"]["dataset"] = f"{dataset[: version.start()]}-{digest}{version.group()}"
    return values
