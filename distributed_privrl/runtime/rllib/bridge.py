"""Released rows as Parquet for RLlib's offline data, a row a transition, and a JSON beside them.

RLlib reads rows in the order of the files: they are shuffled here, once, by a public seed.
"""

import json
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
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
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import check_may_leave
from distributed_privrl.data.spaces import Space, space_from_json, space_to_json, supported_space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Transitions

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Bridge:
    """A folder of Parquet files, and what ``bridge.json`` says of them.

    Args:
        folder: where they lie.
        observation_space: Box or Discrete.
        action_space: Box with finite bounds, or Discrete.
        normalisation: of the observations, fitted on these rows alone.
        rows: how many.
        source: id of the dataset that they come from.
        certificate_digest: of the certificate that they were released with; None: public rows.
        seed: public seed that they were shuffled by.
    """

    folder: Path
    observation_space: Space
    action_space: Space
    normalisation: Normalisation
    rows: int
    source: str
    certificate_digest: str | None
    seed: int

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the bridge in ``folder``.

        Raises:
            StorageError: there is none, or it is damaged.
        """
        path = folder / FILE_NAME
        with storage_errors(f"read {path}"):
            return cls.from_json(path.read_text(), folder)

    @classmethod
    def from_json(cls, text: str, folder: Path) -> Self:
        """Return the bridge in ``folder`` that ``bridge.json`` describes with ``text``.

        Raises:
            StorageError: the description is damaged.
        """
        try:
            values = json.loads(text)
            observation_space, action_space = (
                supported_space(name, space_from_json(json.dumps(values[name])))
                for name in ("observation_space", "action_space")
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
                rows=int(values["rows"]),
                source=str(values["source"]),
                certificate_digest=values["certificate_digest"],
                seed=int(values["seed"]),
            )
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{folder / FILE_NAME} is damaged: export the dataset again"
            ) from error

    def files(self) -> list[Path]:
        """Return the Parquet files, in the order of their rows."""
        return sorted(self.folder.glob("*.parquet"))

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
                "seed": self.seed,
                "observation_space": json.loads(space_to_json(self.observation_space)),
                "action_space": json.loads(space_to_json(self.action_space)),
                "action_bounds": bounds,
                "normalisation": {
                    "mean": self.normalisation.mean.tolist(),
                    "spread": self.normalisation.spread.tolist(),
                },
            },
            indent=2,
        )


def export_for_rllib(store: DatasetStore, dataset: str, out: Path, *, seed: int = 0) -> Bridge:
    """Write a dataset as a bridge in the new folder ``out``.

    Args:
        store: where the dataset lies.
        dataset: its id.
        out: the folder to make; it must not exist.
        seed: public seed of the shuffle.

    Raises:
        ConfigError: no such dataset, ``out`` exists, or spaces or rows that no agent can use.
        UnsafeError: the dataset is neither released nor declared public.
        StorageError: the disk is full or cannot be written; nothing is left behind.
    """
    info = store.info(dataset)
    check_may_leave(info, reader="RLlib")
    if out.exists():
        raise ConfigError(f"{out} exists already: choose another name")
    unit = TRAJECTORY if info.kind == "trajectories" else TRANSITION
    return write_bridge(
        store.read_transitions(dataset, unit=unit),
        out,
        observation_space=info.observation_space,
        action_space=info.action_space,
        source=dataset,
        certificate_digest=info.certificate.get("digest"),
        seed=seed,
    )


def write_bridge(
    transitions: Transitions,
    out: Path,
    *,
    observation_space: Space,
    action_space: Space,
    source: str,
    certificate_digest: str | None,
    seed: int,
) -> Bridge:
    """Write released transitions as a bridge in the new folder ``out``, or nothing.

    Args:
        transitions: N >= 1 of them; ``unit_ids`` become ``eps_id``.
        out: the folder to make.
        observation_space: Box or Discrete.
        action_space: Box with finite bounds, or Discrete.
        source: id of their dataset.
        certificate_digest: of the certificate that they were released with.
        seed: public seed of the shuffle.

    Raises:
        ConfigError: spaces or rows that no agent can use.
        StorageError: the disk is full or cannot be written.
    """
    _check_rows(transitions, observation_space)
    bridge = Bridge(
        folder=out,
        observation_space=observation_space,
        action_space=action_space,
        normalisation=fit_observations(observation_space, transitions.observations),
        rows=len(transitions),
        source=source,
        certificate_digest=certificate_digest,
        seed=seed,
    )
    description = bridge.to_json()
    order = Streams(seed).numpy("rllib bridge").permutation(len(transitions))
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with storage_errors(f"write {out}"):
            temporary.mkdir(parents=True)
            for number, start in enumerate(range(0, len(order), FILE_ROWS)):
                path = temporary / f"transitions-{number:05d}.parquet"
                chosen = order[start : start + FILE_ROWS]
                pq.write_table(_table(transitions, chosen), path, use_dictionary=False)
            write_atomically(temporary / FILE_NAME, description)
            temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return bridge


def _check_rows(transitions: Transitions, observation_space: Space) -> None:
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
