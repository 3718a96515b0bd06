"""Datasets in a folder or an object store, as Minari has them, written whole or not at all."""

import contextlib
import difflib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_dataset_id
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import (
    clear_unfinished,
    make_writable,
    remove_folder,
    storage_errors,
    write_atomically,
)
from distributed_privrl.core.places import ObjectUri, place_of
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data import episode_reader, table, writing
from distributed_privrl.data.declared import DeclaredTable
from distributed_privrl.data.episode_reader import EpisodeReader, Keep
from distributed_privrl.data.metadata import FILE_NAME as METADATA
from distributed_privrl.data.metadata import (
    DatasetInfo,
    Layout,
    check_metadata,
    info_of,
    read_values,
    stored_spaces,
)
from distributed_privrl.data.packing import unpack_rows
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Trajectories, Transitions
from distributed_privrl.data.transaction import check_new, new_dataset, open_files
from distributed_privrl.data.writing import new_info

if TYPE_CHECKING:
    from distributed_privrl.data.remote import RemoteDatasets

CHUNK_ROWS = 65_536
_DAMAGE = (LookupError, ValueError, TypeError, RuntimeError, OverflowError, MemoryError)
"""What h5py raises whose file was changed at will."""

Complete = Callable[[Path], Mapping[str, Any]]
"""Puts files beside the data, into a new dataset's folder, and returns further metadata."""

FOLDER_VARIABLE = "MINARI_DATASETS_PATH"
"""Names the folder of the datasets, to Minari and to us; to us a URI, too."""

_METADATA_PATH = f"data/{METADATA}"


