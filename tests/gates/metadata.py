"""A gate on a sensitive dataset: its rows, units and metadata reach nothing that may leave."""

import base64
import contextlib
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from xml.sax.saxutils import escape

import numpy as np
from gymnasium.spaces import Box
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRANSITION
from distributed_privrl.experiments.run import RunResult
from tests.gates.leak_secrets import neighbours
from tests.gates.leaks import TEXTS, holds_words, logged

OURS = "distributed_privrl"
STRUCTURE = {
    *("dataset_id", "data_format", "observation_space", "action_space"),
    *("total_steps", "total_episodes", "declared_public"),
    *(f"{OURS}.{name}" for name in ("kind", "layout", "total_trajectories", "unit_column")),
    *(f"{OURS}.{name}" for name in ("declared", "has_successors")),
    *("experts.count", "evaluation_returns.steps"),
}
"""Keys without which the dataset is another one, or is refused; each is declared or checked."""
VALID: dict[str, float] = {
    "experts.minimum_probability": 0.13724918365,
    "experts.max_length": 7.31846291538,
}
"""Canaries that a check lets through."""
SAID: dict[str, Any] = {
    "description": "text",
    "author": ["text"],
    "author_email": ["text"],
    "algorithm_name": "text",
    "code_permalink": "text",
    "eval_env": "text",
    "requirements": ["text"],
    "ranges": {"observation": [[1.5, 2.5], [3.5, 4.5]], "reward": [0.5, 1.5]},
    "lengths": [3, 4, 5],
    "reference_returns": {
        **dict.fromkeys(("random", "best", "expert", "planner", "behaviour"), 1.5),
        **{"episodes": 3, "snapshots": [{"steps": 10, "return": 4.5}]},
    },
    "evaluation_returns": {"random": 1.5, "best": 2.5, "steps": 40},
    "reference_values": {"uniform": 1.5, "behaviour": 2.5, "optimal": 3.5, "horizon": 20},
    "returns": {"mean": 1.5, "histogram": {"counts": [1, 2], "edges": [0.5, 1.5]}},
    "collection": {"recipe": "text", "seed": 1, "steps": 2, "options": {"speed": 1.5}},
    "seam_error": {"inside": 1.5, "at_seams": 2.5, "of_a_step": 3.5},
    "support": {"cells": 3, "visited": 4, "trajectories_outside": 5},
    "drift": {"trajectories": 3, "columns": {"action": {"missed": 0.25, "by_chance": 0.125}}},
    "privrl_run": "text",
    "privacy_certificate": {"status": "text", "epsilon": 1.5, "stages": [{"units": 7}]},
    "split_of": ["text"],
    "split_into": ["text"],
    "nobody_knows_this_key": {"deep": [{"deeper": 1.5, "still": "text"}, 7, None, True]},
}
"""What importers, recipes and strangers write, beside what the dataset has already."""
_LARGE, _DIGITS, _EXACT, _FEW = 1e17, 5e-4, 1e-6, 300
_LEAST_HASH = 2**32
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w])")
_LONG_NUMBER = re.compile(rb"(?<!\d)\d{10,20}(?!\d)")
_EMBEDDED = re.compile(rb"base64,([A-Za-z0-9+/=]+)")
_ARRAYS = {".safetensors", ".npy"}


