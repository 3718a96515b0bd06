"""Released rows as Parquet for RLlib's offline data, a row a transition, and a JSON beside them.

RLlib reads rows in the order of the files: they are shuffled here, once, by a public seed.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium.spaces import Box, MultiDiscrete
from numpy.typing import NDArray

from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import ActionScale, fit_observations
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors, unfinished_folder, write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space, space_from_json, space_to_json, supported_space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Transitions
from distributed_privrl.experiments.clearance import cleared, proof_of, proven
from distributed_privrl.privacy.certificate import hash_output
from distributed_privrl.privacy.ledger import Ledger

FILE_NAME = "bridge.json"
FILE_ROWS = 2**17
"""Rows of a Parquet file."""

COLUMNS = {
    "eps_id": "unit_ids",
    "obs": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "new_obs": "next_observations",
    "terminateds": "terminated",
    "truncateds": "truncated",
}
"""RLlib's name of each column, and ours."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One Parquet file of a bridge: its name, SHA-256 and number of rows."""

    name: str
    sha256: str
    rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Bridge:
    """A folder of Parquet files, and what ``bridge.json`` says of them.

    Args:
        folder: where they lie.
        observation_space: Box or Discrete.
        action_space: Box with finite bounds, or Discrete.
        normalisation: of the observations, fitted on these rows alone.
        parts: the Parquet files, in the order of their rows.
        source: id of the dataset that they come from.
        certificate_digest: of the certificate that they were released with; None: public rows.
        seed: public seed that they were shuffled by.
    """

    folder: Path
    observation_space: Space
    action_space: Space
    normalisation: Normalisation
    parts: tuple[Part, ...]
    source: str
    certificate_digest: str | None
    seed: int

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the bridge in ``folder``, once all its files are those that were written.

        Raises:
            StorageError: there is none, or it is damaged.
        """
        path = folder / FILE_NAME
        with storage_errors(f"read {path}"):
            bridge = cls.from_json(path.read_text(), folder)
            found = {one.name: hash_output(one) for one in folder.iterdir() if one != path}
        if wrong := {part.name: part.sha256 for part in bridge.parts}.items() ^ found.items():
            names = ", ".join(sorted({name for name, _ in wrong}))
            raise StorageError(
                f"{folder}: {names} is not what {FILE_NAME} lists: export the dataset again"
            )
        return bridge

    @classmethod
    def from_json(cls, text: str, folder: Path) -> Self:
        """Return the bridge in ``folder`` that ``bridge.json`` describes with ``text``.

        Raises:
            StorageError: the description is damaged.
        """
        try:
            values = json.loads(text)
            observation_space, action_space = (
                _space_of(name, values[name]) for name in ("observation_space", "action_space")
            )
            fitted = values["normalisation"]
            return cls(
                folder=folder,
                observation_space=observation_space,
                action_space=action_space,
                normalisation=Normalisation(
                    mean=np.asarray(fitted["mean"], np.float32),
                    spread=np.asarray(fitted["spread"], np.float32),
                ),
                parts=tuple(
                    Part(name=str(one["name"]), sha256=str(one["sha256"]), rows=int(one["rows"]))
                    for one in values["files"]
                ),
                source=str(values["source"]),
                certificate_digest=values["certificate_digest"],
                seed=int(values["seed"]),
            )
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{folder / FILE_NAME} is damaged: export the dataset again"
            ) from error

    @property
    def rows(self) -> int:
        """How many."""
        return sum(part.rows for part in self.parts)

    def files(self) -> list[Path]:
        """Return the Parquet files, in the order of their rows."""
        return [self.folder / part.name for part in self.parts]

    def read(self, part: Part) -> Any:
        """Return the Arrow table of one file.

        Raises:
            StorageError: it cannot be read, or is not the file that was written.
        """
        path = self.folder / part.name
        with storage_errors(f"read {path}"):
            content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise StorageError(f"{path} was changed: export the dataset again")
        table = pq.read_table(pa.BufferReader(content), columns=list(COLUMNS))
        if len(table) != part.rows:
            raise StorageError(f"{path} has {len(table)} rows, {FILE_NAME} says {part.rows}")
        return table

    def to_json(self) -> str:
        """Return the content of ``bridge.json``."""
        bounds = None
        if isinstance(self.action_space, Box):
            scale = ActionScale.of(self.action_space)
            bounds = {"low": scale.low.tolist(), "high": scale.high.tolist()}
        return json.dumps(
            {
                "source": self.source,
                "certificate_digest": self.certificate_digest,
                "rows": self.rows,
                "files": [asdict(part) for part in self.parts],
                "seed": self.seed,
                "observation_space": _space_values(self.observation_space),
                "action_space": _space_values(self.action_space),
                "action_bounds": bounds,
                "normalisation": {
                    "mean": self.normalisation.mean.tolist(),
                    "spread": self.normalisation.spread.tolist(),
                },
            },
            indent=2,
            allow_nan=False,
        )


def _space_values(space: Space) -> dict[str, Any]:
    """Return a space as JSON, with null for a bound that is not finite."""
    values = json.loads(space_to_json(space))
    return {name: _exchanged(one, _is_infinite, None) for name, one in values.items()}


def _space_of(name: str, values: dict[str, Any]) -> Space:
    """Return the space that `_space_values` wrote."""
    sides = {"low": float("-inf"), "high": float("inf")}
    filled = {
        key: _exchanged(one, lambda value: value is None, sides[key]) if key in sides else one
        for key, one in values.items()
    }
    return supported_space(name, space_from_json(json.dumps(filled)))


def _exchanged(value: Any, chosen: Callable[[Any], bool], other: Any) -> Any:
    """Return nested lists with ``other`` for every chosen entry."""
    if isinstance(value, list):
        return [_exchanged(one, chosen, other) for one in value]
    return other if chosen(value) else value


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def export_for_rllib(
    store: DatasetStore, dataset: str, out: Path, *, seed: int = 0, ledger_url: str | None = None
) -> Bridge:
    """Write a dataset as a bridge in the new folder ``out``.

    Args:
        store: where the dataset lies.
        dataset: its id.
        out: the folder to make; it must not exist.
        seed: public seed of the shuffle.
        ledger_url: the ledger that public rows are held against; None: ``PRIVRL_LEDGER`` or the
            user's data folder.

    Raises:
        ConfigError: no such dataset, ``out`` exists, or spaces or rows that no agent can use.
        UnsafeError: the dataset is neither released nor public.
        VerificationError: its files are not those that its certificate names.
        StorageError: the disk is full or cannot be written; nothing is left behind.
    """
    info = store.info(dataset)
    with contextlib.closing(Ledger(ledger_url)) as ledger:
        release = cleared(store, dataset, reader="RLlib", ledger=ledger)
    if out.exists():
        raise ConfigError(f"{out} exists already: choose another name")
    unit = TRAJECTORY if info.kind == "trajectories" else TRANSITION
    return write_bridge(
        proven(store.read_transitions(dataset, unit=unit), release),
        out,
        observation_space=info.observation_space,
        action_space=info.action_space,
        seed=seed,
    )


def write_bridge(
    transitions: Transitions,
    out: Path,
    *,
    observation_space: Space,
    action_space: Space,
    seed: int,
) -> Bridge:
    """Write released transitions as a bridge in the new folder ``out``, or nothing.

    Args:
        transitions: N >= 1 `ReleasedTransitions`; ``unit_ids`` become ``eps_id``.
        out: the folder to make.
        observation_space: Box or Discrete.
        action_space: Box with finite bounds, or Discrete.
        seed: public seed of the shuffle.

    Raises:
        ConfigError: spaces or rows that no agent can use.
        UnsafeError: the rows come without the proof that they may leave.
        StorageError: the disk is full or cannot be written.
    """
    release = proof_of(transitions, reader="RLlib")
    check_rows(transitions, observation_space)
    bridge = Bridge(
        folder=out,
        observation_space=observation_space,
        action_space=action_space,
        normalisation=fit_observations(observation_space, transitions.observations),
        parts=(),
        source=release.dataset,
        certificate_digest=release.certificate_digest,
        seed=seed,
    )
    bridge.to_json()  # raises where no agent can use the spaces
    order = order_of(transitions, seed)
    parts = []
    with storage_errors(f"write {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(out.parent) as unfinished:
            temporary = unfinished / out.name
            temporary.mkdir()
            for number, start in enumerate(range(0, len(order), FILE_ROWS)):
                path = temporary / f"transitions-{number:05d}.parquet"
                chosen = order[start : start + FILE_ROWS]
                pq.write_table(_table(transitions, chosen), path, use_dictionary=False)
                parts.append(Part(name=path.name, sha256=hash_output(path), rows=len(chosen)))
            bridge = replace(bridge, parts=tuple(parts))
            write_atomically(temporary / FILE_NAME, bridge.to_json())
            temporary.rename(out)
    return bridge


def order_of(transitions: Transitions, seed: int) -> NDArray[np.int64]:
    """Return the order that rows are shuffled into by a public seed."""
    return Streams(seed).numpy("rllib bridge").permutation(len(transitions))


def check_rows(transitions: Transitions, observation_space: Space) -> None:
    """Check that agents can be trained on rows.

    Raises:
        ConfigError: there are none, some are not finite, or the observations are MultiDiscrete.
    """
    if not len(transitions):
        raise ConfigError("transitions is empty: there is nothing to write")
    if isinstance(observation_space, MultiDiscrete):
        raise ConfigError(
            f"observation space must be a Box or Discrete for RLlib's agents: {observation_space}"
        )
    parts: Sequence[NDArray[Any]] = (
        transitions.observations,
        transitions.actions,
        transitions.rewards,
        transitions.next_observations,
    )
    if not all(np.isfinite(part).all() for part in parts):
        raise ConfigError("transitions hold values that are not finite: drop those rows first")


def _table(transitions: Transitions, order: NDArray[np.int64]) -> Any:
    """Return the rows at ``order`` as an Arrow table in RLlib's names."""
    columns = {}
    for name, field in COLUMNS.items():
        rows = getattr(transitions, field).take(order, axis=0)
        columns[name] = pa.array(rows.reshape(-1))
        if rows.ndim > 1:
            columns[name] = pa.FixedSizeListArray.from_arrays(columns[name], rows.shape[1])
    return pa.table(columns)