class DatasetStore:
    """Reads and writes the datasets under one folder, or under a prefix of an object store.

    What is read from an object store is copied first, into a folder of this process (`remote`);
    paths are of the copy, and good for as long as this object is there.

    Args:
        root: the folder, or its URI (``s3://``, ``gs://``, ``file://``); by default
            ``MINARI_DATASETS_PATH``, else ``~/.minari/datasets``.

    Raises:
        ConfigError: no such scheme.
        UnsafeError: the URI holds credentials or options.
        StorageError: nothing can be asked of the object store.
    """

    def __init__(self, root: Path | str | None = None) -> None:
        default = os.environ.get(FOLDER_VARIABLE) or Path.home() / ".minari" / "datasets"
        named = FOLDER_VARIABLE if root is None else "the datasets' folder"
        place = place_of(named, root if root is not None else default)
        self._remote = _opened(place) if isinstance(place, ObjectUri) else None
        self._place = place

    @property
    def root(self) -> Path:
        """The folder; of an object store the folder of the copies that this process has."""
        return self._place if isinstance(self._place, Path) else self._copies.folder

    @property
    def place(self) -> str:
        """What opens the same store in another process: a URI, or an absolute path."""
        return str(self._place.absolute() if isinstance(self._place, Path) else self._place)

    @property
    def shown(self) -> str:
        """The store's name in messages."""
        return str(self._place)

    @property
    def is_remote(self) -> bool:
        """Whether it is an object store."""
        return self._remote is not None

    @property
    def _copies(self) -> "RemoteDatasets":
        assert self._remote is not None
        return self._remote

    def ids(self) -> list[str]:
        """Return the ids of all datasets."""
        if self._remote is not None:
            return self._remote.ids()
        found = self.root.glob(f"**/data/{METADATA}")
        ids = (path.parent.parent.relative_to(self.root).as_posix() for path in found)
        return sorted(name for name in ids if not name.startswith("."))

    def holds(self, dataset: str) -> bool:
        """Say whether there is such a dataset."""
        if self._remote is not None:
            return self._remote.holds(dataset)
        return (self.root / dataset / "data" / METADATA).is_file()

    def folder(self, dataset: str) -> Path:
        """Return the folder with all that belongs to a dataset.

        Raises:
            ConfigError: no such dataset.
        """
        return self._data_folder(dataset).parent

    def folder_of_outputs(self, outputs: Iterable[str]) -> Path:
        """Return the folder under which files of datasets lie, as certificates name them.

        Args:
            outputs: ids of files, ``DATASET/data/FILE``; others, and datasets that are not there,
                are left out.
        """
        if self._remote is not None:
            for dataset in {one.rpartition("/data/")[0] for one in outputs} - {""}:
                self._remote.copy(dataset)
        return self.root

    def info(self, dataset: str) -> DatasetInfo:
        """Return what is known of a dataset without reading its rows.

        Raises:
            ConfigError: no such dataset (the message lists similar ids), or unsupported spaces.
        """
        folder = self._data_folder(dataset, only=(_METADATA_PATH,))
        return info_of(dataset, read_values(folder), folder)

    def files(self, dataset: str) -> list[Path]:
        """Return the files that hold the rows, for hashing; metadata.json is not among them."""
        folder = self._data_folder(dataset)
        return sorted(path for path in folder.iterdir() if path.name != METADATA)

    def metadata_file(self, dataset: str) -> Path:
        """Return the file that says what the rows are."""
        return self._data_folder(dataset, only=(_METADATA_PATH,)) / METADATA

    def update_metadata(self, dataset: str, values: Mapping[str, Any]) -> None:
        """Add or replace metadata keys, e.g. ``privacy_certificate``, atomically.

        With a valid certificate or the declaration that it is public, others may read the files.

        Raises:
            ConfigError: no such dataset, a reserved key, or a value that is not JSON.
        """
        added = check_metadata(values)
        folder = self._data_folder(dataset, only=(_METADATA_PATH,))
        merged = {**read_values(folder), **added}
        write_atomically(folder / METADATA, json.dumps(merged), mode=0o600, beside=self.root)
        if self._remote is not None:
            self._remote.publish(dataset, only=(_METADATA_PATH,))
        elif info_of(dataset, merged, folder).may_leave:
            open_files(folder)

    def changed(self, dataset: str) -> None:
        """Publish what was changed in `folder`, where the store is another one.

        Raises:
            StorageError: it cannot be written.
        """
        if self._remote is not None:
            self._remote.publish(dataset)

    def clear(self) -> None:
        """Remove what killed writers left unfinished among the datasets."""
        if self._remote is not None:
            self._remote.clear()
        else:
            clear_unfinished(self.root)

    def check_new(self, dataset: str) -> None:
        """Check that a new dataset may be written.

        Raises:
            ConfigError: the id is malformed, taken, or lies inside another dataset.
        """
        if self._remote is not None:
            self._remote.check_new(dataset)
        else:
            check_new(self.root, dataset)

    def check_writable(self, dataset: str) -> None:
        """Check that files can be made where a dataset of this id would lie; of a folder alone.

        Args:
            dataset: its id; whether it is free is not looked at.

        Raises:
            StorageError: they cannot.
        """
        if self._remote is None:
            above = [one for one in (self.root / dataset).parents if one.is_relative_to(self.root)]
            make_writable(self.root)
            make_writable(next(one for one in above if one.exists()))

    @contextlib.contextmanager
    def new(self, dataset: str, *, may_leave: bool) -> Iterator[Path]:
        """Yield the data folder of a new dataset, which is there once the block has ended.

        Args:
            dataset: the new id.
            may_leave: as in `new_dataset`; who may read an object its store says alone.

        Raises:
            ConfigError: as in `check_new`.
            StorageError: it cannot be written; no reader sees anything of it.
        """
        if self._remote is None:
            with new_dataset(self.root, dataset, may_leave=may_leave) as folder:
                yield folder
            return
        self._remote.check_new(dataset)
        self._remote.forget(dataset)
        with new_dataset(self.root, dataset, may_leave=False) as folder:
            yield folder
        self._remote.publish(dataset, new=True)

    def remove(self, dataset: str) -> None:
        """Remove a dataset, whole and at once, if it is there.

        Raises:
            ConfigError: the id is malformed.
            StorageError: it cannot be removed.
        """
        check_dataset_id("dataset", dataset)
        if self._remote is not None:
            self._remote.remove(dataset)
        else:
            remove_folder(self.root / dataset, beside=self.root)

    def write_trajectories(
        self,
        dataset: str,
        trajectories: Trajectories | Iterable[Trajectories],
        *,
        observation_space: Space,
        action_space: Space,
        layout: Layout = "episodes",
        environment: str | None = None,
        unit_column: str | None = None,
        declared: DeclaredTable | None = None,
        metadata: Mapping[str, Any] | None = None,
        complete: Complete | None = None,
    ) -> None:
        """Write a new dataset of trajectories, for its owner alone unless it is public.

        Args:
            dataset: the new id.
            trajectories: all of them, or chunks, which are written as they come.
            observation_space: Box, Discrete or MultiDiscrete.
            action_space: Box, Discrete or MultiDiscrete.
            layout: ``"episodes"``: a Minari episode each; ``"packed"``: a Parquet table and one
                packed episode beside it, for very many short trajectories. A packed trajectory has
                steps and ends at its first terminated or truncated one; the last step is marked
                truncated if it is neither.
            environment: Gymnasium id of their environment.
            unit_column: name of the column that ``unit_ids`` come from; without it the unit ids
                are not kept, and a trajectory is named by its position.
            declared: what a schema says of the columns of the table that they come from.
            metadata: further keys, JSON values.
            complete: writes more once the rows are there, before the dataset is.

        Raises:
            ConfigError: the id is malformed or taken, the rows do not fit the spaces or the layout,
                or are none.
            StorageError: the disk is full or cannot be written; nothing is left behind.
        """
        chunks = [trajectories] if isinstance(trajectories, Trajectories) else trajectories
        info = new_info(
            dataset,
            kind="trajectories",
            layout=layout,
            observation_space=observation_space,
            action_space=action_space,
            environment=environment,
            unit_column=unit_column,
            declared=declared,
            metadata=metadata,
        )
        with self.new(dataset, may_leave=info.may_leave) as folder:
            writing.write_trajectories(folder, info, chunks)
            _complete(folder, complete)

    def write_transitions(
        self,
        dataset: str,
        transitions: Transitions | Iterable[Transitions],
        *,
        layout: Layout,
        observation_space: Space,
        action_space: Space,
        environment: str | None = None,
        unit_column: str | None = None,
        declared: DeclaredTable | None = None,
        has_successors: bool = True,
        metadata: Mapping[str, Any] | None = None,
        complete: Complete | None = None,
    ) -> None:
        """Write a new dataset of independent transitions: Parquet, and a Minari file beside it.

        As with trajectories, it is its owner's alone unless it is public.

        Args:
            dataset: the new id.
            transitions: all of them, or chunks, which are written as they come.
            layout: of the Minari file. ``"transitions"``: one packed episode, the successors in
                ``infos/next_observation``; ``"episodes"``: one step each, marked truncated where
                not terminated, for plain consumers, at most 50,000 rows.
            observation_space: as in `write_trajectories`.
            action_space: as in `write_trajectories`.
            environment: as in `write_trajectories`.
            unit_column: name of the column that ``unit_ids`` come from; without it each row is a
                unit, named by its position.
            declared: as in `write_trajectories`.
            has_successors: False: nothing follows a row; each is terminated and repeats its
                observation as the next one.
            metadata: further keys, JSON values.
            complete: as in `write_trajectories`.

        Raises:
            ConfigError: the id is malformed or taken, the rows do not fit the spaces, are none, or
                too many for ``layout="episodes"``.
            StorageError: the disk is full or cannot be written; nothing is left behind.
        """
        chunks = [transitions] if isinstance(transitions, Transitions) else transitions
        info = new_info(
            dataset,
            kind="transitions",
            layout=layout,
            observation_space=observation_space,
            action_space=action_space,
            environment=environment,
            unit_column=unit_column,
            declared=declared,
            metadata=metadata,
            has_successors=has_successors,
        )
        with self.new(dataset, may_leave=info.may_leave) as folder:
            writing.write_transitions(folder, info, chunks)
            _complete(folder, complete)

    def check_unit(self, dataset: str, unit: str) -> None:
        """Check that a dataset knows ``unit``.

        Raises:
            ConfigError: it does not (the message lists what it knows), or there is no such dataset.
        """
        _check_unit(self.info(dataset), unit)

    def iter_transitions(
        self,
        dataset: str,
        *,
        unit: str,
        chunk_rows: int = CHUNK_ROWS,
        keep: Keep | None = None,
    ) -> Iterator[Transitions]:
        """Yield a dataset's transitions in order, a chunk at a time.

        Args:
            dataset: its id.
            unit: ``"transition"``, ``"trajectory"`` (both named by position) or the dataset's unit
                column (named by the hash of its value).
            chunk_rows: rows held at a time.
            keep: unit ids (N,) to a mask (N,): rows of other units are left out.

        Raises:
            ConfigError: no such dataset, or the dataset does not know this unit.
            StorageError: the dataset is damaged.
        """
        info = self.info(dataset)
        _check_unit(info, unit)
        _check_chunk_rows(chunk_rows)
        return self._chunks(info, unit, chunk_rows, keep)

    def read_transitions(self, dataset: str, *, unit: str) -> Transitions:
        """Return all transitions of a dataset; see `iter_transitions`."""
        return Transitions.concatenate(list(self.iter_transitions(dataset, unit=unit)))

    def iter_unit_ids(self, dataset: str, unit: str | None = None) -> Iterator[NDArray[np.uint64]]:
        """Yield the ids of a dataset's units, (N,) at a time, each at least once.

        Those of trajectories without steps are among them.

        Args:
            dataset: its id.
            unit: ``"trajectory"``, or the unit column's name; None: the unit column.

        Raises:
            ConfigError: no such dataset, it has no unit column, or it does not know this unit.
            StorageError: the dataset is damaged.
        """
        info = self.info(dataset)
        if unit == TRAJECTORY:
            _check_unit(info, unit)
            yield np.arange(info.total_trajectories.open(Purpose.STORAGE), dtype=np.uint64)
            return
        if info.unit_column is None or unit not in (None, info.unit_column):
            raise ConfigError(f"dataset {dataset!r} has no unit column {unit or ''}".rstrip())
        folder = self._data_folder(dataset)
        with _reading(dataset):
            if info.has_table:
                yield from table.read_unit_ids(folder / table.FILE_NAME)
                return
            with self._episodes(info) as reader:
                yield reader.unit_ids(read_values(folder)["total_episodes"])

    def iter_trajectories(
        self,
        dataset: str,
        *,
        unit: str,
        chunk_rows: int = CHUNK_ROWS,
        keep: Keep | None = None,
        most_rows: int | None = None,
    ) -> Iterator[Trajectories]:
        """Yield a dataset's trajectories in order, whole, about ``chunk_rows`` steps at a time.

        Args:
            dataset: its id.
            unit: ``"trajectory"`` (named by position) or the dataset's unit column (named by the
                hash of its value).
            chunk_rows: steps held at a time; a longer trajectory is held whole.
            keep: unit ids (N,) to a mask (N,): trajectories of other units are left out.
            most_rows: of a trajectory, above zero; a longer one is cut there and marked truncated,
                and what is left out needs no memory; None: all are read whole.

        Raises:
            ConfigError: no such dataset, it holds independent transitions, or it does not know
                this unit.
            StorageError: the dataset is damaged.
        """
        info = self.info(dataset)
        if info.kind == "transitions":
            raise ConfigError(f"dataset {dataset!r} holds independent transitions, no trajectories")
        _check_unit(info, unit)
        if unit == TRANSITION:
            others = " or ".join(filter(None, (TRAJECTORY, info.unit_column)))
            raise ConfigError(f"unit of whole trajectories must be {others}, got {unit!r}")
        _check_chunk_rows(chunk_rows)
        return self._trajectories(info, unit, chunk_rows, keep, most_rows)

    def read_trajectories(self, dataset: str) -> Trajectories:
        """Return all trajectories of a dataset, with the unit column's ids or their positions.

        Raises:
            ConfigError: no such dataset, or it holds independent transitions.
            StorageError: the dataset is damaged.
        """
        unit = self.info(dataset).unit_column or TRAJECTORY
        return Trajectories.concatenate(list(self.iter_trajectories(dataset, unit=unit)))

    def _chunks(
        self, info: DatasetInfo, unit: str, chunk_rows: int, keep: Keep | None
    ) -> Iterator[Transitions]:
        folder = self._data_folder(info.id)
        if info.has_table:
            with _reading(info.id):
                yield from table.read_table(
                    folder / table.FILE_NAME, info.id, unit=unit, chunk_rows=chunk_rows, keep=keep
                )
            return
        with _reading(info.id), self._episodes(info) as reader:
            episodes = read_values(folder)["total_episodes"]
            ids = None if unit == TRANSITION else _unit_ids(reader, episodes, unit)
            yield from reader.transitions(
                reader.lengths(episodes), ids, chunk_rows=chunk_rows, keep=keep
            )

    def _trajectories(
        self,
        info: DatasetInfo,
        unit: str,
        chunk_rows: int,
        keep: Keep | None,
        most_rows: int | None,
    ) -> Iterator[Trajectories]:
        if info.has_table:
            chunks = self._chunks(info, unit, chunk_rows, keep)
            yield from unpack_rows(chunks, info.id, most_rows=most_rows)
            return
        with _reading(info.id), self._episodes(info) as reader:
            ids = _unit_ids(reader, info.total_trajectories.open(Purpose.STORAGE), unit)
            yield from reader.trajectories(
                reader.lengths(len(ids)),
                ids,
                chunk_rows=chunk_rows,
                keep=keep,
                most_rows=most_rows,
            )

    def _episodes(self, info: DatasetInfo) -> EpisodeReader:
        folder = self._data_folder(info.id)
        values = read_values(folder)
        spaces = stored_spaces(values, folder)
        reader = EpisodeReader(folder / episode_reader.FILE_NAME, info.id, *spaces)
        reader.check_count(values["total_episodes"])
        return reader

    def _data_folder(self, dataset: str, *, only: Sequence[str] = ()) -> Path:
        """Return the data folder; of a copy, ``only`` names the files that are wanted."""
        check_dataset_id("dataset", dataset)
        if self._remote is not None:
            copied = self._remote.copy(dataset, only=only)
            exists, folder = copied is not None, Path() if copied is None else copied / "data"
        else:
            folder = self.root / dataset / "data"
            with storage_errors(f"read {folder}"):
                exists = (folder / METADATA).is_file()
        if not exists:
            known = self.ids()
            near = difflib.get_close_matches(dataset, known, n=3, cutoff=0.4) or known[:3]
            advice = f"it has {', '.join(near)}, other data" if near else "the folder holds none"
            raise ConfigError(
                f"no dataset {dataset!r} in {self.shown}: {advice}; if it lies elsewhere, set"
                f" {FOLDER_VARIABLE} to the folder that holds it"
            )
        return folder


