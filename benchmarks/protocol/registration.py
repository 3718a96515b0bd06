"""Settings are hashed and committed before a sensitive set is opened; a figure is made once."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.files import exclusively, write_atomically

REGISTERED, OPENINGS = "registered.json", "openings.jsonl"
OPENED, BEGUN, JUDGED = "opened", "begun", "judged"


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of settings; the order of keys does not count.

    Raises:
        ValueError: a number is not finite.
        TypeError: something is no JSON.

    Example:
        >>> settings_hash({"a": 1, "b": 2}) == settings_hash({"b": 2, "a": 1})
        True
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def register(settings: Mapping[str, Any], folder: Path) -> str:
    """Write settings and their hash into a file to commit, and return the hash.

    Raises:
        UnsafeError: a set was opened under the settings that are registered, and these are others.
    """
    digest = settings_hash(settings)
    path = folder / REGISTERED
    _check_log(digest, folder)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"sha256": digest, "settings": dict(settings)}
    write_atomically(path, json.dumps(content, indent=2) + "\n")
    return digest


def open_set(dataset: str, settings: Mapping[str, Any], folder: Path) -> None:
    """Log that a sensitive set is opened; call it before its rows are read.

    A command that was stopped goes on with a set that it opened, under the same settings. What is
    found there is judged once (`judge_once`).

    Args:
        dataset: the set, with whatever tells its recordings apart.
        settings: that will judge it.
        folder: of the committed file and of the log, which is to be committed too.

    Raises:
        UnsafeError: nothing is registered, or the settings are others.
    """
    digest = _checked(settings, folder)
    with exclusively(folder):
        if not any(_is(line, OPENED, dataset, digest) for line in openings(folder)):
            _log(folder, OPENED, dataset, digest)


def begin_once(cell: str, settings: Mapping[str, Any], folder: Path, *, goes_on: bool) -> None:
    """Log that a generator is trained for a figure; call it before its noise is drawn.

    Whoever could train a second one before the first is judged could choose between two.

    Args:
        cell: see `judge_once`.
        settings: see `judge_once`.
        folder: see `open_set`.
        goes_on: whether the run that was begun is here, and goes on.

    Raises:
        UnsafeError: as in `judge_once`, or the cell was begun elsewhere.
    """
    digest = _checked(settings, folder)
    with exclusively(folder):
        if not any(_is(line, BEGUN, cell, digest) for line in openings(folder)):
            _log(folder, BEGUN, cell, digest)
        elif not goes_on:
            raise UnsafeError(
                f"{cell} was begun before ({folder / OPENINGS}), and its run is not here: go on in"
                " the work folder that has it"
            )


def judge_once(cell: str, settings: Mapping[str, Any], folder: Path) -> None:
    """Log that a figure is made now; call it before the judge sees the rows.

    Noise is drawn anew in each run, so that a second figure would be a choice between two.

    Args:
        cell: what is judged: recording, generator, epsilon.
        settings: of the judge and of all that it judges.
        folder: see `open_set`.

    Raises:
        UnsafeError: nothing is registered, the settings are others, or the cell was judged before.
    """
    digest = _checked(settings, folder)
    with exclusively(folder):
        if any(_is(line, JUDGED, cell, digest) for line in openings(folder)):
            raise UnsafeError(
                f"{cell} was judged before ({folder / OPENINGS}): there is one figure"
            )
        _log(folder, JUDGED, cell, digest)


def _checked(settings: Mapping[str, Any], folder: Path) -> str:
    digest = settings_hash(settings)
    if not (folder / REGISTERED).exists():
        raise UnsafeError(f"{folder / REGISTERED} is missing: register and commit the settings")
    if registered_hash(folder) != digest:
        raise UnsafeError(
            f"settings have the hash {digest[:12]}, {folder / REGISTERED} has"
            f" {registered_hash(folder)[:12]}: settings may not change before a set is opened"
        )
    _check_log(digest, folder)
    return digest


def _check_log(digest: str, folder: Path) -> None:
    """Raise UnsafeError where a set was opened under other settings, whatever is registered now."""
    if any(line["sha256"] != digest for line in openings(folder)):
        raise UnsafeError(
            f"{folder / OPENINGS} has sets that were opened under other settings: register new ones"
            " in a new folder"
        )


def _is(line: Mapping[str, str], event: str, name: str, digest: str) -> bool:
    return line.get(event) == name and line["sha256"] == digest


def _log(folder: Path, event: str, name: str, digest: str) -> None:
    with (folder / OPENINGS).open("a") as log:
        log.write(json.dumps({event: name, "sha256": digest}) + "\n")


def openings(folder: Path) -> list[dict[str, str]]:
    """Return the log, the oldest first."""
    path = folder / OPENINGS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def registered_hash(folder: Path) -> str:
    """Return the registered hash, computed from the settings beside it.

    Raises:
        UnsafeError: the file's own hash is not that of its settings.
    """
    path = folder / REGISTERED
    content = json.loads(path.read_text())
    digest = settings_hash(content["settings"])
    if digest != content["sha256"]:
        raise UnsafeError(f"{path} was changed: its hash is not that of its settings")
    return digest
