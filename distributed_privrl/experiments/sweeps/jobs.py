"""A sweep's folder and its jobs: where trials run, on which rows, and who is charged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from distributed_privrl.core.config import NoisyCount, RunConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.copies import copy_dataset, copy_units
from distributed_privrl.experiments.directory import RunDirectory, holds_something
from distributed_privrl.experiments.registry import check_run, parse_config
from distributed_privrl.experiments.sweeps.config import (
    ComposedSelection,
    PublicSelection,
    Sweep,
)
from distributed_privrl.experiments.sweeps.job import Job, TrialResult, trial_config
from distributed_privrl.experiments.sweeps.points import Point, points_of

FILE = "sweep.yaml"
TRIALS, DATASETS = "trials", "datasets"


def claim(file: Path, text: str) -> None:
    """Write a sweep's file into a new folder, which is then its own.

    Args:
        file: of the sweep.
        text: what was asked for.

    Raises:
        ConfigError: another sweep was quicker.
        StorageError: it cannot be written.
    """
    with storage_errors(f"make {file.parent}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with file.open("x") as new:
                new.write(text)
        except FileExistsError:
            raise ConfigError(f"{file.parent} holds a sweep: choose another --out") from None


@dataclass(frozen=True)
class SweepDirectory:
    """The files of a sweep.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def file(self) -> Path:
        """What was asked for."""
        return self.path / FILE

    @property
    def trials(self) -> Path:
        """A folder for each trial."""
        return self.path / TRIALS

    @property
    def datasets(self) -> DatasetStore:
        """Datasets of a public sweep: its stand-in and public ones, and what trials release."""
        return DatasetStore(self.path / DATASETS)

    def scheduler(self, *, public: bool) -> Path:
        """Return where Ray Tune keeps its state, which tells how long each trial took."""
        return self.path / "tune" if public else self.path / "private" / "tune"

    def make(self, sweep: Sweep, *, resume: bool) -> bool:
        """Make the folder, or go on in it with ``resume``; say whether it is new.

        Raises:
            ConfigError: it holds something and ``resume`` is not given, or is of another sweep.
            StorageError: it cannot be written.
        """
        asked = sweep.to_json()
        if self.file.exists():
            if not resume:
                raise ConfigError(f"{self.path} holds a sweep: choose another --out, or --resume")
            if read_yaml(self.file) != yaml.safe_load(yaml.safe_dump(asked)):
                raise ConfigError(
                    f"{self.path} holds a sweep of another file: resume with the same one, or"
                    " choose another --out"
                )
            return False
        if resume:
            raise ConfigError(f"{self.path} holds no sweep to go on with: leave --resume out")
        if holds_something(self.path) and not RunDirectory(self.path).only_refused:
            raise ConfigError(f"{self.path} is not empty and holds no sweep: choose another --out")
        with storage_errors(f"make {self.path}"):
            self.trials.mkdir(parents=True, exist_ok=True)
        claim(self.file, yaml.safe_dump(asked, sort_keys=False))
        return True

    def make_private(self) -> Path:
        """Make ``private/`` for its owner alone, and return it."""
        return RunDirectory(self.path).make_private()


def jobs_of(
    sweep: Sweep,
    directory: SweepDirectory,
    *,
    store: DatasetStore,
    anyway: bool = False,
) -> tuple[Job, ...]:
    """Return a job for each trial; the rows of a public sweep are put into its folder.

    Args:
        sweep: whose trials are all seen.
        directory: of the sweep, made.
        store: datasets; of a public sweep the sensitive one is not asked for anything.
        anyway: run what plans call hopeless, too.

    Raises:
        ConfigError: a trial's configuration is impossible, or the stand-in does not fit.
        UnsafeError: the stand-in or a public dataset was not declared public.
    """
    points, selection = points_of(sweep), sweep.selection
    public = isinstance(selection, PublicSelection)
    configs = [trial_world(sweep, point, store) for point in points]
    for config in configs:
        check_run(config)
        if not public and config.privacy.epsilon is None:
            raise UnsafeError(
                "a composed trial without privacy (privacy.epsilon: null) would release real rows'"
                " figures, and choose by them: leave it out, or let the selection be public"
            )
    if public:
        _bring_rows(sweep, configs[0], store, directory.datasets)
    root = (directory.datasets if public else store).place
    return tuple(
        Job(
            name=point.name,
            values=dict(point.values),
            config=trial_config(config, point.name),
            folder=str((directory.trials / point.name).absolute()),
            root=root,
            public=public,
            score=_score(sweep, config),
            anyway=anyway,
        )
        for point, config in zip(points, configs, strict=True)
    )


def _score(sweep: Sweep, config: RunConfig) -> Any:
    """Return the score, with what it compares to by name."""
    score, selection = sweep.selection.score, sweep.selection
    if score.by != "fidelity" or score.to is not None:
        return score
    stand_in = selection.stand_in if isinstance(selection, PublicSelection) else None
    return score.model_copy(update={"to": stand_in or config.data.public[0]})


def trial_world(sweep: Sweep, point: Point, store: DatasetStore) -> RunConfig:
    """Return a trial's configuration: of a public sweep, in the world of its stand-in.

    Args:
        sweep: whose trials are all seen.
        point: the trial.
        store: has the stand-in.

    Raises:
        ConfigError: there is no such stand-in.
        UnsafeError: it is called sensitive, too.
    """
    selection = sweep.selection
    if not isinstance(selection, PublicSelection):
        assert isinstance(selection, ComposedSelection)
        return point.config
    data = point.config.data
    if data.sensitive == selection.stand_in:
        raise UnsafeError(
            f"{data.sensitive} is sensitive by data.sensitive and public by selection.stand_in:"
            " name another dataset as one of them"
        )
    info = store.info(selection.stand_in)
    values = point.config.model_dump(mode="json", exclude_unset=True)
    values["method"] = point.config.method
    values["data"]["public"] = [name for name in data.public if name != selection.stand_in]
    if data.environment is not None:
        values["data"]["environment"] = (
            selection.environment or info.environment or data.environment
        )
    return parse_config(values, source=sweep.source)


def _bring_rows(sweep: Sweep, config: RunConfig, store: DatasetStore, own: DatasetStore) -> None:
    """Put public rows into the sweep's store, and the stand-in under the sensitive id."""
    selection = sweep.selection
    assert isinstance(selection, PublicSelection)
    score = _score(sweep, config)
    named = dict.fromkeys([*config.data.public, *([score.to] if score.by == "fidelity" else [])])
    for dataset in named:
        if not own.holds(dataset):
            copy_dataset(store, dataset, own)
    if own.holds(config.data.sensitive):
        return
    info = store.info(selection.stand_in)
    counted = config.data.units is None or isinstance(config.data.units, NoisyCount)
    copy_units(
        store,
        selection.stand_in,
        own,
        config.data.sensitive,
        data=config.data,
        spaces=(info.observation_space, info.action_space),
        units=None if counted else int(config.data.units),  # type: ignore[arg-type]
    )


def results_of(jobs: Sequence[Job]) -> list[TrialResult]:
    """Return what came of the jobs that have ended."""
    found = (TrialResult.read(job.result_path) for job in jobs)
    return [one for one in found if one is not None]