def _complete(folder: Path, complete: Complete | None) -> None:
    """Have more written beside the rows in ``folder``, and keep what is said of it."""
    if complete is not None:
        values = {**read_values(folder), **check_metadata(complete(folder.parent))}
        (folder / METADATA).write_text(json.dumps(values))


@contextlib.contextmanager
def _reading(dataset: str) -> Iterator[None]:
    try:
        with storage_errors(f"read dataset {dataset}"):
            yield
    except _DAMAGE as error:
        reason = " ".join(str(error).split())
        raise StorageError(f"dataset {dataset!r} is damaged ({reason}): write it again") from error


def _opened(uri: ObjectUri) -> "RemoteDatasets":
    """Import Arrow's file systems, which a folder does without, and open a prefix."""
    from distributed_privrl.data.remote import RemoteDatasets

    return RemoteDatasets(uri)


def _check_chunk_rows(chunk_rows: int) -> None:
    if chunk_rows < 1:
        raise ConfigError(f"chunk_rows must be at least 1, got {chunk_rows}")


def _check_unit(info: DatasetInfo, unit: str) -> None:
    known = [TRANSITION, *([TRAJECTORY] if info.kind == "trajectories" else [])]
    known += [info.unit_column] if info.unit_column else []
    if unit not in known:
        named = (
            f"; to have {unit!r}, name it under columns: unit in the schema (of documents under"
            " text: unit) and import again"
        )
        raise ConfigError(
            f"dataset {info.id!r} has no unit {unit!r}: it knows {', '.join(known)}"
            f"{'' if unit == TRAJECTORY else named}"
        )


def _unit_ids(reader: EpisodeReader, episodes: int, unit: str) -> NDArray[np.uint64]:
    if unit == TRAJECTORY:
        return np.arange(episodes, dtype=np.uint64)
    return reader.unit_ids(episodes)
