"""The doors that strangers' bytes come in by, each with proper inputs to start from."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from distributed_privrl.cli.failures import described
from distributed_privrl.core.errors import PrivRLError
from distributed_privrl.data.importing import import_file
from distributed_privrl.data.schema import load_schema
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import load_config
from distributed_privrl.privacy.certificate import digest_of
from distributed_privrl.privacy.ledger.storage import ledger_url
from distributed_privrl.privacy.verification import verify_certificate
from tests.data.conftest import SPACES, walk
from tests.privacy.stages import certificate
from tests.worlds.array_files import D4RL, SUCCESSORS, arrays_of, write_hdf5, write_npz

DATASET = "fuzz/rows-v0"
ACCEPTED = "accepted"
LONGEST = 5000
"""Characters of an error's line."""
Read = Callable[[bytes], object]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A door.

    Args:
        read: takes bytes, and raises a `PrivRLError` where they are not proper.
        seeds: proper inputs.
    """

    read: Read
    seeds: tuple[bytes, ...]

    def outcome(self, content: bytes) -> str:
        """Return what became of an input: `ACCEPTED`, or the error that the command line shows.

        Raises:
            AssertionError: the error is not one line.
            Exception: whatever else came of it: a defect.
        """
        try:
            self.read(content)
        except PrivRLError as error:
            code, line = described(error)
            assert code > 1, "the error has no exit code of its own"
            assert "\n" not in line, "the error has several lines"
            assert len(line) < LONGEST, "the error is no line to read"
            return type(error).__name__
        return ACCEPTED


def _schema(folder: Path, text: str) -> Any:
    path = folder / "known-schema.yaml"
    path.write_text(text)
    return load_schema(path)


def _import(folder: Path, suffix: str, schema: str) -> Read:
    known, store = _schema(folder, schema), DatasetStore(folder / "datasets")

    def read(content: bytes) -> None:
        path = folder / f"input{suffix}"
        path.write_bytes(content)
        try:
            import_file(path, known, store, DATASET)
        finally:
            shutil.rmtree(folder / "datasets", ignore_errors=True)

    return read


def _written(folder: Path, name: str, write: Callable[[Path], object]) -> bytes:
    path = folder / name
    write(path)
    return path.read_bytes()


def _table() -> pd.DataFrame:
    arrays = arrays_of(walk())
    named = {f"o{i}": arrays["observations"][:, i] for i in range(2)}
    named |= {f"n{i}": arrays["next_observations"][:, i] for i in range(2)}
    who = np.array(["ann", "bob"])[np.arange(8) % 2]
    return pd.DataFrame(
        {
            **named,
            "a": arrays["actions"][:, 0],
            "r": arrays["rewards"],
            "t": arrays["terminals"].astype(int),
            "who": who,
        }
    )


TABLE = """\
columns:
  observation: [o0, o1]
  next_observation: [n0, n1]
  action: a
  reward: r
  terminated: t
  unit: who
spaces:
  observation: {type: box}
  action: {type: box, low: -1, high: 1}