@dataclass(kw_only=True)
class Canaries:
    """What was planted, by its place in the metadata.

    Args:
        texts: words that are nowhere else.
        numbers: most of them far larger than any figure of a run, so that four digits tell them.
        counts: of rows and trajectories, as they are; looked for in texts alone.
    """

    texts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def places(self) -> set[str]:
        """Where something was planted, or counted."""
        return {*self.texts, *self.numbers, *self.counts}

    def found_in(self, content: bytes, *, suffix: str = "") -> set[str]:
        """Return the places whose canary ``content`` holds: as text, as bytes, or in an image."""
        parts = [content, *(base64.b64decode(one) for one in _EMBEDDED.findall(content))]
        return set().union(*(self._found(one, suffix) for one in parts))

    def _found(self, content: bytes, suffix: str) -> set[str]:
        lowered = content.lower()
        found = {place for place, text in self.texts.items() if text.encode() in lowered}
        numbers = np.array(_NUMBER.findall(content.decode("latin-1")), np.float64)
        for place, number in self.numbers.items():
            digits = _DIGITS if number >= _LARGE else _EXACT
            if (np.abs(numbers / number - 1) < digits).any():
                found.add(place)
            words = [np.float64(number).tobytes()]
            if number >= _LARGE:
                words.append(np.int64(number).tobytes())
            if any(word in content for word in words):
                found.add(place)
        if suffix in TEXTS:
            found |= {place for place, count in self.counts.items() if count in numbers}
        if suffix in _ARRAYS:  # at multiples of four bytes; anywhere 32 bits are found by chance
            held = np.frombuffer(content, np.float32, len(content) // 4)
            large = {place: one for place, one in self.numbers.items() if one >= _LARGE}
            seen = np.isin(np.array([*large.values()], np.float32), held)
            found |= {place for place, one in zip(large, seen, strict=True) if one}
        return found


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run that is ready to start, with secure noise.

    Args:
        store: datasets.
        sensitive: id of the one that is planted.
        start: runs it; is given what hears of its progress, and where workers live if not here.
    """

    store: DatasetStore
    sensitive: str
    start: Callable[..., RunResult]


def plant(store: DatasetStore, dataset: str) -> Canaries:
    """Put a canary into every key of a dataset's metadata, at any depth, but for its structure."""
    path = store.metadata_file(dataset)
    values = json.loads(path.read_text())
    planted = Canaries()
    generator = np.random.default_rng()

    def told(place: str, value: Any) -> Any:
        if place in STRUCTURE or isinstance(value, bool) or value is None:
            return value
        if isinstance(value, dict):
            return {key: told(f"{place}.{key}".lstrip("."), inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [told(f"{place}[{index}]", inner) for index, inner in enumerate(value)]
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                if isinstance(inner := json.loads(value), dict):
                    return json.dumps(told(place, inner))
            planted.texts[place] = f"canary{generator.bytes(6).hex()}"
            return planted.texts[place]
        drawn = float(generator.integers(10**8, 10**9)) * 1e9
        planted.numbers[place] = VALID.get(place, drawn)
        return type(value)(planted.numbers[place]) if place not in VALID else VALID[place]

    names = {f"canary{generator.bytes(6).hex()}": "text" for _ in range(2)}
    both = {
        key: {**SAID[key], **value} if isinstance(value, dict) and key in SAID else value
        for key, value in values.items()
    }
    everything = told("", {**SAID, **both, **names, "nested": {**names}})
    planted.texts |= {f"the key {name}": name for name in names}
    path.write_text(json.dumps(everything))
    planted.counts = {name: values[name] for name in ("total_steps", "total_episodes")}
    planted.counts["total_trajectories"] = values[OURS]["total_trajectories"]
    assert planted.found_in(path.read_bytes(), suffix=".json") == planted.places
    return planted


def words_of_rows(store: DatasetStore, dataset: str) -> NDArray[np.uint64]:
    """Return 8 bytes each that tell of one sensitive row, sorted.

    Two neighbouring numbers of a row, neither of them whole. Empty where rows are texts or
    categories, which whole words of bytes do not tell apart.
    """
    info = store.info(dataset)
    if not isinstance(info.observation_space, Box):
        return np.empty(0, np.uint64)
    rows = store.read_transitions(dataset, unit=TRANSITION)
    table = np.concatenate(
        [np.asarray(rows.observations), np.asarray(rows.next_observations)]
    ).astype(np.float32)
    whole = table == np.rint(table)
    telling = ~(whole[:, 1:] | whole[:, :-1])
    return np.unique(neighbours(table).reshape(len(table), -1)[telling])


def units_of(store: DatasetStore, dataset: str) -> NDArray[np.uint64]:
    """Return the ids of units that are met by chance nowhere, sorted: large ones, and hashes."""
    if store.info(dataset).unit_column is None:
        return np.empty(0, np.uint64)
    ids = np.unique(np.concatenate(list(store.iter_unit_ids(dataset))))
    return ids[ids > _LEAST_HASH]


@dataclass(frozen=True)
class Sought:
    """What a sensitive dataset is and says, to be looked for in contents.

    Args:
        planted: canaries of its metadata.
        rows: see `words_of_rows`.
        units: see `units_of`.
        folder: of the datasets.
    """

    planted: Canaries
    rows: NDArray[np.uint64]
    units: NDArray[np.uint64]
    folder: Path

    @classmethod
    def planted_in(cls, case: Case, *, releases_rows: bool = False) -> "Sought":
        """Plant canaries into a case's sensitive dataset, and look at its rows and units."""
        planted = plant(case.store, case.sensitive)
        assert len(planted.texts) > 15
        assert len(planted.numbers) > 25
        none = np.empty(0, np.uint64)
        rows = none if releases_rows else words_of_rows(case.store, case.sensitive)
        return cls(planted, rows, units_of(case.store, case.sensitive), case.store.root)

    def found_in(self, content: bytes, *, suffix: str = "") -> set[str]:
        """Return what ``content`` holds: as text, as bytes, or in an image."""
        found = self.planted.found_in(content, suffix=suffix)
        if str(self.folder).encode() in content:
            found.add("the folder of datasets")
        if len(self.rows) and holds_words(content, self.rows):
            found.add("rows")
        if len(self.units) and (holds_words(content, self.units) or self._named_in(content)):
            found.add("units")
        return found

    def _named_in(self, content: bytes) -> bool:
        named = {int(one) for one in _LONG_NUMBER.findall(content)}
        return not named.isdisjoint(self.units.tolist())


def gate_metadata(case: Case, *, releases_rows: bool = False) -> None:
    """Nothing that a sensitive dataset is, or says of itself, is in what a run of it lets out.

    Args:
        case: the run.
        releases_rows: the method's release is made of sensitive rows that are stable.
    """
    sought = Sought.planted_in(case, releases_rows=releases_rows)
    planted = sought.planted
    there = set(case.store.ids())
    said = io.StringIO()
    with (
        logged() as lines,
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        result = case.start(lambda *told: print(*told, file=said))
    assert result.certificate.status == "valid"
    spoken = [said.getvalue(), *lines, *(str(one.message) for one in warned)]
    assert len(said.getvalue()) > 20, "a run tells of its progress"
    declared = (result.directory.path / "config.yaml").read_text()
    for place, count in list(planted.counts.items()):
        if count < _FEW or re.search(rf"\b{count}\b", declared):
            del planted.counts[place]  # it is what the configuration declares, or anything
    leaks = {"what was said": sought.found_in("\n".join(spoken).encode(), suffix=".txt")}
    made = sorted(set(case.store.ids()) - there)
    folders = [result.directory.path, *(case.store.root / name for name in made)]
    for folder in folders:
        for path in _files(folder):
            name = str(path.relative_to(folder.parent))
            content = path.read_bytes() + name.encode()
            leaks[name] = sought.found_in(content, suffix=path.suffix)
    for name in ("report.html", "report.json", "certificate.json", "metrics.jsonl"):
        assert f"{folders[0].name}/{name}" in leaks, f"the run wrote no {name}"
    for name in made:
        card = f"{Path(name).name}/README.md"
        assert card in leaks, f"{name} was released without a card"
    told = {name: sorted(places) for name, places in leaks.items() if places}
    assert not told, f"what may leave holds the sensitive dataset's metadata: {told}"


def write_words(figure: Figure, file: BinaryIO, **_: object) -> None:
    """Write a figure's words in the place of its drawing, in which no other canary could be."""
    words = "\n".join(text.get_text() for text in figure.findobj(Text))
    file.write(
        f'<svg xmlns="http://www.w3.org/2000/svg"><desc>{escape(words)}</desc></svg>'.encode()
    )


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that may leave."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "private" not in path.relative_to(folder).parts:
            yield path
