"""The files of a new dataset, from chunks of trajectories or of transitions."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.data import episode_reader, table
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.episode_writer import EpisodeWriter, PackedWriter
from distributed_privrl.data.metadata import FILE_NAME as METADATA
from distributed_privrl.data.metadata import (
    DatasetInfo,
    Kind,
    Layout,
    build_metadata,
    check_metadata,
)
from distributed_privrl.data.packing import pack_rows
from distributed_privrl.data.spaces import Space, check_part, supported_space
from distributed_privrl.data.trajectories import (
    TRAJECTORY,
    TRANSITION,
    Trajectories,
    Transitions,
    single_steps,
)

Rows = TypeVar("Rows", Trajectories, Transitions)

MOST_EPISODES = 50_000
_LAYOUTS: dict[Kind, tuple[Layout, ...]] = {
    "trajectories": ("episodes", "packed"),
    "transitions": ("transitions", "episodes"),
}


def new_info(
    dataset: str,
    *,
    kind: Kind,
    layout: Layout,
    observation_space: Space,
    action_space: Space,
    environment: str | None,
    unit_column: str | None,
    declared: DeclaredTable | None,
    metadata: Mapping[str, Any] | None,
    has_successors: bool = True,
) -> DatasetInfo:
    """Return what is known of a dataset before its rows are counted.

    Raises:
        ConfigError: a layout, space, unit column or metadata that cannot be.
    """
    if layout not in _LAYOUTS[kind]:
        raise ConfigError(f"layout of {kind} must be {' or '.join(_LAYOUTS[kind])}, got {layout!r}")
    if unit_column in (TRANSITION, TRAJECTORY, ""):
        raise ConfigError(f"unit_column must be a column's name, got {unit_column!r}")
    return DatasetInfo(
        id=dataset,
        kind=kind,
        layout=layout,
        observation_space=supported_space("observation_space", observation_space),
        action_space=supported_space("action_space", action_space),
        total_steps=Sensitive(0),
        total_trajectories=Sensitive(0),
        environment=environment,
        unit_column=unit_column,
        declared=declared,
        has_successors=has_successors,
        metadata=Sensitive(check_metadata(metadata or {})),
    )


def write_trajectories(folder: Path, info: DatasetInfo, chunks: Iterable[Trajectories]) -> None:
    """Write the files of trajectories into an empty data folder.

    Raises:
        ConfigError: the rows do not fit the spaces or the layout, or are none.
        OSError: a write failed.
    """
    if info.layout == "episodes":
        with _episode_writer(folder, info) as writer:
            for chunk in chunks:
                writer.write(_fitting(chunk, info))
        _finish(folder, replace(info, total_trajectories=Sensitive(writer.episodes)), writer)
        return
    count = 0

    def packed() -> Iterator[Transitions]:
        nonlocal count
        for chunk in chunks:
            count += len(chunk)
            yield pack_rows(chunk)

    rows_writer = _write_rows(folder, info, packed())
    _finish(folder, replace(info, total_trajectories=Sensitive(count)), rows_writer)


def write_transitions(folder: Path, info: DatasetInfo, chunks: Iterable[Transitions]) -> None:
    """Write the files of independent transitions into an empty data folder.

    Raises:
        ConfigError: the rows do not fit the spaces, are none, or too many for layout episodes.
        OSError: a write failed.
    """
    _finish(folder, info, _write_rows(folder, info, chunks))


def _write_rows(
    folder: Path, info: DatasetInfo, chunks: Iterable[Transitions]
) -> EpisodeWriter | PackedWriter:
    """Write the table and the Minari file beside it; return the latter's closed writer."""
    writer = (_episode_writer if info.layout == "episodes" else _packed_writer)(folder, info)
    units = info.unit_column is not None
    with writer, table.TableWriter(folder / table.FILE_NAME, with_units=units) as rows:
        for chunk in map(partial(_fitting, info=info), chunks):
            rows.write(chunk)
            if isinstance(writer, PackedWriter):
                writer.write(chunk)
            else:
                _check_episode_count(writer.steps + len(chunk))
                writer.write(single_steps(chunk))
    return writer


def _episode_writer(folder: Path, info: DatasetInfo) -> EpisodeWriter:
    spaces, units = (info.observation_space, info.action_space), info.unit_column is not None
    return EpisodeWriter(folder / episode_reader.FILE_NAME, *spaces, with_units=units)


def _packed_writer(folder: Path, info: DatasetInfo) -> PackedWriter:
    spaces, units = (info.observation_space, info.action_space), info.unit_column is not None
    return PackedWriter(folder / episode_reader.FILE_NAME, *spaces, with_units=units)


def _fitting(chunk: Rows, info: DatasetInfo) -> Rows:
    """Return the rows in the types of their spaces."""
    spaces = {"actions": info.action_space}
    spaces |= dict.fromkeys(("observations", "next_observations"), info.observation_space)
    names = {field.name for field in fields(chunk)}
    parts = {n: check_part(n, s, getattr(chunk, n)) for n, s in spaces.items() if n in names}
    return replace(chunk, **parts)


def _check_episode_count(count: int) -> None:
    if count > MOST_EPISODES:
        raise ConfigError(
            f"layout 'episodes' holds at most {MOST_EPISODES:,} rows, got at least {count:,}:"
            " use layout 'transitions'"
        )


def _finish(folder: Path, info: DatasetInfo, writer: EpisodeWriter | PackedWriter) -> None:
    if writer.steps == 0:
        raise ConfigError(f"dataset {info.id!r} would hold no steps: nothing was written")
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    values = build_metadata(
        replace(info, total_steps=Sensitive(writer.steps)),
        episodes=writer.episodes,
        size_megabytes=size,
    )
    (folder / METADATA).write_text(json.dumps(values))