"""
CONFIG = """\
method: privorl_n
data: {sensitive: a/b-v0, public: [a/c-v0], unit: transition, units: 400}
privacy: {epsilon: 8, delta: 1e-5}
model: {width: 8, depth: 1}
training: {rounds: 3, expected_batch_size: 16}
output: {dataset: a/d-v0, size: 40}
"""


def _csv(folder: Path) -> Target:
    text = _table().to_csv(index=False).encode()
    quoted = text.replace(b"ann", b'"a,n"')
    return Target(read=_import(folder, ".csv", TABLE), seeds=(text, quoted))


def _parquet(folder: Path) -> Target:
    seeds = tuple(
        _written(
            folder, "s.parquet", lambda path, c=codec: _table().to_parquet(path, compression=c)
        )
        for codec in ("snappy", "gzip", None)
    )
    return Target(read=_import(folder, ".parquet", TABLE), seeds=seeds)


def _arrays(folder: Path, suffix: str, write: Callable[..., object]) -> Target:
    schema = D4RL.format(extra=SUCCESSORS, split="true")
    seed = _written(folder, f"s{suffix}", lambda path: write(path, arrays_of(walk())))
    return Target(read=_import(folder, suffix, schema), seeds=(seed,))


def _yaml(folder: Path, load: Callable[[Path], object], *seeds: str) -> Target:
    def read(content: bytes) -> None:
        path = folder / "input.yaml"
        path.write_bytes(content)
        load(path)

    return Target(read=read, seeds=tuple(text.encode() for text in seeds))


def _certificate(folder: Path) -> Target:
    def read(content: bytes) -> None:
        path = folder / "certificate.json"
        with contextlib.suppress(ValueError, RecursionError, TypeError):  # so that more is read
            values = json.loads(content)
            content = json.dumps({**values, "digest": digest_of(values)}).encode()
        path.write_bytes(content)
        verify_certificate(path, allow_missing_outputs=True)

    return Target(read=read, seeds=(certificate().to_json().encode(),))


def _minari(folder: Path, name: str) -> Target:
    store = DatasetStore(folder / "datasets")
    store.write_trajectories(DATASET, walk(), **SPACES)
    path = store.root / DATASET / "data" / name

    def read(content: bytes) -> None:
        path.write_bytes(content)
        store.read_trajectories(DATASET)
        store.read_transitions(DATASET, unit="transition")

    return Target(read=read, seeds=(path.read_bytes(),))


def _ledger(folder: Path) -> Target:
    def read(content: bytes) -> None:
        ledger_url(content.decode("utf-8", "replace"))

    (folder / "url").write_text("sqlite:////data/l.sqlite")
    (folder / "url").chmod(0o600)
    seeds = (
        "sqlite:////data/l.sqlite",
        "postgresql://u:p@h:5432/l?sslmode=require",
        f"file:{folder}/url",
    )
    return Target(read=read, seeds=tuple(text.encode() for text in seeds))


TARGETS: dict[str, Callable[[Path], Target]] = {
    "import csv": _csv,
    "import parquet": _parquet,
    "import npz": lambda folder: _arrays(folder, ".npz", write_npz),
    "import hdf5": lambda folder: _arrays(folder, ".hdf5", write_hdf5),
    "schema": lambda folder: _yaml(
        folder, load_schema, TABLE, D4RL.format(extra=SUCCESSORS, split="true")
    ),
    "configuration": lambda folder: _yaml(folder, load_config, CONFIG),
    "certificate": _certificate,
    "minari rows": lambda folder: _minari(folder, "main_data.hdf5"),
    "minari metadata": lambda folder: _minari(folder, "metadata.json"),
    "ledger url": _ledger,
}
"""Makes a door that works in a folder, by name."""

_TELLING = (0, 1, 0x7F, 0x80, 0xFF, ord('"'), ord("-"), ord("9"), ord("\n"), ord("{"))


def mutated(seeds: tuple[bytes, ...], generator: np.random.Generator) -> Iterator[bytes]:
    """Yield inputs that are a seed but for some bytes: changed, cut, doubled, moved."""
    yield from seeds
    while True:
        content = bytearray(seeds[generator.integers(len(seeds))])
        for _ in range(generator.geometric(0.6)):
            place = int(generator.integers(len(content) + 1))
            end = min(len(content), place + int(generator.geometric(0.1)))
            match int(generator.integers(5)):
                case 0:
                    content[place : place + 1] = bytes([generator.integers(256)])
                case 1:
                    content[place : place + 1] = bytes([generator.integers(32, 127)])
                case 2:
                    content[place : place + 1] = bytes([generator.choice(_TELLING)])
                case 3:
                    del content[place:end]
                case _:
                    content[place:place] = content[place:end]
        yield bytes(content)
