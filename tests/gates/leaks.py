"""The leak scan: nothing that may leave a run holds a sensitive row, an index, a key or a norm."""

import json
import logging
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tests.gates.fragments import words_in
from tests.gates.kept import check_kept, header
from tests.gates.leak_secrets import DECIMALS, Secrets, decimal_pairs_of, written

TEXTS = {".json", ".jsonl", ".yaml", ".html", ".txt", ".csv", ".md"}
NUMBER = re.compile(r"-?\d+\.\d{5,}(?:e-?\d+)?")
FIGURE = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
TOKEN = re.compile(r"(?<![\w.+/=-])-?\d+(?:\.\d+)?(?![\w+/=])")
"""A number by itself: not a part of a name, a date or an image."""
PRIVATE_FIGURE = re.compile(r"norm|loss|clip|fraction|gradient|batch|accura|second|elapsed|speed")
PUBLIC_FIGURES = {"clip_norm"}
UNPROTECTED = {
    *("bounds.yaml", "config.yaml", "run.json"),
    *("certificate.json", "report.json", "report.html"),
}
"""All that a run without privacy keeps outside ``private/``."""
PUBLIC_LOSS = re.compile(r"public pre-training \d+ \d+ loss on public rows [-+.\de]+")


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
    scan_contents(may_leave(folder, said=said, beside=beside, sent=sent), secrets)
    _scan_names(folder, said)
    kept = [path for path in _files(folder, beside) if path.suffix == ".safetensors"]
    assert kept, "there is no checkpoint"
    for path in kept:
        check_kept(path)
    _scan_modes(folder)


def scan_unprotected(folder: Path, secrets: Secrets, *, said: str, sent: Sequence[bytes]) -> None:
    """Fail if anything outside ``private/`` of a run without privacy holds a secret or a tensor.

    Args:
        folder: of the run.
        secrets: what must not be found.
        said: the run's progress.
        sent: arguments of workers, as bytes.
    """
    scan_contents(may_leave(folder, said=said, sent=sent), secrets)
    kept = {path.name for path in _files(folder, ())}
    assert kept == UNPROTECTED, f"a run without privacy keeps {sorted(kept ^ UNPROTECTED)}"
    report = json.loads((folder / "report.json").read_text())
    assert not report["not_for_release"]
    assert not report["sections"], "a report of a run without privacy says something"
    _scan_modes(folder)


def may_leave(
    folder: Path, *, said: str, beside: Sequence[Path] = (), sent: Sequence[bytes]
) -> list[tuple[str, bool, bytes]]:
    """Return the name of all that may leave a run, whether it is text, and its bytes.

    Args:
        folder: of the run; ``private/`` is left out.
        said: the run's progress.
        beside: folders of what the run released.
        sent: arguments of workers and servers, as bytes.
    """
    files = _files(folder, beside)
    assert files, f"{folder} holds nothing"
    contents = [(path.name, path.suffix in TEXTS, _content(path)) for path in files]
    kept = [path for path in files if path.suffix == ".safetensors"]
    contents += [(f"{path.name}'s header", True, header(path)) for path in kept]
    contents.append(("what was said", True, said.encode()))
    return contents + [("an argument of a worker", False, one) for one in sent]


def _files(folder: Path, beside: Sequence[Path]) -> list[Path]:
    return [
        path
        for place in (folder, *beside)
        for path in sorted(place.rglob("*"))
        if path.is_file() and "private" not in path.relative_to(place).parts
    ]


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
        learned = holds_words(content, secrets.learned_words)
        assert not learned, f"{name} holds bytes of what was learned without noise"
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
    neighbours = decimal_pairs_of(numbers[:-1], numbers[1:])
    shared = np.isin(neighbours, secrets.decimal_pairs)
    assert not shared.any(), f"{name} holds numbers of a sensitive row"
    learned = np.isin(neighbours, secrets.learned_pairs)
    assert not learned.any(), f"{name} holds numbers that were learned without noise"
    near = np.abs(numbers[:, None] - secrets.statistics) < 0.5 * 10.0**-DECIMALS
    assert not near.any(), f"{name} holds a sensitive column's statistic"


def _scan_figures(name: str, content: bytes, secrets: Secrets) -> None:
    numbers = np.array(FIGURE.findall(content.decode("utf-8", "replace")), np.float64)
    # A whole number, or none, is what anything may be: it tells of no trajectory.
    telling = np.array([figure for figure in secrets.figures if figure % 1])
    near = np.isclose(numbers[:, None], telling, rtol=1e-6)
    assert not near.any(), f"{name} holds a figure of sensitive trajectories"


def _scan_tokens(name: str, content: bytes, secrets: Secrets) -> None:
    found = {written(float(one)) for one in TOKEN.findall(content.decode("utf-8", "replace"))}
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
        for path in private.rglob("*"):
            mode = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == mode, f"private/{path.name} can be read"
    certificate = json.loads((folder / "certificate.json").read_text())
    assert not any("private/" in output["id"] for output in certificate["outputs"])
