"""The leak scan: nothing that may leave a run holds a sensitive row, an index, a key or a norm."""

import json
import logging
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.gates.fragments import Fragments, words_in
from tests.gates.kept import check_kept, header

TEXTS = {".json", ".jsonl", ".yaml", ".html", ".txt", ".csv", ".md"}
DECIMALS = 5
NUMBER = re.compile(r"-?\d+\.\d{5,}(?:e-?\d+)?")
FIGURE = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
LARGE = 10**6
"""A whole number beyond this one is met by chance nowhere."""
ROUND = 256
"""Multiples of it are met by chance in the tables of file formats."""
COMMON = 16
"""A number is in two pairs, as an observation and as a next one: more often, many rows hold it."""
TOKEN = re.compile(r"(?<![\w.+/=-])-?\d+(?:\.\d+)?(?![\w+/=])")
"""A number by itself: not a part of a name, a date or an image."""
PRIVATE_FIGURE = re.compile(r"norm|loss|clip|fraction|gradient|batch|accura|second|elapsed|speed")
PUBLIC_FIGURES = {"clip_norm"}
PUBLIC_LOSS = re.compile(r"public pre-training \d+ \d+ loss on public rows [-+.\de]+")


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """What must not be found.

    Args:
        rows: tables of sensitive rows ``(N, D)``: raw, and as they are encoded.
        public: tables of public rows, coded in the same ways.
        keys: of noise and coins.
        figures: of sensitive trajectories as wholes, such as their mean return.
        positions: of the units that took part, one array a worker and round.
        sums: the workers' partial sums.
        counts: exact ones, of workers and of all of them together.
        scores: that a choice was drawn by.
        planted: numbers of sensitive rows that nobody would meet by chance, by what they are.
        unit: multiples of it, in decimals, are no exact counts: whole units by default.
    """

    rows: tuple[NDArray[np.float32], ...]
    public: tuple[NDArray[np.float32], ...]
    keys: list[bytes] = field(default_factory=list)
    figures: tuple[float, ...] = ()
    positions: list[NDArray[np.int64]] = field(default_factory=list)
    sums: list[NDArray[Any]] = field(default_factory=list)
    counts: list[NDArray[np.int64]] = field(default_factory=list)
    scores: list[NDArray[np.int64]] = field(default_factory=list)
    planted: Mapping[str, float] = field(default_factory=dict)
    unit: int = UNIT_WEIGHT

    @cached_property
    def pairs(self) -> NDArray[np.uint64]:
        """Return the bytes of neighbouring numbers that tell of a sensitive row alone."""
        return _rare(
            np.concatenate([neighbours(table) for table in self.rows]),
            np.concatenate([neighbours(table) for table in self.public]),
        )

    @cached_property
    def decimal_pairs(self) -> NDArray[np.uint64]:
        """Return neighbouring numbers, rounded to `DECIMALS`, that tell of a row alone."""
        return _rare(
            np.concatenate([_decimal_pairs(table[:, :-1], table[:, 1:]) for table in self.rows]),
            np.concatenate([_decimal_pairs(table[:, :-1], table[:, 1:]) for table in self.public]),
        )

    @cached_property
    def statistics(self) -> NDArray[np.float64]:
        """Return extremes, means and deviations of sensitive columns that public ones lack."""
        sensitive, public = (
            np.unique(np.concatenate([_statistics(table) for table in tables]))
            for tables in (self.rows, self.public)
        )
        known = np.isclose(sensitive[:, None], public, rtol=1e-4, atol=1e-4).any(axis=1)
        round_numbers = np.isclose(sensitive * 64, np.rint(sensitive * 64), atol=1e-4)
        return sensitive[~known & ~round_numbers]

    @cached_property
    def words(self) -> NDArray[np.uint64]:
        """Return the 8 bytes of every pair, and of every statistic in float64, sorted."""
        return np.union1d(self.pairs, self.statistics.view(np.uint64))

    def fragments(self) -> Iterator[tuple[str, bytes]]:
        """Yield the bytes of keys, positions and partial sums, as numbers and as text."""
        for key in self.keys:
            number = int.from_bytes(key, "big")
            for text in (key, key.hex().encode(), str(number).encode()):
                yield "a key", text
        for positions in self.positions:
            first = _telling(positions)
            if first is not None:
                yield "positions", first.astype(np.int64).tobytes()
                yield "positions", first.astype(np.int32).tobytes()
                for comma in (", ", ",", " "):
                    yield "positions", comma.join(map(str, first.tolist())).encode()
        for total in self.sums:
            if not total.any():  # of a round without anybody: nothing, which every file holds
                continue
            norm = float(np.linalg.norm(total.astype(np.float64)))
            yield "a partial sum", total[np.flatnonzero(total)][:4].tobytes()
            yield "a partial sum's norm", repr(norm)[:10].encode()
            yield "a partial sum's norm", np.float64(norm).tobytes()
        yield from self._exact_numbers()

    @cached_property
    def looked_for(self) -> Fragments:
        """Return `fragments`, to be looked for in one content after the other."""
        return Fragments(self.fragments())

    def _exact_numbers(self) -> Iterator[tuple[str, bytes]]:
        for counts in self.counts:
            yield from _integers("exact counts", counts.reshape(-1))
        for scores in self.scores:
            yield from _integers("scores", scores)
        for what, number in self.planted.items():
            if number % 1:
                for order in "<>":
                    yield what, np.array(number, f"{order}f8").tobytes()
            elif number > LARGE:
                whole = int(number)
                yield what, whole.to_bytes((whole.bit_length() + 7) // 8, "little")

    @cached_property
    def tokens(self) -> dict[str, str]:
        """Return numbers as they would be written, with what they are."""
        known = {_written(number): what for what, number in self.planted.items()}
        for what, arrays in (("an exact count", self.counts), ("a score", self.scores)):
            for one in arrays:
                numbers = [*one.reshape(-1).tolist(), int(one.sum())]
                large = [abs(number) for number in numbers if abs(number) > LARGE]
                known |= {str(number): what for number in large if number % self.unit}
        for one in self.counts:  # in units
            total = int(one.sum()) / UNIT_WEIGHT
            if total % 1 and round(total, 3) != round(total, DECIMALS):  # else any figure may be it
                known[_written(total)] = "an exact number of units"
        return known

    @cached_property
    def singles(self) -> NDArray[np.float32]:
        """Return the planted numbers that are no whole ones, as rows hold them, sorted."""
        return np.unique(np.array([one for one in self.planted.values() if one % 1], np.float32))


def _written(number: float) -> str:
    """Return a number as the scan compares it: a whole one, or rounded to `DECIMALS`."""
    return str(int(number)) if number == int(number) else f"{number:.{DECIMALS}f}"


def _integers(what: str, numbers: NDArray[np.int64]) -> Iterator[tuple[str, bytes]]:
    """Yield four neighbouring integers that tell something, first, densest and last."""
    width = min(4, len(numbers))
    if width < 3:
        return
    windows = np.lib.stride_tricks.sliding_window_view(numbers, width)
    odd = np.abs(windows) % ROUND > 0
    telling = np.flatnonzero(odd.sum(axis=1) >= 2)
    if not len(telling):
        return
    densest = telling[np.argmax(odd.sum(axis=1)[telling])]
    for place in {int(telling[0]), int(densest), int(telling[-1])}:
        some = windows[place]
        yield what, some.tobytes()
        for dtype in (np.float64, np.float32):
            yield what, some.astype(dtype).tobytes()
            yield what, (some / UNIT_WEIGHT).astype(dtype).tobytes()
        for comma in (", ", ",", " "):
            yield what, comma.join(map(str, some.tolist())).encode()


def _telling(positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the last four to six neighbouring positions with a gap.

    1, 2, 3, 4 is what any counter holds, and 0, 1, 3, 4 what offsets of short things do.
    """
    width = min(6, len(positions))
    if width < 4:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(positions, width)
    return next((some for some in windows[::-1] if some[-1] - some[0] != width - 1), None)


def neighbours(table: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Return the 8 bytes of each two numbers that stand beside each other in a row."""
    first, second = (
        np.ascontiguousarray(part, np.float32).view(np.uint32).astype(np.uint64)
        for part in (table[:, :-1], table[:, 1:])
    )
    return ((second << np.uint64(32)) | first).ravel()


def _decimal_pairs(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.uint64]:
    scaled = [
        np.rint(np.float64(part) * 10**DECIMALS).astype(np.int64).astype(np.uint64)
        for part in (first, second)
    ]
    return ((scaled[1] << np.uint64(32)) ^ (scaled[0] & np.uint64(2**32 - 1))).ravel()


def _rare(found: NDArray[np.uint64], public: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # A row's next observation is the following row's observation: twice is still rare.
    values, counts = np.unique(found, return_counts=True)
    rare = np.setdiff1d(values[counts <= 2], public)
    # A number that many rows hold (a bound, a level) tells of none, and leaves of its pair 24 bits
    # of the other one, which one run of PrivORL-j in ten meets by chance.
    numbers, often = np.unique(np.concatenate(_halves(found)), return_counts=True)
    common = [np.isin(half, numbers[often > COMMON]) for half in _halves(rare)]
    return rare[~(common[0] | common[1])]


def _halves(pairs: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return pairs & np.uint64(2**32 - 1), pairs >> np.uint64(32)


def _statistics(table: NDArray[np.float32]) -> NDArray[np.float64]:
    values = table.astype(np.float64)
    parts = (values.min(0), values.max(0), values.mean(0), values.std(0))
    return np.concatenate(parts)


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what the package logs meanwhile, from INFO on."""
    lines: list[str] = []
    logger, handler = logging.getLogger("distributed_privrl"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def scan(
    folder: Path,
    secrets: Secrets,
    *,
    said: str = "",
    beside: Sequence[Path] = (),
    sent: Sequence[bytes] = (),
) -> None:
    """Fail if anything that may leave holds a secret.

    Args:
        folder: of the run; ``private/`` is left out.
        secrets: what must not be found.
        said: the run's progress.
        beside: folders of what the run released.
        sent: arguments of workers and servers, as bytes.
    """
    files = [
        path
        for place in (folder, *beside)
        for path in sorted(place.rglob("*"))
        if path.is_file() and "private" not in path.relative_to(place).parts
    ]
    assert files, f"{folder} holds nothing"
    contents = [(path.name, path.suffix in TEXTS, _content(path)) for path in files]
    kept = [path for path in files if path.suffix == ".safetensors"]
    contents += [(f"{path.name}'s header", True, header(path)) for path in kept]
    contents.append(("what was said", True, said.encode()))
    contents += [("an argument of a worker", False, one) for one in sent]
    scan_contents(contents, secrets)
    _scan_names(folder, said)
    assert kept, "there is no checkpoint"
    for path in kept:
        check_kept(path)
    _scan_modes(folder)


def scan_contents(contents: Iterable[tuple[str, bool, bytes]], secrets: Secrets) -> None:
    """Fail if a content holds a secret.

    Args:
        contents: name, whether it is text, and bytes of each.
        secrets: what must not be found.
    """
    assert min(len(secrets.pairs), len(secrets.decimal_pairs)) > 1000
    assert len(secrets.statistics) > 10
    for name, is_text, content in contents:
        assert not holds_words(content, secrets.words), f"{name} holds bytes of sensitive rows"
        what = secrets.looked_for.found_in(content)
        assert what is None, f"{name} holds {what}"
        if is_text:
            _scan_numbers(name, content, secrets)
            _scan_figures(name, content, secrets)
            _scan_tokens(name, content, secrets)
        else:
            _scan_singles(name, content, secrets)


def scan_metadata(values: Mapping[str, Any], secrets: Secrets, *, known: set[str]) -> None:
    """Fail if what a released dataset says of itself holds a secret, or a key nobody looked at.

    Args:
        values: the dataset's metadata.
        secrets: what must not be found.
        known: keys that hold public facts or post-processed releases.
    """
    assert not set(values) - known, f"metadata say {sorted(set(values) - known)}"
    content = json.dumps(values).encode()
    assert not holds_words(content, secrets.words), "metadata holds bytes of sensitive rows"
    what = secrets.looked_for.found_in(content)
    assert what is None, f"metadata hold {what}"
    _scan_numbers("metadata", content, secrets)
    _scan_figures("metadata", content, secrets)
    _scan_tokens("metadata", content, secrets)


def _content(path: Path) -> bytes:
    if path.suffix != ".parquet":
        return path.read_bytes()
    table = pq.read_table(path)
    columns = [np.asarray(column.to_numpy(zero_copy_only=False)) for column in table.columns]
    numbers = [column for column in columns if column.dtype.kind in "fiu"]
    rows = np.stack([column.astype(np.float32) for column in numbers], axis=1)
    return rows.tobytes() + b"".join(column.tobytes() for column in numbers)


def holds_words(content: bytes, words: NDArray[np.uint64]) -> bool:
    """Say whether one of ``words``, which are sorted, lies in ``content``, aligned or not."""
    return bool(len(words_in(content, words)))


def _scan_numbers(name: str, content: bytes, secrets: Secrets) -> None:
    numbers = np.array(NUMBER.findall(content.decode("utf-8", "replace")), np.float64)
    numbers = numbers[np.abs(numbers) < 1e4]
    neighbours = _decimal_pairs(numbers[:-1], numbers[1:])
    shared = np.isin(neighbours, secrets.decimal_pairs)
    assert not shared.any(), f"{name} holds numbers of a sensitive row"
    near = np.abs(numbers[:, None] - secrets.statistics) < 0.5 * 10.0**-DECIMALS
    assert not near.any(), f"{name} holds a sensitive column's statistic"


def _scan_figures(name: str, content: bytes, secrets: Secrets) -> None:
    numbers = np.array(FIGURE.findall(content.decode("utf-8", "replace")), np.float64)
    # A whole number, or none, is what anything may be: it tells of no trajectory.
    telling = np.array([figure for figure in secrets.figures if figure % 1])
    near = np.isclose(numbers[:, None], telling, rtol=1e-6)
    assert not near.any(), f"{name} holds a figure of sensitive trajectories"


def _scan_tokens(name: str, content: bytes, secrets: Secrets) -> None:
    found = {_written(float(one)) for one in TOKEN.findall(content.decode("utf-8", "replace"))}
    for token in found & set(secrets.tokens):
        raise AssertionError(f"{name} holds {secrets.tokens[token]}: {token}")


def _scan_singles(name: str, content: bytes, secrets: Secrets) -> None:
    numbers = np.frombuffer(content, np.float32, len(content) // 4)
    held = np.isin(secrets.singles, numbers)
    assert not held.any(), f"{name} holds a planted number"


def _scan_names(folder: Path, said: str) -> None:
    metrics = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    report = json.loads((folder / "report.json").read_text())
    told = [line for line in said.splitlines() if not PUBLIC_LOSS.fullmatch(line)]
    for name in [*_names(lines), *_names(report), *told]:
        if name not in PUBLIC_FIGURES:
            assert not PRIVATE_FIGURE.search(name.lower()), f"a figure is called {name!r}"
    assert not report["not_for_release"]


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            if key == "name":
                yield str(inner)
            yield from _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)


def _scan_modes(folder: Path) -> None:
    private = folder / "private"
    if private.exists():  # a run of figures alone has nothing to put there
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert (private / "NOT_FOR_RELEASE.txt").exists()
        for path in private.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, f"private/{path.name} can be read"
    certificate = json.loads((folder / "certificate.json").read_text())
    assert not any("private/" in output["id"] for output in certificate["outputs"])
