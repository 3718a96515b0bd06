"""A run's folder: what may leave, and ``private/``, which may not."""

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from distributed_privrl.core.config import NoisyBounds, RunConfig, validate
from distributed_privrl.core.errors import ConfigError, StorageError, UnsafeError
from distributed_privrl.core.files import (
    UNFINISHED,
    clear_unfinished,
    remove_folder,
    storage_errors,
    write_atomically,
)
from distributed_privrl.core.places import ObjectUri, Place, check_folder
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.data.bounds import bounds_text
from distributed_privrl.experiments.events import NAME, write_events
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue, metrics_record

FORMAT = 2
"""Of a run's folder; others are those of other versions of this program."""
_FREE = ("runtime", "evaluation")
"""Sections that may change on a resume."""

NOT_FOR_RELEASE = (
    "NOT FOR RELEASE. Everything in this folder was computed from real rows without noise.\n"
    "No certificate covers it. Do not publish, share or copy it.\n"
)


@dataclass(frozen=True)
class RunDirectory:
    """The files of a run.

    Args:
        path: the folder.

    Raises:
        ConfigError: it was a URI.
    """

    path: Path

    def __post_init__(self) -> None:
        check_folder("--out", self.path)

    @classmethod
    def create(
        cls, path: Path, config: RunConfig, *, resume: bool, noise_source: str
    ) -> "RunDirectory":
        """Make the folder, or reopen it with ``resume``; what a killed run left unfinished goes.

        The configuration is written last: a folder without it has begun no run.

        Args:
            path: the folder.
            config: of the run.
            resume: continue what is there.
            noise_source: name of the source that the run draws from, for all its life.

        Raises:
            ConfigError: it exists and ``resume`` is not given, it is of another configuration, or a
                private selection released what is there.
            UnsafeError: it was begun with another noise source.
            StorageError: it cannot be written.
        """
        directory = cls(path)
        directory.clear()
        directory.check_ran()
        if directory.config_path.exists():
            if not resume:
                raise ConfigError(f"{path} holds a run: choose another --out, or add --resume")
            directory.resumed(config)
            if (begun := directory._facts()["noise_source"]) != noise_source:
                raise UnsafeError(f"{path} was begun with noise source {begun}: start a new run")
            return directory
        if resume:
            raise ConfigError(
                f"{path} holds no run to go on with: give the --out of a run, or begin one without"
                " --resume"
            )
        if holds_something(path) and not directory.only_begun:
            raise ConfigError(f"{path} is not empty and holds no run: choose another --out")
        if not directory.begun(noise_source):
            directory.begin(noise_source)
        directory.keep_config(config)
        return directory

    def begun(self, noise_source: str) -> bool:
        """Say whether a run with this noise source has its name already, and nothing else.

        What it holds in the ledger is under that name: whoever goes on keeps it.

        Args:
            noise_source: its name.
        """
        try:
            return self._facts()["noise_source"] == noise_source
        except StorageError:  # none, damaged, or of another version: it begins anew
            return False

    def begin(self, noise_source: str) -> None:
        """Make the folder, and give the run its name; without a configuration it has not begun.

        Args:
            noise_source: name of the source that the run draws from, for all its life.

        Raises:
            StorageError: it cannot be written.
        """
        with storage_errors(f"make {self.path}"):
            self.checkpoint.mkdir(parents=True, exist_ok=True)
        run = {
            "format": FORMAT,
            "run_id": f"run-{uuid.uuid4().hex[:16]}",
            "noise_source": noise_source,
        }
        write_atomically(self.facts_path, json.dumps(run))

    def keep_config(self, config: RunConfig) -> None:
        """Write the bounds file and the resolved configuration, with which a run has begun."""
        file = bounds_place(config)
        if isinstance(file, ObjectUri) or (file is not None and file.is_file()):
            write_atomically(self.bounds_path, bounds_text(file))  # else the run says it is missing
        write_atomically(self.config_path, _as_yaml(config))

    def resumed(self, config: RunConfig) -> RunConfig:
        """Return the configuration that a run which lies here goes on with.

        What ``config`` does not set stays as it was resolved when the run began, whatever today's
        defaults are; keys that did not exist then have today's. ``runtime`` and ``evaluation`` are
        those of ``config``: the one changes no result, the other happens after the release, but for
        ``evaluation.measures``, which the run has paid for.

        Raises:
            ConfigError: ``config`` sets a key to another value; the message names key and values.
                Or as in `check_ran`.
            StorageError: as in `check_format`.
        """
        self.check_format()
        self.check_ran()
        before = read_yaml(self.config_path)
        given = config.model_dump(mode="json", exclude_unset=True)
        now = {key: value for key, value in given.items() if key not in _FREE}
        if (measures := config.evaluation.measures) is not None:
            now["evaluation"] = {"measures": measures.model_dump(mode="json")}
        if changed := list(_differences(before, now)):
            raise ConfigError(
                f"{self.path} is a run with another configuration: {'; '.join(changed)}: resume"
                " with the same one, or choose another --out"
            )
        free = {key: value for key, value in given.items() if key in _FREE}
        measured = before.get("evaluation", {}).get("measures")
        free["evaluation"] = {**given.get("evaluation", {}), "measures": measured}
        kept = {key: value for key, value in before.items() if key not in _FREE}
        now.pop("evaluation", None)
        values = {**_merged(kept, now), **free}
        return validate(type(config), values, source=str(self.config_path))

    def discard(self) -> None:
        """Remove the folder of a run that was refused before anything was drawn."""
        try:
            remove_folder(self.path)
        except StorageError:  # its own parent may not be written to
            shutil.rmtree(self.path, ignore_errors=True)

    def clear(self) -> None:
        """Remove what killed processes left unfinished in the folder."""
        clear_unfinished(self.path, deep=True)

    @property
    def only_begun(self) -> bool:
        """Whether all that lies here is what a run writes before its configuration."""
        return self._files <= {self.facts_path, self.bounds_path} | self._refused

    @property
    def only_refused(self) -> bool:
        """Whether all that lies here is why a job was refused."""
        return self._files <= self._refused

    @property
    def _files(self) -> set[Path]:
        return {path for path in self.path.rglob("*") if not path.is_dir()}

    @property
    def _refused(self) -> set[Path]:
        return {self.refusal_path, self._mark_path}

    @property
    def refusal_path(self) -> Path:
        """Why a job was refused, in words that tell of rows."""
        return self.private / "refusal.txt"

    @property
    def _mark_path(self) -> Path:
        return self.private / "NOT_FOR_RELEASE.txt"

    @property
    def facts_path(self) -> Path:
        """The run's name and noise source."""
        return self.checkpoint / "run.json"

    @property
    def bounds_path(self) -> Path:
        """The file of bounds as it was when the run began: public."""
        return self.path / "bounds.yaml"

    def begun_with(self, config: RunConfig) -> RunConfig:
        """Return the run's configuration with its bounds from the file that it was begun with.

        Args:
            config: of the run.
        """
        if not self.bounds_path.exists():
            return config
        asked = config.data.bounds
        bounds = (
            asked.model_copy(update={"search": self.bounds_path})
            if isinstance(asked, NoisyBounds)
            else self.bounds_path
        )
        return config.model_copy(update={"data": config.data.model_copy(update={"bounds": bounds})})

    @property
    def config_path(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def certificate(self) -> Path:
        """The certificate."""
        return self.path / "certificate.json"

    @property
    def selection(self) -> Path:
        """Score and configuration of the winner of a private selection."""
        return self.path / "selection.json"

    def sample(self, dataset: str) -> Path:
        """The folder of another sample of the run's model, with its certificate."""
        return self.path / "samples" / dataset.replace("/", "_")

    @property
    def metrics(self) -> Path:
        """One line a stage: public and released values."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """The numbers of metrics.jsonl, for TensorBoard."""
        return self.path / "events" / NAME

    @property
    def checkpoint(self) -> Path:
        """``run.json``; parameters and synthetic chunks of a private run, public or released."""
        return self.path / "checkpoint"

    def working(self, *, private: bool) -> Path:
        """Return where parameters and chunks lie: of a run without privacy in ``private/``."""
        return self.checkpoint if private else self.private / self.checkpoint.name

    @property
    def report(self) -> Path:
        """The report that may leave."""
        return self.path / "report.html"

    @property
    def private_report(self) -> Path:
        """The report for its owner alone."""
        return self.private / "report.html"

    @property
    def private(self) -> Path:
        """What is computed from real rows without noise; never released."""
        return self.path / "private"

    @property
    def run_id(self) -> str:
        """The run's name in the ledger."""
        return self._facts()["run_id"]

    def check_ran(self) -> None:
        """Refuse what a private selection released: its model was destroyed.

        Raises:
            ConfigError: it is that.
        """
        if self.selection.exists():
            raise ConfigError(
                f"{self.path} holds what a private selection released: it keeps no model and does"
                " not go on; begin a run in another --out"
            )

    def check_format(self) -> None:
        """Refuse a run of another version of this program.

        Raises:
            StorageError: it is one, or ``run.json`` is missing or damaged.
        """
        self._facts()

    def _facts(self) -> dict[str, str]:
        try:
            facts = json.loads(self.facts_path.read_text())
            known = {name: str(facts[name]) for name in ("run_id", "noise_source")}
            written = facts.get("format", 1)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(
                f"{self.facts_path} is missing or damaged: start the run anew"
            ) from error
        if written != FORMAT:
            raise StorageError(
                f"the run {self.path} has format {written}, this program knows {FORMAT}: use the"
                " version of the program that wrote it"
            )
        return known

    def make_private(self) -> Path:
        """Make ``private/`` for its owner alone, marked, and return it."""
        with storage_errors(f"make {self.private}"):
            self.private.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chmod(self.private, 0o700)
        write_atomically(self._mark_path, NOT_FOR_RELEASE, mode=0o600)
        return self.private

    def write_private(self, name: str, content: str | bytes) -> Path:
        """Write ``private/name`` with mode 0600."""
        path = self.make_private() / name
        write_atomically(path, content, mode=0o600)
        return path

    def write_metrics(self, lines: Iterable[Mapping[str, PublicValue | ReleasedValue]]) -> None:
        """Write metrics.jsonl, all its lines at once, and before it the events of its numbers.

        Public and released values only, by type.

        Raises:
            TypeError: a value of another type.
        """
        lines = list(lines)
        records = [json.dumps(metrics_record(**values)) + "\n" for values in lines]
        write_events(self.events, lines)
        write_atomically(self.metrics, "".join(records))


def bounds_place(config: RunConfig) -> Place | None:
    """Return the file in which the run's bounds, or the ranges to search in, are; None: no file."""
    asked = config.data.bounds
    source = asked.search if isinstance(asked, NoisyBounds) else asked
    return source if isinstance(source, Place) else None


def holds_something(folder: Path) -> bool:
    """Say whether a folder that shall be written to is there and is not empty.

    What killed processes left unfinished in it goes, and counts as little as what is being written.

    Raises:
        ConfigError: it is a file.
    """
    check_folder("--out", folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file: name a folder")
    clear_unfinished(folder)
    return folder.is_dir() and any(not p.name.startswith(UNFINISHED) for p in folder.iterdir())


def _as_yaml(config: RunConfig) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """Yield in words where ``now`` sets what ``before`` has otherwise."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name, value in now.items():
            inner = f"{key}.{name}" if key else name
            if name in before:
                yield from _differences(before[name], value, inner)
            else:
                yield f"{inner} is not set there and {value!r} now"
    elif before != now:
        yield f"{key} is {before!r} there and {now!r} now"


def _merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``before`` with what ``now`` sets, section by section."""
    values = {**before}
    for name, value in now.items():
        inner = before.get(name)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            value = _merged(inner, value)
        values[name] = value
    return values
